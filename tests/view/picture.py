"""Draws docs/view/page.png: ``python -m tests.view.picture``; needs chromium, chromedriver and pillow."""

import io
from pathlib import Path

from PIL import Image

from statespan.view import Api
from tests.view.browser import Browser
from tests.view.serve import served, trained

TARGET = Path(__file__).parents[2] / "docs" / "view" / "page.png"


def main():
    """Take the picture with few colours, which makes it small."""
    with served(Api(trained("digits-s4d"), "digits-s4d")) as server, Browser(1180, 900) as page:
        page.open(server.url)
        page.until("return document.getElementById('layer').dataset.shown", "the first curves")
        page.choose("#source", "s4d")
        page.slide("#imag_scale", -20)
        page.choose("#kind", "chirp")
        page.choose("#speed", "0")
        page.click("#start")
        page.until("return run.outputs.length === 256 && !run.stream", "the outputs")
        page.run("scrollTo(0, 0); document.activeElement.blur()")
        page.until("return !busy", "the curves")
        content = page.picture()
    Image.open(io.BytesIO(content)).convert("RGB").quantize(96).save(TARGET, optimize=True)


if __name__ == "__main__":
    main()
