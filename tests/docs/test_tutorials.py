"""The tutorials' files, as they stand on the site, are distributions that decode and conform."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from installed_beside import install_beside

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = {
    "drafter": "draftwood-recall",
    "tree": "draftwood-comb",
    "controller": "draftwood-follow",
    "verifier": "draftwood-reject",
}
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
Run = Callable[..., str]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Every file of the tutorials, written out."""
    root = tmp_path_factory.mktemp("tutorials")
    for page in TUTORIALS:
        blocks = BLOCK.findall((DOCS / "plugins" / f"{page}.md").read_text(encoding="utf-8"))
        assert blocks, page
        for name, text in blocks:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory) -> Run:
    """Run Python where all tutorials are installed."""
    site = tmp_path_factory.mktemp("site")
    return install_beside(site, folder, *(f"./{name}" for name in TUTORIALS.values()))


def test_every_plugin_is_listed_as_ok(run):
    listed = json.loads(run("-m", "draftwood", "plugins", "list", "--json"))["plugins"]
    ours = {
        (each["kind"], each["name"], each["status"])
        for each in listed
        if each["distribution"] in TUTORIALS.values()
    }
    assert ours == {
        ("drafter", "recall", "ok"),
        ("drafter", "counts", "ok"),
        ("drafter", "pairs", "ok"),
        ("tree", "comb", "ok"),
        ("tree", "drawn", "ok"),
        ("controller", "follow", "ok"),
        ("verifier", "reject", "ok"),
    }


@pytest.mark.parametrize(
    "pipeline",
    [
        "draftwood-recall/pipeline.yaml",
        "draftwood-recall/sampled.yaml",
        "draftwood-recall/pairs.yaml",
        "draftwood-comb/pipeline.yaml",
        "draftwood-comb/drawn.yaml",
        "draftwood-follow/pipeline.yaml",
        "draftwood-reject/pipeline.yaml",
    ],
)
def test_every_pipeline_decodes_and_speculates(run, pipeline):
    prompt = "for i in range(10):\n    for i in range(10):\n"
    settings = ["--set", "generation.max_new_tokens=40", "--seed", "3"]
    out = json.loads(
        run("-m", "draftwood", "run", pipeline, "--prompt", prompt, *settings, "--json")
    )
    assert len(out["tokens"]) == 40
    assert out["speculation"]["ran"]
    assert out["accepted"] > 0


@pytest.mark.parametrize("name", TUTORIALS.values())
def test_the_tutorials_own_tests_pass(run, folder, name):
    tests = sorted(str(path) for path in (folder / name).glob("test_*.py"))
    assert tests
    assert " passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
