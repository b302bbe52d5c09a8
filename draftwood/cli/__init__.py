"""The `draftwood` command.

One file per command; a command's module, and whatever it imports, is loaded when it runs.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

CLOSED = 141
"""Exit code where the reader of standard output has left, as of other commands: 128 + SIGPIPE."""


class _ClosedOutput(io.TextIOBase):
    """Standard output of a process that was started without one (`draftwood ... >&-`)."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "is closed")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 0 ok; 1 a check failed; 2 bad input, or output that cannot be written, with a
    message on standard error and no traceback; 130 interrupted; 141 the reader of standard output
    has left.

    Args:
        arguments: Those of the process by default.
    """
    from draftwood.core.processes import rank

    if rank():
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - process 0 prints for all
    elif sys.stdout is None:
        sys.stdout = _ClosedOutput()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # text that the encoding does not have
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code; tests call this."""
    import click

    from draftwood.cli.app import app
    from draftwood.core.errors import DraftwoodError

    def fail(message: str, code: int) -> int:
        with suppress(OSError):  # standard error may be closed or full, too
            click.echo(message, err=True)
        return code

    try:
        code = app.main(list(arguments), prog_name="draftwood", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        return 2
    except DraftwoodError as error:
        return fail(f"error: {error}", 2)
    except (KeyboardInterrupt, click.Abort):
        return fail("interrupted", 130)
    except SystemExit:
        # Click's answer to a broken pipe, wherever it happens, is wrapped streams and exit code 1.
        if not hasattr(sys.stdout, "wrapped"):
            raise
        sys.stdout, sys.stderr = (
            getattr(stream, "wrapped", stream) for stream in (sys.stdout, sys.stderr)
        )
        _discard_output()
        return CLOSED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EDQUOT, errno.EFBIG):
            raise
        _discard_output()
        return fail(f"error: standard output: {error.strerror}", 2)


def _discard_output() -> None:
    """Let the interpreter write what is buffered to nowhere when it exits.

    It would fail again, print a warning and change the exit code.
    """
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
