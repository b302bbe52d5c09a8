"""Prompts: the bundled sets, files of one's own, published benchmarks, and what is refused."""

import json
import sys
from types import SimpleNamespace

import pytest

from draftwood.bench.prompts import PROMPT_DATASETS, Prompt, load_prompts
from draftwood.core.errors import RequestError

from .conftest import Letters


@pytest.mark.parametrize("name", ["code", "open"])
def test_a_bundled_set_has_twenty_different_prompts_in_groups(name):
    prompts = load_prompts([f"builtin:{name}"])
    assert len(prompts) == 20
    assert len({prompt.content for prompt in prompts}) == 20
    assert len({prompt.group for prompt in prompts}) >= 3


def write(tmp_path, *rows, name="own.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_an_own_file_holds_texts_prompts_turns_and_messages(tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    rows = [
        {"text": "go on"},
        {"prompt": "do", "group": "g"},
        {"turns": ["first", "second"], "id": "t"},
        {"messages": messages},
    ]
    assert load_prompts([write(tmp_path, *rows)]) == [
        Prompt("own-1", "own", "go on", verbatim=True),
        Prompt("own-2", "g", "do", verbatim=False),
        Prompt("t", "own", "first", verbatim=False),
        Prompt("own-4", "own", tuple(messages), verbatim=False),
    ]


def test_an_instruction_goes_through_a_chat_template_and_text_does_not():
    class Chat(Letters):
        chat_template = "yes"

        def apply_chat_template(self, messages, **_):
            return f"zz{messages[0]['content']}"

    instruction, text = (Prompt("i", "g", "ab", verbatim=v) for v in (False, True))
    assert instruction.encode(Chat()) == (26, 26, 1, 2)
    assert text.encode(Chat()) == instruction.encode(Letters()) == (1, 2)


@pytest.mark.parametrize(
    ("name", "row", "content", "group"),
    [
        ("gsm8k", {"question": "q", "answer": "a"}, "q", "gsm8k"),
        ("math-500", {"problem": "p", "subject": "Algebra"}, "p", "Algebra"),
        ("humaneval", {"task_id": "0", "prompt": "def f():"}, "def f():", "humaneval"),
        ("mbpp", {"text": "write", "code": "c"}, "write", "mbpp"),
        ("mt-bench", {"turns": ["one", "two"], "category": "math"}, "one", "math"),
        ("alpaca", {"instruction": "do", "input": "this"}, "do\n\nthis", "alpaca"),
        ("alpaca", {"instruction": "do", "input": ""}, "do", "alpaca"),
        ("spec-bench", {"turns": ["one"], "category": "rag"}, "one", "rag"),
    ],
)
def test_published_benchmarks_are_read_from_their_files(tmp_path, name, row, content, group):
    (prompt,) = load_prompts([f"{name}:{write(tmp_path, row)}"])
    assert (prompt.content, prompt.group) == (content, group)
    assert prompt.verbatim == (name == "humaneval")


def test_a_file_may_be_one_json_list(tmp_path):
    path = tmp_path / "alpaca.json"
    path.write_text(json.dumps([{"instruction": "a", "input": ""}, {"instruction": "b"}]))
    assert [p.content for p in load_prompts([f"alpaca:{path}"])] == ["a", "b"]


def test_the_limit_holds_for_each_source(tmp_path):
    path = write(tmp_path, {"text": "a"}, {"text": "b"})
    prompts = load_prompts([path, "builtin:open"], limit=1)
    assert [p.id for p in prompts] == ["own-1", "explain-tides"]


def test_benchmarks_by_name_come_from_the_datasets_library(monkeypatch):
    asked = []

    def load_dataset(*arguments, **named):
        asked.append((*arguments, named))
        return [{"question": "one"}, {"question": "two"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert [p.content for p in load_prompts(["gsm8k"], limit=1)] == ["one"]
    assert asked == [("openai/gsm8k", "main", {"split": "test"})]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("builtin:poems", [], "choices: builtin:code, builtin:open"),
        ("mt-bench", [], "--prompts mt-bench:question.jsonl"),
        ("/nowhere.jsonl", [], "/nowhere.jsonl: No such file or directory"),
        (None, [], "no prompt in it"),
        (None, [{"texts": "a"}], "own.jsonl:1: a prompt has one of text, prompt, turns, messages"),
        (None, [{"text": "a"}, {"text": "a", "turns": ["b"]}], "own.jsonl:2: a prompt has one of"),
        (None, [{"text": ""}], "own.jsonl:1: text: expected a text, got ''"),
        (None, [{"messages": ["hi"]}], "messages must be a list of objects"),
        (None, [["a"]], "own.jsonl"),
        (None, [{"text": "a", "id": "x"}, {"text": "b", "id": "x"}], "two prompts have the id x"),
        ("gsm8k", [{"query": "a"}], "gsm8k has a field 'question'; got query"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path, name, rows, message):
    if rows or name is None:
        path = write(tmp_path, *rows)
        name = f"{name}:{path}" if name else path
    with pytest.raises(RequestError) as raised:
        load_prompts([name])
    assert message in str(raised.value)


def test_without_the_datasets_library_a_file_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name, source in PROMPT_DATASETS.items():
        if source.data is not None:
            with pytest.raises(RequestError, match=f"--prompts {name}:FILE"):
                load_prompts([name])
