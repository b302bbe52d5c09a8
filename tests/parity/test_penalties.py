"""What depends on the path sees each node's own path: penalties equal plain decoding's and, where
they do not sample, `generate`'s."""

from typing import Any

import pytest

from .models import generated
from .parts import NEW, Case, assert_same_text, first_difference, plain, speculative

BIASED = 5
"""A token whose logit is raised after one other: the bias holds at some nodes and not others."""

PENALTIES: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 120, "eos_token_id": (14, 88)},
    "sequence_bias": {"sequence_bias": (((BIASED,), -3.0), ((89, BIASED), 9.0))},
    "all": {
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "min_new_tokens": 200,
        "eos_token_id": (9, 14, 88),
        "sequence_bias": (((BIASED,), 1.5),),
    },
}
TREES = ["chain", "static", "search"]


def case_of(name: str, **more: Any) -> Case:
    return Case("mistral", options=tuple(sorted({**PENALTIES[name], **more}.items())))


def for_generate(options: dict[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in options.items() if key != "seed"}
    if "eos_token_id" in options:
        options["eos_token_id"] = list(options["eos_token_id"])
    if "sequence_bias" in options:
        options["sequence_bias"] = [[list(ids), bias] for ids, bias in options["sequence_bias"]]
    return options


@pytest.mark.covers("stale-processor-input")
@pytest.mark.parametrize("name", PENALTIES)
def test_plain_greedy_text_under_a_penalty_is_generates(name: str) -> None:
    case = case_of(name)
    expected = generated(case.architecture, "sdpa", case.prompt, **for_generate(case.asked))
    assert list(plain(case)) == expected
    # The penalty must matter, or equality would not show that it was applied.
    without = {key: value for key, value in PENALTIES[name].items() if key == "eos_token_id"}
    assert plain(case) != plain(Case("mistral", options=tuple(sorted(without.items()))))


@pytest.mark.covers("stale-processor-input")
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", PENALTIES)
def test_greedy_text_under_a_penalty_is_plain_decodings(name: str, tree: str) -> None:
    assert_same_text(case_of(name), lambda case: speculative(case, tree))


@pytest.mark.covers("processor-state")
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", ["repetition_penalty", "all"])
def test_sampled_text_under_a_penalty_is_plain_decodings(name: str, tree: str) -> None:
    case = case_of(name, temperature=0.8, min_p=0.05, max_new_tokens=80)
    assert_same_text(case, lambda case: speculative(case, tree))


@pytest.mark.covers("stale-processor-input")
def test_a_penalty_on_committed_tokens_only_changes_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The usual mistake: every node of a round is penalised as if it followed the anchor."""
    from draftwood.core.tree import TokenTree

    case = case_of("no_repeat_ngram_size")
    expected = plain(case)
    monkeypatch.setattr(TokenTree, "path", lambda self, node: [0])
    wrong = speculative(case, "static").tokens
    at = first_difference(wrong, expected)
    assert at is not None
    assert at < NEW
