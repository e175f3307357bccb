"""Studies on real data: one command each, which writes what it finds as JSON. All figures in the documents are theirs."""
