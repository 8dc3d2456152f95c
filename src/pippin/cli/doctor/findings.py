"""The findings of `pippin doctor`, from facts about a machine that tests can make up."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

SLOW_PRODUCTS: Final = 10.0  # GFLOP/s of a float32 product; a BLAS without vector instructions does about one
BUSY: Final = 0.3  # share of the processors used by other programs
PANIC_DAYS: Final = 7.0
REPORT_BYTES: Final = 1 << 20  # bytes of a report that are searched
NEURAL_ACCELERATORS: Final = 17  # first GPU generation with neural accelerators, the M5's, as MLX counts


@dataclass(frozen=True)
class Finding:
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
    return Finding("warning", f"{found}: no accelerated BLAS; pip install 'pippin[cpu]'")


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
        amx = ". This CPU has AMX: --cpu-activations int8-amx uses it, untested" if report.get("amx") else ""
        yield Finding("ok", f"Kernels for CPUs with {report['kernels']}{amx}")
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
    hint = ""
    if _names_the_gpu(last):
        hint = (
            " The last one names the GPU: leave `wired_limit_gb` unset, lower `memory_percent`, update macOS"
        )
    yield Finding("warning", f"{count} in {PANIC_DAYS:.0f} days, the last on {when} ({last.name}).{hint}")


def _names_the_gpu(report: Path) -> bool:
    try:
        with report.open("rb") as file:
            words = file.read(REPORT_BYTES)
    except OSError:
        return False
    return any(word in words for word in (b"IOGPU", b"AGX", b"completeMemory"))


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
        return Finding("ok", f"Wired memory: models wire none (`wired_limit_gb` is not set), {most}")
    return Finding(
        "warning",
        f"Wired memory: models wire up to {sum(wanted):g} GB (`wired_limit_gb`), {most}. Servers that wire most of the "
        "memory made macOS panic",
    )


def watchdog(environment_value: str | None) -> Finding:
    """macOS's time limit on GPU work, and how to relax it. The value is that of `AGX_RELAX_CDM_CTXSTORE_TIMEOUT`."""
    name = "AGX_RELAX_CDM_CTXSTORE_TIMEOUT"
    if environment_value not in (None, "", "0"):
        return Finding("ok", f"{name} is set: macOS lets work on the GPU last longer")
    return Finding(
        "ok",
        "macOS ends work on the GPU that keeps the display waiting. If a log says `Impacting Interactivity`, start the "
        f"server with {name}=1, or with the display off",
    )
