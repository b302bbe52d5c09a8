"""`draftwood train --new`: a training file for a target and a text."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from transformers import AutoConfig

from draftwood.core.assets import resolve
from draftwood.core.errors import CheckpointError, DraftwoodError
from draftwood.core.hf.loading import load_tokenizer
from draftwood.core.hub import cached_only

HELD_OUT = 0.1
"""Share of the text that is kept for evaluation."""

LONGEST_PROMPT, LENGTH = 96, 256
FEWEST_TOKENS = 8
"""Of a prompt, if the text has no longer ones."""

_SPLITS = ("train", "heldout")

RESERVED = re.compile(r"mask|unused|reserved|extra_id|placeholder|dummy", re.IGNORECASE)
"""Names of tokens that a vocabulary holds and text does not."""


@frozen
class Split:
    """Text for training and text for evaluation, without a common part.

    Attributes:
        suffix: ".npy" for one stream of tokens, ".jsonl" for many texts.
        train: Token ids of a stream, or of each text.
        heldout: The same.
        texts: Texts of the two splits, if there are many.
    """

    suffix: str
    train: Sequence[Sequence[int]]
    heldout: Sequence[Sequence[int]]
    texts: tuple[Sequence[str], Sequence[str]] = ((), ())

    @property
    def used(self) -> set[int]:
        """Every token of the text."""
        return {token for part in (self.train, self.heldout) for ids in part for token in ids}

    @property
    def longest_prompt(self) -> int:
        """Tokens that a tenth of the texts of either split have, or that a stream leaves room for.

        So prompts of every length are drawn from several texts.
        """
        if self.suffix == ".npy":
            return min(LONGEST_PROMPT, (len(self.heldout[0]) - 1) // 2)
        sizes = (
            sorted(map(len, part))[int(0.9 * len(part))] for part in (self.train, self.heldout)
        )
        return min(LONGEST_PROMPT, *sizes)

    def write(self, train: Path, heldout: Path) -> None:
        if self.suffix == ".npy":
            for path, part in ((train, self.train), (heldout, self.heldout)):
                np.save(path, np.asarray(part[0], np.int32))
            return
        for path, texts in zip((train, heldout), self.texts, strict=True):
            lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
            path.write_text("".join(lines), encoding="utf-8")


def write_training(model: str, text: Path, out: Path) -> list[Path]:
    """Write a training file of a DFlash drafter, and the two splits of the text beside it.

    Args:
        model: The target: a folder, a hub name or `builtin`.
        text: A .txt file, or a .jsonl file with "text" or "messages" in each line.
        out: The training file, which must be new, as its splits must be.

    Returns:
        The files written, the training file first.

    Raises:
        DraftwoodError: The text cannot be read or is too short, or a file exists already.
        CheckpointError: The target's configuration or tokenizer cannot be loaded.
    """
    target = resolve(model, "target")
    config, tokenizer = _text_config(target, model), load_tokenizer(target)
    if tokenizer is None:
        raise CheckpointError(f"{model} has no tokenizer, which the text is read with")
    split = read_text(text, tokenizer)
    paths = [out, *(out.with_name(f"{out.stem}-{name}{split.suffix}") for name in _SPLITS)]
    if present := [path for path in paths if path.exists()]:
        raise DraftwoodError(f"{present[0]} exists already; choose another name with --out")
    longest = split.longest_prompt
    if longest < FEWEST_TOKENS:
        raise DraftwoodError(
            f"{text} is too short: held-out prompts would have {longest} tokens, and "
            f"{FEWEST_TOKENS} are needed. Take a longer text"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    split.write(*paths[1:])
    folder = Path(target)
    named = str(folder.resolve()) if model == str(target) and folder.is_dir() else model
    out.write_text(_document(named, config, tokenizer, split, paths), encoding="utf-8")
    return paths


def read_text(path: Path, tokenizer: Any) -> Split:
    """The text in two parts: a stream's last tenth, or every tenth text, is held out.

    Raises:
        DraftwoodError: It is no such file, or has fewer than two texts.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"is not UTF-8 ({error.reason})"
        raise DraftwoodError(f"{path}: {reason}") from error
    if path.suffix == ".txt":
        ids = tokenizer(content, verbose=False)["input_ids"]
        at = len(ids) - max(1, round(HELD_OUT * len(ids)))
        return Split(".npy", [ids[:at]], [ids[at:]])
    if path.suffix != ".jsonl":
        raise DraftwoodError(f"{path}: text is read from .txt and .jsonl files")
    texts = [
        _line(f"{path}:{number}", line, tokenizer)
        for number, line in enumerate(content.split("\n"), 1)
        if line.strip()
    ]
    texts = list(dict.fromkeys(texts))  # a text that occurs twice would be in both parts
    every = round(1 / HELD_OUT)
    heldout = texts[every - 1 :: every] or texts[-1:]
    kept = {*heldout}
    train = [text for text in texts if text not in kept]
    if not train:
        raise DraftwoodError(f"{path}: two different texts are needed, one of them held out")
    ids, heldout_ids = ([tokenizer(t)["input_ids"] for t in part] for part in (train, heldout))
    return Split(".jsonl", ids, heldout_ids, (train, heldout))


def _line(where: str, line: str, tokenizer: Any) -> str:
    """The text of a line: as it stands, or its messages in the chat template."""
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise DraftwoodError(f"{where}: not JSON ({error})") from error
    if isinstance(entry, Mapping) and isinstance(entry.get("text"), str):
        return str(entry["text"])
    messages = entry.get("messages") if isinstance(entry, Mapping) else None
    if not (isinstance(messages, list) and messages):
        raise DraftwoodError(f'{where}: an object with "text" or "messages" is expected')
    if not getattr(tokenizer, "chat_template", None):
        raise DraftwoodError(f'{where}: the target has no chat template; give "text" instead')
    try:
        answer_due = messages[-1]["role"] != "assistant"
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=answer_due
        )
    except Exception as error:  # a template may raise anything
        raise DraftwoodError(f"{where}: messages do not fit the chat template: {error}") from error
    begin = getattr(tokenizer, "bos_token", None)  # which the tokenizer adds to a text itself
    if begin and text.startswith(begin):
        ids = tokenizer(text)["input_ids"]
        if ids[:2] == [tokenizer.bos_token_id] * 2:
            text = text.removeprefix(begin)
    return text


def _text_config(target: Path | str, model: str) -> Any:
    try:
        local = not Path(target).is_dir() and cached_only(str(target), None, file="config.json")
        config = AutoConfig.from_pretrained(target, local_files_only=local)
        return config.get_text_config(decoder=True)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"the configuration of {model!r} cannot be loaded: {error}"
        ) from error


def spread_taps(depth: int, count: int = 5) -> tuple[int, ...]:
    """Layers in the middle of `count` equal parts of the target's `depth`: 2, 6, ..., 18 of 20."""
    return tuple(sorted({depth * (2 * part + 1) // (2 * count) for part in range(count)}))


def choose_mask(tokenizer: Any, vocabulary: int, used: set[int]) -> tuple[int, str]:
    """A token for the drafter's empty slots, which the text does not hold, and why it.

    The tokenizer's mask token, else an id that the tokenizer does not use, else a token that is
    reserved by its name, else the last one that is in neither the text nor special.
    """
    own = getattr(tokenizer, "mask_token_id", None)
    if own is not None and own < vocabulary and own not in used:
        return own, "the tokenizer's mask token"
    names = {index: name for name, index in tokenizer.get_vocab().items()}
    free = [index for index in range(vocabulary) if index not in names]
    if free:
        return free[-1], "an id that the tokenizer does not use"
    special = {*getattr(tokenizer, "all_special_ids", ())}
    unused = [index for index in range(vocabulary) if index not in used]
    choices: list[tuple[str, Callable[[int], bool]]] = [
        ("reserved", lambda index: bool(RESERVED.search(names[index])) and "<" in names[index]),
        ("not in the text", lambda index: index not in special),
    ]
    for reason, fits in choices:
        if found := [index for index in unused if fits(index)]:
            return found[-1], f"{json.dumps(names[found[-1]])}, {reason}"
    raise DraftwoodError("the text holds every token of the target: none is left for the mask")


def _document(model: str, config: Any, tokenizer: Any, split: Split, paths: Sequence[Path]) -> str:
    """The training file's YAML. JSON strings are YAML strings."""
    depth, hidden = config.num_hidden_layers, config.hidden_size
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    intermediate = getattr(config, "intermediate_size", None)
    if not isinstance(intermediate, int):  # left out, or one for each layer
        intermediate = 4 * hidden
    mask, reason = choose_mask(tokenizer, config.vocab_size, split.used)
    longest = split.longest_prompt
    length = min(LENGTH, getattr(config, "max_position_embeddings", None) or LENGTH)
    longest = min(longest, length // 2)
    gpu = torch.cuda.is_available()
    out, train, heldout = paths
    taps = spread_taps(depth)
    return f"""\
# A DFlash drafter for {model}: `draftwood train {out.name}`. An interrupted run continues.
target: {json.dumps(model)}
work: {json.dumps(f"./{out.stem}-work")}
export: {json.dumps(f"./{out.stem}-drafter")}
device: {"cuda" if gpu else "cpu"}

sample: # the target writes from beginnings of your text
  prompts: {json.dumps(f"./{train.name}")}
  heldout: {json.dumps(f"./{heldout.name}")}
  sequences: 4096
  heldout_sequences: 64
  length: {length}
  prompt_tokens: [{min(16, longest)}, {longest}]
  temperatures: [0.0, 0.0, 0.7, 1.0] # greedy twice: half of all use is greedy
  batch: 64
  dtype: {"bfloat16" if gpu else "float32"}

drafter:
  taps: {list(taps)} # of {depth} layers
  block_size: {min(10, length - longest)}
  mask_token: {mask} # {reason}
  layers: {2 if depth >= 8 else 1}
  heads: {heads}
  kv_heads: {kv_heads}
  head_dim: {head_dim}
  intermediate: {intermediate}

train:
  minutes: 60 # or steps
  batch: 8
  anchors: 32
  scale_features: true # layers of most language models differ much in size
"""
