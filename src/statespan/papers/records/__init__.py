"""Results and models that are shown to others: publishing a run, tables and pictures."""
