"""Replicas share a folder of the disk cache without a lock: files appear whole, and whoever looks holds the limit."""

import threading
from pathlib import Path

import numpy as np

from pippin.engines.language.prefix_cache.disk import DiskCache

PRINT = "0" * 24
FILES = 60


def name_of(number: int) -> str:
    return f"{number:040x}"


def arrays_of(number: int) -> dict[str, np.ndarray]:
    return {"0": np.full((64, 64), number, np.float32)}


def test_several_writers_and_sweepers_lose_nothing_and_read_only_whole_files(tmp_path: Path) -> None:
    caches = [DiskCache(tmp_path, PRINT, 1 << 30) for _ in range(4)]
    wrong: list[int] = []

    def work(cache: DiskCache, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(FILES).tolist()
        for number in order:
            cache.write(name_of(number), arrays_of(number))
            cache.sweep().result(20)  # after what was written
            [entry] = cache.read([name_of(order[0])]).result(20)
            if entry is None or not (entry["0"] == order[0]).all():
                wrong.append(order[0])

    threads = [threading.Thread(target=work, args=(cache, seed)) for seed, cache in enumerate(caches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = caches[0].read([name_of(number) for number in range(FILES)]).result(20)
    for cache in caches:
        cache.close()
    assert wrong == []
    assert all(entry is not None for entry in found)
    assert [path for path in (tmp_path / PRINT).iterdir() if path.name.startswith(".")] == []


def test_a_sweep_holds_the_limit_over_what_all_have_written(tmp_path: Path) -> None:
    limit = 20 * 17_000
    caches = [DiskCache(tmp_path, PRINT, limit) for _ in range(3)]
    for number in range(FILES):
        caches[number % 3].write(name_of(number), arrays_of(number))
    for cache in caches:
        cache.close()
    last = DiskCache(tmp_path, PRINT, limit)  # looks at the folder as it starts
    last.close()
    held = sum(path.stat().st_size for path in (tmp_path / PRINT).iterdir())
    assert 0 < held <= limit
