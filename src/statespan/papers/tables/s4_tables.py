"""The tables of the S4 paper. The numbers of recipes' own rows are read from the recipes."""

from __future__ import annotations

from collections.abc import Sequence

from statespan.papers.tables.spec import (
    Column,
    Compared,
    Entry,
    Measured,
    Printed,
    Table,
    Trained,
    others,
    paper_number,
    printed,
    read,
)  # fmt: skip
from statespan.train import recipes

LRA = ("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X")


def table2() -> Table:
    """S4 against LSSL: time and memory."""
    sizes = (128, 256, 512)
    lssl = (("9.32", "20.6", "140.7"), ("222.1", "1685", "13140"))
    s4 = (("4.77", "3.07", "4.75"), ("5.3", "12.6", "33.5"))
    rows = {
        "LSSL": ("LSSL Krylov", lssl),
        "S4, chunk engine": ("S4", s4),
        "S4, Cauchy kernel": ("S4 Cauchy", s4),
    }
    entries: list[Entry] = []
    for row, (name, parts) in rows.items():
        for unit, figure, numbers in zip(("ms", "MB"), ("time_ms", "memory_mb"), parts):
            for size, text in zip(sizes, numbers):
                entries.append(Measured(row, f"{unit}, {size}", text, "s4_table2", name, figure, {"d_model": size}))
    columns = tuple(Column(f"{unit}, {size}", True) for unit in ("ms", "MB") for size in sizes)
    about = (
        "A training step of one layer: milliseconds and memory. The paper's on an A100; ours as the record says. The "
        "chunk engine is what a user of statespan gets; it is not the paper's algorithm. The Cauchy kernel is, here in "
        "plain torch."
    )
    return Table("s4-table2", "S4 Table 2: S4 and LSSL", about, columns, tuple(entries))


def table3() -> Table:
    """S4 against efficient Transformers."""
    base = "Transformer"
    models = {
        base: (base, ("1", "1", "1", "1")),
        "Performer": ("Performer", ("1.23", "0.43", "3.79", "0.086")),
        "Linear Trans.": ("Linear Transformer", ("1.58", "0.37", "5.35", "0.067")),
        "S4": ("S4", ("1.58", "0.43", "5.19", "0.091")),
    }
    entries: list[Entry] = []
    columns: list[Column] = []
    for place, length in enumerate((1024, 4096)):
        setting = {"length": length}
        parts = [f"speed eager, {length}", f"speed graph, {length}", f"memory, {length}"]
        columns += [Column(parts[0]), Column(parts[1]), Column(parts[2], True)]
        for row, (name, numbers) in models.items():
            speed, memory = numbers[2 * place : 2 * place + 2]
            entries += [
                Measured(row, parts[0], speed, "s4_table3", name, "time_ms", setting, over=base),
                Measured(row, parts[1], speed, "s4_table3", name, "graph_ms", setting, over=base),
                Measured(row, parts[2], memory, "s4_table3", name, "memory", setting),
            ]
    entries.sort(key=lambda entry: list(models).index(entry.row))
    about = (
        "Speed and memory of a training step, as multiples of the Transformer's. The paper's on an A100. Ours as "
        "ordinary (eager) calls and as CUDA graphs: in eager mode at 1,024 the CPU in front of the GPU sets the pace. "
        "The paper does not say which of the two it measured; both stand beside its number."
    )
    return Table("s4-table3", "S4 Table 3: efficient Transformers", about, tuple(columns), tuple(entries))


def table4() -> Table:
    """The Long Range Arena."""
    columns = tuple(Column(task) for task in LRA)
    recipes = {task: f"lra-{task.lower().replace('-', '')}-s4" for task in LRA}
    entries = others("s4-lra", columns)
    entries += [Trained("S4", task, paper_number(recipe)[0], recipe) for task, recipe in recipes.items()]
    about = "Test accuracy (%). X: failed."
    return Table("s4-table4", "S4 Table 4: Long Range Arena", about, columns, tuple(entries))


def table5() -> Table:
    """Speech Commands, ten words."""
    columns = (Column("MFCC"), Column("Raw"), Column("0.5x"))
    entries = [
        *others("s4-speech", columns),
        Trained("S4", "MFCC", "93.96", "sc10-mfcc-s4"),
        Trained("S4", "Raw", "98.32", "sc10-s4"),
        Trained("S4", "0.5x", "96.30", "sc10-s4", value="half"),
    ]
    about = "Test accuracy (%) from MFCC features, from raw speech, and from every second sample without new training."
    return Table("s4-table5", "S4 Table 5: ten spoken words", about, columns, tuple(entries))


def _images(number: int, more: Sequence[Entry] = ()) -> Table:
    columns = (Column("sMNIST"), Column("pMNIST"), Column("sCIFAR"))
    entries = others("s4-images", columns) + others(f"s4-images-table{number}", columns)
    for column in columns:
        recipe = f"{column.name.lower()}-s4"
        entries.append(Trained("S4", column.name, paper_number(recipe)[0], recipe))
    title = f"S4 Table {number}: images pixel by pixel"
    return Table(f"s4-table{number}", title, "Test accuracy (%), pixel by pixel.", columns, (*entries, *more))


def table6() -> Table:
    """Images pixel by pixel."""
    return _images(
        6,
        [
            Trained(f"S4, {row.label.partition(', ')[2]}", "sCIFAR", row.number, "scifar-s4", row.overrides)
            for row in recipes.rows("scifar-s4")
        ],
    )


def table12() -> Table:
    """Images pixel by pixel (Table 6) with more baselines."""
    return _images(12)


def table7() -> Table:
    """CIFAR-10 density and speed of generation."""
    columns = (Column("bpd", True), Column("images/s"))
    entries = others("s4-density", columns)
    for size, bpd, speed in (("base", "2.92", "20.84"), ("large", "2.85", "3.36")):
        row = f"S4 ({size})"
        entries.append(Trained(row, "bpd", bpd, f"cifar-density-{size}"))
        entries.append(Measured(row, "images/s", speed, "s4_table7", f"S4 {size}", "images_per_s", memory_mb=16e3))
    about = (
        "Bits per dimension on the test images; images generated a second within 16 GB (the paper's on an A100). "
        "`statespan bench s4_table7` also has a Transformer of ours at several contexts."
    )
    return Table("s4-table7", "S4 Table 7: CIFAR-10 density", about, columns, tuple(entries))


def table8() -> Table:
    """WikiText-103 and speed of generation."""
    columns = (Column("test ppl", True), Column("tokens/s"), Column("S4 over it"))
    speeds = {  # after 8,192 tokens: name in the benchmark; perplexity, tokens a second and S4's speed over it in print
        "Transformer, flash attention, bf16, CUDA graph": ("Transformer at 8192", "", "", ""),
        "GPT-2, bf16, static cache": ("Hugging Face GPT-2 at 8192", "", "", ""),
        "Transformer (ours: GPT-2 as it comes, float32, eager)": (
            "Hugging Face GPT-2 as it comes at 8192", "20.51", "0.8K", "60",
        ),
    }  # fmt: skip
    ours = "S4 (ours: bf16, CUDA graph)"
    entries: list[Entry] = [
        Trained(ours, "test ppl", "20.95", "wikitext103-s4"),
        Measured(ours, "tokens/s", "48K", "s4_table8", "S4", "tokens_per_s"),
    ]
    for row, (name, ppl, speed, ratio) in speeds.items():
        entries += [Printed(row, "test ppl", ppl)] if ppl else []
        entries.append(Measured(row, "tokens/s", speed, "s4_table8", name, "tokens_per_s"))
        entries.append(Measured(row, "S4 over it", ratio, "s4_table8", name, "tokens_per_s", over="S4"))
    entries += others("s4-wikitext", columns)
    about = (
        "Perplexity of the test text; tokens generated per second at the best batch, of Transformers after 8,192 "
        "tokens (the paper's on an A100). Compare S4 with the two Transformers in bfloat16 first: one of ours, and "
        "Hugging Face's GPT-2 with a static cache. GPT-2 as it comes runs eagerly in float32 and copies its cache in "
        "every step, which is most of the last ratio. `statespan bench s4_table8` has other contexts."
    )
    return Table("s4-table8", "S4 Table 8: WikiText-103", about, columns, tuple(entries))


def table9() -> Table:
    """Forecasting, the longest horizon of each set."""
    names = {"etth1": "ETTh1", "etth2": "ETTh2", "ettm1": "ETTm1", "weather": "Weather", "ecl": "ECL"}
    entries: list[Entry] = []
    for word, row in names.items():
        about = read(f"{word}-s4").about
        entries.append(Trained(row, "MSE", str(about.number), f"{word}-s4"))
        entries.append(Trained(row, "MAE", about.note.rpartition("MAE ")[2], f"{word}-s4", value="mae"))
    text = "Test errors of standardised values of one series at the longest horizon of each set; rows are the sets."
    return Table("s4-table9", "S4 Table 9: forecasting", text, (Column("MSE", True), Column("MAE", True)),
                 tuple(entries))  # fmt: skip


def table11() -> Table:
    """Hyperparameters: the paper's and those of the recipes."""
    names = ("depth", "features", "norm", "pre-norm", "dropout", "rate", "batch", "epochs", "weight decay")
    entries: list[Entry] = []
    for row, (recipe, *paper) in printed("s4-settings").items():
        chosen = read(recipe)
        model, train = chosen.model, chosen.train
        ours = (
            model["n_layers"], model["d_model"], model["norm"], model["prenorm"], model["dropout"], train.lr,
            train.batch, train.epochs, train.weight_decay,
        )  # fmt: skip
        for column, text, own in zip(names, paper, ours):
            shown = str(own).lower() if isinstance(own, (bool, str)) else f"{own:g}"
            entries.append(Compared(row, column, text, shown))
    about = "Settings that the paper lists, beside those of the recipes; nothing is trained."
    return Table("s4-table11", "S4 Table 11: hyperparameters", about, tuple(Column(n) for n in names), tuple(entries))
