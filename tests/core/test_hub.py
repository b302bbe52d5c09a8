"""A hub name without a network is one clear error within seconds, or comes from the cache."""

import threading
import time
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from draftwood.core import hub
from draftwood.core.checkpoints import config_file, fetch
from draftwood.core.errors import CheckpointError
from draftwood.core.hf.loading import load_target, load_tokenizer

NAME = "some-organisation/some-model"


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """answer(error) is what the hub raises when it describes a model; None describes it."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def answer(error: Exception | None) -> None:
        def model_info(*_: object, **__: object) -> None:
            if error is not None:
                raise error

        monkeypatch.setattr(HfApi, "model_info", model_info)

    return answer


@pytest.mark.covers("offline-hub")
@pytest.mark.parametrize("load", [load_target, load_tokenizer, fetch])
def test_unreachable_hub_is_one_error_within_ten_seconds(answer, load):
    answer(ConnectionError("[Errno -2] Name or service not known"))
    start = time.perf_counter()
    with pytest.raises(CheckpointError) as error:
        load(NAME)
    assert time.perf_counter() - start < 10
    assert str(error.value).splitlines() == [
        f"{NAME!r} is no folder here, is not in the hub's cache, and the hub cannot be reached "
        "(ConnectionError: [Errno -2] Name or service not known)",
        f"  pass an existing folder, or download it first: hf download {NAME}",
    ]


@pytest.mark.covers("offline-hub")
def test_hub_that_never_answers_is_given_up(answer, monkeypatch):
    answer(None)
    monkeypatch.setattr(hub, "SECONDS", 0.05)
    released = threading.Event()
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: released.wait(60))
    with pytest.raises(CheckpointError, match=r"cannot be reached \(TimeoutError: after 0.05 s\)"):
        hub.cached_only(NAME)
    released.set()


@pytest.mark.covers("offline-hub")
def test_offline_mode_makes_no_request(answer, monkeypatch):
    answer(AssertionError("a request was made"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"cannot be reached \(HF_HUB_OFFLINE is set\)"):
        hub.cached_only(NAME)


def cache(folder: Path) -> Path:
    """A model in the hub's cache that has a config.json alone."""
    model = folder / f"models--{NAME.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots" / "abc").mkdir(parents=True)
    (model / "snapshots" / "abc" / "config.json").write_text("{}")
    return model / "snapshots" / "abc"


@pytest.mark.covers("offline-hub")
def test_unreachable_hub_leaves_the_cache(answer, tmp_path, monkeypatch):
    snapshot = cache(tmp_path)
    answer(ConnectionError("no network"))
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda *_, **__: str(snapshot / "config.json")
    )
    assert hub.cached_only(NAME) is True
    assert config_file(NAME) == snapshot / "config.json"
    answer(None)
    assert hub.cached_only(NAME) is False


@pytest.mark.covers("offline-hub")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RepositoryNotFoundError, "the hub has no such model, or it is private"),
        (RevisionNotFoundError, "has no revision 'v9' on the hub"),
    ],
)
def test_model_that_the_hub_does_not_have_is_named(answer, error, message):
    answer(error.__new__(error))  # what it is made from differs between releases of the hub
    with pytest.raises(CheckpointError, match=message):
        hub.cached_only(NAME, "v9")


@pytest.mark.covers("mutated-input")
@pytest.mark.parametrize("name", ["a//b", "x" * 300, "a b", "a/b/c"])
def test_name_that_no_model_can_have_is_refused(answer, name):
    answer(None)
    for read in (hub.cached_only, config_file):
        with pytest.raises(CheckpointError, match=r"not a hub name either|no such folder"):
            read(name)
