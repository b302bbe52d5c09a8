"""`draftwood doctor`: what this machine and installation can do."""

import os
import platform
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attrs
import click
from attrs import frozen

import draftwood
from draftwood.cli.app import Session
from draftwood.cli.options import json_option, print_json

JSON = {
    "ok": "true if no check failed",
    "checks": "[{name, status, detail}]",
    "checks[].status": "ok; warning: something optional is missing or broken; failed",
}


@frozen
class Check:
    """One finding. status: ok, warning or failed."""

    name: str
    status: str
    detail: str


@click.command("doctor")
@json_option
@click.pass_obj
def command(session: Session, as_json: bool) -> int:
    """What this machine and installation can do.

    Exits with 1 if something that decoding needs is missing. A broken third-party plugin is a
    warning: everything else works.
    """
    checks = list(examine(session))
    ok = all(check.status != "failed" for check in checks)
    if as_json:
        print_json({"ok": ok, "checks": [attrs.asdict(check) for check in checks]})
    else:
        for check in checks:
            click.echo(f"{check.status:<8} {check.name:<13} {check.detail}")
    return 0 if ok else 1


def examine(session: Session) -> Iterator[Check]:
    """Every check, in the order shown; none of them raises."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Check("draftwood", "ok", f"{draftwood.__version__}, {python}, {platform.platform()}")
    yield _check("torch", _torch)
    yield _check("devices", _devices)
    yield _check("threads", _threads)
    yield _check("transformers", lambda: _release("transformers"))
    yield _check("triton", lambda: _release("triton"), missing="warning")
    yield _check("kernels", _kernels)
    yield _check("model", _bundled, missing="warning")
    yield _check("cache", _cache, missing="warning")
    yield from _plugins(session)


def _check(name: str, find: Callable[[], str], *, missing: str = "failed") -> Check:
    try:
        return Check(name, "ok", find())
    except Exception as error:  # noqa: BLE001 - whatever is wrong is the finding
        return Check(name, missing, f"{type(error).__name__}: {error}".splitlines()[0])


def _torch() -> str:
    torch = import_module("torch")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    return f"{torch.__version__}, built with {built}"


def _devices() -> str:
    torch = import_module("torch")
    count = torch.cuda.device_count()
    names = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(count)]
    return ", ".join(["cpu", *names])


def _threads() -> str:
    torch = import_module("torch")
    return f"torch uses {torch.get_num_threads()} of {os.cpu_count()} processors"


def _release(name: str) -> str:
    try:
        found = version(name)
    except PackageNotFoundError:
        raise ImportError(f"{name} is not installed") from None
    import_module(name)
    return found


def _kernels() -> str:
    """What `runtime.kernels: auto` chooses where a target is on this machine's first device."""
    from draftwood.core.kernels.available import unavailable_reason

    device = "cuda" if import_module("torch").cuda.is_available() else "cpu"
    if (reason := unavailable_reason(device)) is not None:
        return f"runtime.kernels: auto is torch: {reason}"
    name = "triton" if device == "cuda" else "torch unless verifier: {use: triton}"
    return f"runtime.kernels: auto is {name} on {device}"


def _bundled() -> str:
    from draftwood.core import assets

    parts: tuple[Any, ...] = ("target", "drafter")
    folders = [assets.resolve("builtin", part) for part in parts]
    return f"bundled in {os.path.commonpath([str(folder) for folder in folders])}"


def _cache() -> str:
    from draftwood.core.storage import cache_folder

    folder = cache_folder()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{nearest} is no folder; set DRAFTWOOD_CACHE")
    if not os.access(nearest, os.W_OK):
        raise PermissionError(f"{nearest} cannot be written to; set DRAFTWOOD_CACHE")
    return str(folder)


def _plugins(session: Session) -> Iterator[Check]:
    records = (*session.registry.records, *session.commands[1])
    usable = sum(record.status == "ok" for record in records)
    yield Check("plugins", "ok", f"{usable} usable")
    for record in records:
        if record.broken:
            who = f"{record.name} of '{record.distribution} {record.version}'"
            yield Check("plugins", "warning", f"{who}: {record.cause}")
