"""Prompts from files that no bundled model has seen, to tune or measure with.

    python heldout_prompts.py --work ./work --out prompts.jsonl
    draftwood tune-zt dblast --prompts prompts.jsonl

Writes stretches of the held-out text, evenly spaced over it, one `{"text": ...}` a line.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from corpus import END
from tokenizers import Tokenizer


def stretches(tokens: np.ndarray, end: int, count: int, length: int) -> list[np.ndarray]:
    """At most `count` stretches of `length` tokens, none across the end of a file."""
    starts = np.linspace(0, len(tokens) - length, count).astype(int)
    found = [tokens[start : start + length] for start in starts]
    return [stretch for stretch in found if end not in stretch]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("work"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.work / "tokenizer" / "tokenizer.json"))
    tokens = np.load(arguments.work / "heldout.npy")
    end = tokenizer.token_to_id(END)
    chosen = stretches(tokens, end, arguments.prompts, arguments.tokens)
    lines = [
        json.dumps({"id": f"heldout-{number}", "text": tokenizer.decode(stretch.tolist())})
        for number, stretch in enumerate(chosen)
    ]
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{arguments.out}: {len(lines)} prompts of {arguments.tokens} tokens")


if __name__ == "__main__":
    main()
