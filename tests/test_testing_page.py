"""docs/testing.md names tests that exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "testing.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/.]+\.py)::(\w+)`", PAGE)))


def missing(file: str, test: str) -> str | None:
    """What is wrong with a reference, None if it is right."""
    path = TESTS / file
    if not path.is_file():
        return f"{file} does not exist"
    found = re.search(rf"^ *def {test}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    return None if found else f"{file} has no {test}"


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_every_named_test_exists(file: str, test: str) -> None:
    assert missing(file, test) is None


def test_every_named_file_and_folder_exists() -> None:
    for path in re.findall(r"`(tests/[\w/.]+)`", PAGE):
        assert (TESTS.parent / path).exists(), path


def test_every_fault_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and "::" in line]
    table = PAGE.partition("## Kinds of fault")[2]
    faults = [
        line
        for line in table.splitlines()
        if line.startswith("| ") and not line.startswith(("| fault", "|---"))
    ]
    assert faults == rows
    assert len(faults) > 25


def test_a_name_that_is_not_there_is_told() -> None:
    assert missing("nowhere.py", "test_x") == "nowhere.py does not exist"
    assert missing("conftest.py", "test_x") == "conftest.py has no test_x"
