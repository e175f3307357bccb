"""The tables of the S4D paper. The numbers of recipes' own rows are read from the recipes."""

from __future__ import annotations

from statespan.papers.tables.spec import Column, Entry, Printed, Table, Trained, paper_number

SCIFAR, SC, BIDMC = "sCIFAR", "SC (AR)", "BIDMC (SpO2)"
ABLATION = {SCIFAR: "ablation-scifar", SC: "ablation-sc35", BIDMC: "ablation-bidmc"}
DATASETS = (Column(SCIFAR), Column(SC), Column(BIDMC, lower=True))
MODELS = {
    "S4-LegS": "s4-legs", "S4-LegT": "s4-legt", "S4-FouT": "s4-fout", "S4-LegS+FouT": "s4-legs-fout",
    "S4D-LegS": "s4d-legs", "S4D-Inv": "s4d-inv", "S4D-Lin": "s4d-lin",
}  # fmt: skip
_SPREAD = {  # Tables 7 and 8: standard deviations for sCIFAR, SC and BIDMC
    "frozen B, softmax": ("0.22", "0.21", "0.0048"),
    "frozen B, Vandermonde": ("0.16", "0.03", "0.0039"),
    "trained B, softmax": ("0.43", "0.11", "0.0039"),
    "trained B, Vandermonde": ("0.43", "0.18", "0.0020"),
    "bilinear, exp": ("0.18", "0.01", "0.0069"),
    "bilinear, ReLU": ("0.06", "0.25", "0.0063"),
    "bilinear, free": ("0.27", "0.37", "0.0075"),
    "ZOH, exp": ("0.24", "0.07", "0.0014"),
    "ZOH, ReLU": ("0.72", "0.13", "0.0065"),
    "ZOH, free": ("0.13", "0.58", "0.0035"),
}
_FIRST = {  # Table 3b: accuracy after one epoch on sCIFAR and SC, (A, B) frozen and trained
    "S4-LegS": ("53.63", "33.87", "54.23", "62.19"),
    "S4-LegT": ("54.76", "8.77", "55.16", "55.86"),
    "S4-FouT": ("55.28", "9.27", "55.89", "60.56"),
    "S4-LegS+FouT": ("54.38", "34.06", "55.00", "61.76"),
    "S4D-LegS": ("50.87", "22.76", "50.41", "47.54"),
    "S4D-Inv": ("53.19", "18.49", "53.42", "45.73"),
    "S4D-Lin": ("51.75", "19.09", "52.23", "47.68"),
}
_LARGE = {  # Tables 9 to 11: test results with their deviations: sCIFAR; HR, RR, SpO2; 16,000 and 8,000 Hz
    "S4-LegS": ("91.80 (0.43)", "0.332 (0.013)", "0.247 (0.062)", "0.090 (0.006)", "96.08 (0.15)", "91.32 (0.17)"),
    "S4-FouT": ("91.22 (0.25)", "0.339 (0.020)", "0.301 (0.030)", "0.068 (0.003)", "95.27 (0.20)", "91.59 (0.23)"),
    "S4-LegS+FouT": ("91.58 (0.17)", "0.344 (0.032)", "0.163 (0.008)", "0.080 (0.007)", "95.32 (0.10)", "90.72 (0.68)"),
    "S4D-LegS": ("89.92 (1.69)", "0.367 (0.001)", "0.248 (0.036)", "0.102 (0.001)", "95.83 (0.14)", "91.08 (0.16)"),
    "S4D-Inv": ("90.69 (0.06)", "0.373 (0.024)", "0.254 (0.022)", "0.110 (0.001)", "96.18 (0.27)", "91.80 (0.24)"),
    "S4D-Lin": ("90.42 (0.03)", "0.379 (0.006)", "0.226 (0.008)", "0.114 (0.003)", "96.25 (0.03)", "91.58 (0.33)"),
}
_CAUSAL = {  # Table 4: Speech Commands, causal
    "S4-LegS": "93.60 (0.13)", "S4-FouT": "91.78 (0.10)", "S4D-LegS": "93.57", "S4D-Inv": "93.40", "S4D-Lin": "93.37",
}  # fmt: skip
_SCIFAR_OTHERS = {
    "Transformer": "62.2", "FlexConv": "80.82", "TrellisNet": "73.42", "LSTM": "63.01", "r-LSTM": "72.2",
    "UR-GRU": "74.4", "HiPPO-RNN": "61.1", "LipschitzRNN": "64.2",
}  # fmt: skip
_BIDMC_OTHERS = {
    "UnICORNN": ("1.39", "1.06", "0.869"), "coRNN": ("1.81", "1.45", ""), "CKConv": ("2.05", "1.214", "1.051"),
    "NRDE": ("2.97", "1.49", "1.29"), "LSTM": ("10.7", "2.28", ""), "Transformer": ("12.2", "2.61", "3.02"),
    "XGBoost": ("4.72", "1.67", "1.52"), "Random Forest": ("5.69", "1.85", "1.74"),
    "Ridge Regress.": ("17.3", "3.86", "4.16"),
}  # fmt: skip
_SPEECH_OTHERS = {
    "InceptionNet": ("61.24", "5.18"), "ResNet-18": ("77.86", "8.74"), "XResNet-50": ("83.01", "7.72"),
    "ConvNet": ("95.51", "7.26"),
}  # fmt: skip
_LRA = ("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X")


def table2() -> Table:
    """Parameterizations of diagonal SSMs, with S4D-Inv."""
    entries: list[Entry] = []
    for row, deviations in _SPREAD.items():
        for column, deviation in zip(ABLATION, deviations):
            recipe = f"{ABLATION[column]}-s4d-inv"
            printed, overrides = paper_number(recipe, f"Table 2, {row}")
            entries.append(Trained(row, column, f"{printed} ({deviation})", recipe, overrides, "valid"))
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
                printed, overrides = paper_number(recipe, f"Table 3a, {change}")
                itself = change.endswith("itself")
                row = base if itself else change if change.startswith("S4D") else f"{base}, {change}"
                printed = "" if printed == "?" else printed
                entries.append(Trained(row, column, printed, recipe, overrides, "valid", "" if itself else base))
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
                printed, overrides = paper_number(recipe, "Table 3b, frozen A and B" if frozen else "")
                if column == BIDMC:
                    entries.append(Trained(row, "BIDMC best", printed, recipe, overrides, "valid"))
                    continue
                first = _FIRST[model][place if frozen else 2 + place]
                entries.append(Trained(row, f"{column} first", first, recipe, overrides, "first"))
                entries.append(Trained(row, f"{column} best", printed, recipe, overrides, "valid"))
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
    for model, causal in _CAUSAL.items():
        word, (scifar, hr, rr, spo2, speech, _) = MODELS[model], _LARGE[model]
        for column, printed, recipe in (
            ("sCIFAR", scifar, f"scifar-{word}"), ("SC causal", causal, f"sc35-ar-{word}"),
            ("SC bidirectional", speech, f"sc35-{word}"), ("BIDMC HR", hr, f"bidmc-hr-{word}"),
            ("BIDMC RR", rr, f"bidmc-rr-{word}"), ("BIDMC SpO2", spo2, f"bidmc-spo2-{word}"),
        ):  # fmt: skip
            entries.append(Trained(model, column, printed, recipe))
    about = "Test accuracy (%) and RMSE of the larger models of Table 12."
    return Table("s4d-table4", "S4D Table 4: larger models", about, columns, tuple(entries))


def table5() -> Table:
    """The Long Range Arena."""
    entries: list[Entry] = []
    rows = {"S4-LegS": "s4", "S4-FouT": "s4-fout", "S4D-LegS": "s4d-legs", "S4D-Inv": "s4d-inv",
            "S4D-Lin": "s4d-lin", "S4 (original)": "s4-original"}  # fmt: skip
    for row, word in rows.items():
        for task in _LRA:
            recipe = f"lra-{task.lower().replace('-', '')}-{word}"
            entries.append(Trained(row, task, paper_number(recipe)[0], recipe))
    others = zip(_LRA, ("36.37", "64.27", "57.46", "42.44", "71.40", "X"))
    entries += [Printed("Transformer", task, printed) for task, printed in others]
    about = "Test accuracy (%). X: the paper's model did no better than chance."
    return Table("s4d-table5", "S4D Table 5: Long Range Arena", about, tuple(Column(t) for t in _LRA), tuple(entries))


def table6() -> Table:
    """Parameterizations on Path-X."""
    base = "lra-pathx-small-s4d"
    entries: list[Entry] = [Trained("S4D", "Path-X", "92.12 (0.34)", base)]
    spreads = {"identity Re(A)": "0.16", "ReLU Re(A)": "0.20", "ZOH": "0.08", "frozen B": "0.62",
               "ZOH and softmax": "0.34"}  # fmt: skip
    for row, deviation in spreads.items():
        printed, overrides = paper_number(base, f"Table 6, {row}")
        entries.append(Trained(row, "Path-X", f"{printed} ({deviation})", base, overrides))
    entries.append(Trained("DSS", "Path-X", "89.72 (0.33)", "lra-pathx-small-dss"))
    about = "Test accuracy (%) on Path-X of models with fewer than 200K parameters."
    return Table("s4d-table6", "S4D Table 6: parameterizations on Path-X", about, (Column("Path-X"),), tuple(entries))


def table9() -> Table:
    """Sequential CIFAR-10."""
    entries: list[Entry] = [
        Trained(model, "sCIFAR", numbers[0], f"scifar-{MODELS[model]}") for model, numbers in _LARGE.items()
    ]
    entries += [Printed(model, "sCIFAR", printed) for model, printed in _SCIFAR_OTHERS.items()]
    return Table("s4d-table9", "S4D Table 9: sequential CIFAR-10", "Test accuracy (%).", (Column("sCIFAR"),),
                 tuple(entries))  # fmt: skip


def table10() -> Table:
    """BIDMC vital signs."""
    columns = (Column("HR", True), Column("RR", True), Column("SpO2", True))
    entries: list[Entry] = []
    for model, numbers in _LARGE.items():
        for column, printed in zip(("HR", "RR", "SpO2"), numbers[1:4]):
            entries.append(Trained(model, column, printed, f"bidmc-{column.lower()}-{MODELS[model]}"))
    for model, others in _BIDMC_OTHERS.items():
        entries += [Printed(model, column.name, printed) for column, printed in zip(columns, others)]
    about = "Test RMSE. Windows overlap and every patient is in all parts, as in the paper; see docs/data.md."
    return Table("s4d-table10", "S4D Table 10: vital signs", about, columns, tuple(entries))


def table11() -> Table:
    """Speech Commands, also at half the rate."""
    columns = (Column("16000 Hz"), Column("8000 Hz"))
    entries: list[Entry] = []
    for model, numbers in _LARGE.items():
        recipe = f"sc35-{MODELS[model]}"
        entries.append(Trained(model, "16000 Hz", numbers[4], recipe))
        entries.append(Trained(model, "8000 Hz", numbers[5], recipe, value="half"))
    for model, others in _SPEECH_OTHERS.items():
        entries += [Printed(model, column.name, printed) for column, printed in zip(columns, others)]
    about = "Test accuracy (%) on 35 words, and without new training on every second sample."
    return Table("s4d-table11", "S4D Table 11: Speech Commands", about, columns, tuple(entries))
