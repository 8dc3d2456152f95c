"""Names, listings and the places where models are found."""

import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from pippin.catalog import Catalog, CatalogRoots, default_roots
from pippin.catalog.footprint import footprint
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError
from tests.catalog.folders import write_hub_model, write_model


@pytest.fixture
def roots(tmp_path: Path) -> CatalogRoots:
    return CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports")


def refusal(catalog: Catalog, name: str) -> ServerError:
    with pytest.raises(ServerError) as caught:
        catalog.resolve(name)
    return caught.value


def test_models_are_found_in_every_place(tmp_path: Path, roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/from-hub")
    write_model(roots.imports / "imported")
    write_model(tmp_path / "mine" / "flat")
    write_model(tmp_path / "mine" / "publisher" / "deep")
    write_model(tmp_path / "itself")
    options = ServerOptions(model_dirs=(str(tmp_path / "mine"), str(tmp_path / "itself")))
    ids = {model.id for model in Catalog(options, roots).models()}
    assert ids == {"org/from-hub", "imported", "flat", "publisher/deep", "itself"}


def test_places_that_do_not_exist_hold_no_models(roots: CatalogRoots) -> None:
    assert Catalog(ServerOptions(model_dirs=("/does/not/exist",)), roots).entries() == []


def test_the_snapshot_that_main_names_is_taken(roots: CatalogRoots) -> None:
    write_hub_model(
        roots.hub, "org/model", {"model_type": "llama", "max_position_embeddings": 1}, commit="aaa"
    )
    newer = roots.hub / "models--org--model" / "snapshots" / "bbb"
    write_model(newer, {"model_type": "llama", "max_position_embeddings": 2})
    assert Catalog(ServerOptions(), roots).resolve("org/model").context_window == 1
    (roots.hub / "models--org--model" / "refs" / "main").unlink()
    assert Catalog(ServerOptions(), roots).resolve("org/model").context_window == 2


def test_a_damaged_model_is_listed_with_its_error_and_hides_no_other(roots: CatalogRoots) -> None:
    write_model(roots.imports / "good")
    (write_model(roots.imports / "bad") / "config.json").write_text("{")
    (write_model(roots.imports / "list") / "config.json").write_text("[1]")
    dangling = roots.imports / "dangling"
    dangling.mkdir()
    (dangling / "config.json").symlink_to("nowhere")
    catalog = Catalog(ServerOptions(), roots)
    assert [model.id for model in catalog.models()] == ["good"]
    errors = {entry.found.id: entry.error for entry in catalog.entries() if entry.error is not None}
    assert set(errors) == {"bad", "list", "dangling"}
    assert all(error.kind == "load_failed" for error in errors.values())
    assert refusal(catalog, "bad").report.kind == "load_failed"


def test_an_unreadable_folder_is_no_fault(roots: CatalogRoots, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(roots.imports / "good")
    locked = write_model(roots.imports / "locked") / "config.json"
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == locked:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything
    catalog = Catalog(ServerOptions(), roots)
    assert [model.id for model in catalog.models()] == ["good"]
    assert "Permission denied" in refusal(catalog, "locked").report.message


def test_a_half_downloaded_model_is_named_as_such(roots: CatalogRoots) -> None:
    snapshot = write_hub_model(roots.hub, "org/half")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    write_model(snapshot, **{"model.safetensors.index": index})
    (snapshot / "model.safetensors").rename(snapshot / "model-00001-of-00002.safetensors")
    message = refusal(Catalog(ServerOptions(), roots), "org/half").report.message
    assert "half downloaded: 1 of 2" in message
    assert "pippin pull org/half" in message


def test_a_model_whose_weights_are_missing_is_half_downloaded(roots: CatalogRoots) -> None:
    snapshot = write_hub_model(roots.hub, "org/half")
    (roots.hub / "models--org--half" / "blobs" / "blob-model.safetensors").rename(
        roots.hub / "models--org--half" / "blobs" / "blob.incomplete"
    )
    assert (snapshot / "config.json").exists()
    message = refusal(Catalog(ServerOptions(), roots), "org/half").report.message
    assert message.startswith("The model org/half is only half downloaded: its weights are missing.")


@pytest.mark.parametrize(
    ("missing", "what"), [("tokenizer.json", "tokenizer"), ("config.json", "config.json")]
)
def test_a_model_without_its_small_files_is_half_downloaded(
    roots: CatalogRoots, missing: str, what: str
) -> None:
    write_hub_model(roots.hub, "org/half")
    blobs = roots.hub / "models--org--half" / "blobs"
    (blobs / f"blob-{missing}").rename(blobs / "blob.incomplete")
    (roots.hub / "models--org--half" / "snapshots" / "abc123" / missing).unlink()
    catalog = Catalog(ServerOptions(), roots)
    assert [entry.found.id for entry in catalog.entries()] == ["org/half"]
    report = refusal(catalog, "org/half").report
    assert report.code == "model_incomplete"
    assert f"half downloaded: its {what} is missing. To go on: `pippin pull org/half`." in report.message


def test_an_index_of_other_files_is_no_half_download(roots: CatalogRoots) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    write_model(roots.imports / "converted", **{"model.safetensors.index": index})
    write_model(roots.imports / "null", **{"model.safetensors.index": {"weight_map": None}})
    assert {model.id for model in Catalog(ServerOptions(), roots).models()} == {"converted", "null"}


def newer_snapshot(roots: CatalogRoots) -> Path:
    """Of a model in the Hub's cache: `main` leads to it, and it has only a config.json."""
    root = roots.hub / "models--org--model"
    (root / "refs" / "main").write_text("def456")
    newer = root / "snapshots" / "def456"
    newer.mkdir()
    (newer / "config.json").write_text('{"model_type": "llama"}')
    return newer


def test_the_one_complete_snapshot_is_used_for_an_unfinished_one(roots: CatalogRoots) -> None:
    complete = write_hub_model(roots.hub, "org/model")
    newer_snapshot(roots)
    (roots.hub / "models--org--model" / "blobs" / "weights.incomplete").touch()
    assert Catalog(ServerOptions(offline=True), roots).resolve("org/model").path == str(complete)


def test_one_of_several_complete_snapshots_is_for_the_operator_to_name(roots: CatalogRoots) -> None:
    complete = write_hub_model(roots.hub, "org/model")
    shutil.copytree(complete, complete.with_name("older"))
    newer_snapshot(roots)
    message = refusal(Catalog(ServerOptions(offline=True), roots), "org/model").report.message
    assert str(complete) in message
    assert str(complete.with_name("older")) in message


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<html>", "web page"),
    ],
    ids=["empty", "lfs", "page"],
)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_holds_something_else_is_told(
    roots: CatalogRoots, name: str, content: bytes, what: str
) -> None:
    path = write_hub_model(roots.hub, "org/model") / name
    path.unlink()
    path.write_bytes(content)
    message = refusal(Catalog(ServerOptions(), roots), "org/model").report.message
    assert f"{name} of the model org/model " in message
    assert what in message


def test_a_folder_without_a_tokenizer_is_not_to_be_pulled(tmp_path: Path, roots: CatalogRoots) -> None:
    (write_model(roots.imports / "copied") / "tokenizer.json").unlink()
    assert "fetch or copy it again" in refusal(Catalog(ServerOptions(), roots), "copied").report.message


def test_a_part_of_a_name_is_enough_if_only_one_model_has_it(roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/Llama-3-8B-4bit")
    write_hub_model(roots.hub, "org/Qwen3-0.6B")
    catalog = Catalog(ServerOptions(), roots)
    assert catalog.resolve("llama-3").id == "org/Llama-3-8B-4bit"
    assert catalog.resolve("QWEN3-0.6b").id == "org/Qwen3-0.6B"
    assert catalog.resolve("ORG/qwen3-0.6B").id == "org/Qwen3-0.6B"


def test_a_repositorys_name_never_means_a_longer_one(roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/model-4bit")
    assert "pippin pull org/model" in refusal(Catalog(ServerOptions(), roots), "org/model").report.message


def test_a_name_is_resolved_in_a_millisecond_among_hundreds(roots: CatalogRoots) -> None:
    for number in range(200):
        write_hub_model(roots.hub, f"org/model-{number}")
    catalog = Catalog(ServerOptions(), roots)
    catalog.resolve("org/model-7")
    start = time.perf_counter()
    for _ in range(20):
        catalog.resolve("org/model-7")
    assert (time.perf_counter() - start) / 20 < 0.005


def test_a_model_that_vanishes_is_not_resolved_any_more(roots: CatalogRoots) -> None:
    folder = write_model(roots.imports / "m")
    catalog = Catalog(ServerOptions(), roots)
    catalog.resolve("m")
    shutil.rmtree(folder)
    assert refusal(catalog, "m").report.kind == "model_not_found"


def test_an_ambiguous_name_is_an_error_that_lists_the_candidates(roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/llama-a")
    write_hub_model(roots.hub, "org/llama-b")
    error = refusal(Catalog(ServerOptions(), roots), "llama").report
    assert error.kind == "invalid_request"
    assert "org/llama-a, org/llama-b" in error.message


def test_a_whole_name_wins_over_longer_ones(roots: CatalogRoots) -> None:
    write_model(roots.imports / "llama")
    write_model(roots.imports / "llama-big")
    assert Catalog(ServerOptions(), roots).resolve("llama").id == "llama"


def test_an_unknown_name_gets_the_nearest_ones_and_a_way_out(roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/smollm2-135m")
    catalog = Catalog(ServerOptions(), roots)
    error = refusal(catalog, "smolm2-135m").report
    assert (error.kind, error.status, error.param) == ("model_not_found", 404, "model")
    assert "org/smollm2-135m" in error.message
    assert "pippin pull other/model" in refusal(catalog, "other/model").report.message
    offline = Catalog(ServerOptions(offline=True), roots)
    assert "--offline" in refusal(offline, "other/model").report.message


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../secret",
        "a/../b",
        "/etc",
        "~/x",
        "a\0b",
        "a\nb",
        "..\\x",
        "x" * 600,
        "models--org--m/../../x",
    ],
)
def test_a_request_cannot_name_a_path(tmp_path: Path, roots: CatalogRoots, name: str) -> None:
    write_model(tmp_path / "secret")
    assert refusal(Catalog(ServerOptions(), roots), name).report.kind == "model_not_found"


def test_a_request_cannot_name_a_folder_that_the_operator_did_not_give(
    tmp_path: Path, roots: CatalogRoots
) -> None:
    folder = write_model(tmp_path / "secret")
    catalog = Catalog(ServerOptions(), roots)
    assert refusal(catalog, str(folder)).report.kind == "model_not_found"
    assert catalog.resolve(str(folder), by_operator=True).id == "secret"


def test_the_operator_is_told_what_is_wrong_with_a_path(tmp_path: Path, roots: CatalogRoots) -> None:
    catalog = Catalog(ServerOptions(), roots)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    for path, told in (
        (str(file), f"`pippin import {file}`"),
        (str(tmp_path / "other.gguf"), "is not there"),
        ("./no-folder", "is not there"),
    ):
        with pytest.raises(ServerError) as raised:
            catalog.resolve(path, by_operator=True)
        assert told in raised.value.report.message


def test_a_request_may_name_a_path_as_the_operator_wrote_it(tmp_path: Path, roots: CatalogRoots) -> None:
    served = write_model(tmp_path / "served")
    write_model(tmp_path / "secret")
    options = ServerOptions(models=(ModelEntry(path=str(served)),))
    catalog = Catalog(options, roots)
    assert catalog.resolve(str(served)).id == "served"
    for other in (f"{served}/", f"{served}/../served", str(tmp_path / "secret")):
        assert refusal(catalog, other).report.kind == "model_not_found"


def test_a_folder_of_the_operator_is_known_by_its_served_name_and_its_path(
    tmp_path: Path, roots: CatalogRoots
) -> None:
    folder = write_model(tmp_path / "some-model")
    entry = ModelEntry(path=str(folder), name="house", kind="embeddings")
    catalog = Catalog(ServerOptions(models=(entry,)), roots)
    assert [model.id for model in catalog.models()] == ["house"]
    assert catalog.resolve("house").kind == "embeddings"
    with pytest.raises(ServerError):
        catalog.resolve("some-model")


def test_a_model_that_is_served_by_another_name_keeps_its_own_but_is_listed_once(
    tmp_path: Path, roots: CatalogRoots
) -> None:
    write_hub_model(roots.hub, "org/model")
    catalog = Catalog(ServerOptions(models=(ModelEntry(path="org/model", name="house"),)), roots)
    assert catalog.resolve("org/model").id == "house"
    assert [model.id for model in catalog.models()] == ["house"]


def test_aliases_lead_to_models_that_are_here(roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/mine")
    catalog = Catalog(ServerOptions(aliases={"best": "org/mine", "gone": "org/gone"}), roots)
    assert catalog.resolve("best").id == "org/mine"
    assert "pippin pull org/gone" in refusal(catalog, "gone").report.message


def test_an_alias_whose_model_is_missing_gives_way_to_a_part_of_a_name(roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/gemma-tiny")
    options = ServerOptions(aliases={"gemma": "org/gone"})
    assert Catalog(options, roots).resolve("gemma").id == "org/gemma-tiny"


def test_one_model_may_answer_for_all_claude_names(roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/coder")
    catalog = Catalog(ServerOptions(claude_model="org/coder"), roots)
    assert catalog.resolve("claude-sonnet-4-5").id == "org/coder"
    assert refusal(Catalog(ServerOptions(), roots), "claude-sonnet-4-5").report.kind == "model_not_found"


def serving(temperature: float) -> ServerOptions:
    """With a model of its own options, which are complete, and those of all others."""
    entry = ModelEntry(path="a", options=ModelOptions(temperature=temperature, max_num_seqs=3))
    return ServerOptions(models=(entry,), model_defaults=ModelOptions(temperature=0.9, max_num_seqs=3))


def test_a_model_has_its_own_options_or_those_for_all(roots: CatalogRoots) -> None:
    write_model(roots.imports / "a")
    write_model(roots.imports / "b")
    catalog = Catalog(serving(0.1), roots)
    assert catalog.options_for(catalog.resolve("a")) == ModelOptions(temperature=0.1, max_num_seqs=3)
    assert catalog.options_for(catalog.resolve("b")) == ModelOptions(temperature=0.9, max_num_seqs=3)


def test_options_that_were_changed_count_at_once(roots: CatalogRoots) -> None:
    write_model(roots.imports / "a")
    catalog = Catalog(serving(0.1), roots)
    info = catalog.resolve("a")
    catalog.adopt(serving(0.2))
    assert catalog.options_for(info).temperature == 0.2


@pytest.mark.parametrize(("limit", "window"), [(None, 64), (16, 16), (100_000, 64)])
def test_the_window_is_the_one_that_the_operator_allows(
    roots: CatalogRoots, limit: int | None, window: int
) -> None:
    write_model(roots.imports / "a")
    entry = ModelEntry(path="a", options=ModelOptions(context_length=limit))
    catalog = Catalog(ServerOptions(models=(entry,)), roots)
    assert catalog.resolve("a").context_window == window
    assert [info.context_window for info in catalog.models()] == [window]


def test_the_scripted_model_is_served_by_name_or_script(tmp_path: Path, roots: CatalogRoots) -> None:
    script = tmp_path / "answers.script.json"
    script.write_text("{}")
    catalog = Catalog(ServerOptions(models=(ModelEntry(path=str(script)),)), roots)
    assert catalog.resolve("answers").kind == "scripted"
    assert catalog.resolve("answers").path == str(script)


def test_the_echo_is_served_only_where_the_operator_named_it(roots: CatalogRoots) -> None:
    assert refusal(Catalog(ServerOptions(), roots), "scripted").report.kind == "model_not_found"
    named = Catalog(ServerOptions(models=(ModelEntry(path="scripted"),)), roots)
    assert named.resolve("scripted").path is None
    alias = Catalog(ServerOptions(aliases={"gpt-4o": "scripted"}), roots)
    assert alias.resolve("gpt-4o").kind == "scripted"
    assert refusal(alias, "scripted").report.kind == "model_not_found"


def test_a_change_on_disk_is_seen(roots: CatalogRoots) -> None:
    catalog = Catalog(ServerOptions(), roots)
    assert catalog.models() == []
    folder = write_model(roots.imports / "m", {"model_type": "llama", "max_position_embeddings": 1})
    assert catalog.resolve("m").context_window == 1
    (folder / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 22}')
    assert catalog.resolve("m").context_window == 22


def test_two_hundred_models_are_listed_with_a_tenth_of_a_second_of_work(roots: CatalogRoots) -> None:
    for number in range(200):
        write_hub_model(roots.hub, f"org/model-{number}")
    catalog = Catalog(ServerOptions(), roots)
    catalog.models()
    work = []
    for _ in range(5):
        start = time.process_time()
        assert len(catalog.models()) == 200
        work.append(time.process_time() - start)
    assert min(work) < 0.1


def test_a_model_is_deleted_only_from_pippins_own_roots(tmp_path: Path, roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/hub")
    write_model(roots.imports / "imported")
    mine = write_model(tmp_path / "mine" / "own")
    catalog = Catalog(ServerOptions(model_dirs=(str(tmp_path / "mine"),)), roots)
    catalog.remove("org/hub")
    catalog.remove("imported")
    assert [model.id for model in catalog.models()] == ["own"]
    with pytest.raises(ServerError) as caught:
        catalog.remove("own")
    assert caught.value.report.kind == "permission"
    assert mine.exists()
    with pytest.raises(ServerError):
        catalog.remove("../mine/own")


def test_a_part_of_a_name_deletes_nothing(roots: CatalogRoots) -> None:
    write_model(roots.imports / "imported")
    with pytest.raises(ServerError, match="Give the whole name") as refused:
        Catalog(ServerOptions(), roots).remove("import")
    assert "Close to it: imported." in refused.value.report.message
    assert (roots.imports / "imported").exists()


def test_deleting_a_linked_import_leaves_what_it_links_to(tmp_path: Path, roots: CatalogRoots) -> None:
    target = write_model(tmp_path / "elsewhere")
    roots.imports.mkdir()
    (roots.imports / "linked").symlink_to(target)
    Catalog(ServerOptions(), roots).remove("linked")
    assert (target / "config.json").exists()
    assert not (roots.imports / "linked").exists()


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        (ServerOptions(), True),
        (ServerOptions(host="localhost"), True),
        (ServerOptions(host="0.0.0.0"), False),
        (ServerOptions(host="0.0.0.0", allow_downloads=True), True),
        (ServerOptions(host="0.0.0.0", allow_unauthenticated=True), True),
        (ServerOptions(host="0.0.0.0", allow_unauthenticated=True, allow_downloads=False), False),
        (ServerOptions(host="0.0.0.0", api_keys=("k",)), False),
        (ServerOptions(allow_downloads=False), False),
        (ServerOptions(allow_downloads=True, offline=True), False),
    ],
)
def test_requests_may_download_where_the_operator_allows_it(
    roots: CatalogRoots, options: ServerOptions, allowed: bool
) -> None:
    assert Catalog(options, roots).downloads_allowed is allowed


def test_a_model_that_is_here_causes_no_download(
    roots: CatalogRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hub_model(roots.hub, "org/here")
    monkeypatch.setattr("pippin.catalog.catalog.download", None)  # calling it would fail
    catalog = Catalog(ServerOptions(), roots)
    assert asyncio.run(catalog.ensure("org/here", lambda *_: None)).id == "org/here"


def test_offline_forbids_every_download(roots: CatalogRoots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pippin.catalog.catalog.download", None)
    catalog = Catalog(ServerOptions(offline=True), roots)
    for by_operator in (False, True):
        with pytest.raises(ServerError) as caught:
            asyncio.run(catalog.ensure("org/gone", lambda *_: None, by_operator=by_operator))
        assert "--offline" in caught.value.report.message


def test_the_usual_places_follow_the_variables_of_hugging_face() -> None:
    home = Path("/home/u")
    assert default_roots({}, home).hub == Path("/home/u/.cache/huggingface/hub")
    assert default_roots({"HF_HOME": "/data/hf"}, home).hub == Path("/data/hf/hub")
    assert default_roots({"HF_HOME": "/data/hf", "HF_HUB_CACHE": "~/c"}, home).hub == Path("/home/u/c")
    assert default_roots({"XDG_CACHE_HOME": "/x"}, home).imports == Path("/x/pippin/models")
    assert default_roots({"PIPPIN_HOME": "/p"}, home).imports == Path("/p/models")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "device", "link to itself"])
def test_pipes_and_devices_in_a_model_folder_are_named_and_not_read(kind: str, roots: CatalogRoots) -> None:
    write_model(roots.imports / "good")
    for name, file in (
        ("bad", "config.json"),
        ("weights", "model.safetensors"),
        ("words", "tokenizer_config.json"),
    ):
        path = write_model(roots.imports / name) / file
        path.unlink(missing_ok=True)
        match kind:
            case "pipe":
                os.mkfifo(path)
            case "device":
                path.symlink_to("/dev/zero")
            case _:
                path.symlink_to(path)
    catalog = Catalog(ServerOptions(), roots)
    assert catalog.resolve("good").id == "good"
    report = refusal(catalog, "bad").report
    assert report.kind == "load_failed"
    assert report.message.startswith("config.json of the model bad ")
    for entry in catalog.entries():
        if entry.info is not None:
            footprint(entry.info, ModelOptions())


FAR = ModelEntry(path="org/far", name="far", preload=False)


def test_a_model_that_the_operator_named_is_known_before_it_is_here(roots: CatalogRoots) -> None:
    catalog = Catalog(ServerOptions(models=(FAR,)), roots)
    assert [info.id for info in catalog.missing()] == ["far"]
    assert catalog.models() == []
    assert catalog.knows("far")
    assert catalog.knows("org/far")
    for name in ("far", "org/far"):
        error = refusal(catalog, name).report
        assert (error.kind, error.param) == ("model_not_found", "model")
        assert "not downloaded yet" in error.message
        assert "pippin pull org/far" in error.message
    write_hub_model(roots.hub, "org/far")
    assert catalog.resolve("far").id == catalog.resolve("org/far").id == "far"
    assert catalog.missing() == []


def test_an_entry_of_the_operator_goes_before_an_alias(roots: CatalogRoots) -> None:
    mine = ModelEntry(path="org/small", name="qwen")
    aliases = {"qwen": "mlx-community/Qwen3-VL-4B-Instruct-4bit"}
    catalog = Catalog(ServerOptions(models=(mine,), aliases=aliases), roots)
    assert "pippin pull org/small" in refusal(catalog, "qwen").report.message
    write_hub_model(roots.hub, "mlx-community/Qwen3-VL-4B-Instruct-4bit")
    write_hub_model(roots.hub, "org/small", {"model_type": "llama", "max_position_embeddings": 7})
    assert catalog.resolve("qwen").context_window == 7


def test_with_served_only_no_other_model_has_a_name(tmp_path: Path, roots: CatalogRoots) -> None:
    write_hub_model(roots.hub, "org/served")
    write_hub_model(roots.hub, "org/private-notes")
    served = (ModelEntry(path="org/served", name="mine"),)
    catalog = Catalog(
        ServerOptions(models=served, served_only=True, aliases={"notes": "org/private-notes"}), roots
    )
    assert [info.id for info in catalog.models()] == ["mine"]
    for name in ("org/private-notes", "private", "private-notes"):
        message = refusal(catalog, name).report.message
        assert "private-notes" not in message.replace(repr(name), "")
        assert "no others" in message
    assert catalog.resolve("org/served").id == "mine"
    assert catalog.resolve("notes").id == "org/private-notes", "an alias is the operator's word"
    assert catalog.resolve("org/private-notes", by_operator=True).id == "org/private-notes"


@pytest.mark.parametrize(
    ("options", "only"),
    [
        ({}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "served_only": False}, False),
        ({"host": "0.0.0.0", "api_keys": ("k",)}, False),
        ({"host": "0.0.0.0", "allow_unauthenticated": True}, False),
        ({"served_only": True}, True),
    ],
)
def test_strangers_are_served_what_was_named_alone(
    options: dict[str, Any], only: bool, roots: CatalogRoots
) -> None:
    assert Catalog(ServerOptions(models=(FAR,), **options), roots).serves_named_only is only
    assert not Catalog(ServerOptions(**options), roots).serves_named_only, "nothing was named"


def test_a_name_that_is_not_served_causes_no_download(
    roots: CatalogRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hub_model(roots.hub, "org/served")
    write_hub_model(roots.hub, "org/private-notes")
    monkeypatch.setattr("pippin.catalog.catalog.download", None)  # calling it would fail
    served = (ModelEntry(path="org/served"),)
    catalog = Catalog(ServerOptions(models=served, served_only=True, allow_downloads=True), roots)
    for name in ("org/private-notes", "org/unheard-of"):
        with pytest.raises(ServerError, match="no others"):
            asyncio.run(catalog.ensure(name, lambda *_: None))


def test_a_model_may_be_its_own_draft_model(roots: CatalogRoots) -> None:
    folder = write_hub_model(roots.hub, "org/model")
    for words in ("org/model", "model"):
        entry = ModelEntry(path="org/model", options=ModelOptions(draft_model_path=words))
        catalog = Catalog(ServerOptions(models=(entry,)), roots)
        assert catalog.options_for(catalog.resolve("org/model")).draft_model_path == str(folder)


def test_a_model_that_a_profile_knows_is_listed_when_it_is_here(roots: CatalogRoots) -> None:
    known = ModelEntry(path="org/known", name="known", kind="speech", preload=False, listed=False)
    write_hub_model(roots.hub, "org/served")
    catalog = Catalog(ServerOptions(models=(ModelEntry(path="org/served"), known), served_only=True), roots)
    assert catalog.missing() == []
    assert catalog.knows("known")
    assert "Those that do: org/served." in refusal(catalog, "whisper").report.message


def test_a_path_is_a_models_name_inside_the_folders_that_were_opened_for_that(
    tmp_path: Path, roots: CatalogRoots
) -> None:
    inside = write_model(tmp_path / "open" / "model")
    outside = write_model(tmp_path / "closed" / "model")
    (tmp_path / "open" / "link").symlink_to(outside)
    catalog = Catalog(
        ServerOptions(model_paths=(str(tmp_path / "open"),), served_only=True, models=(FAR,)), roots
    )
    assert catalog.resolve(str(inside)).id == str(inside)
    assert catalog.knows(str(inside))
    for path in (outside, tmp_path / "open" / "link", tmp_path / "open" / ".." / "closed" / "model"):
        assert "--model-root" in refusal(catalog, str(path)).report.message
    assert "--model-root" in refusal(Catalog(ServerOptions(), roots), str(inside)).report.message
