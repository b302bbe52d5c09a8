"""When a request ends.

Rules are applied to every token of an accepted run in order, so that no token past the earliest
stop is streamed, cached or counted.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import frozen

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""How tokenizers with byte fallback call a token of one byte."""

StopRule = Callable[[Sequence[int], int], str | None]
"""(ids so far with the candidate last, prompt length) -> reason to stop after it, or None."""


class Decodes(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def decode(self, ids: Sequence[int]) -> str: ...


@frozen
class EndOfText:
    """Stops after one of the end-of-text tokens."""

    ids: frozenset[int]

    def __call__(self, ids: Sequence[int], prompt_length: int) -> str | None:
        return "eos" if ids[-1] in self.ids else None


@frozen
class StopStrings:
    """Stops after the new token that completes one of the strings, across token boundaries.

    A character takes at most four byte-level tokens, so a window of four tokens per character
    contains every string that ends at the last token. A tokenizer with byte fallback decodes a run
    of byte tokens as a whole, so the window never starts inside one.
    """

    strings: tuple[str, ...]
    tokenizer: Decodes

    def __call__(self, ids: Sequence[int], prompt_length: int) -> str | None:
        window = 4 * max(map(len, self.strings)) + 4
        start = max(prompt_length, len(ids) - window)
        while start > prompt_length and self._is_byte(ids[start - 1]):
            start -= 1
        text = self.tokenizer.decode(ids[start:])
        return "stop_string" if any(string in text for string in self.strings) else None

    def _is_byte(self, token: int) -> bool:
        named = getattr(self.tokenizer, "convert_ids_to_tokens", None)
        name = named(token) if named else None
        return isinstance(name, str) and BYTE_TOKEN.fullmatch(name) is not None


@frozen
class Length:
    """Stops at the most new tokens ("length") or at the target's context limit ("context")."""

    max_new_tokens: int
    max_context: int | None

    def __call__(self, ids: Sequence[int], prompt_length: int) -> str | None:
        if len(ids) - prompt_length >= self.max_new_tokens:
            return "length"
        if self.max_context is not None and len(ids) >= self.max_context:
            return "context"
        return None

    def remaining(self, committed: int, prompt_length: int) -> int:
        """How many more tokens may follow the `committed` ones, prompt included."""
        remaining = self.max_new_tokens - (committed - prompt_length)
        if self.max_context is not None:
            remaining = min(remaining, self.max_context - committed)
        return remaining


def append_until_stop(
    rules: Sequence[StopRule], ids: list[int], tokens: Sequence[int], prompt_length: int
) -> str | None:
    """Append `tokens` to `ids` up to the earliest stop; return its reason, None without a stop.

    If several rules stop at one token, the first of them gives the reason.
    """
    for token in tokens:
        ids.append(token)
        for rule in rules:
            if reason := rule(ids, prompt_length):
                return reason
    return None
