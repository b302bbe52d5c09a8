"""Seeded mutations of bytes, texts and configurations."""

import json
import random
from collections.abc import Callable
from typing import Any

TOKENS = (
    *("null", "true", "[]", "{}", "~", "*a", "&a", "!!int", "---", "- ", ": ", "\t", '"', "'", "#"),
    *("-1", "0", "1e999", ".nan", ".inf", "9" * 400, "1000000000", "\0", "\ufeff", "\ud7ff", "é"),
    *("extends: plain", "use: ngram", "target: {model: builtin}", "[" * 100, "{a: " * 100),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e308, "", "x", "\0"),
    *([], {}, [[]], [None], {"a": 1}, "x" * 5000, [0] * 5000, "/", "..", "builtin", float("inf")),
)


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """One to eight changes: a byte, a cut, a doubled or a dropped stretch, or a token."""
    content = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(content) + 1)
        length = draw.choice((1, 2, 8, 64))
        match draw.randrange(5):
            case 0:
                content[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del content[at:]
            case 2:
                content[at:at] = content[at : at + length]
            case 3:
                del content[at : at + length]
            case _:
                content[at:at] = draw.choice(TOKENS).encode("utf-8", "surrogatepass")
    return bytes(content)


def mutate_value(value: Any, draw: random.Random) -> Any:
    """A JSON value with one place inside it replaced, dropped or renamed."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        rest = {name: item for name, item in value.items() if name != key}
        match draw.randrange(6):
            case 0:
                return rest
            case 1:
                return {**rest, key + draw.choice("_sx"): value[key]}
            case _:
                return {**value, key: mutate_value(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.7:
        index = draw.randrange(len(value))
        return [*value[:index], mutate_value(value[index], draw), *value[index + 1 :]]
    return draw.choice(VALUES)


def mutate_json(data: bytes, draw: random.Random) -> bytes:
    """A JSON document with a few values changed, or its bytes."""
    if draw.random() < 0.3:
        return mutate_bytes(data, draw)
    value = json.loads(data)
    for _ in range(draw.randint(1, 3)):
        value = mutate_value(value, draw)
    return json.dumps(value).encode()


def mutate_safetensors(data: bytes, draw: random.Random) -> bytes:
    """A safetensors file with its length, its header or its end changed."""
    length = int.from_bytes(data[:8], "little")
    header, tensors = data[8 : 8 + length], data[8 + length :]
    match draw.randrange(5):
        case 0:
            return draw.choice((0, 1, 7, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little") + data[8:]
        case 1:
            return data[: draw.randrange(len(data))]
        case 2:
            return data + bytes(draw.randrange(1, 100))
        case 3:
            header = mutate_bytes(header, draw)
        case _:
            header = mutate_json(header, draw)
    return len(header).to_bytes(8, "little") + header + tensors


Mutation = Callable[[bytes, random.Random], bytes]
