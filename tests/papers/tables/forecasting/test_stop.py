"""A signal ends the table at once: nobody goes on, nothing is lost that was written, and the rest is said."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from statespan.papers.runs import pool
from statespan.papers.tables.forecasting import jobs, table
from statespan.papers.tables.forecasting.settings import HORIZONS, settings
from tests.papers.tables.forecasting.test_table import write

SOME = ["--device", "cpu", "--settings", "etth1-S-24,etth1-M-24", "--datasets", "etth1", "--every", "97"]
LEFT = "2 of 4 fits are left; run the command again\n"


def test_of_each_model_the_longest_fits_come_first():
    every = settings(tuple(HORIZONS))
    found = jobs.longest_first([(model, setting) for model in ("Informer", "S4") for setting in every])
    assert [model for model, _ in found] == ["S4"] * len(every) + ["Informer"] * len(every)
    costs = [(setting.features == "M", setting.horizon) for _, setting in found[: len(every)]]
    assert costs == sorted(costs, reverse=True)
    assert {setting for _, setting in found} == set(every)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_fit_in_this_process(number, tmp_path, monkeypatch, capsys):
    write(tmp_path)
    run, before = jobs.run, signal.getsignal(number)

    def endless(model, *arguments, **options):
        if model == "NLinear":
            os.kill(os.getpid(), number)
            while True:
                time.sleep(0.01)
        return run(model, *arguments, **options)

    monkeypatch.setattr(jobs, "run", endless)
    with pytest.raises(SystemExit) as stopped:
        table.main([*SOME, "--data", str(tmp_path), "--out", str(tmp_path), "--models", "NLinear,SeasonalNaive"])
    assert stopped.value.code == 128 + number
    assert capsys.readouterr().err == LEFT
    assert len(json.loads((tmp_path / "forecast-cpu.json").read_text())["fits"]) == 2
    assert signal.getsignal(number) == before


def test_processes_are_born_deaf_to_ctrl_c():
    """A terminal sends it to all; each would print where it was."""
    program = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with pool.deaf_to_ctrl_c():
        deaf = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert deaf.stdout == "True\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize(
    ("number", "send"),
    [
        pytest.param(signal.SIGTERM, os.killpg, id="SIGTERM to all, as timeout sends it"),
        pytest.param(signal.SIGINT, os.kill, id="SIGINT to the parent"),
    ],
)
@pytest.mark.soak  # in one process it is tested above
def test_a_signal_ends_all_processes(number, send, tmp_path):
    write(tmp_path)
    command = [sys.executable, "-m", "statespan.papers.tables.forecasting.table", *SOME, "--data", str(tmp_path)]
    command += ["--out", str(tmp_path), "--models", "NLinear,SeasonalNaive", "--processes", "2", "--steps", "10000000"]
    record = tmp_path / "forecast-cpu.json"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            until = time.monotonic() + 120
            while not (record.exists() and len(json.loads(record.read_text())["fits"]) == 2):
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            began = time.monotonic()  # the other two, which would take hours, begin
            send(process.pid, number)
            said = process.communicate(timeout=30)[1]
            assert time.monotonic() - began < 10
            assert (process.returncode, said) == (128 + number, LEFT)
            assert gone(process.pid, within=20)
        finally:
            if not gone(process.pid, within=0):
                os.killpg(process.pid, signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert len(json.loads(record.read_text())["fits"]) == 2


def gone(group, within):
    """Whether nobody of a group of processes is left, after so many seconds at most."""
    until = time.monotonic() + within
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
