"""Below float64 a text may differ from plain decoding's only where the target itself hardly cares:
where the margin between the compared candidates is below a bound. The margins are recorded as
properties of the tests, and shown after the run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from draftwood.core.distributions import sampling_probs
from draftwood.core.generation import Generation
from draftwood.core.hf import HFTarget
from draftwood.core.options import Sampling
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree

from .models import ARCHITECTURES, ATTENTIONS, logits_along, target_of
from .parts import NEW, TREES, Case, first_difference, plain, speculated, speculative
from .test_controls import FirstChild

Record = Callable[[str, object], None]

LOGITS = 1e-4
"""float32: two logits nearer than this (the largest is about 10) may change places."""

RACE = 1e-4
"""float32: two tokens whose draws tie within this share of each other may change places."""

NEAR = 0.02
"""At most this share of a text's tokens may be so near that nothing is promised about them."""

BFLOAT16 = 0.04
"""bfloat16: as LOGITS, but relative to the largest logit; twice what another chunk size moves."""

SHAPES = list(TREES)
PAIRS = [
    pytest.param(name, attention, SHAPES[number % len(SHAPES)], id=f"{name}-{attention}")
    for number, (name, attention) in enumerate((n, a) for n in ARCHITECTURES for a in ATTENTIONS)
]


def greedy_margins(case: Case) -> torch.Tensor:
    """(n,) top-two margins of plain decoding's own distributions, in the case's dtype."""
    tokens = list(plain(case))
    best = logits_along(case.target, case.prompt, tokens).topk(2, -1).values  # type: ignore[arg-type]
    return best[:, 0] - best[:, 1]


def race_margins(case: Case, sampling: Sampling) -> torch.Tensor:
    """(n,) how far ahead each position's drawn token was, as a share of its own score."""
    tokens = list(plain(case))
    rows = logits_along(case.target, case.prompt, tokens)  # type: ignore[arg-type]
    probs = sampling_probs(rows, sampling)
    stream = Seeded(case.asked["seed"]).stream("verify")
    scores = torch.stack([stream.race(p, len(case.prompt) + i) for i, p in enumerate(probs)])
    first, second = scores.topk(2, -1).values.unbind(-1)
    return 1 - second / first


def assert_same_up_to(
    case: Case, result: Generation, margins: torch.Tensor, bound: float, record: Record
) -> None:
    speculated(result)
    at = first_difference(result.tokens, plain(case))
    near = int((margins < bound).sum())
    record("tokens below the bound", f"{near} of {len(margins)} (bound {bound:g})")
    record("smallest margin", f"{float(margins.min()):.2g}")
    record("first difference", "none" if at is None else f"token {at}, margin {margins[at]:.2g}")
    assert len(margins) == NEW
    assert near <= NEAR * len(margins)
    assert at is None or margins[at] < bound


@pytest.mark.covers("greedy-parity")
@pytest.mark.parametrize(("name", "attention", "tree"), PAIRS)
def test_float32_greedy_text_is_plain_decodings_except_at_ties(
    name: str, attention: str, tree: str, record_property: Record
) -> None:
    case = Case(name, attention, dtype=torch.float32)
    result = speculative(case, tree)
    assert_same_up_to(case, result, greedy_margins(case), LOGITS, record_property)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_sampled_text_is_plain_decodings_except_at_ties_of_the_draw(
    name: str, record_property: Record
) -> None:
    case = Case(name, dtype=torch.float32, options=(("temperature", 0.7),))
    margins = race_margins(case, Sampling(temperature=0.7))
    assert_same_up_to(case, speculative(case, "search"), margins, RACE, record_property)


@pytest.mark.covers("greedy-parity")
@pytest.mark.parametrize("options", [(), (("temperature", 0.7),)])
def test_a_wrong_verifier_is_not_excused_by_the_margins(options: Any) -> None:
    case = Case("llama", dtype=torch.float32, options=options)
    margins = race_margins(case, Sampling(temperature=0.7)) if options else greedy_margins(case)
    result = speculative(case, "search", "fixed", FirstChild())
    with pytest.raises(AssertionError):
        assert_same_up_to(case, result, margins, LOGITS, lambda key, value: None)


def test_the_margins_are_those_of_the_decoded_tokens() -> None:
    """The bound means nothing if margins are taken one position off."""
    case = Case("llama", dtype=torch.float32)
    rows = logits_along(case.target, case.prompt, list(plain(case)))  # type: ignore[arg-type]
    assert rows.argmax(-1).tolist() == list(plain(case))
    sampled = Case("llama", dtype=torch.float32, options=(("temperature", 0.7),))
    rows = logits_along(sampled.target, sampled.prompt, list(plain(sampled)))  # type: ignore[arg-type]
    probs = sampling_probs(rows, Sampling(temperature=0.7))
    stream = Seeded(sampled.asked["seed"]).stream("verify")
    drawn = [stream.categorical(row, len(sampled.prompt) + i) for i, row in enumerate(probs)]
    assert drawn == list(plain(sampled))


def scored_in_chunks(target: HFTarget, case: Case, tokens: list[int], size: int) -> torch.Tensor:
    """(len(tokens), V): the distributions of plain decoding, `size` tokens a forward."""
    session = target.open()
    rows = [session.prefill(case.prompt).logits.double()]
    for start in range(0, len(tokens) - 1, size):
        chunk = tokens[start : min(start + size, len(tokens) - 1)]
        n = len(chunk)
        tree = TokenTree.from_lists(chunk, list(range(-1, n - 1)), list(range(n)), [0.0] * n)
        rows.append(target.forward([(session, tree)])[0].logits.double())
        session.commit(range(n))
    return torch.cat(rows)


@pytest.mark.covers("greedy-parity")
@pytest.mark.parametrize("tree", ["chain", "search"])
def test_bfloat16_text_first_differs_at_a_small_margin(tree: str, record_property: Record) -> None:
    case = Case("llama", dtype=torch.bfloat16)
    target, tokens = target_of("llama", "sdpa", torch.bfloat16), list(plain(case))
    alone = scored_in_chunks(target, case, tokens, 1)
    assert alone.argmax(-1).tolist() == tokens
    largest = float(alone.abs().max())
    best = alone.topk(2, -1).values
    margins = (best[:, 0] - best[:, 1]) / largest
    result = speculated(speculative(case, tree))
    at = first_difference(result.tokens, tokens)
    shown = "none" if at is None else f"token {at}, margin {margins[at]:.2g}"
    record_property("first difference from plain", f"{shown} (bound {BFLOAT16:g})")
    assert at is None or margins[at] < BFLOAT16
    # The control: plain decoding against itself, with no draft at all, in other chunks.
    for size in (4, 16):
        chunked = scored_in_chunks(target, case, tokens, size)
        moved = float((chunked - alone).abs().max()) / largest
        other = first_difference(chunked.argmax(-1).tolist(), tokens)
        own = "none" if other is None else f"token {other}, margin {margins[other]:.2g}"
        record_property(f"plain in chunks of {size}", f"{own}; logits move by {moved:.2g}")
        assert 0 < moved < BFLOAT16 / 2
