"""Running commands in this process, on a small target without weights."""

import string
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import evolve, frozen

from draftwood.cli import execute
from draftwood.core.errors import ConfigError, Problem


@frozen
class Ran:
    """What a command left. code: exit code."""

    code: int
    out: str
    err: str


Draftwood = Callable[..., Ran]


@pytest.fixture
def draftwood(capsys: pytest.CaptureFixture[str]) -> Draftwood:
    """draftwood("plugins", "list") -> exit code, standard output, standard error."""

    def call(*arguments: str) -> Ran:
        code = execute(arguments)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


class Letters:
    """A tokenizer with a token per lower-case letter; 0 is a space."""

    alphabet = " " + string.ascii_lowercase

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [max(0, self.alphabet.find(letter)) for letter in text]}

    def __len__(self) -> int:
        return len(self.alphabet)

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(self.alphabet[index] for index in ids)


@pytest.fixture
def letters() -> type[Letters]:
    """The class of the small target's tokenizer."""
    return Letters


@pytest.fixture
def small_target(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pipelines whose target is `small` say the alphabet round and round."""
    from draftwood.core import build
    from draftwood.testing import OracleTarget

    size = len(Letters.alphabet)

    def probs(prefix: tuple[int, ...]) -> list[float]:
        weights = [0.001] * size
        weights[(prefix[-1] + 1) % size if prefix[-1] else 1] = 1.0
        return weights

    real = build.load_pipeline

    def load_pipeline(source: Any, settings: Any = (), **named: Any) -> Any:
        from draftwood.core.config.pipeline import load_config

        config = load_config(source, settings, registry=named.get("registry"))
        assert config.target is not None
        if config.target.model != "small":
            raise ConfigError([Problem(config.source, "target.model", "only `small` in tests")])
        config = evolve(config, target=None)
        return real(config, target=OracleTarget(size, probs), tokenizer=Letters(), **named)

    monkeypatch.setattr(build, "load_pipeline", load_pipeline)
    return


@pytest.fixture
def pipeline(tmp_path: Any, small_target: None) -> str:
    """A file whose pipeline drafts by prompt lookup for the small target."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "target: {model: small}\n"
        "drafter: {use: ngram}\n"
        "tree: {use: best_first, max_nodes: 8}\n"
        "controller: {use: fixed, nodes: 8}\n"
        "verifier: {use: match}\n"
        "generation: {max_new_tokens: 40}\n"
    )
    return str(path)
