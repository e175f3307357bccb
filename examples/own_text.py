"""Train a small language model on a text of your own, character by character, and let it write.

    python examples/own_text.py book.txt                    # two minutes on a CPU core
    python examples/own_text.py book.txt train.steps=3000   # key=value overrides the recipe own-text
    python examples/own_text.py book.txt --out FILE         # also write the record of the run to a JSON file

`statespan train own-text data.path=book.txt` trains the same model. A megabyte of text is enough for words.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from statespan import generate
from statespan._io import replace_file, sha256
from statespan.data import Vocabulary
from statespan.train import fit, load_run, recipes

RECIPE = "own-text"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text file in UTF-8")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="overrides of the recipe")
    parser.add_argument("--prompt", default="\n", help="text to continue (default: the start of a line)")
    parser.add_argument("--characters", type=int, default=300, help="how many to generate (default: 300)")
    parser.add_argument("--temperature", type=float, default=0.7, help="default: 0.7")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="folder of the run (default: runs)")
    parser.add_argument("--out", type=Path, help="write the record of the run to this JSON file")
    args = parser.parse_args()
    if args.out and not args.out.absolute().parent.is_dir():
        parser.error(f"--out must be in an existing folder, got {args.out}")

    recipe = recipes.read(RECIPE, [f"data.path={args.text}", *args.changes])
    folder = args.folder / f"{RECIPE}-{time.strftime('%Y%m%d-%H%M%S')}"
    started = time.process_time()
    result = fit(recipe, folder, device="cpu")
    seconds = time.process_time() - started  # of the processor, which other programs do not change
    bits = f"{result.test[result.metric]:.3f} {result.metric.replace('_', ' ')}"
    print(f"{result.parameters:,} parameters, {result.steps} steps, {seconds:.0f} s of CPU time")
    print(f"test {bits} (weights of step {result.best_step})\n")

    trained, _, dataset = load_run(folder)
    model: Any = trained
    vocabulary = Vocabulary(model.config.unit, model.config.tokens)
    if unknown := vocabulary.unknown(args.prompt):
        parser.error(f"--prompt must be characters of the training text, got {unknown!r}")
    prompt = torch.from_numpy(vocabulary.encode(args.prompt).astype(int))[None]
    drawn = generate(model, prompt, args.characters, temperature=args.temperature, seed=0)
    sample = vocabulary.decode(drawn.values[0].tolist())
    print(args.prompt + sample)
    if args.out:
        record = json.loads((folder / "result.json").read_text())
        record["text"] = {"file": args.text.name, "bytes": args.text.stat().st_size, "sha256": sha256(args.text)}
        record["characters"] = {part: len(getattr(dataset, part).arrays["text"]) for part in ("train", "valid", "test")}
        record["cpu_seconds"] = round(seconds, 1)
        record["sample"] = {"prompt": args.prompt, "temperature": args.temperature, "seed": 0, "text": sample}
        replace_file(args.out, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
