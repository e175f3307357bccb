"""Which code ran: digests of what is here, and the commits that have them."""

import subprocess

from statespan import _machine


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_commit_with_the_code_of_a_digest(tmp_path, monkeypatch):
    here = tmp_path / "src" / "package"
    (here / "recipes").mkdir(parents=True)
    (here / "models").mkdir()
    monkeypatch.setattr(_machine, "HERE", here)
    monkeypatch.setenv("STATESPAN_COMMIT", "abcdef1")
    (here / "_version.py").write_text("1")
    before_git = _machine.source()
    assert _machine.commit() == "abcdef1"  # there is no checkout yet
    assert _machine.commit_of(before_git) is None
    git(tmp_path, "init", "-q")
    seen = {}
    for number, file in enumerate(("a.py", "recipes/b.yaml", "nn/c.py")):
        (here / file).parent.mkdir(exist_ok=True)
        (here / file).write_text(str(number))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", file)
        seen[_machine.source()] = _machine.commit()
    assert len(seen) == 3
    (here / "models" / "d.yaml").write_text("no code")
    (tmp_path / "README").write_text("not even in the package")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "no code")
    *_, last = seen
    assert _machine.source() == last
    seen[last] = git(tmp_path, "rev-parse", "HEAD").strip()  # the newest that has it
    assert {digest: _machine.commit_of(digest) for digest in seen} == seen
    (here / "a.py").write_text("changed")
    assert _machine.commit() == seen[last] + "+changes"
    assert _machine.commit_of(_machine.source()) is None
    assert _machine.commit_of(before_git) is None
