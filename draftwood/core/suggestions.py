"""What to suggest for a word that is not understood: a near choice, or another library's word."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

KEYS: Mapping[str, tuple[str, ...]] = {
    "allow_pickles": ("target.allow_pickle",),
    "assistant_model": ("model", "drafter.model"),
    "attn_implementation": ("runtime.attention",),
    "bad_words": ("generation.bad_words_ids",),
    "cuda_graphs": ("runtime.graphs",),
    "device_map": ("runtime.device",),
    "draft_model": ("model", "checkpoint"),
    "eos": ("generation.eos_token_id",),
    "eos_token": ("generation.eos_token_id",),
    "eos_token_ids": ("generation.eos_token_id",),
    "gguf": ("target.gguf_file",),
    "kind": ("use",),
    "logit_bias": ("generation.sequence_bias",),
    "max_length": ("generation.max_new_tokens",),
    "max_output_tokens": ("generation.max_new_tokens",),
    "max_tokens": ("generation.max_new_tokens", "max_nodes", "nodes"),
    "min_length": ("generation.min_new_tokens",),
    "min_tokens": ("generation.min_new_tokens",),
    "model_id": ("target.model", "checkpoint"),
    "model_name": ("target.model", "checkpoint"),
    "model_path": ("target.model", "checkpoint"),
    "n_predict": ("generation.max_new_tokens",),
    "name": ("use", "target.model"),
    "name_or_path": ("target.model", "checkpoint"),
    "num_assistant_tokens": ("max_nodes", "nodes", "length", "max_depth"),
    "num_draft_tokens": ("max_nodes", "nodes", "length", "max_depth"),
    "num_predict": ("generation.max_new_tokens",),
    "num_speculative_tokens": ("max_nodes", "nodes", "length", "max_depth"),
    "num_threads": ("runtime.threads",),
    "path": ("target.model", "checkpoint"),
    "plugin": ("use",),
    "pretrained_model_name_or_path": ("target.model", "checkpoint"),
    "prompt_lookup_max": ("max_ngram",),
    "prompt_lookup_min": ("min_ngram",),
    "prompt_lookup_num_tokens": ("max_depth",),
    "random_seed": ("generation.seed",),
    "repeat_penalty": ("generation.repetition_penalty",),
    "stop": ("generation.stop_strings",),
    "stop_sequences": ("generation.stop_strings",),
    "stop_token_ids": ("generation.eos_token_id",),
    "stop_words": ("generation.stop_strings",),
    "temp": ("generation.temperature",),
    "tensor_parallel_size": ("runtime.parallel",),
    "tokens": ("generation.max_new_tokens",),
    "torch_dtype": ("runtime.dtype",),
    "tp": ("runtime.parallel",),
    "type": ("use",),
}
"""Keys of other libraries, with the keys here that mean the same: the first that fits is named."""

WITHOUT_KEY: Mapping[str, str] = {
    "best_of": "one text is decoded for each request",
    "do_sample": "generation.temperature 0 is greedy, above 0 samples",
    "early_stopping": "there is no beam search",
    "frequency_penalty": "generation.repetition_penalty is the only penalty",
    "length_penalty": "there is no beam search",
    "load_in_4bit": "load the model in Python and pass it as target=",
    "load_in_8bit": "load the model in Python and pass it as target=",
    "num_beams": "there is no beam search: speculation preserves greedy decoding and sampling",
    "num_return_sequences": "one text is decoded for each request",
    "presence_penalty": "generation.repetition_penalty is the only penalty",
    "use_cache": "the target's cache is always used",
}
"""Keys of other libraries that have no counterpart, and what to do."""

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "runtime": ("attention", "device", "dtype", "graphs", "kernels", "parallel", "threads"),
    "generation": (
        "bad_words_ids",
        "begin_suppress_tokens",
        "defaults",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "logprobs",
        "max_new_tokens",
        "min_new_tokens",
        "min_p",
        "no_repeat_ngram_size",
        "repetition_penalty",
        "seed",
        "sequence_bias",
        "stop_strings",
        "suppress_tokens",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
    ),
}
"""Options of the sections that have no `use`: where a key belongs that stands elsewhere."""

VALUES: Mapping[str, str] = {
    "assistant": "draft_model",
    "assisted": "draft_model",
    "bf16": "bfloat16",
    "double": "float64",
    "false": "off",
    "flash_attention_2": "sdpa",
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "gpu": "cuda",
    "half": "float16",
    "medusa": "eagle3",
    "nvidia": "cuda",
    "prompt_lookup": "ngram",
    "rejection": "ratio",
    "specinfer": "multi_round",
    "tp": "tensor",
    "true": "on",
}
"""Values and plugins' names elsewhere, with the name here."""


def similar(word: Any, choices: Collection[str]) -> str | None:
    """The choice that is meant by a word; None if none is near."""
    if not isinstance(word, str):
        return None
    plain = word.strip().lower().replace("-", "_")
    for name in (plain, VALUES.get(plain)):
        if name in choices:
            return name
    # The comparison is quadratic: nothing so long can be a misspelt name.
    close = difflib.get_close_matches(word[:64], choices, n=1)
    return close[0] if close else None


def did_you_mean(word: Any, choices: Collection[str]) -> str:
    """The end of a message on an unknown word: the choice that is meant, or nothing."""
    name = similar(word, choices)
    return f"; did you mean {name!r}?" if name else ""


def key_hint(key: str, choices: Collection[str]) -> str:
    """The end of a message on an unknown key: the key that is meant, where it is, or nothing.

    Args:
        key: The unknown key.
        choices: The keys that can stand in its place.
    """
    plain = key.strip().lower().replace("-", "_")
    known = KEYS.get(plain, ())
    for name in known:
        if name.rpartition(".")[2] in choices:
            return f"; did you mean {name.rpartition('.')[2]!r}?"
    if plain in WITHOUT_KEY:
        return f": {WITHOUT_KEY[plain]}"
    for section, names in SECTIONS.items():
        if plain in names and plain not in choices:
            return f"; {plain!r} is an option of {section!r}"
    if near := did_you_mean(key, choices):
        return near
    elsewhere = [name for name in known if "." in name]
    return f"; did you mean {elsewhere[0]!r}?" if elsewhere else ""
