"""The documents say what the records say, and the example does what they promise."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_shows_the_recorded_accuracy():
    record = json.loads((ROOT / "results/digits.json").read_text())
    shown = re.findall(r"test accuracy ([\d.]+)% after (\d+) epochs, (\d+) s", (ROOT / "README.md").read_text())
    wanted = (f"{100 * record['test_accuracy']:.1f}", str(record["recipe"]["epochs"]), f"{record['seconds']:.0f}")
    assert shown == [wanted]


def test_links_in_the_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_example_learns_and_records(tmp_path):
    out = tmp_path / "digits.json"
    command = [sys.executable, str(ROOT / "examples/digits.py"), "--epochs", "4", "--out", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    record = json.loads(out.read_text())
    assert record["test_accuracy"] > 0.85
    assert f"test accuracy {100 * record['test_accuracy']:.1f}% after 4 epochs" in run.stdout
    assert record["recipe"] == {"layer": "s4d", "epochs": 4, "seed": 0, "parameters": record["recipe"]["parameters"]}
    assert [p.name for p in tmp_path.iterdir()] == ["digits.json"]


def test_example_refuses_mistakes_in_one_line():
    for arguments, word in (
        (["--epochs", "0"], "--epochs"),
        (["--layer", "gru"], "--layer"),
        (["--out", "no/x"], "--out"),
    ):
        command = [sys.executable, str(ROOT / "examples/digits.py"), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 2
        assert word in run.stderr.splitlines()[-1]
        assert "Traceback" not in run.stderr
