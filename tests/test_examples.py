"""What lies under examples/ can be read by what it is for."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from draftwood.bench.prompts import load_prompts
from draftwood.core.config.pipeline import load_config
from draftwood.training.config import load_training

GEMMA = Path(__file__).parent.parent / "examples" / "gemma-270m"
PIPELINES = sorted(path.name for path in GEMMA.glob("*.yaml") if path.name != "drafter.yaml")


@pytest.fixture
def example(tmp_path) -> Path:
    """The example's files, beside a work folder that has what they name."""
    for path in GEMMA.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    (tmp_path / "work" / "target").mkdir(parents=True)
    (tmp_path / "work" / "export" / "drafter").mkdir(parents=True)
    for name in ("train.jsonl", "heldout.jsonl"):
        (tmp_path / "work" / name).touch()
    return tmp_path


def test_the_training_file_is_valid(example):
    config = load_training(example / "drafter.yaml")
    assert config.target == example / "work" / "target"
    assert config.export == example / "work" / "export" / "drafter"


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_are_valid_and_have_one_target(name, example):
    config = load_config(example / name)
    assert config.target.model == example / "work" / "target"
    assert config.runtime.dtype == "bfloat16"
    assert (config.drafter is None) == (name == "plain.yaml")


@pytest.fixture
def prepare():
    spec = importlib.util.spec_from_file_location("prepare", GEMMA / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LIBRARY = {
    f"part{i}.py": f'''"""Long enough a text to be read as prose, about part {i}, and to go on for a
second line, since only paragraphs of a hundred and twenty characters are taken from documentation.

    >>> part{i}()  # an example, which is no prose, however long it may be: it is left out
"""

import os
import sys


def part{i}(first, second):
    """Return the first of part {i}."""
    return os.path.join(first, second, sys.prefix)


class Part{i}(dict):
    """A class of part {i}, with a text that is long enough to be a prompt."""
'''
    for i in range(60)
}


def test_prompts_of_the_splits_have_no_text_in_common(prepare, tmp_path):
    for name, text in LIBRARY.items():
        (tmp_path / name).write_text(text)
    found = prepare.prompts(tmp_path)
    assert found["train"]
    assert found["heldout"]
    assert not set(found["train"]) & set(found["heldout"])
    names = [{i for i in range(60) if f"def part{i}(" in "".join(found[s])} for s in found]
    assert names[0] | names[1] == set(range(60))
    assert not names[0] & names[1]
    assert any(text.startswith("import os\nimport sys\n\n\ndef part") for text in found["train"])
    assert not any(">>>" in text and "def " not in text for text in found["train"])
    prose = [text for text in found["train"] if not {"def", "class"} & set(text.split())]
    assert 0.2 < len(prose) / len(found["train"]) < 0.4


def test_no_prompt_of_the_bench_is_one_to_learn_from(prepare, tmp_path):
    """Of the questions, which are made up; the library's files are not the bench's."""
    asked = [text for _, text in prepare.questions()]
    assert len(asked) == len(set(asked)) > 500
    for prompt in load_prompts(["builtin:code", "builtin:open"]):
        assert not any(text.startswith(prompt.content[:30]) for text in asked)


def test_prompts_are_the_same_each_time(prepare, tmp_path):
    for name, text in LIBRARY.items():
        (tmp_path / name).write_text(text)
    assert prepare.prompts(tmp_path) == prepare.prompts(tmp_path)
