"""`pippin doctor`: checks that this machine can run models, and says what to do where it cannot."""

import json
import platform
import shutil
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from pippin.cli import machine_findings as findings
from pippin.cli.bench.scenarios import bench_table
from pippin.cli.local import open_catalog, roots
from pippin.cli.machine_findings import Finding
from pippin.cli.running import address, ask, client_parser, is_there, running_servers
from pippin.cli.terminal import size
from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.config.load import load
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings, Sources
from pippin.core.errors import ServerError

ROOM_FOR_A_MODEL: Final = 10_000_000_000  # bytes
SECONDS: Final = 60
FOREIGN: Final = "https://pippin-doctor.invalid"
"""The origin of a web page that no operator allows."""


def run(arguments: Sequence[str]) -> int:
    parser = client_parser("pippin doctor", "Check that this machine can run models.")
    parser.add_argument(
        "--security",
        action="store_true",
        help="check the security of the configuration and the running server",
    )
    parser.add_argument(
        "--bench",
        action="store_true",
        help="measure the running server too, as `pippin bench --scenarios` does",
    )
    parser.add_argument("--model", default="default", help="the model to measure")
    parsed = parser.parse(arguments)
    if parsed.security:
        found = [*check_security(), *check_running_security(parsed)]
    else:
        found = [finding for check in CHECKS for finding in check()]
    if parsed.json:
        print(json.dumps([{"state": finding.state, "text": finding.text} for finding in found], indent=2))
    else:
        for finding in found:
            print(f"{finding.state:<9}{finding.text}")
    if parsed.bench:
        for line in bench_table(parsed, parsed.model):
            print(line, flush=True)
    return 1 if any(finding.state == "problem" for finding in found) else 0


def check_python() -> Iterator[Finding]:
    yield Finding("ok", f"Python {platform.python_version()} on {platform.platform()}")


def check_arrays() -> Iterator[Finding]:
    """MLX is imported in a process of its own: a broken one may end its process."""
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
    """What only a Mac has: panics, power and heat, wired memory and the GPU's watchdog."""
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
    """What a program of the system prints; nothing where it is missing or fails."""
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
        if entry.error is not None:
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


def check_security() -> Iterator[Finding]:
    """What the configuration means: options of a command line that started a server are that server's to tell."""
    from pippin.api.access.posture import security_findings  # not for every run of the doctor

    try:
        options = load(Sources()).server
    except ConfigError as error:
        yield Finding("problem", str(error))
        return
    for found in security_findings(options):
        yield Finding(found.state, f"Configuration: {found.text}")


def check_running_security(parsed: Namespace) -> Iterator[Finding]:
    """What the server says of itself to an administrator, and what it says to a stranger."""
    if not is_there(parsed):
        yield Finding("ok", "No server runs here; name one with --server.")
        return
    base = address(parsed)
    try:
        told = ask(parsed, "GET", "/v1/security")["findings"]
    except ServerError as error:
        yield Finding(
            "warning", f"{base} does not tell of itself ({error}) Show an administrator's --api-key."
        )
    else:
        yield from (Finding(each["state"], f"{base}: {each['text']}") for each in told)
    yield from _probes(base, is_keyed=bool(parsed.api_key or environment.client_key()))


def _probes(base: str, *, is_keyed: bool) -> Iterator[Finding]:
    """Try what must not work. None of it changes anything where it does."""
    import httpx

    try:
        with httpx.Client(base_url=base, timeout=SECONDS, trust_env=False) as client:
            page = client.get("/v1/models", headers={"origin": FOREIGN, "sec-fetch-site": "cross-site"})
            stranger = client.get("/v1/models")
            manager = client.patch("/v1/settings", json={})
    except httpx.TransportError as error:
        yield Finding("problem", f"No server answers at {base} ({type(error).__name__}).")
        return
    if page.is_success:
        yield Finding("warning", f"{base} answers a web page of {FOREIGN}: see --allowed-origin.")
    else:
        yield Finding("ok", f"{base} refuses a web page of another origin.")
    if is_keyed and stranger.is_success:
        yield Finding("warning", f"{base} answers without a key.")
    elif not stranger.is_success:
        yield Finding("ok", f"{base} answers nobody without a key.")
    if manager.is_success:
        state: Literal["warning", "problem"] = "problem" if is_keyed else "warning"
        yield Finding(state, f"{base} lets anyone who reaches it manage it, as no key is set.")
    else:
        yield Finding("ok", f"{base} lets nobody manage it without a key.")


def _settings() -> Settings:
    """The defaults where the configuration can't be understood, which `check_configuration` tells."""
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
