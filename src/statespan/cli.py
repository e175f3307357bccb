"""The command line. A user's mistake gets one line and exit code 2.

Everything beyond the standard library is imported when a command runs, so that ``import statespan`` stays light.
"""

import sys
from importlib.util import find_spec
from typing import Annotated, Any

from statespan._fail import fail
from statespan._version import __version__

HELP = "statespan: structured state space models of long sequences. Try: statespan bench --help"


def main() -> None:
    """Run the command line: the entry point of ``statespan`` and of ``python -m statespan``."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        fail(f'the command line needs {" and ".join(missing)}: pip install "statespan[cli]"')
    app()(prog_name="statespan")


def app() -> Any:
    """The command line as a typer application."""
    import typer
    from typer.core import TyperGroup

    from statespan.bench import command

    class OneLine(TyperGroup):
        """A group of commands that answers a mistake with one line instead of usage and boxes."""

        def main(self, *args: Any, **extra: Any) -> Any:
            """Run a command and leave with its exit code."""
            try:
                code = super().main(*args, **{**extra, "standalone_mode": False})
            except Exception as error:
                describe = getattr(error, "format_message", None)  # all of click's errors have it, typer's copies too
                if describe is None:
                    raise
                fail(describe())
            sys.exit(code if isinstance(code, int) else 0)

    def root(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    ) -> None:
        if version:
            print(f"statespan {__version__}")
        elif context.invoked_subcommand is None:
            print(context.get_help())

    application = typer.Typer(
        cls=OneLine, help=HELP, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    application.callback(invoke_without_command=True)(root)
    application.command("bench", help=command.HELP)(command.bench)
    return application
