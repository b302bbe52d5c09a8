"""`draft_model`: distributions along paths, sessions over rounds, vocabularies, decoded tokens."""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from draftwood import load_pipeline
from draftwood.core.errors import CheckpointError, PairingError
from draftwood.core.generation import Pipeline
from draftwood.core.hf import load_target, wrap_model
from draftwood.core.interfaces import DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Seeded
from draftwood.core.values import Limits
from draftwood.plugins.drafters.draft_model import drafter as module
from draftwood.plugins.drafters.draft_model.drafter import DraftModel, check_tokenizers
from draftwood.plugins.drafters.options import DraftModelOptions

TARGET = Path(__file__).parents[3] / "fixtures/zlab/target"
TEXT = [5, 17, 40, 41, 60, 3, 22, 71, 8, 30, 12, 44]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}


def save_model(folder: Path, vocab_size: int = 96, **sizes: object) -> Path:
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SIZES | {"vocab_size": vocab_size} | sizes)).save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with noise on its weights, whose drafts are often accepted."""
    model = AutoModelForCausalLM.from_pretrained(TARGET)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("noisy")
    model.save_pretrained(folder)
    return folder


@cache
def shared_target() -> Target:
    return load_target(TARGET, dtype="float32")


@pytest.fixture(scope="module")
def target() -> Target:
    return shared_target()


@cache
def plain(temperature: float) -> tuple[int, ...]:
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 5, "eos_token_id": ()}
    return Pipeline(shared_target()).generate(TEXT, **options).tokens


def bound(target: Target, folder: Path, **options: object) -> DraftModel:
    drafter = DraftModel(DraftModelOptions(folder, **options))  # type: ignore[arg-type]
    return drafter.bind(target)


def propose(drafter: DraftModel, session, anchor: int) -> Proposal:
    work = DraftWork(session, anchor, session.length, Limits(8), Seeded(0))
    return drafter.propose([work])[0]


def along(proposal: Proposal, path: list[int]) -> torch.Tensor:
    at = proposal.root()
    for token in path:
        at = proposal.advance(at, torch.tensor([0]), torch.tensor([token]))
    return proposal.probs(at)[0]


def distribution_of(folder: Path, text: list[int]) -> torch.Tensor:
    """(V,) next-token distribution of the model alone."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        return model(torch.tensor([text])).logits[0, -1].softmax(-1)


def test_nodes_of_a_branching_tree_have_the_models_distributions(
    target: Target, small: Path
) -> None:
    drafter = bound(target, small)
    session = drafter.open(target, Sampling(1.0))
    session.commit(TEXT[:7], None)
    proposal = propose(drafter, session, TEXT[7])
    one = proposal.advance(proposal.root(), torch.tensor([0, 0]), torch.tensor([9, 10]))
    two = proposal.advance(one, torch.tensor([1, 0, 0]), torch.tensor([20, 21, 22]))
    distributions = [*proposal.probs(proposal.root()), *proposal.probs(one), *proposal.probs(two)]
    paths = [[], [9], [10], [10, 20], [9, 21], [9, 22]]
    for probs, path in zip(distributions, paths, strict=True):
        torch.testing.assert_close(
            probs, distribution_of(small, TEXT[:8] + path), atol=1e-5, rtol=0
        )
    assert (
        distributions[4] - distributions[5]
    ).abs().max() > 1e-3  # negative control: the path matters


@pytest.mark.parametrize("at_once", [0, 100])
@pytest.mark.parametrize("pieces", [[1, 3, 2, 4], [4, 1, 1, 1, 3]])
def test_proposals_after_many_rounds_equal_the_models_distributions(
    target: Target, small: Path, pieces: list[int], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", at_once)
    drafter = bound(target, small)
    session, start = drafter.open(target, Sampling(1.0)), 0
    for i, size in enumerate(pieces):
        session.commit(TEXT[start : start + size], None)
        start += size
        if i % 3 != 1:
            along(propose(drafter, session, TEXT[start]), [7, 9])
        if i % 2:
            session = session.fork()
    session.commit(TEXT[start : start + 1], None)
    actual = along(propose(drafter, session, TEXT[start + 1]), [7])
    expected = distribution_of(small, [*TEXT[: start + 2], 7])
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_depth_is_limited_by_the_models_context(target: Target, tmp_path: Path) -> None:
    drafter = bound(target, save_model(tmp_path, max_position_embeddings=10))
    for length, depth in [(5, 5), (8, 2), (9, 1), (10, 0), (11, 0)]:
        session = drafter.open(target, Sampling(1.0))
        session.commit(TEXT[:length], None)
        proposal = propose(drafter, session, TEXT[length])
        assert proposal.max_depth == depth
        if depth:
            along(proposal, [7] * (depth - 1))


@pytest.mark.parametrize("rows", [96, 128])
def test_padding_rows_have_no_probability(target: Target, tmp_path: Path, rows: int) -> None:
    drafter = bound(target, save_model(tmp_path, vocab_size=rows))
    session = drafter.open(target, Sampling(1.0))
    session.commit(TEXT[:3], None)
    probs = along(propose(drafter, session, TEXT[3]), [7])
    assert probs.shape == (96,)
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-5)


def test_a_smaller_vocabulary_is_scattered_to_the_target_s(tmp_path: Path) -> None:
    """The target has 128 rows with padding; both have the same 96 tokens."""
    theirs = wrap_model(AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "a", 128)))
    theirs.tokenizer = Words([f"w{i}" for i in range(96)])
    theirs.limit_vocabulary(96)
    drafter = bound(theirs, save_model(tmp_path / "b", 96))
    session = drafter.open(theirs, Sampling(1.0))
    session.commit(TEXT[:3], None)
    probs = along(propose(drafter, session, TEXT[3]), [7])
    assert probs.shape == (128,)
    assert float(probs[96:].sum()) == 0.0


def test_models_with_too_few_rows_are_refused(target: Target, tmp_path: Path) -> None:
    with pytest.raises(PairingError, match="rows for 90 tokens, and the target needs 96"):
        bound(target, save_model(tmp_path, vocab_size=90))


class Words:
    def __init__(self, words: list[str]) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)


def test_different_tokenizers_are_refused_naming_the_first_token_that_differs() -> None:
    ours = {"a": 0, "b": 1, "c": 2, "d": 3}
    check_tokenizers("small", ours, ours)
    check_tokenizers("small", ours | {"<extra>": 4}, ours)  # only one vocabulary has id 4
    check_tokenizers("small", ours, ours | {"<extra>": 4})
    with pytest.raises(PairingError, match="id 1 is 'b' to it and 'x' to the target"):
        check_tokenizers("small", ours, {"a": 0, "x": 1, "y": 2, "d": 3})


def test_another_tokenizer_is_refused_before_weights_load(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    def tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
        model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0])
        return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))

    words = [f"w{i}" for i in range(96)]
    theirs = load_target(TARGET, dtype="float32", tokenizer=tokenizer(words))
    assert theirs.vocabulary() == {word: i for i, word in enumerate(words)}
    tokenizer(["w0", "w2", "w1", *words[3:]]).save_pretrained(tmp_path)
    with pytest.raises(PairingError, match="id 1 is 'w2' to it and 'w1' to the target"):
        bound(theirs, tmp_path)  # a folder without weights


def pipeline(model: Path, tree: dict[str, object], verifier: str = "match") -> Pipeline:
    return load_pipeline(
        {
            "drafter": {"use": "draft_model", "model": str(model), "max_depth": 4},
            "tree": tree,
            "controller": {"use": "fixed", "nodes": 12},
            "verifier": {"use": verifier},
        },
        target=shared_target(),
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("tree", ["chain", "best_first", "dynamic"])
def test_every_tree_gives_the_tokens_of_plain_decoding(
    noisy: Path, tree: str, temperature: float
) -> None:
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 5, "eos_token_id": ()}
    result = pipeline(noisy, {"use": tree}).generate(TEXT, **options)
    assert result.tokens == plain(temperature)
    assert result.stats.accepted > 0
    assert result.stats.rejected > 0


def test_drafts_of_a_copy_of_the_target_are_always_accepted() -> None:
    result = pipeline(TARGET, {"use": "chain"}).generate(TEXT, max_new_tokens=21, eos_token_id=())
    assert result.stats.committed_per_round == [5, 5, 5, 5]
    drawn = pipeline(TARGET, {"use": "sampled"}, "ratio")
    sampled = drawn.generate(TEXT, max_new_tokens=21, temperature=1.0, seed=3, eos_token_id=())
    assert sampled.stats.committed_per_round == [5, 5, 5, 5]  # q is p, so nothing is rejected


@pytest.mark.parametrize("verifier", ["multi_round", "traversal"])
def test_drawn_trees_carry_the_distribution_they_were_drawn_from(
    noisy: Path, verifier: str
) -> None:
    drawn = pipeline(noisy, {"use": "sampled", "widths": [2, 2]}, verifier)
    result = drawn.generate(TEXT, max_new_tokens=24, temperature=1.0, seed=1, eos_token_id=())
    assert len(result.tokens) == 24
    assert result.stats.accepted > 0


def test_folders_without_weights_are_refused(target: Target, tmp_path: Path) -> None:
    shutil.copy(TARGET / "config.json", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 96
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        bound(target, tmp_path)
