"""What importing the package costs, and what it must never import."""

import subprocess
import sys

import pytest

import draftwood

NEED_TORCH = {"draftwood.core.build", "draftwood.core.generation"}


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_draftwood_imports_nothing_heavy() -> None:
    loaded = _run("import sys, draftwood; print(*sys.modules)").split()
    assert "draftwood" in loaded
    assert not {"torch", "transformers", "numpy", "click", "pluggy", "attr"} & set(loaded)


@pytest.mark.timing
def test_importing_draftwood_takes_under_150_ms() -> None:
    # Processor time: what the import costs whatever else this machine is doing.
    code = (
        "import time; start = time.process_time(); import draftwood;"
        "print(time.process_time() - start)"
    )
    assert min(float(_run(code)) for _ in range(3)) < 0.150


def test_every_public_name_has_a_home_and_the_torch_free_ones_load() -> None:
    assert set(draftwood._HOME) | {"__version__"} == set(draftwood.__all__)
    for name in draftwood.__all__:
        if draftwood._HOME.get(name) not in NEED_TORCH:
            assert getattr(draftwood, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_pipelin'"):
        draftwood.load_pipelin  # noqa: B018
