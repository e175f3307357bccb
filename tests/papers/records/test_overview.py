"""The overview leads with plain runs, and says where the best known numbers come from."""

from pathlib import Path

from statespan.papers.records import overview, schema
from statespan.papers.records.overview import best_known
from statespan.papers.records.tasks import TASKS
from tests.papers.tables.test_published import publish

ROOT = Path(__file__).parents[3]


def rows(folder):
    lines = [line for line in overview.make(schema.read_runs(folder)).splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)}


def test_plain_first_then_tricks_then_the_best_known(tmp_path):
    for seed, value in ((0, 0.990), (1, 0.994)):
        publish(tmp_path, "smnist-s4", "data.warp=false", value=value, seed=seed)
    publish(tmp_path, "smnist-s4", value=0.996)
    publish(tmp_path, "lra-image-s4", value=0.88)
    found = rows(tmp_path)
    assert found["task"] == ["paper", "plain", "with tricks", "best known today", "time, hardware"]
    assert found["sMNIST"] == [
        "99.63",
        "99.20 ± 0.28 (2)",
        "99.60 (1) †§",
        "≈99.72 (CCNN, 2022)",
        "1.5; 1.5 min, a GPU",
    ]
    assert found["LRA Image"] == ["89.07", "88.00 (1)", "–", "90.89 (source not noted)", "1.5; – min, a GPU"]
    assert found["LRA Text"] == ["87.34", "–", "–", "90.43 (Mega, 2023)", "–"]
    assert found["LRA average"] == ["86.09", "–", "–", "88.26 (S4D-FT, 2025)", "–"]


def test_every_task_has_a_row_and_nothing_is_invented(tmp_path):
    tmp_path.joinpath("none").mkdir()
    found = rows(tmp_path / "none")
    assert set(found) == {"task", *(task.name for task in TASKS)}
    assert {cell for name, cells in found.items() if name != "task" for cell in (*cells[1:3], cells[4])} == {"–"}


def test_ablations_and_words_are_tasks_of_their_own(tmp_path):
    publish(tmp_path, "ablation-scifar-s4d-inv", value=0.85)
    publish(tmp_path, "ablation-sc35-s4d-inv", "data.name=sc10", "train.warmup=466", value=0.9)
    publish(tmp_path, "sc35-s4-legs", "data.name=sc30", "data.whole=true", value=0.95, half=0.9)
    publish(tmp_path, "scifar-s4", "model.norm=batch", value=0.9)
    found = {name: cells[1] for name, cells in rows(tmp_path).items() if cells[1] != "–" and name != "task"}
    assert found == {
        "sCIFAR, small model": "85.00 (1)", "Speech, ten words, small model": "90.00 (1)",
        "Speech, 30 words": "95.00 (1)", "Speech, 30 words, 0.5×": "90.00 (1)", "sCIFAR": "90.00 (1)",
        "sCIFAR, S4 with 7.9M parameters": "90.00 (1)",
    }  # fmt: skip


def test_best_known_numbers_belong_to_tasks():
    keys = {task.key for task in TASKS}
    assert set(best_known()) <= keys
    recalled = {key for key, best in best_known().items() if best.recalled}
    assert recalled == {"smnist", "pmnist", "scifar", "sc35", "sc35-half", "bidmc-hr", "bidmc-rr", "bidmc-spo2"}
    assert all((best.model == "") == (best.year is None) for best in best_known().values())
    page = (ROOT / "docs/results.md").read_text()
    assert all(str(best) in page for best in best_known().values())
    assert "≈: recalled, not read again in its paper" in page
