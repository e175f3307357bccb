"""Studies on real data: one command each, which writes what it finds as JSON, for the documents to show."""
