"""The `draftwood` command.

One file per command; a command's module, and whatever it imports, is loaded when it runs.
"""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 0 ok; 1 a check failed; 2 bad input, told on stderr without a traceback; 130
    interrupted. arguments: those of the process by default.
    """
    from draftwood.core.processes import rank

    if rank():
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - process 0 speaks for all
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code; tests call this."""
    import click

    from draftwood.cli.app import app
    from draftwood.core.errors import DraftwoodError

    try:
        code = app.main(list(arguments), prog_name="draftwood", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except DraftwoodError as error:
        click.echo(f"error: {error}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        # The reader has left (`draftwood ... | head`): not an error, and nobody to tell.
        sys.stdout = None
        return 0
