"""Small estimators and small series for tests."""

import wave

import numpy as np

from statespan.estimators import S4Classifier, S4Forecaster, S4Regressor

TINY = {"d_model": 4, "n_layers": 1, "d_state": 2, "epochs": 1, "batch_size": 64, "verbose": 0}
TINY_FORECASTER = {"context": 16, "d_model": 4, "n_layers": 1, "d_state": 2, "steps": 3, "batch_size": 8, "verbose": 0}


def classifier(**options):
    return S4Classifier(**{**TINY, **options})


def regressor(**options):
    return S4Regressor(**{**TINY, **options})


def forecaster(horizon=4, **options):
    return S4Forecaster(horizon, **{**TINY_FORECASTER, **options})


def waves(n=24, length=40, channels=1, seed=0):
    """Sine waves of two frequencies at random phases (n, length, channels), and which frequency: 0 or 1."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    t = np.arange(length)[:, None] / length
    phase = rng.uniform(0, 2 * np.pi, (n, 1, channels))
    return np.sin(2 * np.pi * (3 + 2 * y[:, None, None]) * t + phase), y


def made_up_patients(folder):
    """Eight records of 40 s in PhysioNet's layout: a pulse of another rate each."""
    (folder / "bidmc").mkdir()
    t = np.arange(40 * 125 + 1) / 125
    for number in range(1, 9):
        pulse = np.sin(2 * np.pi * (0.8 + 0.1 * number) * t)
        table = np.stack([t, pulse, pulse**3], 1)
        name = folder / "bidmc" / f"bidmc_{number:02d}"
        np.savetxt(f"{name}_Signals.csv", table, fmt="%.3f", delimiter=",", header="Time [s],PLETH,II", comments="")
        rates = np.tile([48 + 6 * number, 48 + 6 * number, 15, 97], (41, 1))
        rows = np.column_stack([np.arange(41), rates])
        header = "Time [s],HR,PULSE,RESP,SpO2"
        np.savetxt(f"{name}_Numerics.csv", rows, fmt="%g", delimiter=",", header=header, comments="")
    return folder


def made_up_words(folder):
    """Two words of three clips each, high and low tones."""
    for word, pitch in (("no", 200), ("yes", 900)):
        (folder / "speech" / word).mkdir(parents=True)
        for number in range(3):
            sound = (8000 * np.sin(2 * np.pi * pitch * np.arange(16000) / 16000)).astype(np.int16)
            with wave.open(str(folder / "speech" / word / f"{number}.wav"), "wb") as file:
                file.setnchannels(1), file.setsampwidth(2), file.setframerate(16000)
                file.writeframes(sound.tobytes())
    (folder / "speech" / "testing_list.txt").write_text("no/2.wav\nyes/2.wav\n")
    return folder
