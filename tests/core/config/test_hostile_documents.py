"""Documents that take a machine's memory or time are refused by their place, and cheaply."""

import resource
import time
from pathlib import Path

import pytest

from draftwood.core.config.document import MAX_BYTES, MAX_DEPTH, from_python, read_file, read_text
from draftwood.core.config.pipeline import load_config
from draftwood.core.errors import ConfigError
from draftwood.core.options import MAX_DEPTH as MAX_TREE_DEPTH
from draftwood.core.options import MAX_NODES, MAX_TOKENS
from draftwood.core.registry.loader import load_plugins

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 3000))


@pytest.mark.covers("resource-bomb")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "the document has more than 100000 values, aliases expanded"),
        (CHAIN, f"aliases nest values more than {MAX_DEPTH} levels deep"),
        ("target: " + "[" * 3000, f"values are nested more than {MAX_DEPTH} levels deep"),
        ("target: " + "{a: " * 3000, f"values are nested more than {MAX_DEPTH} levels deep"),
        (f"generation: {{seed: {'9' * 5000}}}", "a number of 5000 digits is too long"),
    ],
)
def test_small_document_that_expands_is_refused_in_bounded_time_and_memory(text, message):
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with pytest.raises(ConfigError) as error:
        read_text(text, "bomb.yaml", Path())
    (problem,) = error.value.problems
    assert message in problem.message
    assert problem.where.startswith("bomb.yaml:1:")
    assert time.perf_counter() - start < 10
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kilobytes < 300_000


@pytest.mark.covers("resource-bomb")
def test_document_of_more_than_a_megabyte_is_not_read(tmp_path):
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match=r"large.yaml: is larger than 1048576 bytes"):
        read_file(tmp_path / "large.yaml")


@pytest.mark.covers("resource-bomb")
def test_mapping_that_contains_itself_is_refused():
    cycle: dict[str, object] = {}
    cycle["a"] = cycle
    with pytest.raises(ConfigError, match=r"nested more than 64 levels deep"):
        from_python(cycle)


@pytest.mark.covers("text-encoding")
def test_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbftarget: {model: builtin}\n")
    assert list(read_file(path).data) == ["target"]


@pytest.mark.covers("mutated-input")
@pytest.mark.parametrize("model", ['"a\\0b"', "./" + "x" * 5000, "~nobody-here/x", '"a/\\0"'])
def test_name_that_no_file_can_have_is_a_located_problem_or_a_hub_name(model, tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(f"target: {{model: {model}}}\n")
    with pytest.raises(ConfigError, match=r"target.model: no such file or folder") as error:
        load_config(path)
    assert len(str(error.value)) < 1000


HUGE = [
    ("tree", "best_first", "max_nodes", MAX_NODES),
    ("tree", "dynamic", "total_tokens", MAX_NODES),
    ("tree", "dynamic", "top_k", MAX_NODES),
    ("tree", "dynamic", "depth", MAX_TREE_DEPTH),
    ("tree", "chain", "length", MAX_TREE_DEPTH),
    ("controller", "fixed", "nodes", MAX_NODES),
    ("controller", "fixed", "depth", MAX_TREE_DEPTH),
    ("controller", "roofline", "max_nodes", MAX_NODES),
    ("controller", "measured", "max_nodes", MAX_NODES),
    ("drafter", "ngram", "max_ngram", MAX_TREE_DEPTH),
    ("drafter", "ngram", "max_depth", MAX_TREE_DEPTH),
    ("drafter", "ngram", "continuations", MAX_NODES),
    ("generation", None, "max_new_tokens", MAX_TOKENS),
    ("generation", None, "min_new_tokens", MAX_TOKENS),
    ("generation", None, "no_repeat_ngram_size", MAX_TOKENS),
    ("runtime", None, "threads", 4096),
]


@pytest.mark.covers("resource-bomb")
@pytest.mark.parametrize(("section", "use", "option", "limit"), HUGE)
def test_huge_limit_is_refused_with_the_largest_one(section, use, option, limit):
    registry = load_plugins(third_parties=False)

    def problems(value: int) -> list[str]:
        part = {"use": use, option: value} if use else {option: value}
        document = {"target": {"model": "some/model"}, section: part}
        try:
            load_config(document, registry=registry)
        except ConfigError as error:
            return [problem.message for problem in error.problems]
        return []

    (message,) = problems(1_000_000_000)
    assert str(limit) in message
    assert option in message
    assert problems(limit) == []
    assert len(problems(limit + 1)) == 1


@pytest.mark.covers("resource-bomb")
@pytest.mark.parametrize(
    "tree",
    [
        {"use": "sampled", "widths": [1000, 1000, 1000]},
        {"use": "sampled", "widths": [1] * (MAX_TREE_DEPTH + 1)},
        {"use": "static", "paths": [[1_000_000_000]]},
        {"use": "static", "paths": [[i] for i in range(MAX_NODES + 1)]},
    ],
)
def test_huge_tree_shape_is_refused(tree):
    with pytest.raises(ConfigError, match=f"{MAX_NODES}"):
        load_config({"target": {"model": "some/model"}, "tree": tree})
