"""Hugging Face's processors, warpers and criteria mean here what they mean in `generate`."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MaxLengthCriteria,
    MinPLogitsWarper,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftwood.core.distributions import sampling_probs
from draftwood.core.errors import RequestError
from draftwood.core.hf import adapt_stopping, build_processors
from draftwood.core.options import GenerationOptions, Sampling
from draftwood.core.tree import TokenTree


def warped(logits, sampling):
    """The distribution that `generate` samples from."""
    chain = LogitsProcessorList()
    if sampling.temperature != 1.0:
        chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k is not None:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None and sampling.top_p < 1.0:
        chain.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p is not None:
        chain.append(MinPLogitsWarper(sampling.min_p))
    return chain(torch.zeros(len(logits), 1, dtype=torch.int64), logits).softmax(-1)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.25, 0.5, 1.0, 1.3, 2.0]),
    top_k=st.none() | st.integers(1, 40),
    top_p=st.none() | st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]),
    min_p=st.none() | st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


@settings(max_examples=150)
@given(
    sampling=samplings,
    seed=st.integers(0, 2**31),
    tied=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_distributions_equal_the_warpers_of_generate(sampling, seed, tied, dtype):
    logits = torch.randn(3, 33, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 4
    if tied:
        logits = logits.round()
    probs, expected = sampling_probs(logits, sampling), warped(logits, sampling)
    if tied:  # which of equal tokens top-p keeps is left open by generate's sort
        probs, expected = probs.sort(-1).values, expected.sort(-1).values
    # Which tokens are kept is exact; shifting by the largest before scaling costs a rounding.
    assert torch.equal(probs > 0, expected > 0)
    torch.testing.assert_close(probs, expected, rtol=128 * torch.finfo(dtype).eps, atol=0)


OPTIONS = [
    GenerationOptions(repetition_penalty=1.7),
    GenerationOptions(no_repeat_ngram_size=2),
    GenerationOptions(min_new_tokens=8, eos_token_id=(3, 4)),
    GenerationOptions(sequence_bias=(((5,), 2.0), ((6, 7), -3.0))),
    GenerationOptions(
        sequence_bias=(((5,), 1.0),),
        repetition_penalty=1.3,
        no_repeat_ngram_size=3,
        min_new_tokens=6,
        eos_token_id=(3,),
    ),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_greedy_steps_with_processors_equal_generate(options, tiny_model, tiny_target):
    model, target = tiny_model("qwen3"), tiny_target("qwen3")
    prompt = [random.Random(2).randrange(61) for _ in range(5)]
    eos = options.eos_token_id or ()
    keywords = {
        name: value
        for name, value in options.as_dict().items()
        if name in ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens") and value
    }
    if options.sequence_bias:
        keywords["sequence_bias"] = [[list(ids), bias] for ids, bias in options.sequence_bias]
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=40,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=list(eos) or None,
            **keywords,
        )[0].tolist()
    processors = build_processors(options, len(prompt), eos)
    assert processors
    session, text = target.open(), list(prompt)
    scores = session.prefill(prompt).logits
    while len(text) < len(expected):
        for processor in processors:
            scores = processor(torch.tensor([text]), scores)
        text.append(int(scores.argmax()))
        scores = target.forward([(session, TokenTree.root(text[-1]))])[0].logits
        session.commit([0])
    assert text == expected
    assert len(set(text)) > 2


def test_the_users_own_processors_come_last_and_no_option_means_none():
    assert build_processors(GenerationOptions(temperature=0.7, top_p=0.9), 3, {1}) == []

    def own(ids, scores):
        return scores

    found = build_processors(GenerationOptions(repetition_penalty=1.1), 3, {1}, [own])
    assert len(found) == 2
    assert found[-1] is own


def test_a_minimum_without_end_tokens_needs_no_processor():
    assert build_processors(GenerationOptions(min_new_tokens=5), 3, ()) == []


@pytest.mark.parametrize("ids", [(), (-1,), (61,), (3, 61)])
def test_a_bias_outside_the_vocabulary_is_a_request_error(ids):
    options = GenerationOptions(sequence_bias=((ids, 1.0),))
    with pytest.raises(RequestError, match=r"sequence_bias.*0 to 60"):
        build_processors(options, 3, (), vocab_size=61)


class Contains(StoppingCriteria):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **_):
        return (input_ids == self.token).any(-1)


def test_stopping_criteria_become_a_rule_on_the_text():
    stop = adapt_stopping(StoppingCriteriaList([MaxLengthCriteria(5), Contains(9)]))
    assert not stop([1, 2, 3, 4])
    assert stop([1, 2, 3, 4, 5])
    assert stop([1, 9])
    assert not adapt_stopping(StoppingCriteriaList())([1])
