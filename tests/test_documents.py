"""The documents say what the records say."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_shows_the_recorded_run():
    record = json.loads((ROOT / "results/digits.json").read_text())
    readme = (ROOT / "README.md").read_text()
    accuracy, seconds = 100 * record["test"]["accuracy"], record["wall_seconds"]
    pixels, steps = record["every_second_pixel"], record["step_by_step"]
    assert record["overrides"] == []
    for line in (
        f"{record['parameters']:,} parameters, weights of the best validation (step {record['best_step']})",
        f"test accuracy {accuracy:.1f}% after {record['epochs']:g} epochs, {seconds:.0f} s",
        f"every second pixel  {100 * pixels['accuracy']:.1f}% with rate=2.0 and no training "
        f"({100 * pixels['accuracy_at_rate_1']:.1f}% with rate=1.0)",
        f"step by step        {steps['identical']} of {steps['images']} predictions identical, "
        f"scores differ by {steps['largest_difference']:.0e}",
    ):
        assert line in readme.splitlines()


def test_records_say_nothing_about_the_place_they_were_made_at():
    for path in ROOT.glob("results/**/*.json"):
        assert not re.search(r'"[^"]*(?:/home/|/root|/tmp/|/Users/|/work/|[A-Z]:\\\\)', path.read_text()), path


def test_links_in_the_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
