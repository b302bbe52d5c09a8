"""A run is identified by its configuration; it is not continued under another one."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from draftwood.core.errors import DraftwoodError
from draftwood.training.config import TrainingConfig

RECORD = "run.json"
CHANGEABLE = ("work", "export", "pace", "device", "train.minutes", "train.steps")
"""Keys that may change while a run is continued: where and how long it runs."""


def check_identity(config: TrainingConfig, resume: bool) -> None:
    """Compare the configuration with the one that this work folder was started with.

    Without `resume` the drafter of the earlier run is deleted here, so that an interrupted restart
    can never export it.

    Raises:
        DraftwoodError: The run was started with another configuration; the keys that differ are
            named, with both values. Or a checkpoint is there without a record of its
            configuration.
    """
    path, now = config.work / RECORD, dict(_flat(_plain(config)))
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if not resume:
        for name in ("drafter.pt", "drafter-report.json"):
            (config.work / name).unlink(missing_ok=True)
        if record is not None:  # the earlier export stays this folder's to replace
            _write(path, {**record, "configuration": now})
    elif record is None:
        if (config.work / "drafter.pt").exists():
            raise DraftwoodError(
                f"{config.work} holds the checkpoint of a run whose configuration was not recorded "
                "(drafter.pt without run.json), so it cannot be continued; begin anew with "
                "--restart, or set another work folder"
            )
    else:
        before = record["configuration"]
        changed = [
            f"{key}: {before.get(key)!r} -> {now.get(key)!r}"
            for key in sorted({*before, *now})
            if not _is_free(key) and before.get(key) != now.get(key)
        ]
        if changed:
            listed = "\n  ".join(changed)
            raise DraftwoodError(
                f"{config.work} holds a run with another configuration:\n  {listed}\n"
                "  continue it with the old values, begin anew with --restart, or set another work "
                "folder"
            )


def record_configuration(config: TrainingConfig) -> None:
    """Record the configuration in the work folder, unless it is recorded there."""
    path = config.work / RECORD
    if not path.exists():
        _write(path, {"configuration": dict(_flat(_plain(config))), "export": None})


def check_export(config: TrainingConfig) -> None:
    """Refuse to write over anything that is not an earlier export of this very run.

    Raises:
        DraftwoodError: The folder is the target's, or holds something else.
    """
    folder = config.export.resolve()
    target = Path(config.target)
    if target.is_dir() and folder == target.resolve():
        raise DraftwoodError(
            f"export: {config.export} is the target's own folder, whose files it would replace; "
            "set another one"
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DraftwoodError(f"export: {config.export} is a file; set a new folder")
    present = {path.name for path in folder.iterdir()}
    path = config.work / RECORD
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    own = record.get("files", ()) if record.get("export") == str(folder) else ()
    if not present <= {*own}:
        listed = ", ".join(sorted(present)[:4])
        raise DraftwoodError(
            f"export: {config.export} is not empty and not an earlier export of this run "
            f"(it holds {listed}); set a new folder, or delete it"
        )


def record_export(config: TrainingConfig, written: Path) -> None:
    """Remember what this run puts into its export folder, which its next export may replace.

    Called before the folder is replaced: after a crash it holds the earlier files or the new ones.

    Args:
        config: The run.
        written: The folder that is about to become the export.
    """
    path, folder = config.work / RECORD, str(config.export.resolve())
    record = json.loads(path.read_text(encoding="utf-8"))
    earlier = record.get("files", ()) if record["export"] == folder else ()
    files = sorted({*earlier, *(file.name for file in written.iterdir())})
    _write(path, {**record, "export": folder, "files": files})


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in CHANGEABLE)


def _plain(config: TrainingConfig) -> Any:
    values = {**attrs.asdict(config), "class": type(config).__name__}
    return json.loads(json.dumps(values, default=str))


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("train.batch", 8), ...: a nested mapping's leaves by their keys."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def _write(path: Path, record: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
