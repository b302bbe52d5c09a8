"""Hugging Face's own decoding as a baseline: our options, its loop, nobody's state disturbed."""

import itertools

import pytest
import torch

from draftwood.core.errors import PairingError, RequestError
from draftwood.core.generation import Pipeline
from draftwood.core.hf import HFTarget
from draftwood.core.hf.baselines import HFGenerate, load_assistant
from draftwood.core.options import GenerationOptions
from draftwood.testing import OracleTarget

PROMPT = (3, 14, 15, 9, 26, 5)
GREEDY = GenerationOptions(max_new_tokens=16)


@pytest.fixture
def target(tiny_target):
    return tiny_target("llama")


@pytest.fixture
def plain(target):
    return Pipeline(target).generate(PROMPT, max_new_tokens=16).tokens


@pytest.fixture
def assistant(tmp_path, fresh_model):
    """A folder with a smaller model of the same vocabulary."""
    fresh_model("llama", num_hidden_layers=1).save_pretrained(tmp_path / "small")
    return tmp_path / "small"


def test_every_baseline_gives_plain_decodings_text(target, plain, assistant):
    for extra in (
        {},
        {"prompt_lookup_num_tokens": 4},
        {"assistant_model": load_assistant(assistant, target)},
    ):
        got = HFGenerate(target, GREEDY, **extra)(PROMPT, seed=0)
        assert got.tokens == plain
        assert 1 <= got.first_tokens <= 16
        assert 0 < got.first_seconds <= got.seconds


def test_times_are_read_from_the_given_clock(target):
    ticks = itertools.count(0.0, 1.0)
    got = HFGenerate(target, GREEDY, clock=lambda: next(ticks))(PROMPT, seed=0)
    assert (got.first_tokens, got.first_seconds, got.seconds) == (1, 1.0, 2.0)


def test_the_seed_fixes_sampled_text_and_torchs_generator_is_left_alone(target):
    options = GenerationOptions(max_new_tokens=16, temperature=1.0)
    generate = HFGenerate(target, options)
    state = torch.get_rng_state()
    first, again, other = (generate(PROMPT, seed=seed).tokens for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)


def test_a_checkpoints_own_generation_options_do_not_count(fresh_model):
    """Negative control first: they do count where nothing is said."""
    model = fresh_model("llama")
    target = HFTarget(model)
    before = HFGenerate(target, GREEDY)(PROMPT, seed=0).tokens
    model.generation_config.no_repeat_ngram_size = 1
    model.generation_config.repetition_penalty = 5.0
    ids = torch.tensor([PROMPT])
    its_own = model.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=0)
    assert tuple(its_own[0, len(PROMPT) :].tolist()) != before
    assert HFGenerate(target, GREEDY)(PROMPT, seed=0).tokens == before


def test_baselines_stop_at_the_requests_end_tokens(target, plain):
    options = GenerationOptions(max_new_tokens=16, eos_token_id=(plain[4],))
    expected = plain[: plain.index(plain[4]) + 1]
    assert HFGenerate(target, options)(PROMPT, seed=0).tokens == expected


def test_an_assistant_with_another_vocabulary_is_refused(tmp_path, target, fresh_model):
    fresh_model("llama", vocab_size=50).save_pretrained(tmp_path / "other")
    with pytest.raises(PairingError, match="scores 50 tokens and the target 61"):
        load_assistant(tmp_path / "other", target)


def test_a_target_without_a_model_is_refused():
    table = OracleTarget(2, lambda prefix: [1.0, 1.0])
    with pytest.raises(RequestError, match="not a OracleTarget"):
        HFGenerate(table, GREEDY)
    with pytest.raises(RequestError, match="needs a Hugging Face model"):
        load_assistant("anywhere", table)
