"""The k best entries of a distribution, ties and all."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.distributions import stable_topk

weights = st.lists(st.sampled_from([0.0, 1.0, 2.0, 4.0]), min_size=2, max_size=12)


@given(st.lists(weights, min_size=1, max_size=3), st.integers(1, 14), st.randoms())
def test_best_is_a_stable_sort_by_value_and_token(rows, k, random) -> None:
    width = min(map(len, rows))
    probs = torch.tensor([row[:width] for row in rows])
    ids = list(range(width + 3))
    random.shuffle(ids)
    for names in (None, torch.tensor(ids[:width])):
        tokens, values = stable_topk(probs, k, names)
        assert tokens.shape == values.shape == (len(rows), min(k, width))
        for row, got, value in zip(probs.tolist(), tokens.tolist(), values.tolist(), strict=True):
            named = list(range(width)) if names is None else names.tolist()
            order = sorted(range(width), key=lambda i: (-row[i], named[i]))[:k]
            assert value == [row[i] for i in order]
            positive = sum(v > 0 for v in value)
            assert got[:positive] == [named[i] for i in order[:positive]]
            assert len(set(got)) == len(got)


def test_topk_alone_would_not_do() -> None:
    """Negative control: ids in descending order turn every tie around."""
    probs = torch.full((1, 6), 1 / 6)
    ids = torch.arange(5, -1, -1)
    assert stable_topk(probs, 3, ids)[0].tolist() == [[0, 1, 2]]
    assert ids[probs.topk(3).indices].tolist() != [[0, 1, 2]]
