"""One case of each kind of input: mutate it, give it to draftwood, and say what came of it.

A case is right if it is accepted or refused by a `DraftwoodError` (exit code 2 of the command).
"""

import io
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from draftwood import load_pipeline
from draftwood.cli import execute
from draftwood.core.assets import resolve
from draftwood.core.config.pipeline import builtin_pipelines
from draftwood.core.errors import DraftwoodError
from draftwood.core.hf.loading import load_target, load_tokenizer
from draftwood.plugins.drafters.formats.describe import describe
from tests.fuzz.mutations import mutate_bytes, mutate_json, mutate_safetensors

ALLOWED_CODES = (0, 1, 2)


class Failure(AssertionError):
    """A mutated input that ended in something other than an answer or a refusal."""


def command(*arguments: str) -> None:
    """Run the command line in this process; Failure for any other exit code or a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = execute(arguments)
    if code not in ALLOWED_CODES or "Traceback" in err.getvalue():
        raise Failure(f"exit code {code}: {err.getvalue()[-500:]}")


def refused(call: Callable[[], Any]) -> None:
    """Call; a DraftwoodError is an answer."""
    try:
        call()
    except DraftwoodError as error:
        if not str(error):
            raise Failure("a refusal without a message") from error


def config(draw: random.Random, folder: Path) -> None:
    """A builtin pipeline's text, mutated, through `draftwood check`."""
    name = draw.choice(sorted(builtin_pipelines()))
    text = builtin_pipelines()[name].read_bytes() + b"generation: {temperature: 0.5, top_k: 3}\n"
    path = folder / "pipeline.yaml"
    path.write_bytes(mutate_bytes(text, draw))
    command("check", str(path), *(("--json",) if draw.random() < 0.5 else ()))


def settings(draw: random.Random, folder: Path) -> None:
    """A mutated `--set`."""
    good = draw.choice(
        (
            "tree.max_nodes=64",
            "generation.stop_strings=[x]",
            "target.model=builtin",
            "tree.use=chain",
        )
    )
    setting = mutate_bytes(good.encode(), draw).decode("utf-8", "replace")
    command("check", draw.choice(("bastion", "plain")), "--set", setting)


def prompt(draw: random.Random, folder: Path) -> None:
    """A mutated prompt, as a file, by the command's own reading, and decoded for a few tokens."""
    text = "def f(x):\n    return é✓ [INST] <s> \ud7ff".encode()
    path = folder / "prompt.txt"
    path.write_bytes(mutate_bytes(text * draw.choice((1, 1, 30)), draw))
    from draftwood.cli.options import read_prompt

    pipeline = decoder()
    refused(lambda: pipeline.generate(read_prompt(None, str(path)), max_new_tokens=3))


def request(draw: random.Random, folder: Path) -> None:
    """A Python prompt or option of a wrong kind."""
    from tests.fuzz.mutations import VALUES

    pipeline = decoder()
    options = {
        draw.choice(
            ("temperature", "top_k", "top_p", "stop_strings", "eos_token_id", "seed", "logprobs")
        ): draw.choice(VALUES)
    }
    value = draw.choice(("def f(", [1, 2, 3], draw.choice(VALUES), [draw.choice(VALUES)]))
    refused(lambda: pipeline.generate(value, **{"max_new_tokens": 3, **options}))


def drafter_config(draw: random.Random, folder: Path) -> None:
    """A drafter's config.json, mutated, through `inspect` and `check`."""
    checkpoint = copied(draw.choice(("drafter", "dblast", "eagle3")), folder)
    path = checkpoint / "config.json"
    path.write_bytes(mutate_json(path.read_bytes(), draw))
    refused(lambda: describe(checkpoint))
    use = {"drafter": "dflash"}.get(checkpoint.name, checkpoint.name)
    command("check", "plain", "--set", f"drafter={{use: {use}, checkpoint: '{checkpoint}'}}")


def drafter_header(draw: random.Random, folder: Path) -> None:
    """The header of a drafter's weights, mutated, through `inspect`."""
    checkpoint = copied(draw.choice(("drafter", "dblast", "eagle3")), folder)
    path = next(checkpoint.glob("*.safetensors"))
    path.write_bytes(mutate_safetensors(path.read_bytes(), draw))
    refused(lambda: describe(checkpoint))


def target_config(draw: random.Random, folder: Path) -> None:
    """A target's config.json, mutated, through `check`."""
    checkpoint = copied("target", folder)
    path = checkpoint / "config.json"
    path.write_bytes(mutate_json(path.read_bytes(), draw))
    command("check", "plain", "--set", f"target.model={checkpoint}")


def target_header(draw: random.Random, folder: Path) -> None:
    """The header of a target's weights, mutated, and loaded."""
    checkpoint = copied("draft", folder)
    path = next(checkpoint.glob("*.safetensors"))
    path.write_bytes(mutate_safetensors(path.read_bytes(), draw))
    refused(lambda: load_target(checkpoint))


def tokenizer(draw: random.Random, folder: Path) -> None:
    """A tokenizer's settings, mutated, and loaded."""
    checkpoint = copied("target", folder)
    path = draw.choice(sorted(checkpoint.glob("*token*.json")))
    path.write_bytes(mutate_json(path.read_bytes(), draw))
    refused(lambda: load_tokenizer(checkpoint))


CASES = (config, settings, prompt, request, drafter_config, drafter_header, target_config)
"""Cases of a few milliseconds."""

SLOW_CASES = (target_header, tokenizer)
"""Cases of up to a second."""


@cache
def decoder() -> Any:
    """A pipeline of the bundled target."""
    return load_pipeline("plain")


def copied(part: str, folder: Path) -> Path:
    """A bundled checkpoint to change."""
    source = Path(resolve("builtin", part))  # type: ignore[arg-type]
    target = folder / part
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def run(kind: Callable[[random.Random, Path], None], seed: int, folder: Path) -> str | None:
    """Run a case; None if it is right, else what it raised.

    Args:
        kind: A function of `CASES` or `SLOW_CASES`.
        seed: Of the mutation: the same seed makes the same input.
        folder: For its files.
    """
    try:
        kind(random.Random(f"{kind.__name__} {seed}"), folder)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever escapes is the finding
        last = error.__traceback__
        while last and last.tb_next:
            last = last.tb_next
        place = f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else "?"
        return f"{type(error).__name__}: {str(error)[:300]} at {place}"
    finally:
        sys.stdout.flush()
    return None
