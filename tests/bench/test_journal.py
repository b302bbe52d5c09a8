"""A journal survives being cut off anywhere, and never mixes two benchmarks."""

import json

import pytest
from attrs import evolve

from draftwood.bench.journal import Journal
from draftwood.bench.records import RequestRecord, RoundColumns
from draftwood.core.errors import RequestError
from draftwood.core.stats import STAGES

HEADER = {"seed": 0, "machine": {"cores": 2}}
RECORD = RequestRecord(
    contestant="a",
    prompt="p",
    group="g",
    repetition=0,
    seed=0,
    prompt_tokens=3,
    tokens=[1, 2],
    text="é",
    finish_reason="length",
    seconds=0.5,
    first_seconds=0.1,
    first_tokens=1,
    timings=dict.fromkeys(STAGES, 0.1),
    rounds=RoundColumns([2], [1], [1], [4], [4], [True], [0.3], [1.5], [0.25], [1]),
)
SECOND = evolve(RECORD, prompt="q", rounds=None, timings=None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out" / "journal.jsonl"


@pytest.fixture
def written(path):
    journal = Journal(path, HEADER)
    journal.append(RECORD)
    journal.append(SECOND)
    return path


def test_records_are_read_back_as_they_were(written):
    assert list(Journal(written, HEADER).records.values()) == [RECORD, SECOND]


def test_wherever_it_was_cut_off_whole_records_remain_and_it_goes_on(written):
    whole = written.read_bytes()
    starts = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in [0, 5, *starts, *(start + 7 for start in starts[:-1]), len(whole) - 1]:
        written.write_bytes(whole[:cut])
        kept = Journal(written, HEADER)
        assert len(kept.records) == max(0, sum(start <= cut for start in starts) - 1)
        kept.append(SECOND)
        assert SECOND.key in Journal(written, HEADER).records


@pytest.mark.parametrize("change", [{"seed": 1}, {"machine": {"cores": 4}}, {"tokens": 3}])
def test_another_benchmark_is_refused_and_said_how_it_differs(written, change):
    before = written.read_bytes()
    with pytest.raises(RequestError, match=f"another benchmark: {next(iter(change))} differ"):
        Journal(written, HEADER | change)
    assert written.read_bytes() == before


@pytest.mark.parametrize("line", ["[]", "{}", '{"contestant": "a"}', "nonsense"])
def test_a_line_that_is_no_record_is_refused_with_its_number(written, line):
    with written.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RequestError, match=r"journal\.jsonl:4: not a record"):
        Journal(written, HEADER)


def test_a_file_of_something_else_is_refused(path):
    path.parent.mkdir()
    path.write_text("hello\n")
    with pytest.raises(RequestError, match="journal"):
        Journal(path, HEADER)


def test_without_a_path_nothing_is_written(tmp_path):
    journal = Journal(None, HEADER)
    journal.append(RECORD)
    assert journal.records == {RECORD.key: RECORD}
    assert list(tmp_path.iterdir()) == []


def test_a_line_is_json_without_nan(written):
    for line in written.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    with pytest.raises(ValueError, match="JSON"):
        Journal(written, HEADER).append(evolve(RECORD, seconds=float("nan")))
