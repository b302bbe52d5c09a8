"""The builtin pipelines, by name, on the bundled models: one text, whatever speculates."""

from functools import cache
from importlib.resources import files
from typing import Any

import pytest

import draftwood
from draftwood.core.generation import Generation, Pipeline

from .parts import first_difference, speculated


def lacking(part: str) -> pytest.MarkDecorator:
    config = files("draftwood") / "assets" / "tiny-python" / part / "config.json"
    return pytest.mark.skipif(not config.is_file(), reason=f"this build bundles no {part}")


pytestmark = [pytest.mark.slow, lacking("target")]
SPECULATING = [
    "ngram",
    *(
        pytest.param(name, marks=lacking("drafter"))
        for name in ("dflash", "tree-16", "eagle-static", "bastion", "union")
    ),
    pytest.param("draft-model", marks=lacking("draft")),
    pytest.param("bastion-dblast", marks=lacking("dblast")),
    *(
        pytest.param(name, marks=lacking("eagle3"))
        for name in ("eagle3", "eagle3-dynamic", "bastion-eagle3")
    ),
]
# Full of repetition, so that a look-up has something to find in sampled text too.
PROMPT = "class Point:\n" + "".join(
    f"    def get_{name}(self):\n        return self.{name}\n\n"
    for name in ("x", "y", "width", "height")
)
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 7},
}


@cache
def pipeline(name: str) -> Pipeline:
    # By measured times a busy machine may leave no draft of the small model to reject.
    nominal = ["controller.clock=nominal"] if name == "draft-model" else []
    return draftwood.load_pipeline(name, ["runtime.threads=1", *nominal])


@cache
def decoded(name: str, setting: str) -> Generation:
    return pipeline(name).generate(PROMPT, max_new_tokens=160, **SETTINGS[setting])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", SPECULATING)
def test_every_builtin_pipeline_gives_plain_decodings_tokens(name: str, setting: str) -> None:
    expected, found = decoded("plain", setting), speculated(decoded(name, setting))
    assert first_difference(found.tokens, expected.tokens) is None
    assert found.text == expected.text
    assert expected.speculation["ran"] is False


def test_sampled_text_differs_from_greedy_text() -> None:
    assert decoded("plain", "sampled").tokens != decoded("plain", "greedy").tokens
