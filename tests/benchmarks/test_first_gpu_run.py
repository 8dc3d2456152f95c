"""The first run on a GPU writes its report whatever becomes of its parts."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import first_gpu_run

PARTS = """
import os, sys, time
name = sys.argv[1]
if name == "operations":
    print('{"exactly": "%s"}' % os.environ.get("MLX_ENABLE_TF32"))
    sys.stdout.buffer.write(bytes([255, 10]))
    raise RuntimeError(f"[METAL] Command buffer execution failed in {os.path.expanduser('~')}/mlx")
if name == "copies":
    print('{"before": "it hangs"}', flush=True)
    time.sleep(60)
if name == "exact":
    print('{"exactly": "%s"}' % os.environ["MLX_ENABLE_TF32"])
    print("a library's line")
    print('{"cut', end="", flush=True)
    os.abort()
"""


def test_each_part_may_fail_and_the_report_has_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_up_parts.py").write_text(PARTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    monkeypatch.setattr(first_gpu_run, "MODULE", "made_up_parts")
    monkeypatch.setattr(first_gpu_run, "GRACE", 0.0)
    report = tmp_path / "report.jsonl"
    first_gpu_run.main(
        ["--report", str(report), "--seconds", "0", "--parts", "operations", "copies", "exact"]
    )
    told = [json.loads(line) for line in report.read_text().splitlines()]
    failed, hung, died = (
        [each for each in told if each["part"] == name] for name in ("operations", "copies", "exact")
    )
    assert [each.get("exactly") for each in failed] == ["None", None, None]
    assert failed[1]["printed"] == "\ufffd"
    assert failed[2]["ended"] == 1
    assert "[METAL]" in failed[2]["last_words"]
    assert [each.get("before", each.get("ended")) for each in hung] == ["it hangs", "time"]
    assert died[0]["exactly"] == "0"
    assert [each["printed"] for each in died[1:3]] == ["a library's line", '{"cut']
    assert died[3]["ended"] == -6
    assert os.path.expanduser("~") not in report.read_text()


def test_its_parts_are_those_that_there_are() -> None:
    source = (Path(first_gpu_run.__file__).parent / "gpu_parts.py").read_text()
    shares = list(first_gpu_run.PARTS.values())
    assert shares == sorted(shares)
    assert shares[-1] == 1
    for name in first_gpu_run.PARTS:
        assert f"\ndef {name}(run: Run)" in source, name
