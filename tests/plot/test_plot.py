"""Pictures: of every kind, of fresh layers and of trained ones, with the right numbers in them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from statespan import _plotting as _look
from statespan import plot
from statespan.train import fit, read_recipe
from tests.cli.make import invoke, one_line, write_own
from tests.pictures import cut_text

KINDS = ("kernels", "basis", "eigenvalues", "response", "impulse", "steps")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    fit(read_recipe(write_own(folder), ["model.n_layers=2"]), folder / "run", progress=False)
    return folder / "run"


@pytest.mark.parametrize("layer", ["s4", "s4d", "dss", "lssl", "s5", "lru"])
def test_every_kind_of_every_layer(layer):
    parts = plot.fresh(layer, {"d_model": 6, "d_state": 8})
    for kind in KINDS:
        figure = getattr(plot, kind)(parts)
        shown = [axes for axes in figure.axes if axes.get_visible()]
        assert all(axes.get_xlabel() and axes.get_ylabel() for axes in shown if axes.get_label() != "<colorbar>")
        assert _look.content(figure)[:4] == b"\x89PNG"
        assert cut_text(figure) == []
    assert plot.filters(parts, side=4).axes


def test_kernels_are_those_of_the_layer():
    part = plot.fresh("s4d", {"d_model": 3, "init": "lin"})[0]
    lines = plot.kernels([part], length=50, heads=3).axes[0].lines
    kernel = part.layer.structure().kernel(50)[0].detach()
    order = torch.argsort(part.layer.structure().dt)
    for line, head in zip(lines, order):
        np.testing.assert_allclose(line.get_ydata(), kernel[head] / kernel[head].abs().max(), atol=1e-6)


def test_the_gallery_says_how_long_impulse_responses_last():
    """Its rounded numbers are those of the layer in the picture."""
    (part,) = plot.fresh("s4", {"init": "legs"})
    kernel = part.layer.structure().kernel(4096)[0].detach().abs()
    kernel = kernel[torch.argsort(part.layer.structure().dt)]
    last = [int((row > 0.1 * row.max()).nonzero().max()) for row in kernel]
    page = " ".join((Path(__file__).parents[2] / "docs/gallery.md").read_text().split())
    small, large = last[:8], last[-8:]
    assert f"after {round(min(large), -1)} to {round(max(large), -1)} samples" in page
    assert f"after {round(min(small), -2)} to {round(max(small), -2):,}." in page


def test_the_basis_of_lssl_is_legendre():
    part = plot.fresh("lssl", {"d_model": 1, "d_state": 32})[0]
    from statespan.papers.tables.theory import legs_functions

    for line, wanted in zip(plot.basis([part]).axes[0].lines, legs_functions(torch.linspace(0, 4, 1200), 5)):
        np.testing.assert_allclose(line.get_ydata(), wanted, atol=1e-5)


def test_errors_fall_with_the_order_of_the_discretization():
    part = plot.fresh("s4d", {"d_model": 2, "init": "lin", "d_state": 8})[0]
    lines = {line.get_label(): line.get_ydata() for line in plot.accuracy([part]).axes[0].lines}
    for rule, order in {"zoh": 1, "bilinear": 1, "foh": 2}.items():
        ratios = lines[rule][-3:-1] / lines[rule][-2:]
        np.testing.assert_allclose(ratios, 2**order, rtol=0.06)
    for layer in ("s4", "dss"):
        with pytest.raises(ValueError, match="accuracy needs layers with a diagonal state matrix and no softmax"):
            plot.accuracy(plot.fresh(layer))


def test_the_response_is_that_of_waves():
    """A kernel's answer to a wave of frequency f has the size the picture says."""
    part = plot.fresh("s4d", {"d_model": 1, "d_state": 4, "dt_min": 0.05, "dt_max": 0.05})[0]
    line = plot.response([part], length=2048, heads=1).axes[0].lines[0]
    kernel = part.layer.structure().kernel(2048)[0, 0].detach().double()
    sizes = []
    for place in (40, 400):
        frequency = float(line.get_xdata()[place])
        wave = torch.exp(-2j * torch.pi * frequency * torch.arange(2048, dtype=torch.float64))
        sizes.append(20 * torch.log10((kernel * wave).sum().abs()))
    assert line.get_ydata()[40] - line.get_ydata()[400] == pytest.approx(float(sizes[0] - sizes[1]), abs=1e-4)


def test_pictures_are_the_same_every_time_and_colours_differ():
    parts = plot.fresh("s4d", {"d_model": 4})
    for kind in ("png", "svg"):
        assert _look.content(plot.kernels(parts), kind) == _look.content(plot.kernels(parts), kind)
    # as people without red or green receptors see them (Viénot 1999), neighbours stay apart
    colors = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in _look.COLORS[:6]]) ** 2.2
    for blind in ([[0.1124, 0.8876, 0], [0.1124, 0.8876, 0], [0.004, -0.004, 1]],
                  [[0.2927, 0.7073, 0], [0.2927, 0.7073, 0], [-0.0223, 0.0223, 1]]):  # fmt: skip
        seen = np.clip(colors @ np.array(blind).T, 0, 1) ** (1 / 2.2)
        apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
        assert apart[~np.eye(6, dtype=bool)].min() > 0.12


def test_the_command(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("plot", "kernels", "--layer", "s4d", "--init", "lin", "d_model=4", "init_options.imag_scale=0.1")
    assert (done.exit_code, sorted(p.name for p in tmp_path.iterdir())) == (0, ["kernels.png", "kernels.svg"])
    for kind in (*KINDS, "curves"):
        done = invoke("plot", kind, run, "--out", tmp_path / f"{kind}.svg")
        assert done.exit_code == 0, done.stderr
        assert (tmp_path / f"{kind}.svg").read_text().count("<svg") == 1
    assert invoke("plot", "filters", run, "--side", 6, "--out", "f.png").exit_code == 0
    assert invoke("plot", "steps", run / "model", "--out", "s.png").exit_code == 0
    assert len(plot.read_parts(run)) == 2


def test_forecasts_of_a_run(tmp_path):
    rows = "\n".join(f"2024-01-{1 + i // 24:02d} {i % 24:02d}:00:00,{np.sin(i / 4):.4f}" for i in range(400))
    (tmp_path / "a.csv").write_text(f"date,OT\n{rows}\n")
    recipe = {
        "name": "own",
        "data": {"name": "csv-forecast", "file": str(tmp_path / "a.csv"), "context": 24, "horizon": 8},
        "model": {"name": "forecaster", "layer": "s4d", "d_model": 4, "d_state": 4, "n_layers": 1},
        "train": {"steps": 2, "batch": 8, "tensorboard": False},
    }
    fit(read_recipe(recipe), tmp_path / "run", progress=False)
    figure = plot.forecasts(tmp_path / "run", count=2)
    past, came, forecast, _ = figure.axes[0].lines
    assert [len(line.get_xdata()) for line in (past, came, forecast)] == [24, 8, 8]
    done = invoke("plot", "forecasts", tmp_path / "run", "--out", tmp_path / "f.png")
    assert done.exit_code == 0, done.stderr


MISTAKES = {
    "no kind": ([], "KIND must be one of kernels"),
    "unknown kind": (["kernel"], "did you mean kernels?"),
    "ending": (["kernels", "--out", "a.pdf"], "must end in .png or .svg"),
    "folder": (["kernels", "--out", "no/a.png"], "--out must be a file in an existing folder"),
    "layer": (["kernels", "--layer", "s6"], "layer must be one of"),
    "init": (["kernels", "--init", "lins"], "init must be one of"),
    "option": (["kernels", "d_stat=4"], "got 'd_stat'; did you mean d_state?"),
    "value": (["kernels", "d_state=5"], "d_state must be"),
    "value of a number": (["kernels", "d_state=4", "d_state.a=5"], "option d_state.a=5: d_state is 4, not a section"),
    "length": (["kernels", "--length", "0"], "length must be an integer >= 2"),
    "another kind's option": (["steps", "--length", "4"], "--length is not an option of steps"),
    "source": (["kernels", "nowhere"], "SOURCE must be the folder of a run or of a saved model"),
    "no model in it": (["kernels", "."], "config.json"),
    "curves": (["curves"], "curves needs the folder of a run"),
    "side": (["filters"], "--side must be the number of pixels"),
    "both": (["kernels", ".", "d_state=4"], "give one or the other"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, said = MISTAKES[name]
    done = invoke("plot", *arguments)
    assert said in one_line(done, 1 if name == "no model in it" else 2)
    assert list(tmp_path.iterdir()) == []
