"""Downloads from a hub on loopback: what is fetched, what is not, and every way it can go wrong."""

import asyncio
import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pippin.catalog import Catalog, CatalogRoots, hub_child
from pippin.catalog.download import Download, Fetched, Refused, download
from pippin.catalog.hub_child import Fetch
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError
from tests.catalog.fake_hub import COMMIT, FakeHub, serving
from tests.catalog.folders import write_model

Heard = list[tuple[int, int, str]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    staged = write_model(tmp_path / "staged")
    files = {path.name: path.read_bytes() for path in staged.iterdir()}
    files |= {"tokenizer.json": b"{}", "chat_template.jinja": b"x", "modeling.py": b"raise SystemExit(1)"}
    files |= {"added_tokens.json": b"{}", "special_tokens_map.json": b"{}"}  # one blob with the tokenizer's
    files |= {"pytorch_model.bin": b"pickle", "original/model.safetensors": b"again", "README.md": b"read"}
    files["big.safetensors"] = os.urandom(3_000_000)
    with serving(FakeHub(files)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "src"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield running


def fetch(
    tmp_path: Path, *, timeout: float = 20, retries: int = 0, name: str = "org/model"
) -> tuple[Path, Heard]:
    heard: Heard = []
    wanted = Download(
        repository=name, cache=str(tmp_path / "cache"), timeout=timeout, retries=retries, first_wait=0.01
    )
    folder = asyncio.run(download(wanted, lambda done, total, what: heard.append((done, total, what))))
    return Path(folder), heard


def test_a_model_is_fetched_without_code_and_pickles(hub: FakeHub, tmp_path: Path) -> None:
    folder, heard = fetch(tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "big.safetensors",
        "tokenizer.json",
        "added_tokens.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    }
    assert not any(path.endswith((".py", ".bin", ".md")) for path in hub.asked)
    assert heard[-1][0] == heard[-1][1] > 3_000_000
    assert (tmp_path / "cache" / "models--org--model" / "refs" / "main").read_text() == COMMIT


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model-00001-of-00002.safetensors", True),
        ("text_encoder/model.safetensors", True),
        ("tokenizer.model", True),
        ("merges.txt", True),
        ("chat_template.jinja", True),
        ("modeling_x.py", False),
        ("sub/evil.py", False),
        ("pytorch_model.bin", False),
        ("model.pt", False),
        ("model.pkl", False),
        ("model.gguf", False),
        ("consolidated.safetensors", False),
        ("original/params.json", False),
    ],
)
def test_only_what_a_model_needs_is_wanted(name: str, wanted: bool) -> None:
    assert bool(hub_child.wanted([name])) is wanted


def test_a_broken_download_goes_on_where_it_ended(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after = 1_000_000
    del hub.files["model.safetensors"]
    folder, _ = fetch(tmp_path, retries=3)
    assert (folder / "big.safetensors").read_bytes() == hub.files["big.safetensors"]
    assert "bytes=1000000-" in hub.ranges


def test_a_later_download_goes_on_where_an_earlier_one_ended(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after = 1_000_000
    del hub.files["model.safetensors"]
    with pytest.raises(ServerError):
        fetch(tmp_path)
    folder, _ = fetch(tmp_path)
    assert (folder / "big.safetensors").read_bytes() == hub.files["big.safetensors"]
    assert hub.ranges[-1] == "bytes=1000000-"


def test_what_is_not_the_file_is_thrown_away(hub: FakeHub, tmp_path: Path) -> None:
    hub.wrong = 1
    folder, _ = fetch(tmp_path, retries=1)
    assert (folder / "big.safetensors").read_bytes() == hub.files["big.safetensors"]


def test_a_file_cannot_leave_the_snapshot(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["../../../evil.json"] = b"{}"
    hub.files["/evil.json"] = b"{}"
    fetch(tmp_path)
    assert not any("evil" in asked for asked in hub.asked)
    assert not list(tmp_path.rglob("evil.json"))


def test_the_token_goes_to_the_hub_alone(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(FakeHub(hub.files)) as elsewhere:
        hub.elsewhere = elsewhere.address
        fetch(tmp_path)
        assert set(hub.tokens) == {"Bearer hf_secret"}
        assert set(elsewhere.tokens) == {None}
        assert any("big.safetensors" in asked for asked in elsewhere.asked)


def test_a_busy_hub_is_asked_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.failures = 2
    _, heard = fetch(tmp_path, retries=5)
    assert heard[-1][0] == heard[-1][1]


def test_a_hub_that_stays_busy_is_given_up(hub: FakeHub, tmp_path: Path) -> None:
    hub.failures = 10_000
    with pytest.raises(ServerError, match="503") as caught:
        fetch(tmp_path, retries=1)
    assert caught.value.report.kind == "load_failed"


def test_a_gated_model_says_how_to_get_in(hub: FakeHub, tmp_path: Path) -> None:
    hub.gated = True
    with pytest.raises(ServerError, match="HF_TOKEN") as caught:
        fetch(tmp_path, retries=3)
    assert caught.value.report.kind == "permission"
    assert len(hub.asked) == 1, "what asking again cannot mend is asked once"


def test_an_unknown_repository_is_not_found(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ServerError) as caught:
        fetch(tmp_path, name="org/nothing")
    assert caught.value.report.kind == "model_not_found"


def test_a_repository_without_safetensors_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    with pytest.raises(ServerError, match="no safetensors") as caught:
        fetch(tmp_path)
    assert caught.value.report.kind == "unsupported"


def test_a_hub_out_of_reach_is_a_clear_sentence(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ServerError, match="cannot be reached"):
        fetch(tmp_path)


def test_a_download_that_stands_still_is_ended(hub: FakeHub, tmp_path: Path) -> None:
    hub.stall = True
    start = time.monotonic()
    with pytest.raises(ServerError, match=r"stood still|cannot be reached") as caught:
        fetch(tmp_path, timeout=3)
    assert caught.value.report.kind in ("timeout", "load_failed")
    assert time.monotonic() - start < 15


def test_leaving_ends_the_child(hub: FakeHub, tmp_path: Path) -> None:
    hub.stall = True

    async def leave() -> None:
        task = asyncio.ensure_future(
            download(Download(repository="org/model", cache=str(tmp_path / "cache")), lambda *_: None)
        )
        await asyncio.to_thread(hub.file_asked.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(leave(), 30))


def test_a_full_disk_is_told_before_the_download(hub: FakeHub, tmp_path: Path) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 10**18

    hub.files["big.safetensors"] = Huge(b"x")
    with pytest.raises(ServerError, match="GB more of disk") as caught:
        fetch(tmp_path)
    assert caught.value.report.kind == "too_large"
    assert not any("resolve" in asked for asked in hub.asked)


def test_a_disk_that_fills_up_during_the_download_is_told_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> Fetched:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Fetch, "_run", write)
    wanted = Download(repository="org/model", cache=str(tmp_path), timeout=1, retries=5, first_wait=0.01)
    refused = Fetch(wanted).run()
    assert isinstance(refused, Refused)
    assert (refused.kind, refused.again) == ("too_large", False)
    assert refused.message == f"Cannot write org/model to {tmp_path}: No space left on device."


def test_the_catalog_downloads_what_is_missing_once(hub: FakeHub, tmp_path: Path) -> None:
    roots = CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports")
    catalog = Catalog(ServerOptions(aliases={"mine": "org/model"}), roots)
    info = asyncio.run(catalog.ensure("mine", lambda *_: None))
    assert (info.id, info.kind, info.context_window) == ("org/model", "language", 64)
    asked = len(hub.asked)
    assert asyncio.run(catalog.ensure("org/model", lambda *_: None)) == info
    assert len(hub.asked) == asked, "a cached model causes no network request"


def test_the_catalog_completes_a_half_downloaded_model(hub: FakeHub, tmp_path: Path) -> None:
    roots = CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports")
    half = roots.hub / "models--org--model" / "snapshots" / COMMIT
    half.mkdir(parents=True)
    (half / "config.json").write_text(json.dumps({"model_type": "llama"}))
    catalog = Catalog(ServerOptions(), roots)
    with pytest.raises(ServerError, match="download has not ended"):
        catalog.resolve("org/model")
    assert asyncio.run(catalog.ensure("org/model", lambda *_: None)).size_bytes > 0


def test_a_model_whose_other_files_are_still_to_come_is_not_here_yet(hub: FakeHub, tmp_path: Path) -> None:
    """Pipelines have weights in several folders, and no list of them: what is there already looks whole."""
    roots = CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports")
    root = roots.hub / "models--org--model"
    write_model(root / "snapshots" / COMMIT)
    (root / "blobs").mkdir()
    (root / "blobs" / "abc.incomplete").touch()
    catalog = Catalog(ServerOptions(), roots)
    with pytest.raises(ServerError, match=r"broken off\. To go on: `pippin pull org/model`"):
        catalog.resolve("org/model")
    asyncio.run(catalog.ensure("org/model", lambda *_: None))
    assert any(path.endswith("/big.safetensors") for path in hub.asked)
    assert catalog.resolve("org/model").size_bytes > 3_000_000, (
        "files of a newer commit may still be under way"
    )


def test_a_request_downloads_nothing_where_that_is_off(hub: FakeHub, tmp_path: Path) -> None:
    roots = CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports")
    catalog = Catalog(ServerOptions(host="0.0.0.0"), roots)
    with pytest.raises(ServerError) as caught:
        asyncio.run(catalog.ensure("org/model", lambda *_: None))
    assert caught.value.report.kind == "model_not_found"
    assert hub.asked == []


def test_a_request_fetches_what_the_operator_named_by_the_name_that_it_is_served_by(
    hub: FakeHub, tmp_path: Path
) -> None:
    entry = ModelEntry(path="org/model", name="mine", preload=False)
    options = ServerOptions(models=(entry,), served_only=True)
    catalog = Catalog(options, CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports"))
    with pytest.raises(ServerError, match="no others"):
        asyncio.run(catalog.ensure("org/other", lambda done, total, what: None))
    assert hub.asked == []
    info = asyncio.run(catalog.ensure("mine", lambda done, total, what: None))
    assert info.id == "mine"
    assert catalog.missing() == []


def test_a_draft_model_and_adapters_may_be_repositories_or_aliases(hub: FakeHub, tmp_path: Path) -> None:
    served = write_model(tmp_path / "served")
    options = ModelOptions(draft_model_path="small", adapters={"tuned": "org/model", "own": str(served)})
    entry = ModelEntry(path=str(served), options=options)
    catalog = Catalog(
        ServerOptions(models=(entry,), aliases={"small": "org/model"}),
        CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports"),
    )
    info = catalog.resolve("served")
    assert catalog.options_for(info).draft_model_path == "small"
    asyncio.run(catalog.complete(info, lambda done, total, what: None))
    found = catalog.options_for(info)
    assert found.draft_model_path is not None
    assert Path(found.draft_model_path, "model.safetensors").exists()
    assert found.adapters == {"tuned": found.draft_model_path, "own": str(served)}
    asked = len(hub.asked)
    closed = Catalog(
        ServerOptions(models=(entry,), allow_downloads=False),
        CatalogRoots(hub=tmp_path / "empty", imports=tmp_path / "imports"),
    )
    asyncio.run(closed.complete(closed.resolve("served"), lambda done, total, what: None))
    assert len(hub.asked) == asked
