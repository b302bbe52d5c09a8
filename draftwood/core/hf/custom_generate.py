"""draftwood inside `model.generate(..., custom_generate=...)`.

transformers passes a callable the prompt, the prepared processors and criteria, and the generation
config. It does not pass the streamer and the tokenizer, so the caller of `custom_generate` does.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from draftwood.core.errors import RequestError
from draftwood.core.hf.processors import adapt_stopping
from draftwood.core.hf.versions import accepts, text_config
from draftwood.core.options import GenerationOptions

REFUSED = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "guidance_scale": None,
    "output_scores": False,
    "output_logits": False,
    "output_attentions": False,
    "output_hidden_states": False,
}
"""Generation settings that this decoding cannot honour, each with its value when it is off."""

CACHES = ("cache", "past_key_values")

IMAGES = ("pixel_values", "image_sizes", "mm_encoder_outputs", "token_type_ids")
"""Model inputs that the target's own prefill takes, if its forward names them."""

UNDERSTOOD = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", *CACHES}
"""Model inputs that `generate` prepares itself; any other one is the caller's."""


def custom_generate(
    model: Any,
    stream: Callable[..., Iterator[Any]],
    *,
    streamer: Any | None = None,
    seed: int | None = None,
) -> Callable[..., Any]:
    """A callable for `model.generate(..., custom_generate=...)`.

    The callable takes one prompt (batch 1, no padding) and returns what `generate` would: ids of
    prompt and text, (1, n), or a ModelOutput if `return_dict_in_generate`.

    Args:
        model: The only model whose `generate` may call it.
        stream: `Pipeline.stream` of a pipeline that decodes with this model. Its stop strings hold.
        streamer: A transformers streamer; it gets the prompt and then tokens as they are committed.
        seed: Of sampling. None takes one from torch's global generator, so that
            `torch.manual_seed` has its usual effect.

    Raises:
        RequestError: From the callable, for settings that it cannot honour; it names them.
    """

    def decode(
        caller: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        if caller is not model:
            raise RequestError(
                "this pipeline decodes another model than the one whose generate was called; "
                "build it with load_pipeline(..., target=model)"
            )
        images = _images(model, model_kwargs)
        rest = {name: value for name, value in model_kwargs.items() if name not in images}
        _refuse(model, input_ids, generation_config, rest)
        sampled = bool(generation_config.do_sample)
        prompt = input_ids[0].tolist()
        is_done = adapt_stopping(stopping_criteria, input_ids.device)
        drawn_seed = int(torch.randint(2**62, ())) if sampled and seed is None else seed
        options: dict[str, Any] = GenerationOptions(
            max_new_tokens=generation_config.max_length - len(prompt),
            # The prepared processors already hold temperature and filters.
            temperature=1.0 if sampled else 0.0,
            eos_token_id=(),  # one of the stopping criteria
            suppress_tokens=(),  # these three are among the prepared processors, too
            begin_suppress_tokens=(),
            bad_words_ids=(),
            seed=drawn_seed if sampled else 0,
        ).as_dict()
        del options["stop_strings"]  # the pipeline's own
        if streamer is not None:
            streamer.put(input_ids.cpu())
        tokens: list[int] = []
        for chunk in stream(
            prompt,
            logits_processor=tuple(logits_processor),
            stops=(lambda ids, _: "criteria" if is_done(ids) else None,),
            model_inputs=images,
            **options,
        ):
            tokens.extend(chunk.tokens)
            if streamer is not None:
                for token in chunk.tokens:
                    streamer.put(torch.tensor([token]))
        if streamer is not None:
            streamer.end()
        sequences = torch.cat([input_ids, input_ids.new_tensor([tokens])], dim=1)
        if not generation_config.return_dict_in_generate:
            return sequences
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=sequences)

    return decode


def _images(model: Any, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The inputs for the target's own prefill.

    Multimodal rotary embeddings give images positions of their own, which text tokens continue:
    they are left to `_refuse`.
    """
    settings = getattr(text_config(model), "rope_parameters", None) or {}
    if "mrope_section" in settings:
        return {}
    given = {name: model_kwargs[name] for name in IMAGES if _is_given(model_kwargs.get(name))}
    return {name: value for name, value in given.items() if accepts(model, name)}


def _is_given(value: Any) -> bool:
    return value is not None and not (isinstance(value, dict) and not value)


def _refuse(model: Any, input_ids: Tensor, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise RequestError for a call that this decoding cannot honour."""
    inputs = sorted(
        name for name, value in model_kwargs.items() if _is_given(value) and name not in UNDERSTOOD
    )
    if inputs:
        raise RequestError(
            f"custom_generate decodes from token ids alone; it cannot honour: {', '.join(inputs)}. "
            "Leave them out, or call generate without custom_generate"
        )
    prepare = getattr(model, "prepare_inputs_for_generation", None)
    if "prepare_inputs_for_generation" in vars(model) or not _is_transformers(prepare):
        raise RequestError(
            f"{type(model).__name__} prepares its inputs by a prepare_inputs_for_generation of its "
            "own (a soft prompt, say), which this decoding does not call"
        )
    if input_ids.shape[0] != 1:
        raise RequestError(f"one prompt at a time: got a batch of {input_ids.shape[0]}")
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise RequestError("padded prompts are not supported: pass the tokens without padding")
    positions = model_kwargs.get("position_ids")
    usual = torch.arange(input_ids.shape[1], device=input_ids.device)
    if positions is not None and not torch.equal(positions.reshape(-1), usual):
        raise RequestError("position_ids other than 0, 1, 2, ... are not supported: leave them out")
    caches = (model_kwargs.get(name) for name in CACHES)
    if any(cache is not None and cache.get_seq_length() for cache in caches):
        raise RequestError("a warm cache cannot be continued: the drafter has no context for it")
    refused = [
        name for name, off in REFUSED.items() if getattr(config, name, off) not in (off, None)
    ]
    if refused:
        raise RequestError(f"custom_generate cannot honour: {', '.join(refused)}")


def _is_transformers(method: Any) -> bool:
    return getattr(method, "__module__", "transformers").partition(".")[0] == "transformers"
