"""`model.generate(..., custom_generate=pipeline.custom_generate())` gives what `generate` gives."""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LogitsProcessorList,
    MistralConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from draftwood.core.errors import RequestError
from draftwood.core.generation import Pipeline
from draftwood.core.options import GenerationOptions, Sampling
from draftwood.core.proposals import LookupPaths, Proposal
from draftwood.core.values import RoundStats
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.trees.chain import Chain
from draftwood.plugins.trees.options import ChainOptions
from draftwood.testing import OracleDrafter

V, DEPTH = 53, 5
pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = [7, 31, 2, 44, 19]


def make_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = MistralConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=16,
        max_position_embeddings=200,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config).double().eval()


@cache
def model() -> Any:
    return make_model()


def generate(
    prompt: list[int] = PROMPT, on: Any = None, count: int | None = 60, **options: Any
) -> Any:
    ids = torch.tensor([prompt])
    options = {"pad_token_id": 0, "attention_mask": torch.ones_like(ids), **options}
    if count is not None:
        options["max_new_tokens"] = count
    return (on or model()).generate(ids, **options)


def drafting_pipeline(text: list[int]) -> Pipeline:
    """Drafts of `text`, every fourth token wrong; other texts get drafts that are all wrong."""

    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        ahead = (text[len(prefix) :] + [0] * DEPTH)[:DEPTH]
        path = [(t + ((len(prefix) + i) % 4 == 0)) % V for i, t in enumerate(ahead)]
        return LookupPaths((tuple(path),), sampling, V)

    return Pipeline(
        model(), OracleDrafter(propose), Chain(ChainOptions()), Fixed(FixedOptions(nodes=DEPTH))
    )


def observed_rounds(pipeline: Pipeline) -> list[RoundStats]:
    """A list that collects the rounds that the pipeline decodes."""
    rounds: list[RoundStats] = []
    pipeline.observers.append(rounds.append)
    return rounds


def assert_speculated(rounds: list[RoundStats]) -> None:
    assert sum(stats.accepted for stats in rounds) > 0
    assert any(stats.offered > stats.accepted for stats in rounds)


class RecordingStreamer(BaseStreamer):
    def __init__(self) -> None:
        self.values: list[int] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        assert not self.ended
        self.values.extend(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


class StopAfter(StoppingCriteria):
    """Stops once a token occurs `times` times."""

    def __init__(self, token: int, times: int) -> None:
        self.token, self.times = token, times

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return (input_ids == self.token).sum(1) >= self.times


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "sequence_bias": {"sequence_bias": [[[3], 2.0], [[7, 5], 4.0]]},
    "max_length": {"max_length": 23, "count": None},
}


@pytest.mark.covers("streaming")
@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_text_equals_generate_and_the_streamer_gets_every_token(name: str) -> None:
    expected = generate(**SETTINGS[name])
    pipeline, streamer = drafting_pipeline(expected[0].tolist()), RecordingStreamer()
    rounds = observed_rounds(pipeline)
    custom = generate(custom_generate=pipeline.custom_generate(streamer), **SETTINGS[name])
    assert torch.equal(custom, expected)
    assert custom.dtype == expected.dtype
    assert streamer.values == expected[0].tolist()
    assert streamer.ended == 1
    assert_speculated(rounds)


@pytest.mark.covers("end-of-text-in-run")
@pytest.mark.parametrize("at", [0, 1, 2, 3, 9, 20])
def test_end_of_text_and_min_new_tokens_have_the_effect_they_have_in_generate(at: int) -> None:
    text = generate()[0].tolist()
    eos = text[len(PROMPT) + at]
    for options in ({"eos_token_id": eos}, {"eos_token_id": [eos, 52], "min_new_tokens": 30}):
        expected = generate(**options)
        pipeline = drafting_pipeline(expected[0].tolist())
        assert torch.equal(
            generate(custom_generate=pipeline.custom_generate(), **options), expected
        )


@pytest.mark.parametrize("times", [1, 2, 3])
def test_stopping_criteria_stop_inside_an_accepted_run(times: int) -> None:
    text = generate()[0].tolist()
    token = max(set(text), key=text.count)
    criteria = StoppingCriteriaList([StopAfter(token, times)])
    expected = generate(stopping_criteria=criteria)
    pipeline = drafting_pipeline(text)
    custom = generate(stopping_criteria=criteria, custom_generate=pipeline.custom_generate())
    assert torch.equal(custom, expected)


@pytest.mark.covers("stale-processor-input")
def test_the_callers_processors_are_applied_at_every_node() -> None:
    def forbids(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Forbid the token after the last one: depends on each node's own path."""
        scores = scores.clone()
        scores[:, (ids[:, -1] + 1) % V] = -torch.inf
        scores[:, ids[:, -2]] += 3.0
        return scores

    processors = LogitsProcessorList([forbids])
    expected = generate(logits_processor=processors)
    assert not torch.equal(expected, generate())
    pipeline = drafting_pipeline(expected[0].tolist())
    rounds = observed_rounds(pipeline)
    custom = generate(logits_processor=processors, custom_generate=pipeline.custom_generate())
    assert torch.equal(custom, expected)
    assert_speculated(rounds)


def test_sampling_is_reproduced_by_a_seed_and_by_torchs_generator() -> None:
    options = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9}
    plain = Pipeline(model())
    first = generate(custom_generate=plain.custom_generate(seed=4), **options)
    drafted = drafting_pipeline(first[0].tolist())
    rounds = observed_rounds(drafted)
    assert torch.equal(generate(custom_generate=drafted.custom_generate(seed=4), **options), first)
    assert_speculated(rounds)
    # The prepared processors hold temperature and filters, so the distribution is a pipeline's own.
    own = plain.generate(PROMPT, seed=4, temperature=0.8, top_k=20, top_p=0.9, max_new_tokens=60)
    assert tuple(first[0, len(PROMPT) :].tolist()) == own.tokens
    texts = []
    for state in (1, 1, 2):
        torch.manual_seed(state)
        texts.append(generate(custom_generate=plain.custom_generate(), **options)[0].tolist())
    assert texts[0] == texts[1] != texts[2]


def test_return_dict_in_generate_returns_a_model_output() -> None:
    expected = generate(return_dict_in_generate=True)
    pipeline = drafting_pipeline(expected.sequences[0].tolist())
    custom = generate(return_dict_in_generate=True, custom_generate=pipeline.custom_generate())
    assert isinstance(custom, GenerateDecoderOnlyOutput)
    assert torch.equal(custom.sequences, expected.sequences)


@pytest.mark.covers("warm-cache")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # the cache keyword's name, by release
def test_unsupported_calls_raise_and_the_pipeline_stays_usable() -> None:
    expected = generate(count=12)
    pipeline = drafting_pipeline(expected[0].tolist())
    custom = pipeline.custom_generate()
    batch, padded = torch.tensor([PROMPT, PROMPT]), torch.tensor([[0, 1, 1, 1, 1]])
    with pytest.raises(RequestError, match="batch of 2"):
        model().generate(
            batch, attention_mask=torch.ones_like(batch), pad_token_id=0, custom_generate=custom
        )
    with pytest.raises(RequestError, match="padded"):
        generate(custom_generate=custom, attention_mask=padded)
    with pytest.raises(RequestError, match="another model"):
        generate(on=make_model(1), custom_generate=custom)
    # With beams `generate` repeats the prompt, so both reasons are true.
    with pytest.raises(RequestError, match=r"num_beams|batch of 3"):
        generate(custom_generate=custom, num_beams=3)
    for name in ("output_scores", "output_logits"):
        with pytest.raises(RequestError, match=name):
            generate(custom_generate=custom, return_dict_in_generate=True, **{name: True})
    warm = model()(torch.tensor([PROMPT[:3]]), use_cache=True).past_key_values
    with pytest.raises(RequestError, match="warm cache"):
        generate(custom_generate=custom, past_key_values=warm)
    assert torch.equal(generate(custom_generate=custom, count=12), expected)


@pytest.mark.covers("ignored-model-input")
@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"position_ids": torch.arange(3, 3 + len(PROMPT))[None]}, "position_ids"),
        ({"inputs_embeds": torch.zeros(1, len(PROMPT), 32)}, "inputs_embeds"),
        ({"pixel_values": torch.zeros(1, 3, 4, 4)}, "pixel_values"),
        ({"image_grid_thw": torch.ones(1, 3), "mm_token_type_ids": torch.ones(1, 2)}, "image_grid"),
    ],
)
def test_model_inputs_that_would_change_the_text_are_refused_by_name(
    inputs: dict[str, Any], named: str
) -> None:
    custom = drafting_pipeline(generate(count=12)[0].tolist()).custom_generate()
    prompt, config = torch.tensor([PROMPT]), model().generation_config
    with pytest.raises(RequestError, match=named):
        custom(model(), prompt, LogitsProcessorList(), StoppingCriteriaList(), config, **inputs)


@pytest.mark.covers("ignored-model-input")
@pytest.mark.parametrize("where", ["on the model", "in a class"])
def test_inputs_that_a_model_prepares_its_own_way_are_refused(where: str) -> None:
    own = make_model()

    def prepare(input_ids: Any, attention_mask: Any = None, **options: Any) -> Any:
        raise AssertionError("the model's own preparation is not needed to refuse it")

    if where == "on the model":
        own.prepare_inputs_for_generation = prepare
    else:
        methods = {"prepare_inputs_for_generation": staticmethod(prepare)}
        own.__class__ = type("Own", (type(own),), methods)
    custom = Pipeline(own).custom_generate()
    with pytest.raises(RequestError, match="prepare_inputs_for_generation of its own"):
        generate(on=own, custom_generate=custom)


@pytest.mark.covers("ignored-model-input")
def test_an_adapter_in_the_layers_decodes_inside_pefts_generate() -> None:
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    adapted = peft.get_peft_model(make_model(), adapter).double().eval()
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    prompt = torch.tensor([PROMPT])
    expected = adapted.generate(input_ids=prompt, **options)
    custom = Pipeline(adapted).custom_generate()
    found = adapted.generate(input_ids=prompt, custom_generate=custom, **options)
    assert torch.equal(found, expected)
    assert not torch.equal(expected, generate(count=12))


def test_plain_generate_is_unchanged_after_custom_generate() -> None:
    before = generate()
    pipeline = drafting_pipeline(before[0].tolist())
    generate(custom_generate=pipeline.custom_generate())
    assert torch.equal(generate(), before)


class Letters:
    """One letter per token."""

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("A") + token) for token in ids)


def test_stop_strings_of_the_pipeline_end_the_text() -> None:
    """`generate` does not pass its tokenizer on, so its own stop strings cannot have an effect."""
    expected = generate()[0, len(PROMPT) :].tolist()
    text = Letters().decode(expected)
    stop = text[20:22]
    stopping = Pipeline(
        model(),
        tokenizer=None,
        generation=GenerationOptions(stop_strings=(stop,)),
    )
    stopping.tokenizer = Letters()
    custom = generate(custom_generate=stopping.custom_generate())[0, len(PROMPT) :].tolist()
    assert custom == expected[: text.index(stop) + 2]
    assert len(custom) < len(expected)


def llava() -> Any:
    """A tiny model that reads an image of four patches."""
    text = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,
    )
    vision = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=60,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    torch.manual_seed(0)
    return LlavaForConditionalGeneration(config).double().eval()


@pytest.mark.covers("ignored-model-input")
def test_images_go_through_the_targets_own_prefill() -> None:
    seeing = llava()
    prompt = torch.tensor([[1, 60, 60, 60, 60, 5, 6, 7]])
    image, other = torch.randn(2, 1, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    expected = seeing.generate(prompt, pixel_values=image, **options)
    tokens = expected[0].tolist()

    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        path = tokens[len(prefix) : len(prefix) + DEPTH]
        return LookupPaths((tuple(path),) if path else (), sampling, 64)

    parts = OracleDrafter(propose), Chain(ChainOptions()), Fixed(FixedOptions(nodes=DEPTH))
    for pipeline in (Pipeline(seeing), Pipeline(seeing, *parts)):
        custom = pipeline.custom_generate()
        found = seeing.generate(prompt, pixel_values=image, custom_generate=custom, **options)
        assert torch.equal(found, expected)
    assert not torch.equal(seeing.generate(prompt, pixel_values=other, **options), expected)


@pytest.mark.covers("ignored-model-input")
def test_text_without_an_image_decodes_on_a_model_that_reads_images() -> None:
    seeing = llava()
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    prompt = torch.tensor([PROMPT])
    expected = seeing.generate(prompt, **options)
    custom = Pipeline(seeing).custom_generate()
    assert torch.equal(seeing.generate(prompt, custom_generate=custom, **options), expected)
