"""The command line. A user's mistake gets one line and exit code 2.

Everything beyond the standard library is imported when a command runs, so that ``import statespan`` stays light.
"""

import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NoReturn

from statespan import _extras, _plugins
from statespan._fail import complain, fail
from statespan._version import __version__

COMMANDS = (
    "train", "eval", "predict", "forecast", "generate", "stream", "export", "import-reference", "models", "plot",
    "view", "data",
)  # fmt: skip
GROUP = "statespan.commands"  # of the entry points with commands of other packages
HELP = """statespan: structured state space models of long sequences.

\b
Examples:
  statespan train digits-s4d        train a small model in a minute, nothing to download
  statespan forecast data.csv       forecast a time series of your own
  statespan recipes                 list the recipes, with the papers' numbers
  statespan data                    list the datasets: which are here, how to get the others
  statespan plot kernels            plot a layer; also runs and saved models
  statespan view digits-s4d         turn its knobs in a browser, and stream signals
  statespan COMMAND --help          more about a command, with examples
"""


def main() -> None:
    """Run the command line: the entry point of ``statespan`` and of ``python -m statespan``."""
    command = next((word for word in sys.argv[1:] if word in COMMANDS or word in _plugins.names(GROUP)), None)
    try:  # name what the command needs, too, so that nobody has to install twice
        extra = "cli" if command is None else _extras.COMMANDS.get(command, _extras.EVERYDAY)
        _extras.require("the command line needs", extra, "typer", "rich")
    except _extras.MissingPackageError as error:
        fail(str(error))
    signal.signal(signal.SIGTERM, _terminated)
    app()(prog_name="statespan")


def app() -> Any:
    """The command line as a typer application."""
    import typer
    from typer.core import TyperGroup

    class OneLine(TyperGroup):
        """A group of commands that reports a mistake in one line."""

        def main(self, *args: Any, **extra: Any) -> Any:
            """Run a command and exit with its code."""
            try:
                code = super().main(*args, **{**extra, "standalone_mode": False})
            except KeyboardInterrupt:
                sys.exit(130)
            except _extras.MissingPackageError as error:
                fail(str(error))
            except Exception as error:
                describe = getattr(error, "format_message", None)  # all of click's errors have it, typer's copies too
                if describe is None and type(error).__name__ == "Abort":  # Ctrl-C, as older versions call it
                    sys.exit(130)
                if describe is None:
                    raise
                fail(describe() + _received(error))
            sys.exit(code if isinstance(code, int) else 0)

    def root(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    ) -> None:
        if version:
            print(f"statespan {__version__}")
        elif context.invoked_subcommand is None:
            print(context.get_help())

    application = typer.Typer(
        cls=OneLine, help=HELP, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    application.callback(invoke_without_command=True)(root)
    modules = {name: import_module(f"statespan.cli.{name.replace('-', '_')}") for name in COMMANDS}
    for name, module in modules.items():
        application.command(name, help=module.HELP)(getattr(module, name.replace("-", "_")))
    for name, module in _plugins.modules(GROUP).items():
        if name in modules or not (hasattr(module, name) and hasattr(module, "HELP")):
            problem = "its name is built in" if name in modules else f"{module.__name__} has no {name} or no HELP"
            complain(f"the command {name} of an installed package is left out: {problem}")
            continue
        application.command(name, help=module.HELP)(getattr(module, name))
    return application


def _received(error: Exception) -> str:
    """The value of an option of the wrong type, which typer leaves out of its message where pydantic reads options."""
    details = getattr(error.__cause__, "errors", None)
    return "" if details is None else f", got {details()[0]['input']!r}"


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """Exit and clean up on SIGTERM while no run is being saved."""
    sys.exit(128 + number)
