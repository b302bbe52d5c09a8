"""Running a study's command in this process."""

from collections.abc import Callable

import click
import pytest
from attrs import frozen

from studies.command_line import execute


@frozen
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Study = Callable[..., Result]


@pytest.fixture
def study(capsys: pytest.CaptureFixture[str]) -> Study:
    """study(command, "--json", ...) -> exit code, standard output, standard error."""

    def run(command: click.Command, *arguments: str) -> Result:
        code = execute(command, arguments, "study")
        return Result(code, *capsys.readouterr())

    return run
