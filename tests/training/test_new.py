"""`draftwood train --new` writes files that train as they are."""

import json
import shutil
import string
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftwood.cli import execute
from draftwood.core.errors import DraftwoodError
from draftwood.core.hf.loading import load_tokenizer
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training.config import load_training
from draftwood.training.new import choose_mask, read_text, spread_taps, write_training

SENTENCES = [f"the {word} fox jumps over the lazy dog" for word in ("red", "old", "shy", "big")]
SHORT = ("train.steps=2", "sample.sequences=4", "sample.heldout_sequences=2", "sample.batch=4")


def letters(*extra: str, **options: str) -> PreTrainedTokenizerFast:
    """A tokenizer of 50 tokens or so, one for a letter."""
    tokens = ["<end>", *extra, " ", *string.ascii_lowercase, *string.digits, ":", "\n"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", **options)


@pytest.fixture
def target(tmp_path, target_folder) -> Path:
    folder = tmp_path / "target"
    shutil.copytree(target_folder, folder)
    tokenizer = letters()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer.save_pretrained(folder)
    return folder


def text_file(folder: Path, form: str) -> Path:
    path = folder / ("corpus.txt" if form == "txt" else "corpus.jsonl")
    lines = [f"{sentence} {number}" for number in range(3) for sentence in SENTENCES]
    if form == "txt":
        path.write_text("\n".join(lines))
    elif form == "text":
        path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    else:
        chats = ([{"role": "user", "content": line}] for line in lines)
        path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return path


@pytest.mark.parametrize("form", ["txt", "text", "messages"])
def test_the_written_configuration_trains_as_it_is(tmp_path, target, capsys, form):
    out = tmp_path / "drafter.yaml"
    text = text_file(tmp_path, form)
    assert execute(["train", "--new", str(target), str(text), "--out", str(out)]) == 0
    assert f"Next: draftwood train {out}" in capsys.readouterr().out
    arguments = [part for setting in SHORT for part in ("--set", setting)]
    assert execute(["train", str(out), *arguments]) == 0
    config = DFlashModel.from_folder(tmp_path / "drafter-drafter").config
    assert config.target_layer_ids == (0, 1, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 8)
    assert config.intermediate_size == 48
    assert config.mask_token_id == 60  # which the tokenizer does not use
    suffix = "npy" if form == "txt" else "jsonl"
    assert (tmp_path / f"drafter-heldout.{suffix}").exists()
    assert "use: dflash" in capsys.readouterr().out


def test_held_out_text_is_not_in_the_training_text(tmp_path, target):
    tokenizer = load_tokenizer(target)
    lines = [*range(25), *range(25)]  # each one twice
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"number {line}"}) + "\n" for line in lines))
    split = read_text(path, tokenizer)
    train, heldout = map(set, split.texts)
    assert len(train) == 23
    assert len(heldout) == 2
    assert not train & heldout
    stream = text_file(tmp_path, "txt")
    split = read_text(stream, tokenizer)
    whole = tokenizer(stream.read_text())["input_ids"]
    assert [*split.train[0], *split.heldout[0]] == whole
    assert len(split.heldout[0]) == round(len(whole) / 10)


def test_messages_go_through_the_chat_template(tmp_path, target):
    path = tmp_path / "chat.jsonl"
    user, answer = ({"role": r, "content": c} for r, c in (("user", "hi"), ("assistant", "yes")))
    path.write_text("\n".join(json.dumps({"messages": m}) for m in ([user], [user, answer])))
    split = read_text(path, load_tokenizer(target))
    assert [*split.texts[0], *split.texts[1]] == [
        "user: hi\nassistant: ",
        "user: hi\nassistant: yes\n",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "one"}\n{"txt": "two"}\n', 'a.jsonl:2: an object with "text" or'),
        ("a.jsonl", '{"text": "one"}\n\n{"text": \n', "a.jsonl:3: not JSON"),
        ("a.jsonl", '{"text": "one"}\n{"text": "one"}\n', "two different texts are needed"),
        ("a.jsonl", '{"messages": [{"content": 3}]}\n', "a.jsonl:1: messages do not fit"),
        ("a.txt", "short", "a.txt is too short"),
        ("a.csv", "a,b", "read from .txt and .jsonl files"),
    ],
)
def test_a_text_that_does_not_fit_is_located(tmp_path, target, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DraftwoodError, match=message.replace(".", r"\.")):
        write_training(str(target), tmp_path / name, tmp_path / "train.yaml")
    assert not [*tmp_path.glob("train*")]


def test_an_existing_file_is_not_replaced(tmp_path, target):
    text, out = text_file(tmp_path, "txt"), tmp_path / "train.yaml"
    (tmp_path / "train-heldout.npy").write_text("somebody's")
    with pytest.raises(DraftwoodError, match=r"train-heldout\.npy exists already.*--out"):
        write_training(str(target), text, out)
    assert not out.exists()


def test_options_of_the_two_uses_are_not_mixed(tmp_path, target):
    text = str(text_file(tmp_path, "txt"))
    assert execute(["train", "--new", str(target), text, "--set", "train.steps=2"]) == 2
    assert execute(["train", text, "--out", "a.yaml"]) == 2


def test_the_bundled_target_is_named_as_it_was_given(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text(Path(__file__).read_text())
    write_training("builtin", text, tmp_path / "train.yaml")
    config = load_training(tmp_path / "train.yaml")
    assert config.target == "builtin"
    assert config.drafter.taps == (2, 6, 10, 14, 18)
    assert config.drafter.mask_token == 1
    assert np.load(config.sample.prompts).ndim == 1


@pytest.mark.parametrize(
    ("depth", "taps"),
    [(1, (0,)), (3, (0, 1, 2)), (20, (2, 6, 10, 14, 18)), (28, (2, 8, 14, 19, 25))],
)
def test_taps_are_spread_over_the_depth(depth, taps):
    assert spread_taps(depth) == taps


def test_the_mask_is_a_token_that_text_does_not_hold():
    plain, size = letters(), len(letters())
    assert choose_mask(letters("<m>", mask_token="<m>"), size + 1, {5})[0] == 1
    assert choose_mask(plain, size + 3, set())[0] == size + 2
    assert choose_mask(letters("<unused0>"), size + 1, {5})[0] == 1
    assert choose_mask(plain, size, {size - 1, size - 2})[0] == size - 3
    with pytest.raises(DraftwoodError, match="none is left for the mask"):
        choose_mask(plain, size, set(range(size)))
