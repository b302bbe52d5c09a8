"""Prompts to measure with: the bundled sets, own files, and published benchmarks."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from attrs import frozen

from draftwood.core.errors import RequestError
from draftwood.core.text import encode

BUILTIN = ("code", "open")


@frozen
class PromptDataset:
    """How the rows of a published benchmark are read.

    Attributes:
        text: Field with the prompt; of a list, the first turn is read.
        group: Field that names the task; None without one.
        more: Field that is appended to the prompt if it is not empty.
        verbatim: Whether the text is continued as it is; else it is an instruction.
        data: (repository, configuration, split) for the `datasets` library; None if the benchmark
            is read from a file only.
    """

    text: str
    group: str | None = None
    more: str | None = None
    verbatim: bool = False
    data: tuple[str, str | None, str] | None = None


PROMPT_DATASETS = {
    "gsm8k": PromptDataset("question", data=("openai/gsm8k", "main", "test")),
    "math-500": PromptDataset("problem", "subject", data=("HuggingFaceH4/MATH-500", None, "test")),
    "humaneval": PromptDataset(
        "prompt", verbatim=True, data=("openai/openai_humaneval", None, "test")
    ),
    "mbpp": PromptDataset("text", data=("google-research-datasets/mbpp", "full", "test")),
    "mt-bench": PromptDataset("turns", "category"),
    "alpaca": PromptDataset("instruction", more="input", data=("tatsu-lab/alpaca", None, "train")),
    "spec-bench": PromptDataset("turns", "category"),
}
"""Benchmarks by name. MT-Bench and Spec-Bench are `question.jsonl` in their repositories."""

KEYS = ("text", "prompt", "turns", "messages")
"""A line of an own file holds exactly one of these."""


@frozen
class Prompt:
    """One prompt.

    Attributes:
        id: Unique in a benchmark.
        group: Its task.
        content: Text, or chat messages.
        verbatim: Whether text is continued as it is; else it is an instruction, for the chat
            template if there is one.
    """

    id: str
    group: str
    content: str | tuple[Mapping[str, Any], ...]
    verbatim: bool = True

    def encode(self, tokenizer: Any | None) -> tuple[int, ...]:
        """Token ids.

        Raises:
            RequestError: It cannot be encoded.
        """
        content: Any = self.content
        instruction = isinstance(content, str) and not self.verbatim
        if instruction and getattr(tokenizer, "chat_template", None):
            content = [{"role": "user", "content": content}]
        try:
            ids = encode(content, tokenizer)
        except RequestError as error:
            raise RequestError(f"prompt {self.id}: {error}") from error
        if not ids:
            raise RequestError(f"prompt {self.id}: it is empty")
        return ids


def load_prompts(names: Sequence[str], limit: int | None = None) -> list[Prompt]:
    """The prompts of all `names`, at most `limit` of each.

    Args:
        names: Each is builtin:code, builtin:open, a .jsonl or .json file, NAME:FILE for the file of
            a published benchmark, or NAME alone to load it with `datasets`.
        limit: None for all.

    Raises:
        RequestError: Something cannot be read; names the file and the line.
    """
    prompts: list[Prompt] = []
    for name in names:
        prompts += _load(name, limit)[:limit]
    repeated = [name for name, n in Counter(prompt.id for prompt in prompts).items() if n > 1]
    if repeated:
        raise RequestError(f"two prompts have the id {repeated[0]}; ids must be unique")
    if not prompts:
        raise RequestError(f"{', '.join(names)}: no prompt in it")
    return prompts


def _load(name: str, limit: int | None) -> list[Prompt]:
    head, _, rest = name.partition(":")
    if head == "builtin":
        if rest not in BUILTIN:
            choices = ", ".join(f"builtin:{each}" for each in BUILTIN)
            raise RequestError(f"no bundled prompts {name!r}; choices: {choices}")
        text = (files("draftwood.bench") / "data" / f"{rest}.jsonl").read_text(encoding="utf-8")
        return [_own(row, name, number, rest) for number, row in _rows(text, name)]
    if head in PROMPT_DATASETS:
        dataset = PROMPT_DATASETS[head]
        if rest:
            rows = _rows(_read(Path(rest)), rest)
            return [_published(row, head, dataset, f"{rest}:{n}", n) for n, row in rows]
        return _downloaded(head, dataset, limit)
    path = Path(name)
    return [_own(row, name, number, path.stem) for number, row in _rows(_read(path), name)]


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        benchmarks = ", ".join(PROMPT_DATASETS)
        raise RequestError(
            f"{path}: {error.strerror}\n  prompts are builtin:code, builtin:open, a .jsonl file, "
            f"or NAME:FILE with NAME one of {benchmarks}"
        ) from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: not UTF-8 text") from error


def _rows(text: str, name: str) -> list[tuple[int, dict[str, Any]]]:
    """(line or index from 1, row) of JSON lines, or of one JSON list."""
    try:
        if text.lstrip().startswith("["):
            rows = list(enumerate(json.loads(text), 1))
        else:
            lines = enumerate(text.split("\n"), 1)
            rows = [(number, json.loads(line)) for number, line in lines if line.strip()]
    except ValueError as error:
        raise RequestError(f"{name}: not JSON lines ({error})") from error
    for number, row in rows:
        if not isinstance(row, dict):
            raise RequestError(f"{name}:{number}: expected an object, got {type(row).__name__}")
    return rows


def _own(row: Mapping[str, Any], name: str, number: int, group: str) -> Prompt:
    keys = [key for key in KEYS if key in row]
    if len(keys) != 1:
        got = ", ".join(keys) or f"none of them (keys: {', '.join(row)})"
        raise RequestError(f"{name}:{number}: a prompt has one of {', '.join(KEYS)}; got {got}")
    (key,) = keys
    content: Any = row[key]
    if key == "messages":
        if not (isinstance(content, list) and all(isinstance(m, dict) for m in content)):
            raise RequestError(f"{name}:{number}: messages must be a list of objects")
        content = tuple(content)
    else:
        content = _text(content, f"{name}:{number}: {key}")
    return Prompt(
        str(row.get("id", f"{group}-{number}")),
        str(row.get("group", group)),
        content,
        verbatim=key == "text",
    )


def _published(
    row: Mapping[str, Any], name: str, dataset: PromptDataset, where: str, n: int
) -> Prompt:
    if dataset.text not in row:
        raise RequestError(f"{where}: {name} has a field {dataset.text!r}; got {', '.join(row)}")
    text = _text(row[dataset.text], f"{where}: {dataset.text}")
    if dataset.more and row.get(dataset.more):
        text = f"{text}\n\n{row[dataset.more]}"
    group = str(row.get(dataset.group, name)) if dataset.group else name
    return Prompt(f"{name}-{n}", group, text, dataset.verbatim)


def _text(value: Any, where: str) -> str:
    """A text; of several turns the first, since later turns depend on the answers."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str) or not value:
        raise RequestError(f"{where}: expected a text, got {value!r}")
    return value


def _downloaded(name: str, dataset: PromptDataset, limit: int | None) -> list[Prompt]:
    if dataset.data is None:
        raise RequestError(f"{name} is read from a file: --prompts {name}:question.jsonl")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise RequestError(
            f"loading {name} by name needs the `datasets` library "
            f"(pip install 'draftwood[data]'); or give its file: --prompts {name}:FILE"
        ) from error
    repository, configuration, split = dataset.data
    rows = load_dataset(repository, configuration, split=split)
    count = len(rows) if limit is None else min(limit, len(rows))
    return [_published(rows[n], name, dataset, f"{repository}[{n}]", n + 1) for n in range(count)]
