"""Studies on real data: one command each, which writes what it finds as JSON. The documents' figures come from there."""
