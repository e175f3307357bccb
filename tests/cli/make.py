"""A dataset of one's own and a recipe for it: a run of a second."""

import numpy as np

from tests.papers.bench.run import invoke

RECIPE = """
name: tones
data: {{name: own, path: "{path}", length: 40, standardize: true}}
model: {{name: {model}, layer: s4d, d_model: 8, d_state: 4, n_layers: 1}}
train: {{epochs: 4, batch: 8, lr: 0.05, tensorboard: false, log_every: 2}}
about: {{table: S4 Table 0, number: 12.5}}
"""


def series(n=40, length=50):
    """Slow (class low) and fast (class high) waves (n, length, 2) with an offset, and the names of their classes."""
    random = np.random.default_rng(0)
    y = np.arange(n) % 2
    t = np.arange(length)
    x = np.sin(t * (0.2 + 0.7 * y)[:, None] + random.uniform(0, 6, (n, 1)))
    return np.stack([3 + 2 * x, random.normal(size=x.shape)], -1).astype(np.float32), np.array(["low", "high"])[y]


def write_own(folder):
    """The data as a folder of files and the recipe; returns the recipe's path."""
    x, y = series()
    for i, (one, kind) in enumerate(zip(x, y)):
        (folder / "waves" / kind).mkdir(parents=True, exist_ok=True)
        np.save(folder / "waves" / kind / f"{i:02d}.npy", one)
    path = folder / "tones.yaml"
    path.write_text(RECIPE.format(path=folder / "waves", model="classifier"))
    return path


def one_line(done, code=2):
    """The one line a mistake is answered with."""
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    assert done.stderr.startswith("statespan: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def last_line(done, code):
    """The line behind what is left of the progress bar."""
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    line = done.stderr.splitlines()[-1]
    assert line.startswith("statespan: ")
    return line


__all__ = ["invoke", "last_line", "one_line", "series", "write_own"]
