"""Text and stops are functions of the token sequence, however it was grouped into rounds."""

import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from draftwood.core.stopping import StopStrings, append_until_stop
from draftwood.core.text import TextStream

TEXTS = ("\u20ac", "\U0001f600", "\u00e9", "a\u20acb", "abc", "\u20ac\u20ac", " a", "\u6f22\u5b57")


@cache
def tokenizer(kind):
    """Every byte is a token; some characters and words are, too."""
    words = ["\u2581a", "abc", "\u2581", "b", "c", "\u6f22"]
    if kind == "byte-fallback":
        names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
        model = models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[],
            byte_fallback=True,
            unk_token="<unk>",
        )
        decoder = decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    else:
        # A byte-level alphabet: each byte has one printable character.
        from tokenizers.pre_tokenizers import ByteLevel

        names = [*sorted(ByteLevel.alphabet()), "ab", "\u0120a", "\u00e2\u0124\u00ac"]
        model = models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[])
        decoder = decoders.ByteLevel()
    inner = Tokenizer(model)
    inner.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def bytes_of(kind, text):
    """The tokens of a text's bytes."""
    if kind == "byte-fallback":
        return [1 + byte for byte in text.encode()]
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    names = bytes_to_unicode()
    return [tokenizer(kind).convert_tokens_to_ids(names[byte]) for byte in text.encode()]


@st.composite
def sequences(draw):
    kind = draw(st.sampled_from(["byte-fallback", "byte-level"]))
    size = len(tokenizer(kind))
    ids = []
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            ids += bytes_of(kind, draw(st.sampled_from(TEXTS)))
        else:
            ids.append(draw(st.integers(0, size - 1)))
    return kind, ids


def grouped(ids, seed):
    """The sequence in groups of one to five tokens."""
    rng, groups = random.Random(seed), []
    while ids:
        size = rng.randint(1, 5)
        groups.append(ids[:size])
        ids = ids[size:]
    return groups


def streamed(kind, groups):
    stream = TextStream(tokenizer(kind))
    return "".join(stream.push(group) for group in groups) + stream.finish()


@pytest.mark.covers("token-grouping")
@given(sequences(), st.integers(0, 10**6))
def test_text_is_the_same_for_every_grouping(sequence, seed):
    kind, ids = sequence
    one_by_one = streamed(kind, [[token] for token in ids])
    assert streamed(kind, grouped(ids, seed)) == one_by_one
    assert streamed(kind, [ids]) == one_by_one


@pytest.mark.covers("token-grouping")
@given(sequences(), st.integers(0, 10**6), st.sampled_from(TEXTS))
def test_a_stop_string_ends_the_text_at_the_same_token_for_every_grouping(sequence, seed, stop):
    kind, ids = sequence
    rule = StopStrings((stop,), tokenizer(kind))
    ends = set()
    for groups in ([[token] for token in ids], grouped(ids, seed), [ids]):
        found, reason = [7], None
        for group in groups:
            reason = append_until_stop((rule,), found, group, 1)
            if reason:
                break
        ends.add((tuple(found), reason))
    assert len(ends) == 1


@pytest.mark.covers("token-grouping")
@pytest.mark.parametrize("kind", ["byte-fallback", "byte-level"])
@pytest.mark.parametrize("stop", TEXTS)
@pytest.mark.parametrize("before", ["", "\u6f22" * 9, "\u20ac x"])
def test_a_stop_string_is_found_at_the_token_that_completes_it(kind, stop, before):
    if stop.startswith(" ") and not before:
        return  # the tokenizer strips the first space of a text
    ids = bytes_of(kind, before + stop)
    rule = StopStrings((stop,), tokenizer(kind))
    found = []
    assert append_until_stop((rule,), found, [*ids, 3, 4], 0) == "stop_string"
    first = (before + stop).index(stop)
    assert found == bytes_of(kind, (before + stop)[: first + len(stop)])
