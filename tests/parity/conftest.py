"""One thread; and, after the run, how near each text came to differing."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Operations this small only lose to a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
