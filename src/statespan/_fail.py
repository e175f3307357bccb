"""How a command ends when its user made a mistake."""

import sys
from typing import NoReturn

from statespan._text import printable


def fail(message: str) -> NoReturn:
    """Say what is wrong in one line, and leave with exit code 2."""
    complain(message)
    sys.exit(2)


def complain(message: str) -> None:
    """Say something in one line on standard error, whatever is in it."""
    print(f"statespan: {printable(' '.join(message.split()))}", file=sys.stderr)
