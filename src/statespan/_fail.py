"""How a command ends when its user made a mistake."""

import sys
from typing import NoReturn


def fail(message: str) -> NoReturn:
    """Say what is wrong in one line, and leave with exit code 2."""
    print(f"statespan: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
