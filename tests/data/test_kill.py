"""Killed at any moment, a cache or a download is whole or not there; mutated archives write nothing outside."""

import io
import os
import random
import subprocess
import sys
import tarfile
import zipfile

import pytest

from statespan.data.extract import BadArchive, unpack

SCRIPT = """
import hashlib, io, os, random, signal, sys, time
from pathlib import Path
import numpy as np
from statespan.data.cache import cached
from statespan.data.download import download

count, folder = int(sys.argv[1]), Path(sys.argv[2])
content = random.Random(0).randbytes(3 << 20)
digest = hashlib.sha256(content).hexdigest()
wanted = np.arange(200_000)

class Answer(io.BytesIO):
    status = 200

def serve(request, timeout):
    first = int((request.get_header("Range") or "bytes=0-")[6:-1])
    answer = Answer(content[first:])
    answer.status = 206 if first else 200
    answer.headers = {"Content-Length": str(len(content) - first), "Content-Range": f"bytes {first}-"}
    return answer

def work():
    for i in range(1000):
        (folder / "file").unlink(missing_ok=True)
        cached(folder, "toy", {"i": i}, lambda: {"x": wanted + i})
        download("https://example.org/file", folder / "file", digest, open_url=serve)

def no_build():
    raise AssertionError("not a good cache")

rng, caches, files = random.Random(1), 0, 0
for _ in range(count):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(rng.random() * 0.06)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for place in (folder / ".cache").glob("toy-*"):  # whatever has its name is good
        caches += 1
    if (folder / "file").exists():
        files += 1
        assert hashlib.sha256((folder / "file").read_bytes()).hexdigest() == digest
i, places = 0, len(list((folder / ".cache").glob("toy-*")))
while i < places:
    assert (cached(folder, "toy", {"i": i}, no_build)["x"] == wanted + i).all()
    i += 1
(folder / "file").unlink(missing_ok=True)
download("https://example.org/file", folder / "file", digest, open_url=serve)
cached(folder, "toy", {"last": 1}, lambda: {"x": wanted})
left = sorted(p.name for p in [*folder.iterdir(), *(folder / ".cache").iterdir()] if not p.name.startswith("toy-"))
assert left == [".cache", ".lock", "file"], left
print(caches, files)
"""


def kill(folder, count):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(count), folder], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    caches, _ = map(int, run.stdout.split())
    assert caches > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_twenty_kills(tmp_path):
    kill(tmp_path, 20)


@pytest.mark.soak
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_five_hundred_kills(tmp_path):
    kill(tmp_path, 500)


def archives():
    """A good tar, a good tar.gz and a good zip, with folders and files."""
    files = {"d/a.txt": b"hello" * 50, "d/e/b.bin": bytes(range(256)), "c": b""}
    made = {}
    for name, mode in (("x.tar", "w"), ("x.tar.gz", "w:gz")):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=mode) as tar:
            for path, content in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        made[name] = out.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for path, content in files.items():
            file.writestr(path, content)
    made["x.zip"] = out.getvalue()
    return made


def mutated(rng, data):
    """The archive with some bytes changed, cut, doubled, or a name made hostile."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + rng.randrange(1, 600)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randrange(1, 600)]
        elif kind == 3:
            data = data.replace(b"d/a.txt", rng.choice([b"../out.", b"/tmp/a.", b"d/../..", b"d/e/b.b", b"c/a.txt"]))
        else:
            at = min(156 + 512 * rng.randrange(4), len(data) - 1)  # the kind of a tar's entry
            data[at] = rng.choice(b"0123456789gxLKSVD")
        data = data or bytearray(b"x")
    return bytes(data)


def attack(folder, count, seed):
    rng, good, refused = random.Random(seed), archives(), 0
    inside = folder / "deep" / "target"
    for number in range(count):
        name = rng.choice(list(good))
        archive = folder / name
        archive.write_bytes(mutated(rng, good[name]))
        inside.mkdir(parents=True, exist_ok=True)
        try:
            unpack(archive, inside)
        except BadArchive:
            refused += 1
            assert list(inside.iterdir()) == [], number
        archive.unlink()
        assert not any(path.is_symlink() for path in inside.rglob("*"))
        for path in sorted(inside.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        assert [path.name for path in folder.iterdir()] == ["deep"], number
        assert [path.name for path in (folder / "deep").iterdir()] == ["target"], number
    assert count // 2 < refused < count


def test_three_hundred_mutated_archives(tmp_path):
    attack(tmp_path, 300, seed=0)


@pytest.mark.soak
def test_ten_thousand_mutated_archives(tmp_path):
    attack(tmp_path, 10_000, seed=1)
