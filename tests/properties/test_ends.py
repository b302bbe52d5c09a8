"""Nothing past an accepted stop is computed, and what ends keeps the target's distribution."""

import itertools
from collections import defaultdict

import pytest
import torch

from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.stopping import EndOfText
from draftwood.core.tree import TokenTree
from draftwood.testing.exact import exact_distribution, target_distribution
from draftwood.testing.toy_pipelines import HORIZON, PROMPT, ToyPipeline

END = 2
PIPELINES = [
    ("factorized", "best_first", "match"),
    ("markov", "chain", "match"),
    ("factorized", "sampled-chain", "ratio"),
    ("factorized", "sampled-iid", "multi_round"),
    ("markov", "sampled-without", "multi_round"),
    ("factorized", "sampled-chain", "traversal"),
    ("autoregressive", "sampled-iid", "traversal"),
    ("mixture", "sampled-without", "traversal"),
]


class Grammar:
    """Has no next token after its end, as a grammar or `prefix_allowed_tokens_fn` may."""

    def __init__(self, ends):
        self.ends, self.calls = ends, 0

    def __call__(self, ids, scores):
        self.calls += 1
        if self.ends(ids[0, len(PROMPT) :].tolist()):
            raise AssertionError(f"a token was wanted after the end of {ids.tolist()}")
        return scores


def end_token(ids):
    return END in ids


def repeated_token(ids):
    return any(a == b for a, b in itertools.pairwise(ids))


def truncated(probs, ends):
    """Probabilities of sequences that stop where `ends` first holds."""
    merged = defaultdict(float)
    for sequence, probability in probs.items():
        stop = next((n for n in range(1, len(sequence)) if ends(list(sequence[:n]))), len(sequence))
        merged[sequence[:stop]] += probability
    return merged


@pytest.mark.covers("past-a-stop")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("ends", [end_token, repeated_token])
@pytest.mark.parametrize("parts", PIPELINES, ids="-".join)
def test_no_processor_runs_past_a_stop_and_the_distribution_is_the_targets(
    parts, ends, temperature
):
    pipeline = ToyPipeline(*parts, temperature=temperature)
    assert not pipeline.refused
    engine, grammar = pipeline.engine(), Grammar(ends)
    rule = EndOfText(frozenset({END})) if ends is end_token else stop_rule(ends)
    conditions = {"options": pipeline.options, "processors": [grammar], "stops": [rule]}
    found = exact_distribution(engine, PROMPT, HORIZON, **conditions)
    whole = target_distribution(engine.target, PROMPT, HORIZON, pipeline.options)
    expected = truncated(whole, ends)
    assert grammar.calls > 0
    assert set(found) == {sequence for sequence, mass in expected.items() if mass > 0}
    assert max(abs(found[sequence] - expected[sequence]) for sequence in found) < 1e-12


def stop_rule(ends):
    return lambda ids, prompt_length: "stop" if ends(list(ids[prompt_length:])) else None


def test_the_grammar_notices_a_verifier_that_reads_past_a_stop(monkeypatch):
    monkeypatch.setattr(TokenTree, "without_descendants", lambda self, tokens: self)
    monkeypatch.setattr(TargetDistributions, "ends", lambda self, node: False)
    pipeline = ToyPipeline("factorized", "best_first", "match")
    with pytest.raises(AssertionError, match="after the end"):
        exact_distribution(
            pipeline.engine(),
            PROMPT,
            HORIZON,
            options=pipeline.options,
            processors=[Grammar(end_token)],
            stops=[EndOfText(frozenset({END}))],
        )


def verified_trees(seed):
    """Every draft tree that a pipeline with an end token verifies."""
    pipeline, seen = ToyPipeline("factorized", "chain", "match", seed=seed), []
    engine = pipeline.engine()
    judge = engine.verifier.judge

    def record(distributions, tree, rng):
        seen.append(tree)
        return judge(distributions, tree, rng)

    engine.verifier.judge = record
    stops = [EndOfText(frozenset({END}))]
    exact_distribution(engine, PROMPT, HORIZON, options=pipeline.options, stops=stops)
    return [tree for tree in seen if tree.nodes]


def ends_with_children(trees):
    return sum(
        bool(tree.children[node])
        for tree in trees
        for node in range(1, len(tree))
        if tree.token_list[node] == END
    )


@pytest.mark.covers("past-a-stop")
def test_end_tokens_in_a_draft_have_no_children(monkeypatch):
    trees = [tree for seed in range(4) for tree in verified_trees(seed)]
    assert any(END in tree.token_list[1:] for tree in trees)
    assert ends_with_children(trees) == 0
    monkeypatch.setattr(TokenTree, "without_descendants", lambda self, tokens: self)
    grown = [tree for seed in range(4) for tree in verified_trees(seed)]
    assert ends_with_children(grown) > 0


@pytest.mark.covers("in-place-processor")
def test_a_processor_may_write_to_the_scores_it_gets():
    pipeline = ToyPipeline("factorized", "best_first", "match")

    def ban(ids, scores):
        scores[:, 1] = -torch.inf
        return scores

    engine = pipeline.engine()
    found = exact_distribution(engine, PROMPT, HORIZON, options=pipeline.options, processors=[ban])
    assert found
    assert not any(1 in sequence for sequence in found)


@pytest.mark.covers("in-place-processor")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_processor_that_writes_to_its_scores_leaves_the_targets_logits_alone(dtype):
    logits = torch.arange(6.0).reshape(2, 3).to(dtype)
    before = logits.clone()
    tree = TokenTree.chain([0, 1])

    def ban(ids, scores):
        scores[:, 2] = -torch.inf
        return scores

    distributions = TargetDistributions(logits, tree, [0], Sampling(1.0), [ban], 0)
    assert float(distributions.probs(1)[2]) == 0.0
    assert torch.equal(logits, before)
