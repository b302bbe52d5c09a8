"""One thread; and, after the run, how near each text came to differing."""

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def on_one_thread(one_thread: None) -> None:
    """Every test here runs on one thread."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What the tests of precision recorded: margins, and where texts differ from plain decoding."""
    reports = [
        report
        for report in terminalreporter.getreports("passed")
        if report.user_properties and "parity/test_precision" in report.nodeid
    ]
    if reports:
        terminalreporter.section("text below float64, against plain decoding")
    for report in reports:
        name = report.nodeid.partition("::")[2].removeprefix("test_")
        said = "; ".join(f"{key}: {value}" for key, value in report.user_properties)
        terminalreporter.line(f"{name}: {said}")
