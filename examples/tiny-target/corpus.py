"""Build the tokenizer and the token arrays of the tiny target from the standard library's source.

    python corpus.py --work ./work

Writes `tokenizer/` (a Hugging Face folder), `train.npy` and `heldout.npy` (uint16, files separated
by `<|endoftext|>`) under the work folder. Files named in heldout.txt are in neither the tokenizer's
nor the model's training data: prompts taken from them are text the models have not seen.
"""

import argparse
import hashlib
import json
import sysconfig
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END, MASK = "<|endoftext|>", "<|mask|>"
VOCAB = 2048
TEST_SHARE = 0.3  # of the test suite: it is larger than the library and much more repetitive
SKIP_PARTS = {"site-packages", "__pycache__", "idlelib", "turtledemo", "pydoc_data", "lib2to3"}
MAX_BYTES = 260_000
HERE = Path(__file__).parent


def heldout_names() -> list[str]:
    """The committed list of held-out files, relative to the standard library."""
    lines = (HERE / "heldout.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def share(name: str) -> float:
    """A number in [0, 1) that depends on `name` alone, the same on every machine."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32


def wanted(name: str, size: int) -> bool:
    """Whether the file is prose-like source: no data tables, codec maps or bulk test data."""
    parts = name.split("/")
    if SKIP_PARTS & set(parts) or size > MAX_BYTES or size < 200:
        return False
    if parts[0] == "encodings" and len(parts) == 2 and parts[1] != "__init__.py":
        return share(name) < 0.05  # nearly all of them are one table each
    if parts[0] == "test" or "tests" in parts or "test" in parts:
        return share(name) < TEST_SHARE
    return True


def sources(root: Path) -> dict[str, str]:
    """Relative name -> text of every file used, in a stable order."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not wanted(name, path.stat().st_size):
            continue
        try:
            found[name] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a few tests are deliberately not UTF-8
    return found


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE: every string round-trips, and runs of indentation become one token."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return core


def save_tokenizer(core: Tokenizer, folder: Path) -> None:
    """A folder that AutoTokenizer reads."""
    folder.mkdir(exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "mask_token": MASK,
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode(core: Tokenizer, texts: list[str]) -> np.ndarray:
    """All texts as one uint16 array, each preceded by the end-of-text token."""
    end = core.token_to_id(END)
    pieces = [[end, *encoding.ids] for encoding in core.encode_batch(texts)]
    return np.concatenate([np.asarray(p, np.uint16) for p in [*pieces, [end]]])


def main() -> None:
    """Build everything under the work folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("work"))
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    found = sources(Path(sysconfig.get_paths()["stdlib"]))
    heldout = heldout_names()
    missing = [name for name in heldout if name not in found]
    if missing:
        print(f"held-out files this Python does not have: {', '.join(missing)}")
    train = [text for name, text in found.items() if name not in set(heldout)]
    tokenizer = train_tokenizer(train)
    save_tokenizer(tokenizer, work / "tokenizer")
    for split, texts in {
        "train": train,
        "heldout": [found[name] for name in heldout if name in found],
    }.items():
        tokens = encode(tokenizer, texts)
        np.save(work / f"{split}.npy", tokens)
        characters = sum(map(len, texts))
        print(
            f"{split}: {len(texts)} files, {characters:,} characters, {len(tokens):,} tokens"
            f" ({characters / len(tokens):.2f} characters a token)"
        )


if __name__ == "__main__":
    main()
