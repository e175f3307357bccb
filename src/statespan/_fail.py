"""One-line error reports for commands."""

import sys
from typing import NoReturn

from statespan._text import printable


def fail(message: str) -> NoReturn:
    """Report a user's mistake in one line and exit with code 2."""
    complain(message)
    sys.exit(2)


def complain(message: str) -> None:
    """Print a message in one line on standard error, with control characters escaped."""
    print(f"statespan: {printable(' '.join(message.split()))}", file=sys.stderr)
