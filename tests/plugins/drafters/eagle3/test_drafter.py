"""`eagle3`: distributions along paths, the cache over rounds, and decoded tokens."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from draftwood import load_pipeline
from draftwood.core.errors import CheckpointError, CompositionError, PairingError
from draftwood.core.generation import Pipeline
from draftwood.core.hf import load_target
from draftwood.core.interfaces import DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.drafters.eagle3 import drafter as module
from draftwood.plugins.drafters.eagle3.drafter import Eagle3, Eagle3Session, chosen_taps
from draftwood.plugins.drafters.eagle3.proposal import Eagle3Proposal
from draftwood.plugins.drafters.options import Eagle3Options

FIXTURES = Path(__file__).parents[3] / "fixtures"
TARGET, CHECKPOINT = FIXTURES / "zlab/target", FIXTURES / "speculators/eagle3"
SAMPLING = Sampling(1.0)
TEXT = [5, 17, 40, 41, 60, 3, 22, 71, 8, 30, 12, 44]


@cache
def shared_target() -> Target:
    return load_target(TARGET, dtype="float32")


@pytest.fixture(scope="module")
def target() -> Target:
    return shared_target()


@pytest.fixture(scope="module")
def drafter(target: Target) -> Eagle3:
    return Eagle3(Eagle3Options(CHECKPOINT)).bind(target)


@pytest.fixture(scope="module")
def features(target: Target, drafter: Eagle3) -> torch.Tensor:
    """(12, 192) tapped states of TEXT."""
    tapped = target.open(drafter.taps).prefill(TEXT).features
    assert tapped is not None
    return tapped


def propose(drafter: Eagle3, session: Eagle3Session, anchor: int) -> Eagle3Proposal:
    work = DraftWork(session, anchor, session.length, Limits(8), Seeded(0))
    return drafter.propose([work])[0]


def fresh(drafter: Eagle3, target: Target, features: torch.Tensor, length: int) -> Eagle3Session:
    """A session after one commit of the first `length` tokens."""
    session = drafter.open(target, SAMPLING)
    session.commit(TEXT[:length], features[:length])
    return session


def along(proposal: Eagle3Proposal, path: list[int]) -> torch.Tensor:
    """(V,) distribution after `path`, one node per level."""
    at = proposal.root()
    for token in path:
        at = proposal.advance(at, torch.tensor([0]), torch.tensor([token]))
    return proposal.probs(at)[0]


def test_nodes_of_a_branching_tree_have_the_distributions_of_their_paths(
    drafter: Eagle3, target: Target, features: torch.Tensor
) -> None:
    """Rows attend to their own path only, whatever was written in between."""
    proposal = propose(drafter, fresh(drafter, target, features, 7), TEXT[7])
    root = proposal.root()
    one = proposal.advance(root, torch.tensor([0, 0, 0]), torch.tensor([9, 10, 11]))
    other = proposal.advance(root, torch.tensor([0]), torch.tensor([12]))
    two = proposal.advance(one, torch.tensor([2, 0, 0]), torch.tensor([20, 21, 22]))
    three = proposal.advance(two, torch.tensor([1, 0]), torch.tensor([30, 31]))
    distributions = [*proposal.probs(two), *proposal.probs(three), *proposal.probs(other)]
    paths = [[11, 20], [9, 21], [9, 22], [9, 21, 30], [11, 20, 31], [12]]
    for probs, path in zip(distributions, paths, strict=True):
        alone = along(propose(drafter, fresh(drafter, target, features, 7), TEXT[7]), path)
        torch.testing.assert_close(probs, alone, atol=1e-5, rtol=0)
    # Negative control: the path matters.
    assert (distributions[0] - distributions[1]).abs().max() > 1e-2


def test_unmapped_tokens_have_probability_zero(
    drafter: Eagle3, target: Target, features: torch.Tensor
) -> None:
    proposal = propose(drafter, fresh(drafter, target, features, 5), TEXT[5])
    probs = proposal.probs(proposal.root())[0]
    unmapped = torch.ones(96, dtype=torch.bool)
    unmapped[drafter.model.draft_to_target()] = False
    assert int(unmapped.sum()) == 32
    assert float(probs[unmapped].sum()) == 0.0
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-5)
    best = proposal.expand(proposal.root(), 3)
    torch.testing.assert_close(best.log_q[0].exp().float(), probs.topk(3).values)
    torch.testing.assert_close(probs[best.tokens[0]], probs.topk(3).values)


@pytest.mark.parametrize("at_once", [0, 2, 100])
@pytest.mark.parametrize("pieces", [[1, 3, 2, 4], [4, 1, 1, 1, 3], [10]])
def test_proposals_after_many_rounds_equal_those_after_one_prefill(
    drafter: Eagle3,
    target: Target,
    features: torch.Tensor,
    pieces: list[int],
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rejected drafts, plain steps in between and forks change no later proposal."""
    monkeypatch.setattr(module, "MAX_WAITING", at_once)
    session, start = drafter.open(target, SAMPLING), 0
    for i, size in enumerate(pieces):
        session.commit(TEXT[start : start + size], features[start : start + size])
        start += size
        if i % 3 != 1:  # every third round is a plain step: nothing is proposed
            along(propose(drafter, session, TEXT[start]), [7, 9])
        if i % 2:
            session = session.fork()
    session.commit(TEXT[start : start + 1], features[start : start + 1])
    expected = propose(drafter, fresh(drafter, target, features, start + 1), TEXT[start + 1])
    actual = propose(drafter, session, TEXT[start + 1])
    assert actual.committed == expected.committed == start + 1
    for path in ([], [7], [7, 9]):
        torch.testing.assert_close(along(actual, path), along(expected, path), atol=1e-5, rtol=0)


def test_advance_runs_one_forward_pass_over_the_kept_nodes(
    drafter: Eagle3, target: Target, features: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    real = drafter.model.run
    monkeypatch.setattr(
        drafter.model, "run", lambda embeds, *rest: rows.append(len(embeds)) or real(embeds, *rest)
    )
    session = fresh(drafter, target, features, 6)
    proposal = propose(drafter, session, TEXT[6])
    assert rows == [6]  # five tokens of the prompt that have a feature before them, and the anchor
    at = proposal.advance(proposal.root(), torch.tensor([0, 0]), torch.tensor([1, 2]))
    proposal.expand(at, 5)
    proposal.probs(at)
    assert rows == [6, 2]


def pipeline(tree: dict[str, object], checkpoint: Path = CHECKPOINT, **parts: object) -> Pipeline:
    document = {
        "drafter": {"use": "eagle3", "checkpoint": str(checkpoint), "max_depth": 5},
        "tree": tree,
        "controller": {"use": "fixed", "nodes": 16},
        "verifier": {"use": "match"},
    }
    return load_pipeline(document | parts, target=shared_target())


@cache
def plain(prompt: tuple[int, ...], temperature: float) -> tuple[int, ...]:
    options = {"max_new_tokens": NEW, "temperature": temperature, "seed": 5, "eos_token_id": ()}
    return Pipeline(shared_target()).generate(prompt, **options).tokens


TREES: dict[str, dict[str, object]] = {
    "chain": {"use": "chain"},
    "static": {"use": "static"},
    "best_first": {"use": "best_first", "max_nodes": 16},
    "dynamic": {"use": "dynamic", "top_k": 4, "depth": 4, "total_tokens": 12},
}
RECORDS = json.loads((FIXTURES / "zlab/dflash/expected.json").read_text())
PROMPTS = [RECORDS[0]["prompt"], [3]]
NEW = 28


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("tree", TREES)
def test_every_tree_gives_the_tokens_of_plain_decoding(tree: str, temperature: float) -> None:
    fast = pipeline(TREES[tree])
    options = {"max_new_tokens": NEW, "temperature": temperature, "seed": 5, "eos_token_id": ()}
    accepted = rejected = 0
    for prompt in PROMPTS:
        ours = fast.generate(prompt, **options)
        assert ours.tokens == plain(tuple(prompt), temperature)
        accepted += ours.stats.accepted
        rejected += ours.stats.rejected
    assert accepted > 0
    assert rejected > 0


@pytest.mark.parametrize("verifier", ["ratio", "traversal"])
def test_drawn_chains_carry_the_distribution_they_were_drawn_from(verifier: str) -> None:
    drawn = pipeline({"use": "sampled"}, verifier={"use": verifier})
    result = drawn.generate(TEXT, max_new_tokens=24, temperature=1.0, seed=1, eos_token_id=())
    assert len(result.tokens) == 24
    assert result.stats.accepted > 0


def test_other_tapped_layers_lower_acceptance() -> None:
    """Negative control: with other taps the drafter loads, and its proposals are worse."""

    def accepted(**taps: object) -> int:
        drafter = {"use": "eagle3", "checkpoint": str(CHECKPOINT), "max_depth": 4, **taps}
        fast = pipeline(TREES["chain"], drafter=drafter)
        return fast.generate(PROMPTS[0], max_new_tokens=40, eos_token_id=()).stats.accepted

    assert accepted(taps=[5, 5, 5]) < 0.8 * accepted()


def test_tapped_layers_out_of_range_are_refused_before_weights_load(tmp_path: Path) -> None:
    text = (CHECKPOINT / "config.json").read_text().replace("    5\n", "    19\n")
    (tmp_path / "config.json").write_text(text)  # and no weights at all
    document = {
        "target": {"model": str(TARGET)},
        "drafter": {"use": "eagle3", "checkpoint": str(tmp_path)},
        "tree": {"use": "chain"},
        "controller": {"use": "fixed"},
        "verifier": {"use": "match"},
    }
    with pytest.raises(CompositionError, match="18"):
        load_pipeline(document)


def test_checkpoints_without_tapped_layers_need_the_option() -> None:
    with pytest.raises(CheckpointError, match=r"set drafter.taps"):
        chosen_taps(Eagle3Options("some/checkpoint"), None)
    with pytest.raises(CheckpointError, match="has 2 layers"):
        chosen_taps(Eagle3Options("some/checkpoint", taps=(1, 2)), (1, 2, 4))
    assert chosen_taps(Eagle3Options("some/checkpoint", taps=(0, 2, 3)), None) == (0, 2, 3)


def test_a_target_of_another_width_is_refused() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 96}
    other = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).eval()
    with pytest.raises(PairingError, match="64 wide"):
        load_pipeline(
            {
                "drafter": {"use": "eagle3", "checkpoint": str(CHECKPOINT)},
                "tree": {"use": "chain"},
                "controller": {"use": "fixed", "nodes": 7},
                "verifier": {"use": "match"},
            },
            target=other,
        )


def test_node_scores_are_sums_of_log_probabilities_along_paths(
    drafter: Eagle3, target: Target, features: torch.Tensor
) -> None:
    from draftwood.plugins.trees.best_first import BestFirst
    from draftwood.plugins.trees.options import BestFirstOptions

    proposal = propose(drafter, fresh(drafter, target, features, 8), TEXT[8])
    policy = BestFirst(BestFirstOptions(max_nodes=12, score_temperature=1.0))
    always = lambda growth: True  # noqa: E731
    tree: TokenTree = policy.grow(TEXT[8], proposal, Limits(12), always, Seeded(0)).validate()
    assert max(tree.depth_list) > 1
    for node in range(1, len(tree)):
        path = [tree.token_list[i] for i in tree.path(node)[1:]]
        alone = propose(drafter, fresh(drafter, target, features, 8), TEXT[8])
        score = sum(
            float(along(alone, path[:depth])[token].log()) for depth, token in enumerate(path)
        )
        assert float(tree.log_rho[node]) == pytest.approx(score, abs=1e-4)
