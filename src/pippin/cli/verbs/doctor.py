"""What is installed here: `pippin doctor` checks that this machine can run models, and gives advice if it can't, and
`version` names the version."""

import contextlib
import json
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from pippin import __version__
from pippin.cli.arguments import CLIENT, switch, verb
from pippin.cli.local import open_catalog, roots
from pippin.cli.running import address, ask, is_there, running_servers
from pippin.cli.terminal import as_json, size
from pippin.config import environment
from pippin.config.errors import ConfigError, install_command
from pippin.config.load import load
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.core.errors import ServerError
from pippin.core.logs import without_secrets


@verb(
    "doctor",
    *CLIENT,
    switch("--security", help="try what the running server lets strangers do"),
    switch("--report", help="print facts to send with a question, without paths or keys"),
)
def doctor(parsed: Namespace) -> int:
    if parsed.report:
        print(as_json(report(parsed)))
        return 0
    checks = (partial(check_security, parsed),) if parsed.security else CHECKS
    found = [finding for check in checks for finding in check()]
    if parsed.json:
        print(as_json(found))
    else:
        for finding in found:
            print(f"{finding.state:<9}{finding.text}")
    return 1 if any(finding.state == "problem" for finding in found) else 0


@verb("version")
def version(_: Namespace) -> int:
    print(f"pippin {__version__}")
    return 0


SLOW_PRODUCTS: Final = 10.0  # GFLOP/s of a float32 product; a BLAS without vector instructions does about one
BUSY: Final = 0.3  # share of the processors used by other programs
PANIC_DAYS: Final = 7.0
REPORT_BYTES: Final = 1 << 20  # bytes of a report that are searched
NEURAL_ACCELERATORS: Final = 17  # first GPU generation with neural accelerators, the M5's, as MLX counts


class Finding(Struct, frozen=True):
    state: Literal["ok", "warning", "problem"]
    text: str


def products(report: dict[str, Any]) -> Finding:
    """Judges the speed of matrix products; `report` is the output of `pippin.engines.device`."""
    by = f" with {report['blas']}" if report["blas"] else ""
    found = f"Matrix products at {report['gigaflops']:.0f} GFLOP/s{by}"
    if report["gigaflops"] > SLOW_PRODUCTS:
        return Finding("ok", found)
    if report["busy"] > BUSY:
        return Finding(
            "warning",
            f"{found}, but the machine is busy: others use {report['busy']:.0%} of its processors. Ask again when it "
            "rests",
        )
    if report["blas"] or report["system"] != "Linux" or "cpu" not in report["device"].lower():
        return Finding("warning", f"{found}: little, of a machine that is not busy")
    return Finding("warning", f"{found}: no accelerated BLAS; {install_command('cpu')}")


def metal_kernels(report: dict[str, Any]) -> Iterator[Finding]:
    """Whether MLX has the kernels for this Mac's GPU: one of its wheels lacks the kernels for the M5."""
    found = re.fullmatch(r"applegpu_g(\d+)\w*", report.get("architecture") or "")
    if found is None or int(found[1]) < NEURAL_ACCELERATORS or report.get("nax_kernels") is not False:
        return
    yield Finding(
        "warning",
        f"MLX {report['version']} lacks the kernels of this GPU's neural accelerators: prompts take up to three times "
        "as long. Install another version of mlx",
    )


def cpu_kernels(report: dict[str, Any]) -> Iterator[Finding]:
    """Whether models on this CPU can run on their packed weights."""
    if report.get("kernels"):
        yield Finding("ok", f"Kernels for CPUs with {report['kernels']}")
    elif "cpu" in report["device"]:
        yield Finding(
            "warning", f"No kernels for CPUs, models run in float32: {report.get('kernels_missing')}"
        )


def panics(folders: Iterable[Path], now: float | None = None) -> Iterator[Finding]:
    """The kernel panics of the last days, from the reports that macOS writes."""
    since = (time.time() if now is None else now) - PANIC_DAYS * 86400
    reports = sorted(
        (written, path)
        for folder in folders
        if folder.is_dir()
        for path in folder.glob("*.panic")
        if (written := path.stat().st_mtime) > since
    )
    if not reports:
        yield Finding("ok", f"No kernel panic in {PANIC_DAYS:.0f} days")
        return
    written, last = reports[-1]
    count = "A kernel panic" if len(reports) == 1 else f"{len(reports)} kernel panics"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(written))
    hint = " The last one names the GPU: leave `wired_limit_gb` unset, lower `memory_percent`, update macOS"
    told = hint if _names_the_gpu(last) else ""
    yield Finding(
        "warning",
        f"{count} in {PANIC_DAYS:.0f} days, the last on {when} ({last.name}).{told}",
    )


def _names_the_gpu(report: Path) -> bool:
    with contextlib.suppress(OSError), report.open("rb") as file:
        # A GPU's driver is one of them in any case.
        words, *_ = file.read(REPORT_BYTES).split(b"loaded kexts")
        return any(word in words for word in (b"IOGPU", b"AGX", b"completeMemory"))
    return False


def power(settings: str, thermal: str) -> Iterator[Finding]:
    """Conditions that slow a Mac down. `settings` is the output of `pmset -g`, `thermal` that of `pmset -g therm`."""
    if re.search(r"^\s*lowpowermode\s+1\b", settings, re.MULTILINE):
        yield Finding("warning", "Low Power Mode is on: models run at about half their speed")
    limits = [int(found) for found in re.findall(r"(?:CPU_Speed_Limit|GPU_Speed_Limit)\s*=\s*(\d+)", thermal)]
    level = re.search(r"thermal warning level[^\d\n]*(\d+)", thermal, re.IGNORECASE)
    if min(limits, default=100) < 100:
        yield Finding("warning", f"The machine is hot: macOS holds it to {min(limits)} % of its speed")
    elif level is not None and int(level[1]) > 0:
        yield Finding("warning", f"The machine is hot: macOS has recorded thermal warning level {level[1]}")


def wired_memory(wanted: Sequence[float], system_limit: str) -> Finding:
    """How much memory may be wired. `wanted` are the models' `wired_limit_gb`; `system_limit` is the output of
    `sysctl -n iogpu.wired_limit_mb`, in MiB, where 0 leaves the limit to macOS."""
    digits = system_limit.strip()
    given = f"{digits} MiB" if digits.isdigit() and int(digits) else "what macOS chooses"
    most = f"the GPU may wire {given}"
    if not wanted:
        return Finding("ok", f"Wired memory: models wire what large weights need and no more, {most}")
    return Finding(
        "warning",
        f"Wired memory: models wire up to {sum(wanted):g} GB (`wired_limit_gb`), {most}. Servers that wire most of the "
        "memory made macOS panic",
    )


FOREIGN: Final = "https://pippin-doctor.invalid"
"""The origin of a web page that no operator allows."""


def check_security(parsed: Namespace) -> Iterator[Finding]:
    """What a running server answers to strangers. The requests must be refused, and change nothing even if they are
    not."""
    if not is_there(parsed):
        yield Finding("ok", "No server runs here; name one with --server.")
        return
    import httpx

    named, is_keyed = address(parsed), bool(parsed.api_key or environment.client_key())
    base = without_secrets(named)
    try:
        with httpx.Client(base_url=named, timeout=SECONDS, trust_env=False) as client:
            page = client.get("/v1/models", headers={"origin": FOREIGN, "sec-fetch-site": "cross-site"})
            stranger = client.get("/v1/models")
            manager = client.patch("/v1/settings", json={})
    except (httpx.TransportError, httpx.InvalidURL) as error:
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


ROOM_FOR_A_MODEL: Final = 10_000_000_000  # bytes
SECONDS: Final = 60


def arrays() -> dict[str, Any]:
    """The output of `pippin.engines.device`, or why there is none as `error`. MLX is imported in a child process,
    because a broken MLX may crash its process."""
    command = [sys.executable, "-m", "pippin.engines.device"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"MLX did not import within {SECONDS} seconds."}
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"error": f"MLX does not import ({last}). On Linux: {install_command('cpu')}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_arrays() -> Iterator[Finding]:
    yield Finding("ok", f"Python {platform.python_version()} on {platform.platform()}")
    report = arrays()
    if "error" in report:
        yield Finding("problem", report["error"])
        return
    yield Finding("ok", f"MLX {report['version']} on {report['device']}")
    yield products(report)
    yield from metal_kernels(report)
    yield from cpu_kernels(report)


def check_mac() -> Iterator[Finding]:
    """Checks of Macs only: kernel panics, power and heat, wired memory."""
    if platform.system() != "Darwin":
        return
    yield from panics(
        Path(place).expanduser() / "DiagnosticReports" for place in ("/Library/Logs", "~/Library/Logs")
    )
    yield from power(_said("pmset", "-g"), _said("pmset", "-g", "therm"))
    server = _settings().server
    options = [entry.options for entry in server.models] or [server.model_defaults]
    wanted = [each.wired_limit_gb for each in options if each.wired_limit_gb is not None]
    yield wired_memory(wanted, _said("sysctl", "-n", "iogpu.wired_limit_mb"))


def _said(*command: str) -> str:
    """The output of a system program; empty if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def check_room() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    yield Finding("ok", f"{size(memory.total)} of memory, {size(memory.available)} of it free")
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


def check_agreement() -> Iterator[Finding]:
    """How near the batches of loaded models are to single sequences."""
    with contextlib.suppress(ServerError):
        for each in _loaded(Namespace(server=None, api_key=None)):
            if each.get("agreement"):
                yield Finding("ok", f"{each['id']}: batches as alone, within {each['agreement']}")


def _loaded(parsed: Namespace) -> Iterator[dict[str, Any]]:
    """What the server tells of each model that it has in memory."""
    for each in ask(parsed, "GET", "/v1/models")["data"] if is_there(parsed) else ():
        if each["loaded"]:
            yield ask(parsed, "GET", f"/v1/models/{each['id']}")


def check_configuration() -> Iterator[Finding]:
    try:
        notes = load().notes
    except ConfigError as error:
        yield Finding("problem", str(error))
        return
    for note in notes:
        yield Finding("warning", note.text)


def _settings() -> Settings:
    """The settings, or the defaults if the configuration is invalid, which `check_configuration` reports."""
    try:
        return load()
    except ConfigError:
        return Settings(server=ServerOptions())


def report(parsed: Namespace) -> dict[str, Any]:
    """What to send with a question: this machine as MLX sees it, what is wrong with it, and how near the batches of
    loaded models are to single sequences. There are no paths, keys or texts in it."""
    findings = [each.text for each in check_mac() if each.state != "ok"]
    models: list[dict[str, Any]] = []
    # A server that tells nothing, for want of a key or of life, is no reason to tell nothing of the machine.
    try:
        models.extend(
            {"id": each["id"], **each["metadata"], "agreement": each.get("agreement")}
            for each in _loaded(parsed)
        )
    except ServerError as error:
        findings.append(error.report.message)
    return {
        "pippin": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "mlx": arrays(),
        "findings": findings,
        "models": models,
    }


CHECKS: Final[tuple[Callable[[], Iterator[Finding]], ...]] = (
    check_arrays,
    check_mac,
    check_room,
    check_models,
    check_configuration,
    check_server,
    check_agreement,
)
