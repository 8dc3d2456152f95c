"""What `pippin doctor` says of machines that are made up."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pippin.cli.verbs import doctor
from pippin.engines import device

DAY = 86400.0
NOW = 1_800_000_000.0
REPORT: dict[str, Any] = {
    "version": "0.32.4",
    "device": "Device(cpu, 0)",
    "blas": "OpenBLAS",
    "gigaflops": 80.0,
    "system": "Linux",
    "busy": 0.02,
    "architecture": None,
    "nax_kernels": None,
}
M5 = {"architecture": "applegpu_g17s", "system": "Darwin", "device": "Device(gpu, 0)", "blas": None}


@pytest.mark.parametrize(
    ("changes", "state", "words", "never"),
    [
        ({}, "ok", "80 GFLOP/s with OpenBLAS", "busy"),
        ({"gigaflops": 9.0, "busy": 0.9}, "warning", "the machine is busy: others use 90%", "no accelerated"),
        ({"gigaflops": 9.0}, "warning", "a machine that is not busy", "no accelerated"),
        ({"gigaflops": 1.0, "blas": None, "busy": 0.9}, "warning", "the machine is busy", "no accelerated"),
        ({"gigaflops": 1.0, "blas": None}, "warning", "no accelerated BLAS; ", "busy"),
        ({"gigaflops": 1.0, "blas": None, "system": "Darwin"}, "warning", "not busy", "no accelerated"),
    ],
)
def test_a_busy_machine_is_no_fault_of_the_blas(
    changes: dict[str, Any], state: str, words: str, never: str
) -> None:
    found = doctor.products(REPORT | changes)
    assert found.state == state
    assert words in found.text
    assert never not in found.text


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"nax_kernels": False}, True),
        ({"nax_kernels": True}, False),
        ({"nax_kernels": None}, False),  # no library of kernels beside MLX: nobody knows
        ({"nax_kernels": False, "architecture": "applegpu_g16s"}, False),
        ({"nax_kernels": False, "architecture": None}, False),
    ],
)
def test_an_mlx_without_the_kernels_of_its_chip_is_told(changes: dict[str, Any], warned: bool) -> None:
    found = list(doctor.metal_kernels(REPORT | M5 | changes))
    assert [("neural accelerators" in each.text, each.state) for each in found] == [
        (True, "warning")
    ] * warned


@pytest.mark.parametrize(
    ("kernels", "missing", "told"),
    [
        ("avx512", None, ("ok", "Kernels for CPUs with avx512")),
        (None, "the package pippin-kernels is not installed (make kernels)", ("warning", "make kernels")),
    ],
)
def test_the_kernels_for_cpus_are_told_or_what_is_missing(
    kernels: str | None, missing: str | None, told: tuple[str, str]
) -> None:
    report = REPORT | {"device": "Device(cpu, 0)", "kernels": kernels, "kernels_missing": missing}
    [finding] = doctor.cpu_kernels(report)
    assert finding.state == told[0]
    assert told[1] in finding.text


def test_kernels_are_found_in_the_library_beside_mlx(tmp_path: Path) -> None:
    assert device.has_nax_kernels(tmp_path) is None
    library = tmp_path / "lib" / "mlx.metallib"
    library.parent.mkdir()
    library.write_bytes(b"MTLB" + b"\0" * 5000 + b"steel_gemm_fused_nn")
    assert device.has_nax_kernels(tmp_path) is False
    library.write_bytes(b"MTLB" + b"\0" * 5000 + b"steel_gemm_fused_nax_nn")
    assert device.has_nax_kernels(tmp_path) is True


def panic(folder: Path, name: str, days: float, words: str = "") -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(words)
    os.utime(path, (NOW - days * DAY,) * 2)


def test_panics_of_the_last_days_are_told(tmp_path: Path) -> None:
    reports = tmp_path / "DiagnosticReports"
    folders = [reports, tmp_path / "not there"]
    [none] = doctor.panics(folders, NOW)
    assert (none.state, none.text) == ("ok", "No kernel panic in 7 days")
    panic(reports, "panic-full-old.panic", 20)
    panic(reports, "app.ips", 1)
    assert [each.state for each in doctor.panics(folders, NOW)] == ["ok"]
    kexts = "loaded kexts:\\ncom.apple.AGXG13X 227.3\\ncom.apple.iokit.IOGPUFamily 104.2"
    panic(reports, "panic-full-1.panic", 3, f'{{"panicString": "panic(cpu 0): x\\n{kexts}"}}')
    [one] = doctor.panics(folders, NOW)
    assert one.state == "warning"
    assert one.text.startswith("A kernel panic in 7 days")
    assert "GPU" not in one.text
    panic(
        reports,
        "panic-full-2.panic",
        1,
        '{"panicString": "IOGPUMemory completeMemory() prepare count underflow"}',
    )
    [two] = doctor.panics(folders, NOW)
    assert two.text.startswith("2 kernel panics")
    assert "(panic-full-2.panic). The last one names the GPU" in two.text


PLUGGED = """System-wide power settings:
Currently in use:
 standby              1
 lowpowermode         {low}
 sleep                1 (sleep prevented by caffeinate)
"""
COOL = (
    "Note: No thermal warning level has been recorded\nNote: No performance warning level has been recorded\n"
)
HOT = (
    "Note: No thermal warning level has been recorded\nCPU_Scheduler_Limit \t= 100\nCPU_Speed_Limit \t= 61\n"
)


@pytest.mark.parametrize(
    ("settings", "thermal", "words"),
    [
        (PLUGGED.format(low=0), COOL, []),
        (PLUGGED.format(low=1), COOL, ["Low Power Mode"]),
        (PLUGGED.format(low=0), HOT, ["61 %"]),
        (PLUGGED.format(low=1), "Thermal warning level set to 2\n", ["Low Power Mode", "level 2"]),
        ("", "", []),
    ],
)
def test_what_slows_a_mac_down_is_told(settings: str, thermal: str, words: list[str]) -> None:
    found = list(doctor.power(settings, thermal))
    assert len(found) == len(words)
    for finding, word in zip(found, words, strict=True):
        assert finding.state == "warning"
        assert word in finding.text


def test_the_wired_limit_is_told() -> None:
    quiet = doctor.wired_memory([], "0\n")
    assert (quiet.state, "wire what large weights need" in quiet.text) == ("ok", True)
    assert "57344 MiB" in doctor.wired_memory([], "57344").text
    loud = doctor.wired_memory([20.0, 4.5], "")
    assert (loud.state, "up to 24.5 GB" in loud.text) == ("warning", True)


def test_a_mac_is_asked_with_its_own_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in (("pmset", PLUGGED.format(low=1)), ("sysctl", "49152")):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(doctor.platform, "system", lambda: "Darwin")
    texts = [finding.text for finding in doctor.check_mac()]
    assert "Low Power Mode is on: models run at about half their speed" in texts
    assert any("49152 MiB" in text for text in texts)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert doctor._said("pmset", "-g") == ""


def test_elsewhere_nothing_of_a_mac_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    assert list(doctor.check_mac()) == []


def test_the_report_of_this_machine_has_all_that_is_judged() -> None:
    report = json.loads(json.dumps(device.report()))
    assert report.keys() >= REPORT.keys()
    assert 0.0 <= report["busy"] <= 1.0
