"""Walks over scripted rounds whose costs can be counted."""

import pytest

from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from studies.budget.walking import ControllerWalk, walk_fixed, walk_oracle

from .texts import accepted_lengths, exact_models, priced, text_of


def test_fixed_budgets_cost_the_sum_of_their_stages():
    text, times = text_of([3, 0, 0, 0, 2, 0, 0]), priced()
    walk = walk_fixed(text, times, 2)
    # Rounds start at tokens 0, 3 and 4 and accept two nodes of three, none, two of two.
    assert walk.budgets == (2, 2, 2)
    assert walk.tokens == 7
    assert walk.seconds == pytest.approx(3 * (0.002 + 0.010 + 3 * 0.002 + 0.001))
    plain = walk_fixed(text, times, 0)
    assert plain.budgets == (0,) * 7
    assert plain.seconds == pytest.approx(7 * (0.012 + 0.0005))


def test_the_last_token_costs_a_plain_step():
    walk = walk_fixed(text_of([0]), priced(), 8)
    assert (walk.tokens, walk.budgets) == (1, (0,))
    assert walk.seconds == pytest.approx(0.0125)


@pytest.mark.parametrize("seed", range(4))
def test_oracle_equals_the_best_of_all_sequences_of_budgets(seed):
    text, times = text_of(accepted_lengths(7, 0.6, seed), length=3), priced(per_token=0.004)

    def least(start: int) -> float:
        if start >= len(text.rounds):
            return 0.0
        recorded = text.rounds[start]
        options = [times.plain_step(recorded.context) + least(start + 1)]
        for nodes in range(recorded.tree.nodes + 1):
            committed = min(sum(n <= nodes for n in recorded.path), recorded.remaining)
            options.append(times.drafted(nodes, nodes, recorded.context) + least(start + committed))
        return min(options)

    walk = walk_oracle(text, times)
    assert walk.seconds == pytest.approx(least(0))
    assert walk.tokens == 7
    # Negative control: no fixed budget is better.
    assert walk.seconds <= min(walk_fixed(text, times, n).seconds for n in range(4)) + 1e-12


def test_control_time_is_added_to_each_round_with_a_draft():
    text = text_of(accepted_lengths(60, 0.8))
    without, with_control = (
        ControllerWalk(Roofline(RooflineOptions()), exact_models(times)["bastion"], times).walk(
            text
        )
        for times in (priced(), priced(control=1e-7))
    )
    assert with_control.seconds - without.seconds == pytest.approx(
        1e-7 * len(without.budgets), rel=0.2
    )
