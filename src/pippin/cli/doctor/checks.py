"""Checks that this machine can run models, each with advice if it can't."""

import json
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

from pippin.cli.doctor import findings
from pippin.cli.doctor.findings import Finding
from pippin.cli.local import open_catalog, roots
from pippin.cli.running import running_servers
from pippin.cli.terminal import size
from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.config.load import load
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings, Sources

ROOM_FOR_A_MODEL: Final = 10_000_000_000  # bytes
SECONDS: Final = 60


def check_python() -> Iterator[Finding]:
    yield Finding("ok", f"Python {platform.python_version()} on {platform.platform()}")


def check_arrays() -> Iterator[Finding]:
    """Imports MLX in a child process, because a broken MLX may crash its process."""
    command = [sys.executable, "-m", "pippin.engines.device"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield Finding("problem", f"MLX did not import within {SECONDS} seconds.")
        return
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("problem", f"MLX does not import ({last}). On Linux: pip install 'pippin[cpu]'")
        return
    report = json.loads(done.stdout)
    yield Finding("ok", f"MLX {report['version']} on {report['device']}")
    yield findings.products(report)
    yield from findings.metal_kernels(report)
    yield from findings.cpu_kernels(report)


def check_mac() -> Iterator[Finding]:
    """Checks of Macs only: kernel panics, power and heat, wired memory and the GPU's watchdog."""
    if platform.system() != "Darwin":
        return
    yield from findings.panics(
        Path(place).expanduser() / "DiagnosticReports" for place in ("/Library/Logs", "~/Library/Logs")
    )
    yield from findings.power(_said("pmset", "-g"), _said("pmset", "-g", "therm"))
    server = _settings().server
    options = [entry.options for entry in server.models] or [server.model_defaults]
    wanted = [each.wired_limit_gb for each in options if each.wired_limit_gb is not None]
    yield findings.wired_memory(wanted, _said("sysctl", "-n", "iogpu.wired_limit_mb"))
    yield findings.watchdog(environment.variables().get("AGX_RELAX_CDM_CTXSTORE_TIMEOUT"))


def _said(*command: str) -> str:
    """The output of a system program; empty if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def check_memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    yield Finding("ok", f"{size(memory.total)} of memory, {size(memory.available)} of it free")


def check_disk() -> Iterator[Finding]:
    for name, folder in (("downloads", roots().hub), ("imports", roots().imports)):
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        state: Literal["ok", "warning"] = "ok" if free > ROOM_FOR_A_MODEL else "warning"
        yield Finding(state, f"{size(free)} free for {name} in {folder}")


def check_models() -> Iterator[Finding]:
    entries = open_catalog(_settings()).entries()
    usable = [entry for entry in entries if entry.info is not None]
    yield Finding("ok", f"{len(usable)} model{'' if len(usable) == 1 else 's'} here")
    for entry in entries:
        if entry.error is not None and not entry.found.is_gguf:
            yield Finding("warning", f"{entry.found.id}: {entry.error.message}")


def check_server() -> Iterator[Finding]:
    servers = running_servers()
    for server in servers:
        yield Finding("ok", f"A server runs at {server.address} (process {server.pid})")
    port = _settings().server.port
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    if taken and not any(server.address.endswith(f":{port}") for server in servers):
        yield Finding("warning", f"Port {port} is taken by another program: serve with --port")


def check_configuration() -> Iterator[Finding]:
    try:
        notes = load(Sources()).notes
    except ConfigError as error:
        yield Finding("problem", str(error))
        return
    for note in notes:
        yield Finding("warning", note.text)


def _settings() -> Settings:
    """The settings, or the defaults if the configuration is invalid, which `check_configuration` reports."""
    try:
        return load(Sources())
    except ConfigError:
        return Settings(server=ServerOptions())


CHECKS: Final[tuple[Callable[[], Iterator[Finding]], ...]] = (
    check_python,
    check_arrays,
    check_mac,
    check_memory,
    check_disk,
    check_models,
    check_configuration,
    check_server,
)
