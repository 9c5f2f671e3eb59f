"""Read the planned run (`run.json`) into frozen records and check it before anything heavy is imported."""

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from trainer.errors import TrainerError
from trainer.spec import PlannedRun, check_trainable

SCHEMA_VERSION = 1
MODES = ("performance", "checkpoint_save", "checkpoint_load", "profile", "nccl_trace")

TRACE_FOLDER = "torch_profile"
"""Folder for torch's profiler below the job's folder."""

TFLOPS_FIELD = "TFLOPS_per_GPU"
"""NeMo's name for the TFLOPS in a step's line."""
WALL_TIME_FIELD = "wall_step_timing in s"
"""steptime's field in a step's line: seconds from the end of the previous step to the end of this one."""

Record = TypeVar("Record")


@dataclass(frozen=True)
class Folders:
    """The folders and files that the job reads and writes."""

    output: Path
    """The job's folder; the framework's files and checkpoints go below it."""
    weights: Path | None = None
    """The checkpoint to load, as the framework wants it named, for a run that loads one."""
    history: Path | None = None
    """File with the loss and time of every step in full precision."""


def read_run(path: Path) -> PlannedRun:
    """Read and check a planned run.

    Raises:
        TrainerError: the file cannot be read, has another schema version, lacks a field, has a wrong type, or
            cannot be trained.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainerError(f"cannot read the planned run {path}: {error.strerror}.") from error
    except ValueError as error:
        raise TrainerError(f"the planned run {path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise TrainerError(f"the planned run {path} is not a JSON object.")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise TrainerError(
            f"{path} has schema_version {version!r}, but this trainer reads {SCHEMA_VERSION}: plan and train "
            "with the same version of steptime."
        )
    run = _record(PlannedRun, content, where=str(path))
    _check(run)
    return run


def _record(cls: type[Record], content: Mapping[str, Any], where: str) -> Record:
    """Build a dataclass from JSON; fields of the JSON that the trainer does not use are ignored."""
    types_of = get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in content:
            values[field.name] = _value(types_of[field.name], content[field.name], where, field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise TrainerError(f"{where} lacks the field '{field.name}'.")
    return cls(**values)


def _value(expected: Any, value: Any, where: str, name: str) -> Any:
    """Return one JSON value as the annotated type. Raise TrainerError if it does not fit."""
    kind, arguments = get_origin(expected), get_args(expected)
    if kind in (types.UnionType, Union):  # only `X | None` is used
        return None if value is None else _value(arguments[0], value, where, name)
    if kind is Annotated:
        number = _value(arguments[0], value, where, name)
        if not arguments[1].allows(number):
            wanted = "at least" if arguments[1].zero_allowed else "above"
            raise TrainerError(f"{where}: {name} {number} has to be {wanted} 0.")
        return number
    if kind is Literal:
        if value not in arguments:
            raise TrainerError(f"{where}: {name} is {value!r}, not one of {', '.join(map(str, arguments))}.")
        return value
    if is_dataclass(expected) and isinstance(expected, type):
        if not isinstance(value, dict):
            raise TrainerError(f"{where}: {name} is {value!r}, not an object.")
        return _record(expected, value, f"{where}: {name}")
    if kind is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], item, where, name) for item in value)
    plain = kind or expected
    if not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool):
        raise TrainerError(f"{where}: {name} is {value!r}, not of type {plain.__name__}.")
    return value


def _check(run: PlannedRun) -> None:
    """Raise TrainerError for a plan that cannot be trained: an unknown mode, sizes that do not divide, …"""
    if run.mode not in MODES:
        raise TrainerError(f"unknown mode '{run.mode}': this trainer has {', '.join(MODES)}.")
    if not 0 <= run.first_step < run.max_steps:
        raise TrainerError(
            f"first_step {run.first_step} has to be between 0 and max_steps - 1 = {run.max_steps - 1}."
        )
    if run.seed < 1:
        raise TrainerError(f"seed {run.seed} is not positive, which Megatron requires.")
    _check_mode(run)
    try:
        check_trainable(run)
    except ValueError as error:
        raise TrainerError(str(error)) from None


def _check_mode(run: PlannedRun) -> None:
    """Refuse fields that do not fit the mode, and modes that are not supported."""
    if (run.mode == "checkpoint_load") != (run.checkpoint_path is not None):
        raise TrainerError(
            f"mode '{run.mode}' with checkpoint_path {run.checkpoint_path!r}: a checkpoint_load needs a "
            "path, and no other mode takes one."
        )
    if (run.mode == "profile") != (run.profile is not None):
        raise TrainerError(
            f"mode '{run.mode}' with profile {run.profile}: the mode profile needs the steps and ranks to "
            "profile, and no other mode takes them."
        )
    if (run.mode == "checkpoint_load") != (run.first_step > 0):
        raise TrainerError(
            f"mode '{run.mode}' cannot start at first_step {run.first_step}: a checkpoint_load starts "
            "above 0, every other mode at 0."
        )
