"""A disk under a power cut: what may be on it afterwards, by what was synced before.

A name is on the disk once its folder was synced, a file's bytes once the file was. Of everything later any part may be
there: each name for itself, and of each file a beginning.
"""

import contextlib
import os
import random
from typing import NamedTuple

import pytest

CALLS = ("open", "write", "ftruncate", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir")


class Moment(NamedTuple):
    """What programs see, what is synced, and what was reported as saved."""

    seen: dict
    synced: dict
    reported: object


class Disk:
    """Watches all calls that change a folder, below the functions that are tested.

    Args:
        root: The folder, which is made here and is itself on the disk.
    """

    def __init__(self, root):
        root.mkdir()
        self.root, self.reported, self.moments = root, None, []
        self.open, self.handles = os.open, {}
        self.synced = {root.stat().st_ino: {}}

    @contextlib.contextmanager
    def watched(self):
        """Within, every call is noted."""
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._noted(name, getattr(os, name)))
            yield
        for handle in self.handles.values():
            os.close(handle)

    def report(self, value):
        """The code has said that this is saved."""
        self.reported = value
        self._note()

    def cuts(self, folder, seed=0):
        """After a cut at each moment, four times with other luck: what was reported before, and what is there then."""
        lucks = [(0.0, 0.0, 0.0), (1.0, 1.0, 0.0), (0.0, 1.0, 1.0), (0.5, 0.5, 0.5)]
        for number, moment in enumerate(self.moments):
            for turn, luck in enumerate(lucks):
                place = folder / f"{number}-{turn}"
                _Cut(moment, random.Random(f"{seed} {number} {turn}"), luck).lay(self.root.stat().st_ino, place)
                yield moment.reported, place

    def _noted(self, name, call):
        def noted(*arguments, **options):
            result = call(*arguments, **options)
            if name != "open" or arguments[1] & os.O_CREAT:  # others change nothing
                self._note(arguments[0] if name == "fsync" else None)
            return result

        return noted

    def _note(self, synced=None):
        seen = {}
        self._walk(self.root, seen)
        if synced is not None and (inode := os.fstat(synced).st_ino) in seen:
            self.synced[inode] = seen[inode]
        self.moments.append(Moment(seen, dict(self.synced), self.reported))

    def _walk(self, path, seen):
        """Bytes of each file, and names in each folder, by inode."""
        inode = path.stat().st_ino
        if inode not in self.handles:  # as long as it is open, no other file gets the same number
            self.handles[inode] = self.open(path, os.O_RDONLY)
        if path.is_dir():
            seen[inode] = {child.name: self._walk(child, seen) for child in path.iterdir()}
        else:
            seen[inode] = path.read_bytes()
        return inode


class _Cut(NamedTuple):
    moment: Moment
    rng: random.Random
    luck: tuple
    """How likely a new name, the end of an old name, and all bytes of a file have come to the disk."""

    def lay(self, inode, path):
        """Write what is there after the cut."""
        seen, synced = self.moment.seen.get(inode), self.moment.synced.get(inode)
        if isinstance(seen, bytes) or isinstance(synced, bytes):
            path.write_bytes(self._bytes(seen, synced))
        else:
            path.mkdir(parents=True)
            for name, child in self._names(seen or {}, synced or {}).items():
                self.lay(child, path / name)

    def _bytes(self, seen, synced):
        if seen is None or seen == synced or self.rng.random() >= self.luck[2]:
            return synced or b""
        kept = len(synced or b"") if seen.startswith(synced or b"") else 0
        return seen if self.luck[2] == 1.0 else seen[: self.rng.randint(kept, len(seen))]

    def _names(self, seen, synced):
        found = dict(synced)
        for name in sorted({*seen, *synced}):
            if seen.get(name) != synced.get(name) and self.rng.random() < self.luck[0 if name in seen else 1]:
                found.pop(name, None)
                if name in seen:
                    found[name] = seen[name]
        return found
