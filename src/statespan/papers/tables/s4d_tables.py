"""The tables of the S4D paper. The numbers of recipes' own rows are read from the recipes."""

from __future__ import annotations

from statespan.papers.tables.s4_tables import LRA
from statespan.papers.tables.spec import Column, Entry, Table, Trained, others, paper_number, printed

SCIFAR, SC, BIDMC = "sCIFAR", "SC (AR)", "BIDMC (SpO2)"
ABLATION = {SCIFAR: "ablation-scifar", SC: "ablation-sc35", BIDMC: "ablation-bidmc"}
DATASETS = (Column(SCIFAR), Column(SC), Column(BIDMC, lower=True))
MODELS = {
    "S4-LegS": "s4-legs", "S4-LegT": "s4-legt", "S4-FouT": "s4-fout", "S4-LegS+FouT": "s4-legs-fout",
    "S4D-LegS": "s4d-legs", "S4D-Inv": "s4d-inv", "S4D-Lin": "s4d-lin",
}  # fmt: skip


def table2() -> Table:
    """Parameterizations of diagonal SSMs, with S4D-Inv."""
    entries: list[Entry] = []
    for row, deviations in printed("s4d-spread").items():
        for column, deviation in zip(ABLATION, deviations):
            recipe = f"{ABLATION[column]}-s4d-inv"
            number, overrides = paper_number(recipe, f"Table 2, {row}")
            entries.append(Trained(row, column, f"{number} ({deviation})", recipe, overrides, "valid"))
    about = (
        "Best validation accuracy (%) or RMSE of the small model (4 layers, 128 features) with S4D-Inv. Above: is B "
        "trained, and is the kernel a softmax or a Vandermonde product (both with ZOH and free Re A, as in DSS). "
        "Below: discretization, and how Re A is kept negative."
    )
    return Table("s4d-table2", "S4D Table 2: parameterizations", about, DATASETS, tuple(entries), seeds=2,
                 main=("bilinear, exp", "trained B, Vandermonde"))  # fmt: skip


def table3a() -> Table:
    """Ablations of the initialization."""
    rows = {
        "S4D-Lin": ("scale 0.01", "scale 100", "random imag", "random real", "random both"),
        "S4D-Inv": ("scale 0.01", "scale 100", "random imag", "random real", "random both",
                    "S4D-Inv2", "S4D-Quad", "S4D-Random", "S4D-Real"),
    }  # fmt: skip
    entries: list[Entry] = []
    for base, changes in rows.items():
        for change in (f"{base} itself", *changes):
            for column, prefix in ABLATION.items():
                recipe = f"{prefix}-{MODELS[base]}"
                number, overrides = paper_number(recipe, f"Table 3a, {change}")
                itself = change.endswith("itself")
                row = base if itself else change if change.startswith("S4D") else f"{base}, {change}"
                number = "" if number == "?" else number
                entries.append(Trained(row, column, number, recipe, overrides, "valid", "" if itself else base))
    about = (
        "Best validation accuracy (%) or RMSE of S4D-Lin and S4D-Inv, and what changes of their initialization add to "
        "it: the rows below each are differences from it, as the paper prints them. Where the paper's number is empty, "
        "it could not be read."
    )
    return Table("s4d-table3a", "S4D Table 3a: initializations", about, DATASETS, tuple(entries), seeds=2,
                 main=("S4D-Lin", "S4D-Inv"))  # fmt: skip


def table3b() -> Table:
    """All methods, with (A, B) frozen and trained."""
    columns = (
        Column(f"{SCIFAR} first"), Column(f"{SCIFAR} best"), Column(f"{SC} first"), Column(f"{SC} best"),
        Column("BIDMC best", lower=True),
    )  # fmt: skip
    entries: list[Entry] = []
    for frozen in (True, False):
        for model, word in MODELS.items():
            row = f"{model}, {'frozen' if frozen else 'trained'}"
            for place, (column, prefix) in enumerate(ABLATION.items()):
                recipe = f"{prefix}-{word}"
                number, overrides = paper_number(recipe, "Table 3b, frozen A and B" if frozen else "")
                if column == BIDMC:
                    entries.append(Trained(row, "BIDMC best", number, recipe, overrides, "valid"))
                    continue
                first = printed("s4d-first")[model][place if frozen else 2 + place]
                entries.append(Trained(row, f"{column} first", first, recipe, overrides, "first"))
                entries.append(Trained(row, f"{column} best", number, recipe, overrides, "valid"))
    about = "Validation accuracy (%) after one epoch and at best, best RMSE; (A, B) as initialized, or trained."
    main = tuple(f"{model}, trained" for model in MODELS)
    return Table("s4d-table3b", "S4D Table 3b: frozen and trained (A, B)", about, columns, tuple(entries), 2, main)


def table4() -> Table:
    """Larger models on the same datasets."""
    columns = (
        Column("sCIFAR"), Column("SC causal"), Column("SC bidirectional"), Column("BIDMC HR", True),
        Column("BIDMC RR", True), Column("BIDMC SpO2", True),
    )  # fmt: skip
    entries: list[Entry] = []
    for model, (causal,) in printed("s4d-causal").items():
        word, (scifar, hr, rr, spo2, speech, _) = MODELS[model], printed("s4d-large")[model]
        for column, number, recipe in (
            ("sCIFAR", scifar, f"scifar-{word}"), ("SC causal", causal, f"sc35-ar-{word}"),
            ("SC bidirectional", speech, f"sc35-{word}"), ("BIDMC HR", hr, f"bidmc-hr-{word}"),
            ("BIDMC RR", rr, f"bidmc-rr-{word}"), ("BIDMC SpO2", spo2, f"bidmc-spo2-{word}"),
        ):  # fmt: skip
            entries.append(Trained(model, column, number, recipe))
    about = "Test accuracy (%) and RMSE of the larger models of Table 12."
    return Table("s4d-table4", "S4D Table 4: larger models", about, columns, tuple(entries))


def table5() -> Table:
    """The Long Range Arena."""
    entries: list[Entry] = []
    rows = {"S4-LegS": "s4", "S4-FouT": "s4-fout", "S4D-LegS": "s4d-legs", "S4D-Inv": "s4d-inv",
            "S4D-Lin": "s4d-lin", "S4 (original)": "s4-original"}  # fmt: skip
    for row, word in rows.items():
        for task in LRA:
            recipe = f"lra-{task.lower().replace('-', '')}-{word}"
            entries.append(Trained(row, task, paper_number(recipe)[0], recipe))
    columns = tuple(Column(task) for task in LRA)
    entries += others("s4d-lra", columns)
    about = "Test accuracy (%). X: the paper's model did no better than chance."
    return Table("s4d-table5", "S4D Table 5: Long Range Arena", about, columns, tuple(entries))


def table6() -> Table:
    """Parameterizations on Path-X."""
    base = "lra-pathx-small-s4d"
    entries: list[Entry] = [Trained("S4D", "Path-X", "92.12 (0.34)", base)]
    for row, (deviation,) in printed("s4d-pathx").items():
        number, overrides = paper_number(base, f"Table 6, {row}")
        entries.append(Trained(row, "Path-X", f"{number} ({deviation})", base, overrides))
    entries.append(Trained("DSS", "Path-X", "89.72 (0.33)", "lra-pathx-small-dss"))
    about = "Test accuracy (%) on Path-X of models with fewer than 200K parameters."
    return Table("s4d-table6", "S4D Table 6: parameterizations on Path-X", about, (Column("Path-X"),), tuple(entries))


def table9() -> Table:
    """Sequential CIFAR-10."""
    large = printed("s4d-large").items()
    entries: list[Entry] = [Trained(model, "sCIFAR", row[0], f"scifar-{MODELS[model]}") for model, row in large]
    entries += others("s4d-scifar", (Column("sCIFAR"),))
    return Table("s4d-table9", "S4D Table 9: sequential CIFAR-10", "Test accuracy (%).", (Column("sCIFAR"),),
                 tuple(entries))  # fmt: skip


def table10() -> Table:
    """BIDMC vital signs."""
    columns = (Column("HR", True), Column("RR", True), Column("SpO2", True))
    entries: list[Entry] = []
    for model, numbers in printed("s4d-large").items():
        for column, number in zip(("HR", "RR", "SpO2"), numbers[1:4]):
            entries.append(Trained(model, column, number, f"bidmc-{column.lower()}-{MODELS[model]}"))
    entries += others("s4d-bidmc", columns)
    about = "Test RMSE. Windows overlap and every patient is in all parts, as in the paper; see docs/data.md."
    return Table("s4d-table10", "S4D Table 10: vital signs", about, columns, tuple(entries))


def table11() -> Table:
    """Speech Commands, also at half the rate."""
    columns = (Column("16000 Hz"), Column("8000 Hz"))
    entries: list[Entry] = []
    for model, numbers in printed("s4d-large").items():
        recipe = f"sc35-{MODELS[model]}"
        entries.append(Trained(model, "16000 Hz", numbers[4], recipe))
        entries.append(Trained(model, "8000 Hz", numbers[5], recipe, value="half"))
    entries += others("s4d-speech", columns)
    about = "Test accuracy (%) on 35 words, and without new training on every second sample."
    return Table("s4d-table11", "S4D Table 11: Speech Commands", about, columns, tuple(entries))
