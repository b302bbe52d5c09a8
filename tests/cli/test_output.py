"""Standard output that is closed, full or ASCII only: no traceback, and the right exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCHEMA = "from draftwood.cli import main; main(['schema'])"


def run(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        stderr=subprocess.PIPE,
        encoding="latin-1",
        timeout=60,
        env=environment,
        **options,
    )


@pytest.mark.covers("output-stream")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_output_is_one_error_and_exit_code_2():
    with Path("/dev/full").open("w") as full:
        ran = run(SCHEMA, stdout=full)
    assert (ran.returncode, ran.stderr) == (2, "error: standard output: No space left on device\n")


@pytest.mark.covers("output-stream")
def test_closed_output_is_one_error_and_exit_code_2():
    ran = run(SCHEMA, preexec_fn=lambda: os.close(1))
    assert (ran.returncode, ran.stderr) == (2, "error: standard output: is closed\n")


@pytest.mark.covers("output-stream")
def test_reader_that_left_gives_the_exit_code_of_a_broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = run(SCHEMA, stdout=writer)
    finally:
        os.close(writer)
    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.covers("output-stream")
@pytest.mark.parametrize("descriptors", [(2,), (1, 2)])
def test_closed_error_output_keeps_the_exit_code(descriptors):
    code = "from draftwood.cli import main; main(['check', 'nothing'])"
    ran = run(code, preexec_fn=lambda: [os.close(fd) for fd in descriptors])
    assert ran.returncode == 2


@pytest.mark.covers("output-stream")
def test_characters_that_the_output_lacks_are_escaped():
    code = (
        "import click, draftwood.cli.app as app\n"
        "from draftwood.cli import main\n"
        "from draftwood.cli.options import print_json\n"
        "@app.app.command('say')\n"
        "def say():\n"
        "    click.echo('caf\u00e9 \u2713')\n"
        "    print_json({'text': '\u00e9'})\n"
        "app.LazyGroup.get_command = lambda *_: say\n"
        "main(['say'])"
    )
    ran = run(code, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "latin-1"})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == 'caf\u00e9 \\u2713\n{\n  "text": "\\u00e9"\n}\n'


@pytest.mark.covers("output-stream")
def test_trace_on_an_ascii_terminal_is_ascii():
    code = (
        "from rich.console import Console\n"
        "from draftwood.cli.drawing import visible\n"
        "console = Console()\n"
        "assert console.options.ascii_only\n"
        "console.print(visible(' caf\u00e9', ascii_only=True))"
    )
    ran = run(code, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    assert (ran.stdout, ran.stderr) == ("_caf\\xe9\n", "")
