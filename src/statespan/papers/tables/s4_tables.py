"""The tables of the S4 paper. The numbers of recipes' own rows are read from the recipes."""

from __future__ import annotations

from statespan.papers.tables.spec import Column, Compared, Entry, Measured, Printed, Table, Trained, paper_number, read
from statespan.train import recipes

_LRA = ("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X")
_LRA_OTHERS = {
    "Transformer": ("36.37", "64.27", "57.46", "42.44", "71.40", "X"),
    "Reformer": ("37.27", "56.10", "53.40", "38.07", "68.50", "X"),
    "BigBird": ("36.05", "64.02", "59.29", "40.83", "74.87", "X"),
    "Linear Trans.": ("16.13", "65.90", "53.09", "42.34", "75.30", "X"),
    "Performer": ("18.01", "65.40", "53.82", "42.77", "77.05", "X"),
    "FNet": ("35.33", "65.11", "59.61", "38.67", "77.80", "X"),
    "Nyströmformer": ("37.15", "65.52", "79.56", "41.58", "70.94", "X"),
    "Luna-256": ("37.25", "64.57", "79.29", "47.38", "77.72", "X"),
}
_SPEECH_OTHERS = {
    "Transformer": ("90.75", "X", "X"), "Performer": ("80.85", "30.77", "30.68"), "ODE-RNN": ("65.9", "X", "X"),
    "NRDE": ("89.8", "16.49", "15.12"), "ExpRNN": ("82.13", "11.6", "10.8"), "LipschitzRNN": ("88.38", "X", "X"),
    "CKConv": ("95.3", "71.66", "65.96"), "WaveGAN-D": ("X", "96.25", "X"), "LSSL": ("93.58", "X", "X"),
}  # fmt: skip
_IMAGE_OTHERS = {
    "Transformer": ("98.9", "97.9", "62.2"), "LSTM": ("98.9", "95.11", "63.01"), "r-LSTM": ("98.4", "95.2", "72.2"),
    "UR-LSTM": ("99.28", "96.96", "71.00"), "UR-GRU": ("99.27", "96.51", "74.4"), "HiPPO-RNN": ("98.9", "98.3", "61.1"),
    "LMU-FFT": ("", "98.49", ""), "LipschitzRNN": ("99.4", "96.3", "64.2"), "TCN": ("99.0", "97.2", ""),
    "TrellisNet": ("99.20", "98.13", "73.42"), "CKConv": ("99.32", "98.54", "63.74"),
}  # fmt: skip
_MORE_IMAGE = {
    "Dilated GRU": ("99.0", "94.6", ""), "Dilated RNN": ("98.0", "96.1", ""), "IndRNN": ("99.0", "96.0", ""),
    "expRNN": ("98.7", "96.6", ""), "LMU": ("", "97.15", ""), "UNIcoRNN": ("", "98.4", ""),
}  # fmt: skip
_SETTINGS = {  # Table 11: depth, features, norm, pre-norm, dropout, rate, batch, epochs, weight decay
    "ListOps": ("lra-listops-s4-original", "6", "128", "batch", "false", "0", "0.01", "100", "50", "0.01"),
    "Text": ("lra-text-s4-original", "4", "64", "batch", "true", "0", "0.001", "50", "20", "0"),
    "Retrieval": ("lra-retrieval-s4-original", "6", "256", "batch", "true", "0", "0.002", "64", "20", "0"),
    "Image": ("lra-image-s4-original", "6", "512", "layer", "false", "0.2", "0.004", "50", "200", "0.01"),
    "Pathfinder": ("lra-pathfinder-s4-original", "6", "256", "batch", "true", "0.1", "0.004", "100", "200", "0"),
    "Path-X": ("lra-pathx-s4-original", "6", "256", "batch", "true", "0", "0.0005", "32", "100", "0"),
    "CIFAR-10": ("scifar-s4", "6", "1024", "layer", "false", "0.25", "0.01", "50", "200", "0.01"),
    "Speech (MFCC)": ("sc10-mfcc-s4", "4", "256", "layer", "false", "0.2", "0.01", "100", "50", "0"),
    "Speech (raw)": ("sc10-s4", "6", "128", "batch", "true", "0.1", "0.01", "20", "150", "0"),
}


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
    printed = {
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
        for row, (name, numbers) in printed.items():
            speed, memory = numbers[2 * place : 2 * place + 2]
            entries += [
                Measured(row, parts[0], speed, "s4_table3", name, "time_ms", setting, over=base),
                Measured(row, parts[1], speed, "s4_table3", name, "graph_ms", setting, over=base),
                Measured(row, parts[2], memory, "s4_table3", name, "memory", setting),
            ]
    entries.sort(key=lambda entry: list(printed).index(entry.row))
    about = (
        "Speed and memory of a training step, as multiples of the Transformer's. The paper's on an A100. Ours as "
        "ordinary (eager) calls and as CUDA graphs: in eager mode at 1,024 the CPU in front of the GPU sets the pace. "
        "The paper does not say which of the two it measured; both stand beside its number."
    )
    return Table("s4-table3", "S4 Table 3: efficient Transformers", about, tuple(columns), tuple(entries))


def table4() -> Table:
    """The Long Range Arena."""
    entries: list[Entry] = []
    for model, numbers in _LRA_OTHERS.items():
        entries += [Printed(model, task, text) for task, text in zip(_LRA, numbers)]
    for task in _LRA:
        recipe = f"lra-{task.lower().replace('-', '')}-s4"
        entries.append(Trained("S4", task, paper_number(recipe)[0], recipe))
    about = "Test accuracy (%). X: failed."
    return Table("s4-table4", "S4 Table 4: Long Range Arena", about, tuple(Column(t) for t in _LRA), tuple(entries))


def table5() -> Table:
    """Speech Commands, ten words."""
    columns = (Column("MFCC"), Column("Raw"), Column("0.5x"))
    entries: list[Entry] = []
    for model, numbers in _SPEECH_OTHERS.items():
        entries += [Printed(model, column.name, text) for column, text in zip(columns, numbers)]
    entries += [
        Trained("S4", "MFCC", "93.96", "sc10-mfcc-s4"),
        Trained("S4", "Raw", "98.32", "sc10-s4"),
        Trained("S4", "0.5x", "96.30", "sc10-s4", value="half"),
    ]
    about = "Test accuracy (%) from MFCC features, from raw speech, and from every second sample without new training."
    return Table("s4-table5", "S4 Table 5: ten spoken words", about, columns, tuple(entries))


def _images(name: str, title: str, others: dict[str, tuple[str, ...]], last: tuple[Entry, ...]) -> Table:
    columns = (Column("sMNIST"), Column("pMNIST"), Column("sCIFAR"))
    entries: list[Entry] = []
    for model, numbers in others.items():
        entries += [Printed(model, column.name, text) for column, text in zip(columns, numbers)]
    for column in columns:
        recipe = f"{column.name.lower()}-s4"
        entries.append(Trained("S4", column.name, paper_number(recipe)[0], recipe))
    return Table(name, title, "Test accuracy (%), pixel by pixel.", columns, (*entries, *last))


def table6() -> Table:
    """Images pixel by pixel."""
    lssl = {"LSSL": ("99.53", "98.76", "84.65")}
    more: list[Entry] = []
    for row in recipes.rows("scifar-s4"):
        label = f"S4, {row.label.partition(', ')[2]}"
        more.append(Trained(label, "sCIFAR", row.number, "scifar-s4", row.overrides))
    return _images("s4-table6", "S4 Table 6: images pixel by pixel", {**_IMAGE_OTHERS, **lssl}, tuple(more))


def table12() -> Table:
    """Images pixel by pixel (Table 6) with more baselines."""
    return _images("s4-table12", "S4 Table 12: images pixel by pixel", {**_IMAGE_OTHERS, **_MORE_IMAGE}, ())


def table7() -> Table:
    """CIFAR-10 density and speed of generation."""
    columns = (Column("bpd", True), Column("images/s"))
    others = {
        "Transformer": ("3.47", "0.32"), "Linear Transf.": ("3.40", "17.85"), "PixelCNN": ("3.14", ""),
        "Row PixelRNN": ("3.00", ""), "PixelCNN++": ("2.92", "19.19"), "Image Transf.": ("2.90", "0.54"),
        "PixelSNAIL": ("2.85", "0.13"), "Sparse Transf.": ("2.80", ""),
    }  # fmt: skip
    entries: list[Entry] = []
    for model, numbers in others.items():
        entries += [Printed(model, column.name, text) for column, text in zip(columns, numbers)]
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
    others = {
        "GLU CNN": "37.2", "AWD-QRNN": "33.0", "LSTM + Hebb.": "29.2", "TrellisNet": "29.19", "Dynamic Conv.": "25.0",
        "TaLK Conv.": "23.3",
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
    entries += [Printed(model, "test ppl", ppl) for model, ppl in others.items()]
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
    for row, (recipe, *printed) in _SETTINGS.items():
        chosen = read(recipe)
        model, train = chosen.model, chosen.train
        ours = (
            model["n_layers"], model["d_model"], model["norm"], model["prenorm"], model["dropout"], train.lr,
            train.batch, train.epochs, train.weight_decay,
        )  # fmt: skip
        for column, text, own in zip(names, printed, ours):
            shown = str(own).lower() if isinstance(own, (bool, str)) else f"{own:g}"
            entries.append(Compared(row, column, text, shown))
    about = "Settings that the paper lists, beside those of the recipes; nothing is trained."
    return Table("s4-table11", "S4 Table 11: hyperparameters", about, tuple(Column(n) for n in names), tuple(entries))
