"""Prompts to measure with: the bundled sets, files of one's own, and published benchmarks."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from attrs import frozen

from draftwood.core.errors import RequestError
from draftwood.core.text import encode

BUILTIN = ("code", "open")


@frozen
class Source:
    """How the rows of a published benchmark are read.

    text: the field with the prompt; a list gives its first turn. group: the field that names the
    task, if rows have one. more: a field that follows the prompt where it is not empty. verbatim:
    the text is to be continued as it is, and is no instruction. data: (repository, configuration,
    split) for the `datasets` library; None where only a file can be given.
    """

    text: str
    group: str | None = None
    more: str | None = None
    verbatim: bool = False
    data: tuple[str, str | None, str] | None = None


SOURCES = {
    "gsm8k": Source("question", data=("openai/gsm8k", "main", "test")),
    "math-500": Source("problem", "subject", data=("HuggingFaceH4/MATH-500", None, "test")),
    "humaneval": Source("prompt", verbatim=True, data=("openai/openai_humaneval", None, "test")),
    "mbpp": Source("text", data=("google-research-datasets/mbpp", "full", "test")),
    "mt-bench": Source("turns", "category"),
    "alpaca": Source("instruction", more="input", data=("tatsu-lab/alpaca", None, "train")),
    "spec-bench": Source("turns", "category"),
}
"""Benchmarks by name. MT-Bench and Spec-Bench come as `question.jsonl` in their repositories."""

KEYS = ("text", "prompt", "turns", "messages")
"""What a line of an own file may hold, exactly one of them."""


@frozen
class Prompt:
    """One prompt. id: unique in a benchmark. group: its task. content: text, or chat messages.
    verbatim: text to go on from; else an instruction, for the chat template if there is one."""

    id: str
    group: str
    content: str | tuple[Mapping[str, Any], ...]
    verbatim: bool = True

    def encode(self, tokenizer: Any | None) -> tuple[int, ...]:
        """Token ids. Raises RequestError, naming the prompt, if it cannot be encoded."""
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

    A name is builtin:code, builtin:open, a .jsonl or .json file of one's own, NAME:FILE for a
    published benchmark's file, or its NAME alone to load it with `datasets`.
    Raises RequestError naming file and line of what cannot be read.
    """
    prompts: list[Prompt] = []
    for name in names:
        prompts += _load(name, limit)[:limit]
    repeated = _repeated([prompt.id for prompt in prompts])
    if repeated:
        raise RequestError(f"two prompts are called {repeated}; give each an id of its own")
    if not prompts:
        raise RequestError(f"{', '.join(names)}: there is no prompt in it")
    return prompts


def _load(name: str, limit: int | None) -> list[Prompt]:
    head, _, rest = name.partition(":")
    if head == "builtin":
        if rest not in BUILTIN:
            choices = ", ".join(f"builtin:{each}" for each in BUILTIN)
            raise RequestError(f"no bundled prompts {name!r}; choices: {choices}")
        text = (files("draftwood.bench") / "data" / f"{rest}.jsonl").read_text(encoding="utf-8")
        return [_own(row, name, number, rest) for number, row in _rows(text, name)]
    if head in SOURCES:
        source = SOURCES[head]
        if rest:
            rows = _rows(_read(Path(rest)), rest)
            return [_published(row, head, source, f"{rest}:{n}", n) for n, row in rows]
        return _downloaded(head, source, limit)
    path = Path(name)
    return [_own(row, name, number, path.stem) for number, row in _rows(_read(path), name)]


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        benchmarks = ", ".join(SOURCES)
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
            rows = []
            for number, line in lines:
                if line.strip():
                    rows.append((number, json.loads(line)))
    except ValueError as error:
        raise RequestError(f"{name}: not JSON lines ({error})") from error
    for number, row in rows:
        if not isinstance(row, dict):
            raise RequestError(f"{name}:{number}: expected an object, got {type(row).__name__}")
    return rows


def _own(row: Mapping[str, Any], name: str, number: int, group: str) -> Prompt:
    given = [key for key in KEYS if key in row]
    if len(given) != 1:
        found = ", ".join(given) or f"none of them (keys: {', '.join(row)})"
        raise RequestError(f"{name}:{number}: a prompt has one of {', '.join(KEYS)}; got {found}")
    (key,) = given
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


def _published(row: Mapping[str, Any], name: str, source: Source, where: str, n: int) -> Prompt:
    if source.text not in row:
        raise RequestError(f"{where}: {name} has a field {source.text!r}; got {', '.join(row)}")
    text = _text(row[source.text], f"{where}: {source.text}")
    if source.more and row.get(source.more):
        text = f"{text}\n\n{row[source.more]}"
    group = str(row.get(source.group, name)) if source.group else name
    return Prompt(f"{name}-{n}", group, text, source.verbatim)


def _text(value: Any, where: str) -> str:
    """A text; of several turns the first, since later ones depend on the answers to it."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str) or not value:
        raise RequestError(f"{where}: expected a text, got {value!r}")
    return value


def _downloaded(name: str, source: Source, limit: int | None) -> list[Prompt]:
    if source.data is None:
        raise RequestError(f"{name} is read from a file: --prompts {name}:question.jsonl")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise RequestError(
            f"loading {name} by name needs the `datasets` library "
            f"(pip install 'draftwood[data]'); or give its file: --prompts {name}:FILE"
        ) from error
    repository, configuration, split = source.data
    rows = load_dataset(repository, configuration, split=split)
    count = len(rows) if limit is None else min(limit, len(rows))
    return [_published(rows[n], name, source, f"{repository}[{n}]", n + 1) for n in range(count)]


def _repeated(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
