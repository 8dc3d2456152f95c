"""Where a worker runs: on this machine, or on another where a command starts it (ssh, or a Ray cluster's actor)."""

import shlex
from pathlib import Path

import msgspec

from pippin.config.options.model import LOOPBACK, ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.safetensors import digest_of


def is_here(machine: str, first: str = LOOPBACK[0]) -> bool:
    """Whether `machine` is this one; `first` is another address of this machine."""
    return machine == first or machine in LOOPBACK


def shared_out(spec: WorkerSpec, count: int) -> WorkerSpec:
    """The spec for each of `count` workers on this machine, which share its memory and threads."""
    threads = None if spec.threads is None else max(1, spec.threads // max(1, count))
    return msgspec.structs.replace(spec, expected_bytes=spec.expected_bytes // max(1, count), threads=threads)


def elsewhere(spec: WorkerSpec, machine: str, options: ModelOptions) -> WorkerSpec:
    """The spec for a worker on another machine, where it may use all processors. Raises `ServerError`."""
    return reached_by(command_for(machine, options, spec.info), spec, machine)


def reached_by(command: str, spec: WorkerSpec, machine: str) -> WorkerSpec:
    """The spec for a worker on another machine, reached over the input and output of `command`. Raises
    `ServerError`."""
    try:
        files = digest_of(Path(spec.info.path or ""))
    except OSError as error:
        message = f"The files of the model {spec.info.id!r} cannot be read: {error.strerror}."
        raise ServerError("load_failed", message) from error
    return msgspec.structs.replace(
        spec, machine=machine, command=command, files=files, threads=None, expected_bytes=0
    )


def command_for(machine: str, options: ModelOptions, info: ModelInfo) -> str:
    """The command that starts a worker there. Names are quoted both for that machine's shell and for ours."""
    given = {"machine": machine, "model": shlex.quote(info.id), "path": shlex.quote(info.path or "")}
    quoted = {name: shlex.quote(text) for name, text in given.items()}
    try:
        return options.machine_command.format(**quoted)
    except (KeyError, IndexError, ValueError) as error:
        message = (
            f"machine_command has an unknown placeholder ({error}): use {{machine}}, {{model}} and {{path}}."
        )
        raise ServerError("load_failed", message, "machine_command") from error
