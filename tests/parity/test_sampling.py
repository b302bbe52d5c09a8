"""With one seed, sampled text is plain decoding's, whatever was drafted."""

import pytest

from .models import ARCHITECTURES, ATTENTIONS
from .parts import TREES, Case, assert_same_text, plain, speculative

SETTINGS = {
    "T=0.7": (("temperature", 0.7),),
    "T=1,top_p,top_k": (("temperature", 1.0), ("top_k", 20), ("top_p", 0.9)),
    "T=1.3,min_p": (("min_p", 0.1), ("temperature", 1.3)),
}
# Every architecture and attention, every tree, every setting; not every product of them.
NAMES, SHAPES = list(SETTINGS), list(TREES)
MIXED = [
    pytest.param(Case(name, attention, options=SETTINGS[setting]), tree, id=f"{name}-{attention}")
    for number, (name, attention) in enumerate((n, a) for n in ARCHITECTURES for a in ATTENTIONS)
    for setting, tree in [(NAMES[number % 3], SHAPES[number % len(SHAPES)])]
]


@pytest.mark.covers("filter-on-bonus-only")
@pytest.mark.parametrize(("case", "tree"), MIXED)
def test_every_architecture_samples_plain_decodings_text(case: Case, tree: str) -> None:
    assert_same_text(case, lambda case: speculative(case, tree))


@pytest.mark.covers("seeds")
@pytest.mark.parametrize("controller", ["fixed", "roofline-wall"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_one_seed_gives_one_text_for_every_tree_and_controller(
    setting: str, tree: str, controller: str
) -> None:
    case = Case("llama", options=(*SETTINGS[setting], ("max_new_tokens", 100)))
    assert_same_text(case, lambda case: speculative(case, tree, controller))


@pytest.mark.covers("seeds")
def test_another_seed_gives_another_text() -> None:
    """Otherwise equal texts would say nothing about the seed."""
    settings = SETTINGS["T=0.7"]
    texts = {plain(Case("llama", options=(*settings, ("seed", seed)))) for seed in range(3)}
    assert len(texts) == 3


@pytest.mark.covers("filter-on-bonus-only")
@pytest.mark.parametrize("setting", ["T=1,top_p,top_k", "T=1.3,min_p"])
def test_filters_change_the_sampled_text(setting: str) -> None:
    """A filter that no node applied would pass every comparison with itself."""
    options = SETTINGS[setting]
    unfiltered = tuple(pair for pair in options if pair[0] == "temperature")
    assert plain(Case("llama", options=options)) != plain(Case("llama", options=unfiltered))
