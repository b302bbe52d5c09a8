"""Benchmarks of a target without weights, on a clock that ticks when it is read."""

import itertools
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from draftwood.bench.contestants import Contestant, load_contestants
from draftwood.bench.prompts import Prompt
from draftwood.cli import execute
from draftwood.core import build
from draftwood.testing import OracleTarget

ALPHABET = " " + string.ascii_lowercase
SPEC = """\
target: {model: small}
drafter: {use: ngram}
tree: {use: best_first, max_nodes: 8}
controller: {use: fixed, nodes: %d}
verifier: {use: match}
generation: {max_new_tokens: 12}
"""


class Letters:
    """A tokenizer with a token per lower-case letter; 0 is a space."""

    chat_template = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [max(0, ALPHABET.find(letter)) for letter in text]}

    def __len__(self) -> int:
        return len(ALPHABET)

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(ALPHABET[index] for index in ids)


def alphabet_distribution(prefix: tuple[int, ...]) -> list[float]:
    """The alphabet, round and round."""
    weights = [0.001] * len(ALPHABET)
    weights[(prefix[-1] + 1) % len(ALPHABET)] = 1.0
    return weights


@pytest.fixture(autouse=True)
def small_target(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every target is one that says the alphabet. The models that were loaded, in order."""
    loaded: list[str] = []

    def load(config: Any, wanted: Any, tokenizer: Any) -> Any:
        loaded.append(str(wanted.model))
        return OracleTarget(len(ALPHABET), alphabet_distribution, max_context=200), Letters()

    monkeypatch.setattr(build, "_load_target", load)
    return loaded


@pytest.fixture
def clock() -> Callable[[], float]:
    """A quarter of a second passes between two looks at it."""
    ticks = itertools.count(0.0, 0.25)
    return lambda: next(ticks)


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[..., str]:
    """pipeline("name", nodes=4) -> a file that drafts by prompt lookup."""

    def write(name: str = "lookup", nodes: int = 4, extra: str = "") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(SPEC % nodes + extra)
        return str(path)

    return write


@pytest.fixture
def lined_up(
    pipeline: Callable[..., str], clock: Callable[[], float]
) -> Callable[..., list[Contestant]]:
    """lined_up(names...) -> plain decoding and a pipeline per name, on the scripted clock."""
    return lambda *names, **options: load_contestants(
        [pipeline(name, nodes) for nodes, name in enumerate(names, 3)], clock=clock, **options
    )


PROMPTS = [
    Prompt("short", "easy", ALPHABET[1:] + " abc"),
    Prompt("long", "easy", (ALPHABET[1:] + " ") * 2 + "ab"),
    Prompt("other", "hard", "qrst"),
]


@frozen
class Ran:
    """What a command left."""

    code: int
    out: str
    err: str


@pytest.fixture
def draftwood(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """draftwood("bench", ...) -> exit code, standard output, standard error."""

    def call(*arguments: str) -> Ran:
        code = execute(arguments)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture
def prompt_file(tmp_path: Path) -> str:
    """Three prompts of two groups."""
    path = tmp_path / "prompts.jsonl"
    lines = (f'{{"id": "{p.id}", "group": "{p.group}", "text": "{p.content}"}}\n' for p in PROMPTS)
    path.write_text("".join(lines))
    return str(path)
