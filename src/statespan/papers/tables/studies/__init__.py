"""Studies on real data: one command each, which writes its findings as JSON for the documentation."""
