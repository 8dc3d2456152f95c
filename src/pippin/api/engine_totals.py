"""Adds up the figures of several engines."""

from collections.abc import Iterable

import msgspec

from pippin.core.models import CacheStats, EngineStats


def total_stats(engines: Iterable[EngineStats]) -> EngineStats:
    """Sums; the requests of all."""
    listed = list(engines)
    names = [each.name for each in msgspec.structs.fields(EngineStats) if each.type in (int, float)]
    sums = {name: sum(msgspec.structs.asdict(each)[name] for each in listed) for name in names}
    return EngineStats(
        **sums,
        cache=total_cache(each.cache for each in listed),
        requests=tuple(request for each in listed for request in each.requests),
    )


def total_cache(caches: Iterable[CacheStats]) -> CacheStats:
    listed = [msgspec.structs.asdict(each) for each in caches]
    return CacheStats(**{name: sum(each[name] for each in listed) for name in CacheStats.__struct_fields__})


def hit_ratio(cache: CacheStats) -> float:
    """Share of the prompt tokens looked up that were cached."""
    return cache.hit_tokens / cache.lookup_tokens if cache.lookup_tokens else 0.0


def utilization(cache: CacheStats) -> float:
    return cache.bytes / cache.limit_bytes if cache.limit_bytes else 0.0
