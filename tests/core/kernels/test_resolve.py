"""Which kernels a pipeline's target runs on, by `runtime.kernels`, device and verifier."""

import logging
from typing import Any

import pytest
import torch

from draftwood.core.build import load_pipeline
from draftwood.core.config.pipeline import load_config
from draftwood.core.errors import ConfigError, RequestError, UnsupportedTarget
from draftwood.core.generation import Pipeline
from draftwood.core.kernels import resolve
from draftwood.core.kernels.resolve import resolve_kernels
from draftwood.testing import toy_target

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
IN_INTERPRETER = "TRITON_INTERPRET"


def accept(kernels: Any) -> None:
    """A target that the kernels fit."""


def refuse(kernels: Any) -> None:
    raise UnsupportedTarget("attends with sinks; use runtime.kernels: torch")


def kind(kernels: Any) -> str:
    return "torch" if kernels is None else type(kernels).__name__


@pytest.mark.parametrize(
    ("name", "device", "result"),
    [
        (None, GPU, "torch"),
        ("torch", GPU, "torch"),
        ("auto", CPU, "torch"),
        ("auto", GPU, "TritonKernels"),
        ("triton", GPU, "TritonKernels"),
        ("triton", CPU, "TritonKernels"),
    ],
)
def test_a_name_resolves_by_the_device(name: Any, device: torch.device, result: str) -> None:
    pytest.importorskip("triton")
    assert kind(resolve_kernels(name, device, accept)) == result


def test_an_object_is_used_as_it_is() -> None:
    kernels: Any = object()
    assert resolve_kernels(kernels, CPU, refuse) is kernels


def test_auto_is_torch_where_the_kernels_do_not_fit_the_target(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("triton")
    with caplog.at_level(logging.WARNING, "draftwood"):
        assert resolve_kernels("auto", GPU, refuse) is None
    assert "the model's own attention runs: attends with sinks" in caplog.text
    assert kind(resolve_kernels("triton", GPU, refuse)) == "TritonKernels"  # the target refuses


def test_auto_is_torch_where_triton_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "triton is not installed"
    monkeypatch.setattr(resolve, "unavailable_reason", lambda device: reason)
    assert resolve_kernels("auto", GPU, accept) is None
    with pytest.raises(UnsupportedTarget, match=f"{reason}; use runtime.kernels: torch"):
        resolve_kernels("triton", GPU, accept)


def test_triton_on_a_cpu_is_refused_without_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(IN_INTERPRETER, "0")
    with pytest.raises(UnsupportedTarget, match=r"do not run on cpu.*runtime\.kernels: torch"):
        Pipeline(toy_target(), kernels="triton")


def test_an_unknown_name_lists_the_choices() -> None:
    unknown: Any = "cuda"
    with pytest.raises(RequestError, match="no kernels 'cuda'; choices: auto, triton, torch"):
        Pipeline(toy_target(), kernels=unknown)
    with pytest.raises(ConfigError, match=r"runtime\.kernels"):
        load_config({"target": {"model": "x"}, "runtime": {"kernels": "cuda"}})


@pytest.mark.parametrize(
    ("verifier", "runtime", "kernels"),
    [
        ("match", {}, "auto"),
        ("auto", {}, "auto"),
        ("triton", {}, "triton"),
        ("triton", {"kernels": "torch"}, "torch"),
        ("match", {"kernels": "triton"}, "triton"),
        ("match", {"graphs": "auto"}, "auto"),
        ("match", {"graphs": "on"}, "triton"),
        (None, {}, "auto"),
        (None, {"graphs": "on"}, "triton"),
    ],
)
def test_auto_follows_the_verifier_and_graphs(
    verifier: str | None, runtime: dict[str, str], kernels: str
) -> None:
    document: dict[str, Any] = {"target": {"model": "x"}, "runtime": runtime}
    if verifier is not None:
        document["verifier"] = {"use": verifier}
    assert load_config(document).kernels == kernels


@pytest.mark.parametrize(
    ("verifier", "kernels", "result"),
    [
        ("match", "auto", "torch"),
        ("match", "torch", "torch"),
        ("match", "triton", "TritonKernels"),
        ("triton", "auto", "TritonKernels"),
        ("triton", "torch", "torch"),
    ],
)
def test_a_pipeline_on_a_cpu_uses_the_kernels_of_its_document(
    verifier: str, kernels: str, result: str
) -> None:
    pytest.importorskip("triton")
    document = {"verifier": {"use": verifier}, "runtime": {"kernels": kernels}}
    assert kind(load_pipeline(document, target=toy_target()).engine.kernels) == result
