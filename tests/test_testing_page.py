"""docs/testing.md has the generated table of fault kinds, and names files that exist."""

import re

import fault_kinds
import pytest

TEXT = fault_kinds.PAGE.read_text(encoding="utf-8")


def test_every_kind_of_fault_has_a_test() -> None:
    tests = fault_kinds.covering_tests()
    assert len(tests) > 30
    assert [kind for kind, covering in tests.items() if not covering] == []


def test_the_page_has_the_generated_table() -> None:
    """`make docs` writes it."""
    assert fault_kinds.page(TEXT) == TEXT


def test_every_named_file_and_folder_exists() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", TEXT)
    assert len(named) > 5
    for path in named:
        assert (fault_kinds.TESTS.parent / path).exists(), path


def test_markers_of_functions_and_methods_are_read() -> None:
    source = """
@pytest.mark.slow
@pytest.mark.covers("a", "b")
def test_x(): ...

class Checks:
    @pytest.mark.covers("c")
    def test_y(self): ...
"""
    assert list(fault_kinds.markers(source)) == [
        ("test_x", "a"),
        ("test_x", "b"),
        ("Checks::test_y", "c"),
    ]


def test_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "test_z.py").write_text('@pytest.mark.covers("nonsense")\ndef test_z(): ...\n')
    monkeypatch.setattr(fault_kinds, "TESTS", tmp_path)
    with pytest.raises(KeyError, match="nonsense"):
        fault_kinds.covering_tests()
