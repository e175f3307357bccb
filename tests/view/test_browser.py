"""A person at the page: Chromium turns its knobs and streams signals.

Run with STATESPAN_TEST_BROWSER=1 where chromium and chromedriver are installed.
"""

import wave

import numpy as np
import pytest

from statespan import Stream
from statespan.view import Api
from tests.view.browser import Browser
from tests.view.serve import served, trained

pytestmark = pytest.mark.browser
LINES = "return charts.{}.lines.map((line) => [...line.y])"
DONE = "return run.samples && run.outputs.length && !run.stream"


@pytest.fixture(scope="module")
def model():
    return trained("digits-s4d")


@pytest.fixture(scope="module")
def server(model):
    with served(Api(model, "digits-s4d")) as running:
        yield running


@pytest.fixture(scope="module", params=[(1280, 900, False), (390, 844, True)], ids=["wide", "phone"])
def page(request, server):
    with Browser(*request.param) as browser:
        browser.open(server.url)
        browser.until("return document.getElementById('layer').dataset.shown", "the first curves")
        yield browser
        (refused,) = browser.messages()  # no other error, and nothing that the policy of the page forbids
        assert "/api/file - Failed to load resource: the server responded with a status of 400" in refused


def settled(page, act):
    """Act, and wait for other curves than before."""
    page.run("window.before = JSON.stringify(charts.kernels.lines)")
    act()
    page.until("return !busy && JSON.stringify(charts.kernels.lines) !== window.before", "other curves")
    assert page.run("return document.getElementById('problem').hidden")


def test_the_page_fits_and_every_chart_has_ink(page):
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    shades = """return [...document.querySelectorAll('#layer canvas')].map((canvas) => {
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(pixels.buffer)).size; })"""
    assert min(page.run(shades)) > 20
    small = """return [...document.querySelectorAll('input, select, button')].filter((item) => item.offsetParent)
        .filter((item) => item.scrollWidth > item.clientWidth + 2 || item.getBoundingClientRect().right > innerWidth)
        .map((item) => item.id)"""
    assert page.run(small) == []
    assert "digits-s4d: classifier, 2 SSM layers" in page.text("#about")


def test_knobs_of_an_untrained_layer_move_its_curves(page):
    for source in ("s4", "lssl", "s5", "lru", "dss", "s4d"):
        settled(page, lambda source=source: page.choose("#source", source))
        assert page.run("return document.getElementById('layer').dataset.shown").startswith(source.upper())
    for selector, value in (("#init", "inv"), ("#discretization", "foh"), ("#d_state", "4"), ("#length", "64")):
        settled(page, lambda selector=selector, value=value: page.choose(selector, value))
    for selector in ("#dt_min", "#dt_max", "#real_scale", "#imag_scale"):
        settled(page, lambda selector=selector: page.slide(selector, -3))
    settled(page, lambda: page.click("#single"))
    assert page.run("return document.getElementById('row-dt_max').hidden")
    settings = page.run("return settings()")
    assert settings["dt_min"] == settings["dt_max"]
    assert len(set(page.run("return charts.kernels.lines.map((line) => line.label.split(' = ')[1])"))) == 1
    page.click("#single")
    settled(page, lambda: page.slide("#dt_max", -399))  # past the smallest Δ, which it pushes
    settings = page.run("return settings()")
    assert settings["dt_min"] <= settings["dt_max"] < 0.001
    settled(page, lambda: page.click("#reset"))
    assert page.text("#out-dt_max") == "0.1"


def test_a_layer_of_the_model_is_drawn_at_another_sampling_rate(page, model):
    settled(page, lambda: page.choose("#source", "part 1"))
    settled(page, lambda: page.choose("#head", "7"))
    settled(page, lambda: page.slide("#dt_scale", 40))
    factor = page.run("return settings().dt_scale")
    assert factor > 1.4
    (drawn,) = page.run(LINES.format("kernels"))
    structure = Api(model).parts[1].layer.structure(factor)
    kernel = structure.kernel(512)[0, 7].detach()
    np.testing.assert_allclose(drawn, kernel / kernel.abs().max(), atol=1e-6)


def test_a_signal_streams_sample_by_sample(page, model):
    page.choose("#kind", "impulse")
    page.run("document.getElementById('samples').value = 30; document.getElementById('speed').value = 10")
    page.click("#start")
    page.until("return run.outputs.length > 3", "outputs")
    page.click("#pause")
    page.until("return !run.active", "a pause")
    count = page.run("return run.outputs.length")
    assert count < 30
    page.choose("#speed", "200")
    page.click("#pause")
    page.until(DONE, "the end")
    outputs = page.run("return run.outputs")
    own = Stream(model)
    samples = np.zeros((30, 1))
    samples[8] = 16
    wanted = [own.push(x[None])[0].double().softmax(-1).tolist() for x in model.inputs(samples)[0]]
    assert outputs == wanted
    best = int(np.argmax(wanted[-1]))
    assert page.text("#readout") == f"sample 30: {best}, {100 * wanted[-1][best]:.1f} %"


def test_a_file_streams(page, tmp_path):
    with wave.open(str(tmp_path / "tone.wav"), "wb") as writer:
        writer.setparams((1, 2, 16000, 0, "NONE", ""))
        writer.writeframes((8000 * np.sin(np.arange(100))).astype("<i2").tobytes())
    (tmp_path / "wrong.csv").write_text("1,2\n3,4\n")
    page.choose("#kind", "file")
    page.type("#file", str(tmp_path / "wrong.csv"))
    said = page.until("return document.getElementById('problem').textContent", "a message")
    assert said == "the file must have 1 column, as the model reads, got 2"
    page.run("document.getElementById('file').value = ''")
    page.type("#file", str(tmp_path / "tone.wav"))
    page.until("return run.samples.length === 100", "the file")
    assert page.run("return document.getElementById('problem').hidden")
    page.choose("#every", "10")
    page.choose("#speed", "0")
    page.click("#start")
    page.until(DONE, "the end")
    assert page.run("return run.places") == [*range(10, 101, 10)]
