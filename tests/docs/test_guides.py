"""The guides' code runs, and the way from a model to a fast pipeline works from end to end."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import draftwood

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    (page, number)
    for page in ("start.md", "reference/errors.md", "plugins/testing-kit.md")
    for number, (language, _) in enumerate(FENCE.findall((DOCS / page).read_text("utf-8")))
    if language == "python"
]

pytestmark = pytest.mark.slow


def call(folder: Path, *arguments: str) -> str:
    """Run Python in a folder; the output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "DRAFTWOOD_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("page", "number"), SNIPPETS)
def test_every_python_snippet_runs(page, number, tmp_path):
    _, text = FENCE.findall((DOCS / page).read_text(encoding="utf-8"))[number]
    (tmp_path / "snippet.py").write_text(text, encoding="utf-8")
    call(tmp_path, "snippet.py")


def test_the_way_from_a_model_to_a_fast_pipeline_works(tmp_path):
    """Its files, with fewer samples and steps than a useful drafter takes."""
    page = (DOCS / "guides/fast-pipeline.md").read_text(encoding="utf-8")
    names = set()
    for _, text in FENCE.findall(page):
        if match := re.match(r"# ([\w-]+\.(?:yaml|py))", text):
            names.add(match[1])
            (tmp_path / match[1]).write_text(text, encoding="utf-8")
    assert names == {"plain.yaml", "ngram.yaml", "prompts.py", "drafter.yaml", "fast.yaml"}
    shutil.copytree(
        Path(draftwood.__file__).parent / "assets/tiny-python/target", tmp_path / "target"
    )
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(4):
        parts = [
            f"def function_{number}_{part}(values):\n"
            + "".join(f"    values.append({part} + {line})\n" for line in range(12))
            for part in range(6)
        ]
        (texts / f"text{number}.py").write_text("\n\n\n".join(parts), encoding="utf-8")

    call(tmp_path, "prompts.py", "texts")
    small = [
        "sample.sequences=8",
        "sample.heldout_sequences=2",
        "sample.length=64",
        "train.steps=2",
    ]
    settings = [
        word for each in [*small, "sample.prompt_tokens=[8,24]"] for word in ("--set", each)
    ]
    call(tmp_path, "-m", "draftwood", "train", "drafter.yaml", *settings)
    assert "zlab" in call(tmp_path, "-m", "draftwood", "inspect", "./drafter")
    for pipeline in ("plain.yaml", "ngram.yaml", "fast.yaml"):
        assert "ok" in call(tmp_path, "-m", "draftwood", "check", pipeline)
    run = ["run", "fast.yaml", "--prompt", "import os", "--set", "generation.max_new_tokens=8"]
    assert call(tmp_path, "-m", "draftwood", *run).strip()
    bench = ["--prompts", "heldout.jsonl", "--limit", "1", "--tokens", "8", "--out", "results"]
    call(tmp_path, "-m", "draftwood", "bench", "fast.yaml", *bench)
    assert (tmp_path / "results" / "report.html").exists()
