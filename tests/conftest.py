"""Hypothesis profiles, and an environment in which no test touches the user's own."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Under xdist each worker keeps to one core: torch's own threads would only fight over them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
for name in ("DRAFTWOOD_PLUGINS", "DRAFTWOOD_DISABLE_PLUGINS", "DRAFTWOOD_STRICT_PLUGINS"):
    os.environ.pop(name, None)

import torch  # noqa: E402 - it reads OMP_NUM_THREADS when it is imported

# Triton reads this when it is imported, which torch and transformers do on their own: where there
# is no GPU, kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=25, **_COMMON)
settings.register_profile("ci", max_examples=60, derandomize=True, print_blob=True, **_COMMON)
settings.register_profile("nightly", max_examples=1500, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "covers(*kinds): kinds of fault (tests/fault_kinds.py) that the test would find"
    )


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One torch thread: operations this small are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the machine-wide stores of this test run in a folder of its own."""
    os.environ["DRAFTWOOD_CACHE"] = str(tmp_path_factory.mktemp("draftwood-cache"))
