"""The disk tier: survives a restart and a kill, takes no damage for truth, holds its limit."""

import errno
import os
import shutil
import subprocess
import sys
import textwrap
import time
from itertools import product
from pathlib import Path

import mlx.core as mx
import msgspec
import numpy as np
import pytest

import pippin
from pippin.config.options.model import ModelOptions
from pippin.core.requests import GenerationRequest
from pippin.core.safetensors import digest_of
from pippin.engines.language.loading import caching
from pippin.engines.language.prefix_cache import cache as prefix_cache
from pippin.engines.language.prefix_cache import disk
from pippin.engines.language.prefix_cache.disk import (
    SWEEP_EVERY,
    DiskCache,
    cache_files,
    delete,
    fingerprint,
    model_folders,
)
from pippin.engines.language.prompt.preparer import cache_key
from pippin.engines.language.step.engine import LanguageEngine
from pippin.engines.language.warm_prompts import rehearse
from tests.engines.language.bench import PLAN, Bench, run_all
from tests.engines.tiny_models import BY_CACHE, TinyModels, tiny_model

MODEL = "0" * 24  # its fingerprint
PROMPT = tuple(place * 11 % 250 for place in range(100))


def name(index: int) -> str:
    """Of a block."""
    return f"{index:040}"


@pytest.fixture(scope="module")
def folders(tiny_models: TinyModels) -> dict[str, Path]:
    return tiny_models.all()


def bench_of(folder: Path, cache: Path, **options: object) -> Bench:
    values = {"cache_block_tokens": 8, "cache_dir": str(cache), **options}
    return Bench(folder, ModelOptions(**values), PLAN)  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", BY_CACHE)
def test_a_restarted_server_remembers(folders: dict[str, Path], tmp_path: Path, architecture: str) -> None:
    first = bench_of(folders[architecture], tmp_path)
    run_all(first, {"a": (PROMPT, 20)})
    first.engine.close()
    second = bench_of(folders[architecture], tmp_path)
    answers, ends = run_all(second, {"b": ((*PROMPT, 1, 2, 3), 10)})
    second.judge((*PROMPT, 1, 2, 3), answers["b", 0])
    assert ends["b", 0].usage.cached_tokens == 96
    assert second.engine.stats().cache.disk_hits > 0
    second.engine.close()


def recalled(folder: Path, cache: Path, **options: object) -> Bench:
    """A new server, when it has done what it does before the first request."""
    bench = bench_of(folder, cache, **options)
    for _ in range(2000):
        if not bench.engine.busy:
            break
        bench.engine.step()
    assert not bench.engine.busy
    return bench


@pytest.mark.parametrize("architecture", BY_CACHE)
def test_the_last_conversation_is_in_memory_before_the_first_request(
    folders: dict[str, Path], tmp_path: Path, architecture: str
) -> None:
    first = bench_of(folders[architecture], tmp_path)
    run_all(first, {"a": (PROMPT, 20)})
    first.engine.close()
    second = recalled(folders[architecture], tmp_path)
    has_blocks = second.engine.stats().cache.entries > 0
    answers, ends = run_all(second, {"b": ((*PROMPT, 1, 2, 3), 10)})
    second.judge((*PROMPT, 1, 2, 3), answers["b", 0])
    assert ends["b", 0].usage.cached_tokens == 96
    # A state alone is read when it is asked for.
    assert (second.engine.stats().cache.disk_hits == 0) == has_blocks == (architecture != "mamba2")
    second.engine.close()


def test_a_server_is_ready_with_the_last_conversation_in_memory(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench_of(folders["llama"], tmp_path)
    run_all(first, {"a": (PROMPT, 20)})
    first.engine.close()
    monkeypatch.setattr(prefix_cache, "RECALL_SECONDS", 20.0)
    second = bench_of(folders["llama"], tmp_path)
    assert second.engine.stats().cache.entries == first.engine.stats().cache.entries > 0
    second.engine.close()


@pytest.mark.parametrize("architecture", BY_CACHE)
def test_a_start_goes_on_once_with_the_last_conversation(
    folders: dict[str, Path], tmp_path: Path, architecture: str
) -> None:
    """Which changes nothing but how long the first request takes."""
    key = cache_key(GenerationRequest(model="tiny"))
    first = bench_of(folders[architecture], tmp_path)
    run_all(first, {"a": (PROMPT, 20)}, key=key)
    first.engine.close()
    second = recalled(folders[architecture], tmp_path)
    entries = second.engine.stats().cache.entries
    rehearse(second.engine)
    assert second.engine.stats().completion_tokens == (architecture != "mamba2")
    assert second.engine.stats().prompt_tokens <= 16, "more than the end is computed"
    assert not second.engine.busy
    assert second.engine.stats().cache.entries == entries
    answers, ends = run_all(second, {"b": ((*PROMPT, 1, 2, 3), 10)}, key=key)
    second.judge((*PROMPT, 1, 2, 3), answers["b", 0])
    assert ends["b", 0].usage.cached_tokens == 96
    second.engine.close()


@pytest.mark.parametrize("prompt", [(), tuple(range(10**12, 10**12 + 40))], ids=["nothing", "media"])
def test_a_start_goes_on_with_text_alone(
    folders: dict[str, Path], tmp_path: Path, prompt: tuple[int, ...]
) -> None:
    bench = bench_of(folders["llama"], tmp_path)
    tree, path, key = (
        bench.engine.prefixes.tree,
        list[prefix_cache.Node](),
        cache_key(GenerationRequest(model="")),
    )
    for start in range(0, len(prompt), 8):
        tree.add(path, key, prompt[start : start + 8], (), 1)
    rehearse(bench.engine)
    assert bench.engine.stats().completion_tokens == 0
    bench.engine.close()


def test_what_is_recalled_stays_with_its_tenant(folders: dict[str, Path], tmp_path: Path) -> None:
    first = bench_of(folders["llama"], tmp_path)
    run_all(first, {"a": (PROMPT, 4)}, key=b"one")
    first.engine.close()
    second = recalled(folders["llama"], tmp_path)
    for key, known in ((b"two", 0), (b"one", 96)):
        _, ends = run_all(second, {key.decode(): (PROMPT, 4)}, key=key)
        assert ends[key.decode(), 0].usage.cached_tokens == known
    second.engine.close()


def test_the_newest_conversations_are_recalled_each_from_its_beginning(tmp_path: Path) -> None:
    """Of a block that is asked for, all before it are needed; they were written earlier."""
    cache = DiskCache(tmp_path, MODEL, 1 << 30)
    array = {"0": np.zeros(1000, np.uint8)}
    for number, after in ((1, 99), (2, 98), (3, 1), (4, 2), (5, 3)):
        cache.write(name(number), array, {"after": name(after)})
    cache.use([name(number) for number in (2, 4)])
    cache.close()
    cache = DiskCache(tmp_path, MODEL, 1 << 30)
    for place, number in enumerate((1, 3, 5, 2, 4)):
        os.utime(tmp_path / MODEL / f"{name(number)}.safetensors", (place, place))
    size = (tmp_path / MODEL / f"{name(1)}.safetensors").stat().st_size
    assert cache.newest(size * 5).result() == [name(number) for number in (2, 4, 1, 3, 5)]
    assert cache.newest(size * 4).result() == [name(number) for number in (2, 4, 1, 3)]
    assert cache.newest(size).result() == [name(2)], "the beginning of one that is too large"
    assert cache.newest(size - 1).result() == []
    cache.use([name(5)])
    cache.sweep().result()
    assert cache.newest(size * 3).result() == [name(number) for number in (1, 3, 5)]
    cache.close()


def test_a_block_whose_place_was_changed_is_not_recalled(folders: dict[str, Path], tmp_path: Path) -> None:
    """It would answer for other tokens than its own."""
    first = bench_of(folders["llama"], tmp_path)
    run_all(first, {"a": (PROMPT, 4)})
    first.engine.close()
    changed = 0
    for path in tmp_path.rglob("[0-9a-f]*.safetensors"):
        data = path.read_bytes()
        if b'"depth":"1"' in data:
            path.write_bytes(data.replace(b'"tokens":"0 11', b'"tokens":"1 11'))
            changed += 1
    assert changed == 1
    second = recalled(folders["llama"], tmp_path)
    assert second.engine.stats().cache.entries == 0
    second.engine.close()


def test_a_cache_that_is_cleared_recalls_no_more(folders: dict[str, Path], tmp_path: Path) -> None:
    first = bench_of(folders["llama"], tmp_path)
    run_all(first, {"a": (PROMPT, 4)})
    first.engine.close()
    second = bench_of(folders["llama"], tmp_path)
    second.engine.clear_cache(prefixes_only=True, disk=False)
    for _ in range(20):
        second.engine.step()
    assert second.engine.stats().cache.entries == 0
    second.engine.close()


def test_a_newer_version_does_not_believe_an_older_one(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all(first := bench_of(folders["llama"], tmp_path), {"a": (PROMPT, 4)})
    first.engine.close()
    monkeypatch.setattr(caching, "code", lambda: "mended")
    _, ends = run_all(second := bench_of(folders["llama"], tmp_path), {"b": (PROMPT, 4)})
    assert ends["b", 0].usage.cached_tokens == 0
    second.engine.close()


@pytest.mark.parametrize("architecture", BY_CACHE)
def test_a_prompt_of_whole_blocks_is_known_after_a_restart(
    folders: dict[str, Path], tmp_path: Path, architecture: str
) -> None:
    """Its last token is computed again, so that the state after it is of no use."""
    first = bench_of(folders[architecture], tmp_path)
    run_all(first, {"a": (PROMPT[:96], 4)})
    first.engine.close()
    second = bench_of(folders[architecture], tmp_path)
    answers, ends = run_all(second, {"b": (PROMPT[:96], 4)})
    second.judge(PROMPT[:96], answers["b", 0])
    assert ends["b", 0].usage.cached_tokens == 88
    second.engine.close()


def test_tenants_stay_apart_on_the_disk_too(folders: dict[str, Path], tmp_path: Path) -> None:
    first = bench_of(folders["llama"], tmp_path)
    run_all(first, {"a": (PROMPT, 4)}, key=b"one")
    first.engine.close()
    second = bench_of(folders["llama"], tmp_path)
    _, ends = run_all(second, {"b": (PROMPT, 4)}, key=b"two")
    assert ends["b", 0].usage.cached_tokens == 0
    _, ends = run_all(second, {"c": (PROMPT, 4)}, key=b"one")
    assert ends["c", 0].usage.cached_tokens == 96
    second.engine.close()


def written(cache: Path, engine: LanguageEngine, files: int) -> list[Path]:
    """The files that are there when the disk's thread has done what an idle engine gave it."""
    assert not engine.busy
    found: list[Path] = []
    for _ in range(1000):
        found = list(cache.rglob("[0-9a-f]*.safetensors"))
        if len(found) >= files:
            break
        time.sleep(0.01)
    return found


def test_a_kill_after_an_answer_finds_all_of_its_prompt_on_the_disk(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """Nothing waits for the steps of a later request."""
    options = ModelOptions(cache_block_tokens=8, cache_dir=str(tmp_path))
    bench = Bench(folders["llama"], options, msgspec.structs.replace(PLAN, prefill_chunk=500))
    run_all(bench, {"a": (PROMPT * 10, 1)})
    assert len(written(tmp_path, bench.engine, 125)) == 125
    bench.engine.close()


def test_a_slow_disk_gets_every_block(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out once would be missing for good, and all behind it."""
    monkeypatch.setattr(disk, "BACKLOG", 2)
    store = DiskCache._store

    def slowly(*given: object) -> None:
        time.sleep(0.002)
        store(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(DiskCache, "_store", slowly)
    bench = bench_of(folders["llama"], tmp_path)
    run_all(bench, {"a": (PROMPT * 2, 4)})
    assert len(written(tmp_path, bench.engine, 25)) == 25
    bench.engine.close()


def test_a_state_that_moves_on_is_not_written_at_each_block(folders: dict[str, Path], tmp_path: Path) -> None:
    bench = bench_of(folders["qwen3_next"], tmp_path)
    run_all(bench, {"a": (PROMPT, 60)})
    bench.engine.close()
    states = list(tmp_path.rglob("*-state.safetensors"))
    assert len(states) <= 5, "those of the prompt's chunks, and the last"
    second = bench_of(folders["qwen3_next"], tmp_path)
    answers, ends = run_all(second, {"b": (PROMPT, 60)})
    more = (*PROMPT, *answers["b", 0], 1, 2, 3)
    second.engine.close()
    third = bench_of(folders["qwen3_next"], tmp_path)
    answers, ends = run_all(third, {"c": (more, 10)})
    third.judge(more, answers["c", 0])
    assert ends["c", 0].usage.cached_tokens == (len(PROMPT) + 59) // 8 * 8
    third.engine.close()


SERVER = """
    import os, sys
    from pathlib import Path
    from pippin.config.options.model import ModelOptions
    from pippin.engines.cpu.blas import accelerate_blas
    accelerate_blas(ModelOptions(), threads=1)
    from tests.engines.language.bench import Bench, run_all
    folder, cache, seeds, end = sys.argv[1:]
    options = ModelOptions(cache_block_tokens=8, cache_dir=cache)
    bench = Bench(Path(folder), options)
    for seed in seeds.split(","):
        prompt = tuple((int(seed) * 13 + place * 11) % 250 for place in range(100))
        answers, ends = run_all(bench, {"a": (prompt, 6)})
        bench.judge(prompt, answers["a", 0])
        print(seed, ends["a", 0].usage.cached_tokens, flush=True)
    if end == "kill":
        while bench.engine.prefixes._disk.disk.writes < 8:
            pass
        os.kill(os.getpid(), 9)
    bench.engine.close()
"""


def serve(folder: Path, cache: Path, seeds: str, end: str) -> "subprocess.Popen[str]":
    paths = [str(Path(pippin.__file__).parents[1]), str(Path(__file__).parents[3])]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER), str(folder), str(cache), seeds, end],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
    )


def cached(process: "subprocess.Popen[str]") -> dict[str, int]:
    out, _ = process.communicate(timeout=600)
    return {seed: int(count) for seed, count in (line.split() for line in out.splitlines())}


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_servers_that_share_a_folder_and_are_killed_help_each_other(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    together = [serve(folders["llama"], tmp_path, "1,2,3,4", "close") for _ in range(2)]
    for process in together:
        assert cached(process).keys() == {"1", "2", "3", "4"}
        assert process.returncode == 0
    killed = serve(folders["llama"], tmp_path, "1,2,5", "kill")
    found = cached(killed)
    assert killed.returncode == -9
    assert (found["1"], found["2"], found["5"]) == (96, 96, 0)
    after = serve(folders["llama"], tmp_path, "3,5", "close")
    found = cached(after)
    assert after.returncode == 0
    assert found["3"] == 96
    assert found["5"] >= 56, "what was written before the kill"


def test_a_damaged_file_is_a_miss_and_goes(folders: dict[str, Path], tmp_path: Path, caplog) -> None:  # type: ignore[no-untyped-def]
    first = bench_of(folders["llama"], tmp_path)
    run_all(first, {"a": (PROMPT, 4)})
    first.engine.close()
    files = sorted(tmp_path.rglob("*.safetensors"))
    for place, path in enumerate(files):
        data = bytearray(path.read_bytes())
        if place % 3 == 0:
            path.write_bytes(data[: len(data) // 2])
        else:
            data[-1 - place % 3] ^= 0x40
            path.write_bytes(data)
    second = bench_of(folders["llama"], tmp_path)
    answers, ends = run_all(second, {"b": (PROMPT, 4)})
    second.judge(PROMPT, answers["b", 0])
    assert ends["b", 0].usage.cached_tokens == 0
    assert "dropped a file" in caplog.text
    second.engine.close()


@pytest.mark.parametrize(
    ("architecture", "third"),
    [*product(("gemma3_text", "qwen3_next"), range(3)), ("llama", 0), ("deepseek_v32", 1)],
)
def test_holes_in_what_a_kill_left_change_no_answer(
    folders: dict[str, Path], tmp_path: Path, architecture: str, third: int
) -> None:
    first = bench_of(folders[architecture], tmp_path)
    answers, _ = run_all(first, {"a": (PROMPT, 20)})
    first.engine.close()
    for place, path in enumerate(sorted(tmp_path.rglob("*.safetensors"))):
        if place % 3 == third:
            path.unlink() if place % 2 else path.write_bytes(path.read_bytes()[:-9])
    more = (*PROMPT, *answers["a", 0], 1, 2, 3)
    second = bench_of(folders[architecture], tmp_path)
    for _ in range(2):  # and what this server writes beside the holes is sound
        answers, _ = run_all(second, {"b": (more, 10)})
        second.judge(more, answers["b", 0])
    second.engine.close()
    third_life = bench_of(folders[architecture], tmp_path)
    answers, _ = run_all(third_life, {"c": (more, 10)})
    third_life.judge(more, answers["c", 0])
    third_life.engine.close()


def test_a_restarted_server_answers_alike_from_a_cache_of_few_bits(
    tiny_models: TinyModels, tmp_path: Path
) -> None:
    folder = tiny_models("llama", head_dim=64)
    first = bench_of(folder, tmp_path, kv_bits=8)
    run_all(first, {"a": (PROMPT, 1)})
    warm, _ = run_all(first, {"a": (PROMPT, 20)})
    first.engine.close()
    second = bench_of(folder, tmp_path, kv_bits=8)
    answers, ends = run_all(second, {"a": (PROMPT, 20)})
    assert answers == warm
    assert ends["a", 0].usage.cached_tokens == 96
    second.engine.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device", "link to itself", "link to a file"])
def test_what_is_no_ordinary_file_is_a_miss_and_goes(kind: str, tmp_path: Path) -> None:
    """A pipe would be waited for, by the request too."""
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"of somebody else")
    disk = DiskCache(tmp_path / "cache", MODEL, 1 << 20)
    path = tmp_path / "cache" / MODEL / f"{name(1)}.safetensors"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "link to itself":
            path.symlink_to(path)
        case _:
            path.symlink_to(other)
    disk.newest(1 << 20).result(timeout=20)
    os.utime(other, (7, 7))
    disk.use([name(1)])
    assert disk.read([name(1)]).result(timeout=20) == [None]
    disk.close()
    assert not os.path.lexists(path)
    assert other.stat().st_mtime == 7
    assert other.read_bytes() == b"of somebody else"


def test_a_models_folder_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    """Whoever may write in a shared cache folder would choose where prompts go, and have that folder's mode changed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / MODEL).symlink_to(elsewhere, target_is_directory=True)
    with pytest.raises(OSError, match="is a link"):
        DiskCache(tmp_path / "cache", MODEL, 1 << 20)
    assert elsewhere.stat().st_mode & 0o777 == 0o755
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_becomes_a_link_is_not_written_to(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path / "cache", MODEL, 1 << 20)
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "cache" / MODEL).rename(elsewhere)
    (tmp_path / "cache" / MODEL).symlink_to(elsewhere, target_is_directory=True)
    disk.write(name(1), {"0": np.zeros(4, np.float32)}, {})
    disk.close()
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_fails_says_so_once_and_is_tried_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = DiskCache(tmp_path / "cache", MODEL, 1 << 20)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr(os, "open", full)
        patches.setattr(disk, "PAUSE", 1.0)
        patches.setattr(time, "monotonic", lambda: 1.0)
        for number in range(20):
            kept.write(name(number), {"0": np.zeros(4, np.float32)}, {})
        kept.sweep().result()
    kept.write(name(30), {"0": np.zeros(4, np.float32)}, {})
    kept.close()
    told = [each.message for each in caplog.records]
    assert told == ["the prefix cache's folder fails: No space left on device"]
    assert kept.writes == 1


def test_a_killed_writer_leaves_only_whole_files(tmp_path: Path) -> None:
    script = """
        import os, sys
        import numpy as np
        from pathlib import Path
        from pippin.engines.language.prefix_cache.disk import DiskCache
        cache = DiskCache(Path(sys.argv[1]), "0" * 24, 1 << 30)
        for index in range(400):
            cache.write(f"{index:040}", {"0": np.full((64, 1024), index, np.float32)}, {})
        while cache.writes < 20:
            pass
        os.kill(os.getpid(), 9)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(pippin.__file__).parents[1])},
        check=False,
    )
    assert killed.returncode == -9
    cache = DiskCache(tmp_path, MODEL, 1 << 30)
    names = [path.stem for path in (tmp_path / MODEL).glob("[0-9]*.safetensors")]
    assert len(names) >= 20
    for name, entry in zip(names, cache.read(names).result(), strict=True):
        assert entry is not None
        assert (entry.arrays["0"] == int(name)).all()
    cache.close()


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    one, two = (DiskCache(tmp_path, MODEL, 1 << 30) for _ in range(2))
    array = np.arange(1000, dtype=np.float32)
    for index in range(50):
        for cache in (one, two):
            cache.write(name(index), {"0": array + index}, {})
    one.close()
    entries = two.read([name(index) for index in range(50)]).result()
    two.close()
    for index, entry in enumerate(entries):
        assert entry is not None
        assert (entry.arrays["0"] == array + index).all()


def test_the_limit_is_held_and_the_least_recently_used_goes(tmp_path: Path) -> None:
    array = np.zeros(25_000, np.float32)  # 100 kB
    cache = DiskCache(tmp_path, MODEL, 1_000_000)
    for index in range(30):
        cache.write(name(index), {"0": array}, {})
    cache.close()
    left = sorted(path.stem for path in (tmp_path / MODEL).iterdir())
    assert sum(path.stat().st_size for path in (tmp_path / MODEL).iterdir()) <= 1_000_000
    assert left[-1] == name(29)
    assert len(left) == 9


def test_weights_that_lie_in_the_same_folder_are_not_the_caches_to_delete(tmp_path: Path) -> None:
    weights = tmp_path / "llama" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(bytes(100_000))
    os.utime(weights, (0, 0))
    cache = DiskCache(tmp_path, MODEL, 50_000)
    for index in range(SWEEP_EVERY + 1):
        cache.write(name(index), {"0": np.zeros(1000, np.float32)}, {})
    cache.wipe()
    assert cache.bytes == 0
    cache.close()
    assert weights.exists()


def wait_for(cache: DiskCache, writes: int) -> None:
    while cache.writes < writes:
        time.sleep(0.001)


def test_a_wipe_from_outside_is_a_miss_and_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While a server writes and reads."""
    cache = DiskCache(tmp_path, MODEL, 1 << 30)
    for index in range(50):
        cache.write(name(index), {"0": np.full(1000, index, np.float32)}, {})
    wait_for(cache, 50)
    assert None not in cache.read([name(index) for index in range(50)]).result()
    for index in range(50, 300):
        cache.write(name(index), {"0": np.full(1000, index, np.float32)}, {})
        if index % 10 == 0:
            delete(file for folder in model_folders(tmp_path) for file in cache_files(folder))
    wait_for(cache, 300)
    entries = cache.read([name(index) for index in range(300)]).result()
    assert entries[:50] == [None] * 50
    for index, entry in enumerate(entries):
        assert entry is None or (entry.arrays["0"] == index).all()
    shutil.rmtree(tmp_path / MODEL)
    cache.write(name(1), {"0": np.zeros(1)}, {})
    wait_for(cache, 301)
    assert cache.read([name(1)]).result()[0] is not None
    cache.close()
    assert not caplog.records


def test_what_cannot_be_deleted_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of another user who shares the folder, say."""

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    first = DiskCache(tmp_path, MODEL, 1 << 30)
    first.write(name(1), {"0": np.zeros(1000)}, {})
    first.close()
    monkeypatch.setattr(Path, "unlink", refuse)
    second = DiskCache(tmp_path, MODEL, 1)
    second.wipe()
    assert second.read([name(1)]).result(timeout=30)[0] is not None
    second.close()


def test_a_wipe_leaves_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    bench = bench_of(folders["llama"], tmp_path)
    run_all(bench, {"a": (PROMPT, 4)})
    bench.engine.clear_cache(prefixes_only=False, disk=True)
    assert not list(tmp_path.rglob("*.safetensors"))
    _, ends = run_all(bench, {"b": (PROMPT, 4)})
    assert ends["b", 0].usage.cached_tokens == 0
    bench.engine.close()


def test_another_model_has_another_fingerprint(folders: dict[str, Path]) -> None:
    prints = {fingerprint(folder) for folder in folders.values()}
    assert len(prints) == len(folders)
    assert fingerprint(folders["llama"], "float32") != fingerprint(folders["llama"], "float16")


def test_a_fine_tune_of_some_layers_is_another_model(tmp_path: Path) -> None:
    base = tiny_model("llama", tmp_path / "base", intermediate_size=2000)
    prints = []
    for change in (0, 0, 1):
        weights = dict(mx.load(str(base / "model.safetensors")))
        mx.eval(weights)  # before the file is written again
        weights["model.layers.0.self_attn.q_proj.weight"] += change
        mx.save_safetensors(str(base / "model.safetensors"), weights)
        prints.append(digest_of(base))
    assert prints[0] == prints[1] != prints[2]


def test_an_adapter_with_another_scale_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"scale": 10}')
    before = fingerprint(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"scale": 20}')
    assert fingerprint(tmp_path) != before


def test_code_of_a_folder_that_was_changed_makes_another_model(tmp_path: Path) -> None:
    (tmp_path / "modeling_own.py").write_text("scale = 1")
    before = digest_of(tmp_path)
    (tmp_path / "modeling_own.py").write_text("scale = 2")
    assert digest_of(tmp_path) != before


def test_weights_that_were_written_again_are_others(folders: dict[str, Path], tmp_path: Path) -> None:
    changed = shutil.copytree(folders["llama"], tmp_path / "again")
    before = fingerprint(changed)
    os.utime(changed / "model.safetensors", ns=(1, 1))
    assert fingerprint(changed) != before
    assert digest_of(changed) == digest_of(folders["llama"])


def test_files_and_their_folder_are_for_the_user_alone(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    (root / "model").mkdir(parents=True)
    (root / "model").chmod(0o755)
    disk = DiskCache(root, "model", 1 << 20)
    disk.write("a" * 40, {"0": np.zeros(4, np.float32)}, {})
    disk.close()
    (file,) = (root / "model").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert (root / "model").stat().st_mode & 0o777 == 0o700
    other = DiskCache(tmp_path / "new", "model", 1 << 20)
    other.close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
