"""``python -m statespan``."""

from statespan.cli import main

main()
