"""`pippin verify`, as it is typed."""

import errno
import json
from pathlib import Path

import pytest

from pippin.cli.main import main
from pippin.cli.verbs import verify as verb
from pippin.engines.verify import run
from tests.engines.verify.folders import edit, write_sound


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "pippin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_sound_model_ends_with_0_and_a_fault_with_1(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_sound(home / "sound")
    only = ["--only", "files", "--only", "tokens", "--only", "template"]
    assert main(["verify", str(folder), *only]) == 0
    assert capsys.readouterr().out.endswith("sound: no fault found\n")
    edit(folder, "config.json", bos_token_id=65)
    page = home / "page.html"
    # In this process, which takes a tenth of the time.
    monkeypatch.setattr(verb, "_run", lambda spec, asked, _: run.verify(spec, asked, lambda _: None))
    only = ["--only", "tokens", "--json", "--html"]
    assert main(["verify", str(folder), *only, str(page)]) == 1
    [section] = json.loads(capsys.readouterr().out)["sections"]
    assert [each["code"] for each in section["findings"]] == ["bos-disagrees"]
    # A page that can't be written takes no report away.
    assert main(["verify", str(folder), *only, str(home / "absent" / "page.html")]) == 1
    assert json.loads(capsys.readouterr().out)["sections"]
    written = page.read_text("utf-8")
    assert "1 fault, 0 warnings" in written
    assert "http" not in written
    assert str(home) not in written

    def full(self: Path, *_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["verify", str(folder), *only, str(page)]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["sections"]
    assert "A file can't be written: No space left on device." in told.err


def test_what_can_not_be_verified_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "play.script.json").write_text("{}")
    assert main(["verify", str(home / "play.script.json")]) == 1
    assert "is a script" in capsys.readouterr().err
    assert main(["verify", "absent"]) == 1
    assert main(["verify", "absent", "another"]) == 2
    assert "another: one word too many." in capsys.readouterr().err
    assert main(["verify", "absent", "--only", "taste"]) == 2
    assert "invalid choice: 'taste'" in capsys.readouterr().err
    assert main(["verify", "absent", "--lm-eval", "arc_easy"]) == 2
    assert 'Install it: pip install "lm-eval[api]"' in capsys.readouterr().err
