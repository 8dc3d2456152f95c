"""Which repositories speech models need beside their own, and that they are fetched with them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pippin.catalog.catalog import Catalog
from pippin.catalog.companions import companions_of
from pippin.catalog.scan import CatalogRoots, hub_folder
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError
from pippin.core.models import Companion, ModelInfo
from tests.catalog.fake_hub import FakeHub, serving


@pytest.mark.parametrize(
    ("name", "config", "repositories"),
    [
        (
            "org/orpheus-3b",
            {"model_type": "llama"},
            ["mlx-community/snac_24khz", "mlx-community/orpheus-3b-0.1-ft-bf16"],
        ),
        ("org/VyvoTTS", {"model_type": "qwen3"}, ["mlx-community/snac_24khz"]),
        (
            "org/OuteTTS-1.0",
            {"model_type": "llama", "tokenizer_name": "org/words"},
            ["mlx-community/dac-speech-24khz-1.5kbps", "org/words"],
        ),
        ("org/Dia-1.6B", {"data": {"delay_pattern": [0]}}, ["mlx-community/descript-audio-codec-44khz"]),
        (
            "org/tada",
            {"model_type": "llama", "acoustic_dim": 3},
            ["HumeAI/tada-codec", "meta-llama/Llama-3.2-1B-Instruct"],
        ),
        (
            "org/csm-1b",
            {"model_type": "csm"},
            ["kyutai/moshiko-pytorch-bf16", "unsloth/Llama-3.2-1B", "sesame/csm-1b"],
        ),
        ("org/bark", {"model_type": "bark", "codec_path": "/a/path"}, ["bert-base-multilingual-cased"]),
        ("org/echo", {"model_type": "echo_tts", "fish_codec_repo": "org/fish"}, ["org/fish"]),
        ("org/kokoro", {"model_type": "kokoro"}, []),
        ("org/odd", {"model_type": 3, "data": []}, []),
    ],
)
def test_what_a_model_needs_is_known_from_its_configuration(
    name: str, config: dict[str, Any], repositories: list[str], tmp_path: Path
) -> None:
    assert [each.repository for each in companions_of(tmp_path, name, config)] == repositories


def test_what_lies_in_the_folder_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "audio_tokenizer").mkdir()
    [snac] = companions_of(tmp_path, "orpheus", {"model_type": "llama"})
    assert snac.repository == "mlx-community/snac_24khz"
    assert companions_of(tmp_path, "moss", {"model_type": "moss_tts"}) == ()


def reach(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "src"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def catalog_of(tmp_path: Path, **options: Any) -> Catalog:
    return Catalog(
        structs.replace(ServerOptions(), download_retries=0, **options),
        CatalogRoots(hub=tmp_path / "cache", imports=tmp_path / "imports"),
    )


@pytest.mark.long
def test_the_files_that_are_needed_are_fetched_with_the_model_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"tokenizer-1.safetensors": b"codec", "model.safetensors": b"much more", "config.json": b"{}"}
    with serving(FakeHub(files)) as hub:
        reach(hub, monkeypatch, tmp_path)
        info = ModelInfo(
            id="org/voice", kind="speech", companions=(Companion("org/model", ("tokenizer-*",)),)
        )
        asyncio.run(catalog_of(tmp_path).complete(info, lambda *_: None, by_operator=True))
        root = hub_folder(tmp_path / "cache", "org/model")
        [snapshot] = (root / "snapshots").iterdir()
        assert [each.name for each in snapshot.iterdir()] == ["tokenizer-1.safetensors"]
        asked = len(hub.asked)
        asyncio.run(catalog_of(tmp_path).complete(info, lambda *_: None, by_operator=True))
        assert len(hub.asked) == asked


@pytest.mark.long
def test_what_is_needed_and_cannot_be_had_is_told_and_the_rest_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(FakeHub({"config.json": b"{}"})) as hub:
        reach(hub, monkeypatch, tmp_path)
        wanted = Companion("org/model", ("prompts/*.wav",))
        info = ModelInfo(id="org/voice", kind="speech", companions=(wanted,))
        catalog = catalog_of(tmp_path)
        with pytest.raises(ServerError, match="org/model holds none of"):
            asyncio.run(catalog.complete(info, lambda *_: None, by_operator=True))
        without = structs.replace(info, companions=(structs.replace(wanted, needed=False),))
        asyncio.run(catalog.complete(without, lambda *_: None, by_operator=True))
        asyncio.run(catalog_of(tmp_path, offline=True).complete(info, lambda *_: None, by_operator=True))
