"""The notebooks run from top to bottom, and each cell gives the result that the page shows."""

import ast
import base64
import io
import json
import re
from contextlib import redirect_stdout

import pytest

from website import notebook, pages, paths


def executed(source, names):
    """Run a cell as a notebook does: what it prints, and the value of its last line."""
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(last, "cell", "eval"), names) if last else None
    return printed.getvalue(), value


@pytest.mark.parametrize("page", pages.NOTEBOOKS)
def test_every_cell_gives_what_the_page_shows(page):
    book = json.loads(notebook.text(page))
    names, figures = {}, 0
    for cell in book["cells"]:
        if cell["cell_type"] == "markdown":
            continue
        printed, value = executed(cell["source"], names)
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                assert value is names["figure"]
                assert value.axes
                figures += 1
            else:
                assert repr(value) == data["text/plain"] if data else printed == output["text"]
    text = (paths.ROOT / page).read_text()
    assert figures == len(re.findall(r"\(notebooks/", text))
    assert figures == 0 or page != "docs/tutorial.md"


def test_a_notebook_has_the_form_of_version_4():
    book = json.loads(notebook.text("docs/tutorial.md"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    cells = book["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells) > 20
    attached = [name for cell in cells for name in cell.get("attachments", {})]
    assert len(attached) == 10
    for cell in cells:
        for name, data in cell.get("attachments", {}).items():
            assert f"](attachment:{name})" in cell["source"]
            assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
        assert ">>>" not in cell["source"]
        assert not re.search(r"\]\((?!attachment:|https?:)", cell["source"])


def test_pieces_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "p.png").write_bytes(b"picture")
    page.write_text(
        "# Title\n\nSee [there](other.md#x).\n\n```python\n>>> a = 1\n>>> a + 1\n2\n"
        ">>> for i in range(2):\n...     print(i)\n0\n1\n\n```\n\n"
        "```python\n>>> figure = a\n\n```\n\n![words](p.png)\n\nEnd.\n"
    )
    first, one, two, picture, last = notebook.cells_of(page)
    assert first["source"] == "# Title\n\nSee there."
    assert (one["source"], one["outputs"][0]["data"]) == ("a = 1\na + 1", {"text/plain": "2"})
    assert two["source"] == "for i in range(2):\n    print(i)"
    assert (two["outputs"][0]["name"], two["outputs"][0]["text"]) == ("stdout", "0\n1\n")
    assert picture["source"] == "figure = a\nfigure"
    assert base64.b64decode(picture["outputs"][0]["data"]["image/png"]) == b"picture"
    assert last["source"] == "End."
