"""Studies on real data, one command each, which write what they find as JSON: every figure in the documents is theirs."""
