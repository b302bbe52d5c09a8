"""The checkpoint's own generation settings are honoured, here and in the baselines alike."""

import pytest
import torch

from draftwood.core.generation import Pipeline
from draftwood.core.hf import HFTarget
from draftwood.core.hf.baselines import HFGenerate
from draftwood.core.options import GenerationOptions
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.drafters.ngram.drafter import Ngram
from draftwood.plugins.drafters.options import NgramOptions
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions

PROMPT, COUNT = [5, 9, 2, 33], 40


def text(model, prompt=PROMPT, **options):
    """What generate itself says, greedily."""
    ids = torch.tensor([prompt])
    out = model.generate(ids, max_new_tokens=COUNT, do_sample=False, pad_token_id=0, **options)
    return tuple(out[0, len(prompt) :].tolist())


def pipelines(model):
    target = HFTarget(model)
    plain = Pipeline(target)
    drafter = Ngram(NgramOptions(min_ngram=1))
    tree = BestFirst(BestFirstOptions(max_nodes=8))
    return [plain, Pipeline(target, drafter, tree, Fixed(FixedOptions(nodes=8)))]


@pytest.fixture
def model(fresh_model):
    return fresh_model("llama").double()


def settings_for(name, plain):
    """A setting that changes this greedy text."""
    return {
        "suppress_tokens": [plain[0], plain[3]],
        "begin_suppress_tokens": [plain[0]],
        "bad_words_ids": [[plain[0]], list(plain[1:3])],
        "forced_eos_token_id": (plain[-1] + 1) % 61,
        "forced_bos_token_id": (plain[0] + 1) % 61,
    }[name]


@pytest.mark.covers("generation-defaults")
@pytest.mark.parametrize(
    "name",
    [
        "suppress_tokens",
        "begin_suppress_tokens",
        "bad_words_ids",
        "forced_eos_token_id",
        "forced_bos_token_id",
    ],
)
def test_text_is_generates_under_the_checkpoints_own_constraints(model, name):
    prompt = [5] if name == "forced_bos_token_id" else PROMPT
    plain = text(model, prompt)
    setattr(model.generation_config, name, settings_for(name, plain))
    expected = text(model, prompt)
    assert expected != plain
    for pipeline in pipelines(model):
        assert pipeline.generate(prompt, max_new_tokens=COUNT).tokens == expected
    options = GenerationOptions(max_new_tokens=COUNT)
    assert HFGenerate(HFTarget(model), options)(prompt, 0).tokens == expected


@pytest.mark.covers("generation-defaults")
def test_constraints_that_a_request_gives_replace_the_checkpoints(model):
    plain = text(model)
    model.generation_config.suppress_tokens = [plain[0]]
    for pipeline in pipelines(model):
        free = pipeline.generate(PROMPT, max_new_tokens=COUNT, suppress_tokens=())
        assert free.tokens == plain
        other = pipeline.generate(PROMPT, max_new_tokens=COUNT, suppress_tokens=(plain[1],))
        assert plain[1] not in other.tokens
    options = GenerationOptions(max_new_tokens=COUNT, suppress_tokens=())
    assert HFGenerate(HFTarget(model), options)(PROMPT, 0).tokens == plain


@pytest.mark.covers("generation-defaults")
def test_sampling_settings_are_the_checkpoints_only_where_asked(model):
    model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9, top_k=20)
    model.generation_config.repetition_penalty = 1.3
    target = HFTarget(model)
    own = Pipeline(target).generation
    assert (own.temperature, own.top_p, own.repetition_penalty) == (0.0, None, 1.0)
    theirs = Pipeline(target, generation=GenerationOptions(defaults="model", top_p=0.5)).generation
    assert (theirs.temperature, theirs.top_p, theirs.top_k) == (0.6, 0.5, 20)
    assert theirs.repetition_penalty == 1.3
    greedy = Pipeline(target, generation=GenerationOptions(defaults="model")).request(
        PROMPT, temperature=0.0
    )
    assert greedy.options.temperature == 0.0
