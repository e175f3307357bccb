"""Published results and models: publishing a run, tables and plots."""
