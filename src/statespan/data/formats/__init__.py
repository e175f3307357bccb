"""Readers of file formats: WAV, idx, npy and npz, CSV, and the archives' ts files."""
