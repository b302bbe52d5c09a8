"""What the documents name exists: pipelines, commands, options, files, links, names, drawings."""

import importlib.util
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
import yaml

import draftwood
from draftwood.cli.app import app
from draftwood.core.assets import resolve
from draftwood.core.config.compose import check_composition
from draftwood.core.config.pipeline import SECTIONS, builtin_pipelines, load_config
from draftwood.core.errors import ConfigError
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind
from draftwood.training.config import load_training

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*/*.md")])
GENERATED = {DOCS / "cli.md", DOCS / "testing.md", DOCS / "reference/pipeline.md"}
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(*languages: str) -> list[tuple[str, str]]:
    """(page, text) of every fenced block in these languages."""
    return [
        (page, text)
        for page, whole in TEXTS.items()
        for language, text in FENCE.findall(whole)
        if language in languages
    ]


def named(cases: list[tuple[str, str]]) -> list[str]:
    return [f"{page}-{number}" for number, (page, _) in enumerate(cases)]


YAML = [case for case in blocks("yaml") if not case[1].startswith("# fragment")]
FRAGMENTS = [case for case in blocks("yaml") if case[1].startswith("# fragment")]
TUTORIAL_PLUGINS = {"recall", "counts", "pairs", "comb", "drawn", "follow", "reject", "bigram"}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with the files that the documents' examples name."""
    for name in ("target", "drafter", "try/drafter", "export/drafter-b16"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(resolve("builtin", "target") / "config.json", tmp_path / "target")
    for name in ("train.jsonl", "heldout.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "plain.yaml").write_text("target: {model: ./target}\nverifier: {use: match}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("page", "text"), YAML, ids=named(YAML))
def test_every_pipeline_and_training_file_loads(page, text, folder):
    data = yaml.safe_load(text)
    path = folder / "example.yaml"
    path.write_text(text)
    if "sample" in data:
        load_training(path)
        return
    used = {data.get(kind.value, {}).get("use") for kind in Kind}
    if used & TUTORIAL_PLUGINS:
        pytest.skip("names a tutorial's plugin; test_tutorials.py decodes with it")
    config = load_config(path)
    if "checkpoint" not in text or "builtin" in text:
        check_composition(config)


@pytest.mark.parametrize(("page", "text"), FRAGMENTS, ids=named(FRAGMENTS))
def test_every_fragment_is_yaml_with_known_sections(page, text):
    known = {*SECTIONS, "train", "sample", "pace", "extends"}
    assert set(yaml.safe_load(text)) <= known


COMMAND = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(draftwood .+)$", re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """(page, command line), with continued lines joined and comments removed."""
    found = []
    for page, text in blocks("", "sh", "bash"):
        joined = text.replace("\\\n", " ")
        found += [(page, re.sub(r"\s#.*$", "", line).strip()) for line in COMMAND.findall(joined)]
    return sorted(set(found))


def parse(line: str) -> None:
    """Raise click.UsageError if the command line names an unknown command or option."""
    words = shlex.split(line)[1:]
    command: click.Command = app
    context = click.Context(app)
    while isinstance(command, click.Group):
        while words and words[0].startswith("-"):
            words.pop(0)
        if not words or words[0].isupper():
            return
        name = words.pop(0)
        inner = command.get_command(context, name)
        if inner is None:
            raise click.UsageError(f"no command {name!r}")
        command, context = inner, click.Context(inner, parent=context)
    options = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in {*options, "--help"}:
            raise click.UsageError(f"{command.name} has no option {word}")


@pytest.mark.parametrize(("page", "line"), commands(), ids=[line for _, line in commands()])
def test_every_command_and_option_exists(page, line):
    parse(line)


@pytest.mark.parametrize("line", ["draftwood ablate budget", "draftwood run x --no-such 1"])
def test_a_command_or_option_that_does_not_exist_is_told(line):
    with pytest.raises(click.UsageError):
        parse(line)


def test_every_builtin_pipeline_in_a_command_exists():
    used = {
        word
        for _, line in commands()
        for word in re.findall(
            r" (?:run|check|trace|lossless|calibrate) ([a-z][\w-]*)(?= |$)", line
        )
    }
    assert {"bastion", "tree-16"} <= used <= set(builtin_pipelines())


LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", TEXTS)
def test_every_internal_link_leads_to_a_file(page):
    text = FENCE.sub("", TEXTS[page])
    missing = []
    for first, second in LINK.findall(text):
        link = (first or second).partition("#")[0]
        if link and "://" not in link and not ((ROOT / page).parent / link).exists():
            missing.append(link)
    assert missing == []


PATH = re.compile(r"`((?:docs|examples|studies|benchmarks|tests)/[\w./-]+)`")


@pytest.mark.parametrize("page", TEXTS)
def test_every_path_in_backticks_exists(page):
    assert [path for path in PATH.findall(TEXTS[page]) if not (ROOT / path).exists()] == []


def test_every_file_and_folder_in_the_architecture_exists():
    package = Path(draftwood.__file__).parent
    rooms = TEXTS["ARCHITECTURE.md"].partition("## Rooms")[2].partition("```\n")[2]
    words = re.findall(r"(?<![\w(])[\w/]+(?:\.py|/)(?!\w)", rooms.partition("```")[0])
    assert len(words) > 30
    homes = (package.parent, package / "core", ROOT)
    assert [word for word in words if not any((home / word).exists() for home in homes)] == []


MODULE = re.compile(
    r"`(?:draftwood/)?((?:core|plugins|training|testing|bench|cli)/[\w/]+(?:\.py)?)`"
)


@pytest.mark.parametrize("page", TEXTS)
def test_every_module_in_backticks_exists(page):
    package = Path(draftwood.__file__).parent
    named = set(MODULE.findall(TEXTS[page])) if ROOT / page not in GENERATED else set()
    tests = {name for name in named if (ROOT / "tests" / name).exists()}
    assert [name for name in named - tests if not (package / name).exists()] == []


PYTHON = blocks("python")


@pytest.mark.parametrize(("page", "text"), PYTHON, ids=named(PYTHON))
def test_every_name_imported_from_draftwood_is_public(page, text):
    for line in re.findall(r"^from draftwood import (.+)$", text, re.MULTILINE):
        for name in line.strip("()").split(","):
            assert name.strip() in draftwood.__all__
    compile(text, page, "exec")


def test_the_glossary_or_the_reference_has_every_public_name():
    glossary = TEXTS["docs/glossary.md"] + TEXTS["docs/reference/api.md"]
    assert [name for name in draftwood.__all__ if name not in glossary] == []


def test_the_api_reference_has_every_public_name_but_two():
    told = set(re.findall(r"^::: draftwood\.(\w+)$", TEXTS["docs/reference/api.md"], re.MULTILINE))
    assert set(draftwood.__all__) - told == {"__version__", "hookimpl"}


def test_the_glossary_has_the_concept_of_every_section_of_a_pipeline():
    glossary = TEXTS["docs/glossary.md"].lower()
    assert [section for section in SECTIONS if f"**{section}**" not in glossary] == []


@pytest.mark.parametrize("kind", Kind)
def test_the_references_have_every_bundled_plugin_and_option(kind):
    page = TEXTS[f"docs/reference/{kind.value}s.md"] + TEXTS["docs/guides/dblast.md"]
    registry = installed()
    for name in registry.names(kind):
        plugin = registry.get(kind, name).plugin
        if not plugin.factory.startswith("draftwood."):
            continue
        assert name in page
        for option in getattr(plugin.options, "__attrs_attrs__", ()):
            assert option.name in page, (name, option.name)


def test_every_drawing_is_what_its_script_draws():
    spec = importlib.util.spec_from_file_location("draw", DOCS / "drawings" / "draw.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    for name, function in draw.DRAWINGS.items():
        assert (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8") == function().svg()


@pytest.mark.parametrize("page", TEXTS)
def test_prose_is_no_wider_than_115_characters(page):
    if ROOT / page in GENERATED:
        pytest.skip("generated")
    text = FENCE.sub("", TEXTS[page])
    wide = [
        line
        for line in text.splitlines()
        if len(line) > 115 and not line.startswith(("|", "    ", "!["))
    ]
    assert wide == []


def test_a_misspelt_option_is_found_by_this_test():
    with pytest.raises(ConfigError):
        load_config({"target": {"model": "builtin"}, "drafter": {"use": "ngram", "depht": 1}})


def test_every_navigation_entry_of_the_site_is_a_page():
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = re.findall(r": ([\w/-]+\.md)$", lines, re.MULTILINE)
    assert len(pages) > 25
    assert [page for page in pages if not (DOCS / page).exists()] == []
