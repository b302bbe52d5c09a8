"""The kinds of fault that the tests would find, and the table of docs/testing.md made from them.

A test names the kinds that it covers: `@pytest.mark.covers("shared-randomness")`.
`python tests/fault_kinds.py` writes the table; tests/test_testing_page.py checks it.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "testing.md"
BEGIN, END = "<!-- fault kinds: generated from here -->", "<!-- fault kinds: to here -->"


@frozen
class FaultKind:
    """A way in which speculative decoding goes wrong.

    Attributes:
        text: What goes wrong, in one phrase.
        note: Why it cannot arise, where the tests alone do not say so.
    """

    text: str
    note: str = ""


SECTIONS: Mapping[str, Mapping[str, FaultKind]] = {
    "Distribution": {
        "wrong-draft-distribution": FaultKind(
            "The verifier receives another distribution than the drafts were drawn from: an "
            "unfiltered one, or an argmax declared to be a draw"
        ),
        "unverifiable-draws": FaultKind(
            "A tree is verified by a rule that is not defined for the way in which its nodes were "
            "chosen"
        ),
        "shared-randomness": FaultKind(
            "Drafter and verifier share random numbers, or a generator is seeded again each round"
        ),
        "non-finite-logits": FaultKind("NaN, or a row without a finite logit, reaches the sampler"),
        "mixed-precision-draws": FaultKind(
            "Drafts are drawn in one precision and judged in another",
            "A drawn tree carries the tensor that it was drawn from, and rules read no other; "
            "`match` reads none.",
        ),
        "stale-processor-input": FaultKind(
            "Penalties, n-gram bans, minimum lengths or biases see one token a round, or the "
            "anchor's path at every node"
        ),
        "processor-state": FaultKind(
            "A rejected draft changes a processor's state",
            "Does not arise: a processor gets the whole text up to its node at each call, and "
            "nothing is kept between calls.",
        ),
        "filter-on-bonus-only": FaultKind("A filter is applied to the bonus token only"),
        "tiny-temperature": FaultKind(
            "A tiny temperature divides by zero, or is greedy in one module and not in another"
        ),
        "seeds": FaultKind(
            "The seed is ignored, another request's seed matters, or calls without a seed repeat "
            "one text"
        ),
        "greedy-parity": FaultKind(
            "Greedy text differs from plain decoding's, and rounding is blamed"
        ),
    },
    "Stopping and output": {
        "end-of-text-in-run": FaultKind(
            "An end-of-text token inside an accepted run is missed; later tokens are returned, "
            "cached or counted"
        ),
        "stop-string": FaultKind(
            "A stop string inside a run, across tokens, or together with a length limit is missed; "
            "text and ids are trimmed differently"
        ),
        "token-limit": FaultKind(
            "More or fewer tokens than requested are returned, or more than the context holds"
        ),
        "streaming": FaultKind(
            "A stream is out of order, advances by one token a step only, or splits characters"
        ),
        "callback-error": FaultKind("A callback that raises ends the decode"),
        "log-probabilities": FaultKind(
            "Log-probabilities are shifted, or come from another distribution than the model's"
        ),
        "statistics-after-stop": FaultKind("Statistics count tokens after the stop"),
    },
    "Cache and state": {
        "cache-rows": FaultKind(
            "The accepted path runs through a later sibling, and K/V of a rejected one stays"
        ),
        "sliding-window": FaultKind(
            "Beyond a sliding window: a crash with one attention, silent corruption with another"
        ),
        "request-isolation": FaultKind(
            "A second, an interleaved or an abandoned request, or one after an exception, sees the "
            "state of another"
        ),
        "warm-cache": FaultKind("A warm cache leaves the drafter without context", "Refused."),
        "memory-growth": FaultKind(
            "Memory grows while speculation is off, or after a request has ended"
        ),
    },
    "Pairing": {
        "training-mismatch": FaultKind(
            "A drafter is trained on states that decoding does not have, or unrolled in another "
            "way than it decodes"
        ),
        "tapped-layers": FaultKind("Tapped layers are guessed, or off by one"),
        "draft-vocabulary": FaultKind(
            "A reduced draft vocabulary: its head is overwritten, or its map is ignored"
        ),
        "vocabulary-size": FaultKind(
            "A padded vocabulary is refused, or its padding is emitted; a drafter of another "
            "tokenizer is accepted"
        ),
        "block-start": FaultKind("A block begins with a mask token instead of the anchor"),
        "mask-type": FaultKind(
            "A boolean mask is added as a number, or an additive one is read as boolean"
        ),
        "useless-drafter": FaultKind("A useless drafter slows decoding for ever"),
        "speculation-off": FaultKind(
            "Speculation is off without a message, and comparisons pass because nothing happened"
        ),
    },
    "Plugins and configuration": {
        "broken-plugin": FaultKind(
            "A plugin that fails to import, exits, returns the wrong type, or misspells a hook "
            "breaks every command, or is not reported"
        ),
        "duplicate-plugin": FaultKind("Two plugins have one name, and one is silently ignored"),
        "configuration": FaultKind(
            "YAML numbers are read as text, `off` as false; duplicate or unknown keys are ignored; "
            "errors have no line; paths start from the wrong folder"
        ),
        "prompt-length": FaultKind(
            "A prompt that is empty, has one token, or has exactly or more than the limit leaves "
            "the pipeline unusable"
        ),
    },
    "What people bring": {
        "shallow-certificate": FaultKind(
            "A part is certified that is wrong only deep in a tree, among many or equal siblings, "
            "after many rounds, or where tokens are equally likely"
        ),
        "past-a-stop": FaultKind(
            "Something past an accepted stop is computed: a grammar is called after its end, a "
            "bonus is drawn"
        ),
        "in-place-processor": FaultKind("A logits processor that writes to its scores fails"),
        "ignored-model-input": FaultKind(
            "custom_generate drops model inputs that change the text: images, positions, "
            "embeddings, a soft prompt"
        ),
        "generation-defaults": FaultKind(
            "The checkpoint's own generation settings are ignored, or honoured on one side of a "
            "comparison only"
        ),
        "train-overwrites": FaultKind(
            "Training exports over its target, or over files that are not its own"
        ),
        "train-changed-configuration": FaultKind(
            "A run is continued under another configuration, or exports weights of an earlier one"
        ),
        "train-interrupted": FaultKind("An interrupt loses what was trained"),
        "train-without-labels": FaultKind("Training runs on text without a token to learn"),
        "token-grouping": FaultKind("Text or stops depend on how tokens were grouped into rounds"),
        "silent-argument": FaultKind(
            "An argument of the wrong kind is accepted: bytes, 1.9 or True as a token, 5 as a flag"
        ),
        "rope-switch": FaultKind(
            "Rotary settings are read at the top level only, and text differs past the length at "
            "which an embedding rescales"
        ),
        "damaged-checkpoint": FaultKind(
            "Weights that are missing, renamed, prefixed, truncated, misshapen or not finite are "
            "decoded at random, or end in a traceback"
        ),
        "wrapped-target": FaultKind(
            "A target that is compiled, wrapped by PEFT, quantised, headless or back in training "
            "mode fails, or gives other text"
        ),
        "resource-bomb": FaultKind(
            "A small file or a large option takes the machine's memory or time: aliases, nesting, "
            "limits of a thousand million"
        ),
        "unclear-refusal": FaultKind(
            "A refusal names one problem of several, or does not name what a word of another "
            "library is called here"
        ),
        "output-stream": FaultKind(
            "A closed, full or ASCII-only standard output ends in a traceback or in exit code 0"
        ),
        "text-encoding": FaultKind("A byte order mark becomes part of a prompt or a key"),
        "offline-hub": FaultKind("A hub name is retried for minutes where there is no network"),
        "mutated-input": FaultKind(
            "A mutated configuration, checkpoint header or prompt ends in a traceback, takes more "
            "than 10 s or more than 2 GB"
        ),
        "other-text-by-architecture": FaultKind(
            "A class of transformers is accepted as a target, and gives other text than `generate`",
            "[Every class](reference/targets.md) is tried by `python benchmarks/targets.py`.",
        ),
        "loose-self-check": FaultKind(
            "A tolerance of the self-check is so wide that a target passes whose rows depend on "
            "each other"
        ),
    },
}
KINDS = {key: kind for section in SECTIONS.values() for key, kind in section.items()}


def markers(source: str) -> Iterator[tuple[str, str]]:
    """(test, kind) of every `covers` marker of a module; a method's test is `Class::test`."""

    def visit(nodes: list[ast.stmt], scope: str) -> Iterator[tuple[str, str]]:
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                yield from visit(node.body, f"{scope}{node.name}::")
            elif isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    match decorator:
                        case ast.Call(func=ast.Attribute(attr="covers"), args=keys):
                            for key in keys:
                                yield scope + node.name, ast.literal_eval(key)

    yield from visit(ast.parse(source).body, "")


def covering_tests() -> dict[str, list[str]]:
    """Test ids below tests/ by kind of fault, sorted; every kind is a key.

    Raises:
        KeyError: If a test names a kind that does not exist.
    """
    tests: dict[str, list[str]] = {key: [] for key in KINDS}
    for path in sorted(TESTS.rglob("test_*.py")):
        for test, key in markers(path.read_text(encoding="utf-8")):
            tests[key].append(f"{path.relative_to(TESTS).as_posix()}::{test}")
    return tests


def table() -> str:
    """The generated part of the page: one table per section."""
    tests = covering_tests()
    lines = []
    for title, kinds in SECTIONS.items():
        lines += ["", f"### {title}", "", "| fault | tests |", "|---|---|"]
        for key, kind in kinds.items():
            named = ", ".join(f"`{test}`" for test in tests[key])
            lines.append(f"| {kind.text} | {' '.join(filter(None, (kind.note, named)))} |")
    return "\n".join([*lines, ""])


def page(text: str) -> str:
    """The page with its table generated anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page(target.read_text(encoding="utf-8")), encoding="utf-8")
