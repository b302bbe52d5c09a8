"""What the README shows is what the project does."""

import re
from pathlib import Path

import yaml

from draftwood.core.config.compose import check_composition
from draftwood.core.config.pipeline import builtin_pipelines, load_config

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_plugin_is_the_example_to_the_letter() -> None:
    folder = ROOT / "examples/draftwood-example-plugin/draftwood_example_plugin"
    shown = [block.strip() for block in blocks("python")]
    for name in ("register.py", "drafter.py"):
        source = (folder / name).read_text(encoding="utf-8").strip()
        assert source in shown
        assert len([line for line in source.splitlines() if line.strip()]) <= 25


def test_the_pipeline_is_valid() -> None:
    block, *_ = blocks("yaml")
    config = load_config(yaml.safe_load(block))
    check_composition(config)
    assert config.drafter is not None
    assert config.drafter.use == "dflash"


def test_every_builtin_name_in_a_command_exists() -> None:
    named = re.findall(r"draftwood (?:run|check|trace) ([a-z][\w-]*)(?!\.yaml)\b", TEXT)
    assert {"bastion"} <= {name for name in named if name != "my"} <= set(builtin_pipelines())


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert missing == []
