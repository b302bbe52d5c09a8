"""draftwood inside `model.generate(..., custom_generate=...)`.

transformers hands a callable the prompt, the prepared processors and criteria, and the generation
config; it keeps the streamer and the tokenizer to itself, so they are brought along here.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from draftwood.core.errors import RequestError
from draftwood.core.hf.processors import adapt_stopping
from draftwood.core.options import GenerationOptions

if TYPE_CHECKING:
    from draftwood.core.generation import Pipeline

REFUSED = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "guidance_scale": None,
    "output_scores": False,
    "output_logits": False,
    "output_attentions": False,
    "output_hidden_states": False,
}
"""Generation settings that this decoding cannot honour, with the value that means "not asked"."""


def custom_generate(
    pipeline: "Pipeline", streamer: Any | None = None, seed: int | None = None
) -> Callable[..., Any]:
    """A callable for `model.generate(..., custom_generate=...)` that decodes with `pipeline`.

    streamer: a transformers streamer, given the prompt and then tokens as they are committed.
    seed: of sampling; None takes one from torch's global generator, so `torch.manual_seed` counts.
    The callable takes one prompt (batch 1, no padding) and returns what `generate` would: ids of
    prompt and text, (1, n), or a ModelOutput if `return_dict_in_generate`.
    Raises RequestError for settings it cannot honour, naming them.
    """

    def decode(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        _refuse(pipeline, model, input_ids, generation_config, model_kwargs)
        sampled = bool(generation_config.do_sample)
        prompt = input_ids[0].tolist()
        room = generation_config.max_length - len(prompt)
        ends = adapt_stopping(stopping_criteria, input_ids.device)
        options: dict[str, Any] = GenerationOptions(
            max_new_tokens=room,
            # The prepared processors already hold temperature and filters, so the distribution is
            # theirs.
            temperature=1.0 if sampled else 0.0,
            eos_token_id=(),  # the criteria know
            stop_strings=pipeline.generation.stop_strings,
            seed=_seed(seed) if sampled else 0,
        ).as_dict()
        if streamer is not None:
            streamer.put(input_ids.cpu())
        tokens: list[int] = []
        for chunk in pipeline.stream(
            prompt,
            logits_processor=tuple(logits_processor),
            stops=(lambda ids, _: "criteria" if ends(ids) else None,),
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


def _seed(seed: int | None) -> int:
    return int(torch.randint(2**62, ())) if seed is None else seed


def _refuse(
    pipeline: "Pipeline", model: Any, input_ids: Tensor, config: Any, model_kwargs: dict[str, Any]
) -> None:
    if getattr(pipeline.target, "model", None) is not model:
        raise RequestError(
            "this pipeline decodes another model than the one whose generate was called; "
            "build it with load_pipeline(..., target=model)"
        )
    if input_ids.shape[0] != 1:
        raise RequestError(f"one prompt at a time: got a batch of {input_ids.shape[0]}")
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise RequestError("padded prompts are not supported: pass the tokens without padding")
    caches = (model_kwargs.get(name) for name in ("cache", "past_key_values"))
    if any(cache is not None and cache.get_seq_length() for cache in caches):
        raise RequestError("a warm cache cannot be continued: the drafter has no context for it")
    asked = [
        name for name, unset in REFUSED.items() if getattr(config, name, unset) not in (unset, None)
    ]
    if asked:
        raise RequestError(f"custom_generate cannot honour: {', '.join(asked)}")
