"""Where a worker runs: on this machine, or on another where a command starts it (ssh, or a Ray cluster's actor)."""

import shlex
from pathlib import Path

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.core.safetensors import digest_of


def shared_out(spec: WorkerSpec, count: int) -> WorkerSpec:
    """The spec for each of `count` workers on this machine, which share its memory and threads."""
    threads = None if spec.threads is None else max(1, spec.threads // max(1, count))
    return msgspec.structs.replace(spec, expected_bytes=spec.expected_bytes // max(1, count), threads=threads)


def elsewhere(spec: WorkerSpec, machine: str, options: ModelOptions) -> WorkerSpec:
    """The spec for a worker on another machine, where it may use all processors. Raises `ServerError`."""
    info = spec.info
    # Names are quoted both for that machine's shell and for ours.
    given = {"machine": machine, "model": shlex.quote(info.id), "path": shlex.quote(info.path or "")}
    try:
        command = options.machine_command.format(**{name: shlex.quote(text) for name, text in given.items()})
    except (KeyError, IndexError, ValueError) as error:
        message = (
            f"machine_command has an unknown placeholder ({error}): use {{machine}}, {{model}} and {{path}}."
        )
        raise ServerError("load_failed", message, "machine_command") from error
    return reached_by(command, spec, machine)


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
