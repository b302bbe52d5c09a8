"""Text in and out of a pipeline: prompts to ids, ids to a stream of whole characters."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftwood.core.errors import RequestError

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]] | Any
"""Text, token ids, or chat messages ({"role": ..., "content": ...}).

Token ids may be a list, an array or tensor of shape (n,) or (1, n), or a tokenizer's output.
"""

PROMPT_KINDS = "a prompt is text, a list of token ids, or a list of chat messages"


def encode(prompt: Prompt, tokenizer: Any | None) -> tuple[int, ...]:
    """Token ids of a prompt. The tokenizer's chat template is applied to messages.

    Raises:
        RequestError: The prompt needs a tokenizer and there is none, mixes kinds, or is padded.
    """
    if isinstance(prompt, str):
        if tokenizer is None:
            raise RequestError("a text prompt needs a tokenizer; pass token ids, or tokenizer=")
        return _ids(prompt, tokenizer)
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Iterable):
        raise RequestError(f"{PROMPT_KINDS}; got {type(prompt).__name__}")
    if hasattr(prompt, "keys"):
        return _from_tokenizer(prompt)
    if hasattr(prompt, "tolist"):
        return _from_array(prompt)
    items = list(prompt)
    if items and all(isinstance(item, Mapping) for item in items):
        return _from_messages(items, tokenizer)
    return _token_ids(items)


def _token_ids(items: Sequence[Any]) -> tuple[int, ...]:
    """Check that all items are whole numbers: 1.9, "12" and True are refused."""
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise RequestError(f"{PROMPT_KINDS}; got a list with {item!r}")
    return tuple(operator.index(item) for item in items)


def _from_array(prompt: Any) -> tuple[int, ...]:
    """An array or tensor of shape (n,) or (1, n)."""
    shape = tuple(prompt.shape)
    rows = prompt[0] if len(shape) == 2 and shape[0] == 1 else prompt
    if len(rows.shape) != 1:
        raise RequestError(f"one prompt at a time, of shape (n,) or (1, n): got shape {shape}")
    return _token_ids(rows.tolist())


def _from_tokenizer(encoded: Any) -> tuple[int, ...]:
    """What a tokenizer returns: `input_ids`, and a mask that hides nothing."""
    if "input_ids" not in encoded:
        raise RequestError(f"{PROMPT_KINDS}; got a mapping with {', '.join(map(str, encoded))}")
    unknown = sorted(set(encoded.keys()) - {"input_ids", "attention_mask", "token_type_ids"})
    if unknown:
        raise RequestError(
            f"a tokenizer's output is used for its input_ids; not understood: {unknown}"
        )
    ids = encode(_unbatched(encoded["input_ids"]), None)
    mask = encoded.get("attention_mask")
    if mask is not None and not all(encode(_unbatched(mask), None)):
        raise RequestError("padded prompts are not supported: pass the tokens without padding")
    return ids


def _unbatched(ids: Any) -> Any:
    """The only row of a list of one list; anything else as it is."""
    return ids[0] if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list) else ids


def _ids(text: str, tokenizer: Any, **options: Any) -> tuple[int, ...]:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, from bytes that are not UTF-8
        raise RequestError(
            f"the prompt is not text: {text[error.start]!r} at {error.start} is no character"
        ) from None
    return tuple(tokenizer(text, **options)["input_ids"])


def _from_messages(messages: list[Any], tokenizer: Any | None) -> tuple[int, ...]:
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise RequestError(
            "chat messages need a tokenizer with a chat template; this target has none. "
            "Pass the prompt as text instead"
        )
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return _ids(text, tokenizer, add_special_tokens=False)


class TextStream:
    """Turns a growing list of ids into pieces of text that join to the whole text.

    A token may be a part of a character, and a tokenizer may put a space before a token depending
    on the tokens before it. So each piece is the difference of two decodes over a short window of
    recent tokens, and no text is returned while the window ends inside a character.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._window = 0  # start of the window: the tokens of the last piece
        self._returned = 0  # tokens whose text has been returned

    def push(self, ids: Sequence[int]) -> str:
        """Add ids; return the text that they complete, "" if they end inside a character.

        Ids are decoded one after the other, so that the text does not depend on how many are
        committed together.
        """
        return "".join(self._push(token) for token in ids)

    def _push(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids[self._window :])
        if text.endswith("\ufffd"):
            return ""
        return self._advance(self._decode(self._ids[self._window : self._returned]), text)

    def finish(self) -> str:
        """The remaining text, an incomplete character included."""
        before = self._decode(self._ids[self._window : self._returned])
        return self._advance(before, self._decode(self._ids[self._window :]))

    def _advance(self, before: str, text: str) -> str:
        piece = text[len(before) :]
        if piece:  # special tokens have no text and do not affect the spaces after them
            self._window = self._returned
        self._returned = len(self._ids)
        return piece

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True) if ids else ""
        return text
