"""Prompts to ids, and ids to pieces of text that join to the whole text."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BatchEncoding

from draftwood.core.errors import RequestError
from draftwood.core.text import TextStream, encode


class Bytes:
    """One token per byte."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return bytes(ids).decode(errors="replace")


class Words:
    """One token per word; every word but the first has a space before it."""

    WORDS = ("a", "quick", "fox", ".", "jumps", "<end>")

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        words = [self.WORDS[i] for i in ids]
        if skip_special_tokens:
            words = [word for word in words if word != "<end>"]
        return " ".join(words).replace(" .", ".")


class Chat(Bytes):
    """Has a chat template, and adds a start token to text that is not from the template."""

    chat_template = "x"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [*([1] if add_special_tokens else []), *text.encode()]}

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        assert options == {"add_generation_prompt": True, "tokenize": False}
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]"


def pieces(tokenizer: Any, groups: Sequence[Sequence[int]]) -> list[str]:
    stream = TextStream(tokenizer)
    return [*(stream.push(group) for group in groups), stream.finish()]


def split_at(ids: Sequence[int], places: Sequence[int]) -> list[Sequence[int]]:
    edges = [0, *sorted({place % (len(ids) + 1) for place in places}), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


PLACES = st.lists(st.integers(0, 400), max_size=12)


@pytest.mark.covers("streaming")
@given(st.text(max_size=60), PLACES)
def test_pieces_join_to_the_text_and_hold_whole_characters(text: str, places: list[int]) -> None:
    streamed = pieces(Bytes(), split_at(text.encode(), places))
    assert "".join(streamed) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in streamed)


@given(st.binary(max_size=60), PLACES)
def test_text_that_ends_inside_a_character_is_returned_by_finish(
    ids: bytes, places: list[int]
) -> None:
    whole = ids.decode(errors="replace")
    assert "".join(pieces(Bytes(), split_at(ids + b"|", places))) == (ids + b"|").decode(
        errors="replace"
    )
    if not whole.endswith("\ufffd"):
        assert "".join(pieces(Bytes(), split_at(ids, places))) == whole


def test_an_incomplete_character_is_held_back_until_finish() -> None:
    assert pieces(Bytes(), [b"ab\xe6", b"\xbc"]) == ["ab", "", "\ufffd"]
    assert pieces(Bytes(), [b"ab\xe6", b"\xbc", b"\xa2c"]) == ["ab", "", "漢c", ""]


@pytest.mark.covers("streaming")
@given(st.lists(st.integers(0, 5), max_size=30), PLACES)
def test_pieces_keep_the_spaces_that_depend_on_earlier_words(
    ids: list[int], places: list[int]
) -> None:
    whole = Words().decode(ids, skip_special_tokens=True)
    assert "".join(pieces(Words(), split_at(ids, places))) == whole


def test_each_push_decodes_a_short_window() -> None:
    """Otherwise the cost of streaming would be quadratic in the length of the text."""
    lengths = []

    class RecordingBytes(Bytes):
        def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
            lengths.append(len(ids))
            return super().decode(ids)

    stream = TextStream(RecordingBytes())
    for _ in range(300):
        stream.push(b"abc")
    assert max(lengths) <= 6


def test_encode_accepts_ids_and_text() -> None:
    assert encode([3, 1, 2], None) == (3, 1, 2)
    assert encode((), None) == ()
    assert encode("ab", Chat()) == (1, 97, 98)


def test_the_chat_template_is_applied_once() -> None:
    ids = encode([{"role": "user", "content": "hi"}], Chat())
    assert bytes(ids).decode() == "[user]hi[assistant]"


@pytest.mark.parametrize(
    "prompt",
    [
        torch.tensor([3, 1]),
        torch.tensor([[3, 1]]),
        np.array([3, 1]),
        [np.int64(3), 1],
        BatchEncoding(
            {"input_ids": torch.tensor([[3, 1]]), "attention_mask": torch.ones(1, 2).long()}
        ),
        {"input_ids": [[3, 1]]},
    ],
)
def test_ids_may_be_an_array_or_a_tokenizers_output(prompt: Any) -> None:
    assert encode(prompt, None) == (3, 1)


@pytest.mark.covers("silent-argument")
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("text", "needs a tokenizer"),
        ([{"role": "user", "content": "hi"}], "chat template"),
        (["a", "b"], "list with 'a'"),
        ([1, {"role": "user"}], "list with {'role'"),
        ([1.9], "list with 1.9"),
        ([1, True], "list with True"),
        (["12"], "list with '12'"),
        (b"def", "got bytes"),
        (torch.ones(2, 3, dtype=torch.long), r"got shape \(2, 3\)"),
        (torch.ones(3), "list with 1.0"),
        ({"ids": [1]}, "mapping with ids"),
        ({"input_ids": [1], "pixel_values": [2]}, "not understood: .'pixel_values'"),
        ({"input_ids": [0, 1], "attention_mask": [0, 1]}, "padded"),
    ],
)
def test_prompts_that_need_a_tokenizer_or_mix_kinds_raise(prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        encode(prompt, None)


def test_values_that_are_no_prompt_or_no_text_raise_before_tokenizing() -> None:
    for value, message in [(5, "got int"), (None, "got NoneType"), ("a\udcff", "at 1 is no char")]:
        with pytest.raises(RequestError, match=message):
            encode(value, Chat())  # type: ignore[arg-type]


def test_messages_without_a_template_raise() -> None:
    tokenizer = Chat()
    tokenizer.chat_template = ""
    with pytest.raises(RequestError, match="chat template"):
        encode([{"role": "user", "content": "hi"}], tokenizer)
