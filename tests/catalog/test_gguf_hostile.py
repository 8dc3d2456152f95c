"""Files that are damaged or made to do harm: a clear error, nothing left behind, bounded memory."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pippin.catalog.gguf import import_gguf
from pippin.catalog.gguf.reader import GgufFile
from pippin.core.errors import ServerError
from tests.catalog.gguf_files import HIDDEN, TOKENS, GgufFileBuilder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return GgufFileBuilder().write(tmp_path_factory.mktemp("gguf") / "whole.gguf").read_bytes()


def refused(data: bytes, tmp_path: Path) -> ServerError:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ServerError) as caught:
        import_gguf(path, tmp_path / "models", "m")
    assert not list((tmp_path / "models").glob("*")), "something was left behind"
    assert caught.value.report.kind in ("invalid_request", "unsupported")
    assert "bad.gguf" in caught.value.report.message
    return caught.value


def header(tensors: int, keys: int, *parts: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


HUGE = 2**63
PADDING = bytes(4096)
HOSTILE = {
    "an empty file": (b"", "too short"),
    "another kind of file": (b"PK\x03\x04" + PADDING, "magic"),
    "an unknown version": (header(0, 0, version=99) + PADDING, "version 99"),
    "a big-endian file": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + PADDING, "little-endian"),
    "countless tensors": (header(HUGE, 0) + PADDING, "tensors, which cannot be true"),
    "countless keys": (header(0, HUGE) + PADDING, "keys, which cannot be true"),
    "more keys than bytes": (header(0, 60_000) + PADDING, "keys, which cannot be true"),
    "an endless key": (header(0, 1, struct.pack("<Q", HUGE)) + PADDING, "bytes long"),
    "an endless text": (header(0, 1, key(b"a", 8, struct.pack("<Q", HUGE))) + PADDING, "bytes long"),
    "a text past the end": (
        header(0, 1, key(b"a", 8, struct.pack("<Q", 8_000_000))) + PADDING,
        "ends in the middle",
    ),
    "an endless array": (header(0, 1, key(b"a", 9, struct.pack("<IQ", 4, HUGE))) + PADDING, "cannot be true"),
    "an array past the end": (
        header(0, 1, key(b"a", 9, struct.pack("<IQ", 8, 4_000_000))) + PADDING,
        "cannot be true",
    ),
    "an array of arrays": (header(0, 1, key(b"a", 9, struct.pack("<IQ", 9, 1))) + PADDING, "unknown type 9"),
    "an unknown value type": (header(0, 1, key(b"a", 77, b"")) + PADDING, "unknown type 77"),
    "bytes that are no text": (header(0, 1, key(b"a", 8, text(b"\xff\xfe"))) + PADDING, "not UTF-8"),
    "a key twice": (header(0, 2, *[key(b"a", 4, bytes(4))] * 2) + PADDING, "twice"),
    "an alignment of zero": (header(0, 1, key(b"general.alignment", 4, bytes(4))) + PADDING, "alignment"),
    "an alignment of three": (
        header(0, 1, key(b"general.alignment", 4, struct.pack("<I", 3))) + PADDING,
        "alignment",
    ),
    "a tensor without dimensions": (header(1, 0, tensor(b"a", ())) + PADDING, "0 dimensions"),
    "a tensor of nine dimensions": (header(1, 0, tensor(b"a", (1,) * 9)) + PADDING, "9 dimensions"),
    "an empty tensor": (header(1, 0, tensor(b"a", (0,))) + PADDING, "impossible shape"),
    "a shape that overflows": (
        header(1, 0, tensor(b"a", (2**32, 2**32, 2**32, 2**31))) + PADDING,
        "ends before",
    ),
    "a tensor past the end": (header(1, 0, tensor(b"a", (4096,))) + PADDING, "ends before"),
    "an offset past the end": (header(1, 0, tensor(b"a", (4,), offset=2**62)) + PADDING, "ends before"),
    "an offset that wraps around": (
        header(1, 0, tensor(b"a", (4,), offset=2**64 - 32)) + PADDING,
        "ends before",
    ),
    "an offset off the alignment": (header(1, 0, tensor(b"a", (4,), offset=1)) + PADDING, "alignment"),
    "half a block": (header(1, 0, tensor(b"a", (31,), kind=2)) + PADDING, "impossible shape"),
    "an unknown tensor type": (header(1, 0, tensor(b"a", (4,), kind=999)) + PADDING, "type number 999"),
    "a tensor twice": (header(2, 0, *[tensor(b"a", (4,))] * 2) + PADDING, "twice"),
    "tensors that overlap": (
        header(2, 0, tensor(b"a", (64,)), tensor(b"b", (64,), offset=32)) + PADDING,
        "overlaps",
    ),
    "a path for a name": (header(1, 0, tensor(b"../../etc/passwd", (4,))) + PADDING, "characters"),
    "no metadata": (header(0, 0) + PADDING, "general.architecture"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    data, reason = HOSTILE[name]
    assert reason in refused(data, tmp_path).report.message


def change(builder: GgufFileBuilder, **metadata: object) -> None:
    for name, value in metadata.items():
        full = name.replace("__", ".")
        if value is None:
            builder.metadata.pop(full)
        else:
            builder.metadata[full] = value


def drop(builder: GgufFileBuilder, name: str) -> None:
    del builder.tensors[name]


def add(builder: GgufFileBuilder, name: str, *shape: int) -> None:
    builder.tensors[name] = builder.values(*shape)


WRONG_MODELS: dict[str, tuple[Callable[[GgufFileBuilder], None], str]] = {
    "a missing weight": (lambda b: drop(b, "blk.1.ffn_up.weight"), "model.layers.1.mlp.up_proj"),
    "an unknown weight": (lambda b: add(b, "blk.0.ffn_gate_inp.weight", 4, HIDDEN), "ffn_gate_inp"),
    "a layer too many": (lambda b: add(b, "blk.2.ffn_up.weight", 4, HIDDEN), "blk.2.ffn_up"),
    "a weight of another shape": (lambda b: add(b, "blk.0.attn_q.weight", 8, HIDDEN), "shape [8, 128]"),
    "a missing key": (lambda b: change(b, llama__embedding_length=None), "llama.embedding_length"),
    "a key of another type": (lambda b: change(b, llama__embedding_length="x"), "a whole number"),
    "no layers": (lambda b: change(b, llama__block_count=0), "above 0"),
    "a million layers": (lambda b: change(b, llama__block_count=10**6), "layers"),
    "no heads": (lambda b: change(b, llama__attention__head_count=0), "above 0"),
    "heads that do not divide": (lambda b: change(b, llama__attention__head_count_kv=3), "heads"),
    "experts": (lambda b: change(b, llama__expert_count=8), "experts"),
    "one part of several": (lambda b: change(b, split__count=3), "gguf-split"),
    "half rotated heads": (lambda b: change(b, llama__rope__dimension_count=16), "rotated"),
    "unknown rope scaling": (lambda b: change(b, llama__rope__scaling__type="spiral"), "spiral"),
    "no tokens": (lambda b: change(b, tokenizer__ggml__tokens=None), "tokenizer.ggml.tokens"),
    "tokens that are numbers": (lambda b: change(b, tokenizer__ggml__tokens=[1, 2]), "a list of texts"),
    "a token twice": (lambda b: change(b, tokenizer__ggml__tokens=[*TOKENS[:-1], "a"]), "twice"),
    "too many tokens": (
        lambda b: change(
            b,
            tokenizer__ggml__tokens=[*TOKENS, "more"],
            tokenizer__ggml__token_type=[1] * (len(TOKENS) + 1),
        ),
        "embeds only",
    ),
    "token types of another length": (
        lambda b: change(b, tokenizer__ggml__token_type=[1]),
        "differ in length",
    ),
    "a merge of what are no tokens": (lambda b: change(b, tokenizer__ggml__merges=["he zz"]), "'he zz'"),
    "a merge of one": (lambda b: change(b, tokenizer__ggml__merges=["hello"]), "'hello'"),
    "an end outside the vocabulary": (lambda b: change(b, tokenizer__ggml__eos_token_id=10**6), "eos token"),
    "an unknown pre-tokenizer": (lambda b: change(b, tokenizer__ggml__pre="x-bpe"), "'x-bpe' is unknown"),
    "no pre-tokenizer": (lambda b: change(b, tokenizer__ggml__pre=None), "does not say"),
    "another tokenizer": (lambda b: change(b, tokenizer__ggml__model="bert"), "'bert'"),
}


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_model_that_does_not_fit_together_is_refused_by_name(tmp_path: Path, name: str) -> None:
    spoil, reason = WRONG_MODELS[name]
    builder = GgufFileBuilder()
    spoil(builder)
    data = builder.write(tmp_path / "written.gguf").read_bytes()
    assert reason in refused(data, tmp_path).report.message


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path, whole: bytes) -> None:
    message = refused(whole.replace(b"llama", b"mamba"), tmp_path).report.message
    assert "'mamba'" in message
    assert "llama, qwen2, qwen3, gemma3" in message


@pytest.mark.parametrize("part", range(1, 24))
def test_a_truncated_file_is_refused(tmp_path: Path, whole: bytes, part: int) -> None:
    refused(whole[: len(whole) * part // 24], tmp_path)


def test_one_missing_byte_is_noticed(tmp_path: Path, whole: bytes) -> None:
    padding = len(whole) - len(whole.rstrip(b"\0"))
    assert "incomplete" in refused(whole[: -1 - padding], tmp_path).report.message


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "../up", "/abs", "a\0b", "x" * 200, "a b"])
def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path, whole: bytes, name: str) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(whole)
    with pytest.raises(ServerError) as caught:
        import_gguf(path, tmp_path / "models", name)
    assert caught.value.report.param == "name"


def test_a_model_that_is_there_is_not_overwritten(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(whole)
    import_gguf(path, tmp_path / "models", "m")
    before = (tmp_path / "models" / "m" / "config.json").stat()
    with pytest.raises(ServerError) as caught:
        import_gguf(path, tmp_path / "models", "m")
    assert caught.value.report.kind == "conflict"
    assert (tmp_path / "models" / "m" / "config.json").stat() == before


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(whole)
    steps: list[int] = []

    def fill_up(done: int, total: int, what: str) -> None:
        steps.append(done)
        if done > total // 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(ServerError, match="No space left"):
        import_gguf(path, tmp_path / "models", "m", fill_up)
    assert steps
    assert not list((tmp_path / "models").iterdir())


def test_room_on_the_disk_is_checked_first(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(whole)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("pippin.catalog.gguf.importer.shutil.disk_usage", lambda _: usage)
    with pytest.raises(ServerError) as caught:
        import_gguf(path, tmp_path / "models", "m")
    assert caught.value.report.kind == "too_large"
    assert not list((tmp_path / "models").iterdir())


def test_memory_stays_far_below_what_a_file_claims(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    claims = [key(f"k{number}".encode(), 9, struct.pack("<IQ", 8, 4_000_000)) for number in range(64)]
    path.write_bytes(header(60_000, 64, *claims) + bytes(1024 * 1024))
    tracemalloc.start()
    try:
        with pytest.raises(ServerError):
            GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024**2
    finally:
        tracemalloc.stop()


def mutate(data: bytes, edits: list[tuple[int, int]], cut: int) -> bytes:
    changed = bytearray(data)
    for at, value in edits:
        changed[at % len(changed)] = value
    return bytes(changed[: len(changed) - cut % len(changed)]) if cut else bytes(changed)


EDITS = st.lists(st.tuples(st.integers(0, 16_000), st.integers(0, 255)), min_size=1, max_size=6)


def import_or_refuse(data: bytes, tmp_path: Path) -> None:
    """Whatever the bytes, there is a whole model or none, and no error but `ServerError`."""
    path = tmp_path / "mutated.gguf"
    path.write_bytes(data)
    root = tmp_path / "models"
    try:
        import_gguf(path, root, "m")
    except ServerError:
        assert not root.exists() or not list(root.iterdir())
    else:
        assert [entry.name for entry in root.iterdir()] == ["m"]
        for file in (root / "m").iterdir():
            file.unlink()
        (root / "m").rmdir()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(edits=EDITS, cut=st.one_of(st.just(0), st.integers(1, 200_000)))
def test_mutated_files_are_imported_or_refused(
    tmp_path: Path, whole: bytes, edits: list[tuple[int, int]], cut: int
) -> None:
    import_or_refuse(mutate(whole, edits, cut), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
@settings(max_examples=8000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS, cut=st.one_of(st.just(0), st.integers(1, 200_000)))
def test_thousands_of_mutated_files_are_imported_or_refused(
    tmp_path: Path, whole: bytes, edits: list[tuple[int, int]], cut: int
) -> None:
    import_or_refuse(mutate(whole, edits, cut), tmp_path)
