"""The pool's life of models, on a clock that the test turns and with workers that are no processes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError
from pippin.core.events import Failed
from pippin.core.tasks import Tokenize
from pippin.runtime.pool import Lease
from pippin.runtime.workers.link import Mailbox
from tests.runtime.doubles import MIB, Stage, settle
from tests.service.doubles import StaticCatalog, scripted


def asked(lease: Lease) -> Mailbox:
    """The mailbox of a request to the leased model."""
    mailbox = Mailbox(0, on_overflow=lambda: None)
    lease.worker.requests.submit("r", Tokenize("x"), mailbox)
    return mailbox


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


def test_many_requests_wait_for_one_load() -> None:
    async def scene() -> None:
        stage = Stage()
        leases = await asyncio.gather(*(stage.lease("a") for _ in range(20)))
        assert stage.launcher.names == ["a"]
        assert {lease.worker for lease in leases} == {stage.launcher.last("a")}
        assert stage.pool.states()[0].active == 20

    play(scene)


def test_a_lease_is_given_when_the_tokenizer_is_there_before_the_weights() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.launcher.hold = True
        lease = stage.lease("a")
        await settle()
        assert not lease.done()
        stage.launcher.last("a").prompt_ready.set_result(None)
        await settle()
        assert lease.done()
        assert stage.pool.states()[0].state == "loading"
        assert stage.pool.states()[0].stage == "weights"
        stage.launcher.last("a").finish_load()
        await settle()
        assert stage.state("a") == "loaded"

    play(scene)


def test_the_least_recently_used_idle_model_makes_room() -> None:
    async def scene() -> None:
        stage = Stage()
        for name in "ab":
            await stage.use(name)
            await stage.clock.advance(1)
        await stage.use("a")
        await stage.clock.advance(1)
        await stage.use("c")
        assert stage.loaded == "ac"

    play(scene)


def test_max_models_one_swaps() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1)
        for name in "abab":
            await stage.use(name)
        assert stage.launcher.names == list("abab")
        assert stage.loaded == "b"

    play(scene)


def test_a_pinned_model_stays() -> None:
    async def scene() -> None:
        stage = Stage()
        for name in "ab":
            await stage.use(name)
            await stage.clock.advance(1)
        await stage.pool.pin("a", True)
        await stage.use("c")
        assert stage.loaded == "ac"
        await stage.pool.pin("c", True)
        with pytest.raises(ServerError, match="pinned models hold it") as refused:
            await stage.lease("b")
        assert refused.value.report.kind == "overloaded"
        assert refused.value.report.retry_after

    play(scene)


def test_a_busy_model_is_drained_and_not_cut() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1)
        busy = await stage.lease("a")
        mailbox = asked(busy)
        wanted = stage.lease("b")
        await stage.clock.advance(5)
        assert not wanted.done()
        assert not mailbox.complete
        assert stage.state("a") == "unloading"
        busy.release()
        await settle()
        assert wanted.done()
        assert stage.loaded == "b"

    play(scene)


def test_requests_for_a_draining_model_wait_their_turn_and_nobody_starves() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1)
        first = await stage.lease("a")
        other = stage.lease("b")
        await settle()
        again = stage.lease("a")
        await settle()
        assert not again.done()
        first.release()
        await settle()
        assert other.done()
        assert not again.done()
        (await other).release()
        await settle()
        assert again.done()
        assert stage.launcher.names == ["a", "b", "a"]

    play(scene)


def test_wait_then_fail_refuses_after_its_wait_and_the_busy_model_goes_on() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy="wait_then_fail", contention_wait=30.0)
        busy = await stage.lease("a")
        wanted = stage.lease("b")
        await stage.clock.advance(29)
        assert not wanted.done()
        await stage.clock.advance(2)
        with pytest.raises(ServerError, match="no room") as refused:
            await wanted
        assert refused.value.report.status == 503
        assert stage.state("a") == "loaded"
        busy.release()

    play(scene)


def test_wait_waits_for_as_long_as_it_takes() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy="wait")
        busy = await stage.lease("a")
        wanted = stage.lease("b")
        await stage.clock.advance(10_000)
        assert not wanted.done()
        busy.release()
        await settle()
        assert wanted.done()

    play(scene)


def test_fail_refuses_at_once() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy="fail")
        await stage.lease("a")
        with pytest.raises(ServerError, match="busy models hold it"):
            await stage.lease("b")
        assert stage.state("a") == "loaded"
        assert stage.launcher.names == ["a"]

    play(scene)


@pytest.mark.parametrize(("policy", "wait"), [("preempt", 0.0), ("wait_then_preempt", 30.0)])
def test_preempt_ends_the_busy_models_requests_with_a_clear_error(policy: str, wait: float) -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy=policy, contention_wait=30.0)
        busy = await stage.lease("a")
        mailbox = asked(busy)
        wanted = stage.lease("b")
        await settle()
        if wait:
            assert not mailbox.complete
            await stage.clock.advance(wait + 1)
        assert wanted.done()
        failed = (await mailbox.take())[-1]
        assert isinstance(failed, Failed)
        assert failed.error.status == 503
        assert "make room for 'b'" in failed.error.message
        assert stage.loaded == "b"
        busy.release()  # of a worker that is gone: nothing happens
        assert stage.loaded == "b"

    play(scene)


def test_an_idle_model_leaves_after_its_timeout() -> None:
    async def scene() -> None:
        info = scripted("a")
        stage = Stage(catalog=StaticCatalog(info, options={"a": ModelOptions(idle_timeout=60.0)}))
        lease = await stage.lease("a")
        await stage.clock.advance(100)
        assert stage.loaded == "a"
        lease.release()
        await stage.clock.advance(59)
        await stage.use("a")
        await stage.clock.advance(59)
        assert stage.loaded == "a"
        await stage.clock.advance(2)
        assert stage.loaded == ""

    play(scene)


@pytest.mark.parametrize(("keep_alive", "alive_after"), [(0.0, 0.0), (5.0, 4.0), (-1.0, 1e4)])
def test_keep_alive_of_a_request_decides_over_the_option(keep_alive: float, alive_after: float) -> None:
    async def scene() -> None:
        stage = Stage(catalog=StaticCatalog(scripted("a"), options={"a": ModelOptions(idle_timeout=60.0)}))
        (await stage.lease("a")).release(keep_alive)
        await settle()
        await stage.clock.advance(alive_after)
        assert stage.loaded == ("" if keep_alive == 0 else "a")
        await stage.clock.advance(2)
        assert stage.loaded == ("a" if keep_alive < 0 else "")

    play(scene)


def test_a_failed_load_is_told_for_a_while_and_then_tried_again() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.launcher.fail_with = "The weights are damaged."
        for _ in range(3):
            with pytest.raises(ServerError, match="weights are damaged") as failed:
                await stage.lease("a")
            assert failed.value.report.status == 424
        assert stage.launcher.names == ["a"]
        assert stage.state("a") == "failed"
        assert stage.pool.states()[0].error is not None
        stage.launcher.fail_with = None
        await stage.clock.advance(11)
        await stage.use("a")
        assert stage.loaded == "a"
        assert stage.pool.states()[0].error is None

    play(scene)


def test_failing_loads_are_tried_ever_more_seldom_but_at_once_for_the_operator() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.launcher.fail_with = "The weights are damaged."
        for tries in range(1, 10):
            with pytest.raises(ServerError):
                await stage.lease("a")
            assert len(stage.launcher.launched) == tries
            pause = min(10.0 * 2 ** (tries - 1), 120.0)
            await stage.clock.advance(pause - 1)
            with pytest.raises(ServerError) as kept:
                await stage.lease("a")
            assert kept.value.report.retry_after == 1.0
            assert len(stage.launcher.launched) == tries
            await stage.clock.advance(1)
        with pytest.raises(ServerError):
            await stage.pool.load("a")
        stage.launcher.fail_with = None
        assert (await stage.pool.load("a")).state == "loaded"
        stage.launcher.fail_with = "Again."
        await stage.pool.unload("a")
        with pytest.raises(ServerError):
            await stage.lease("a")
        await stage.clock.advance(10)
        with pytest.raises(ServerError) as fresh:
            await stage.lease("a")
        assert fresh.value.report.retry_after is None, "a load that succeeded wipes the slate"

    play(scene)


def test_a_load_that_takes_too_long_is_ended() -> None:
    async def scene() -> None:
        stage = Stage(catalog=StaticCatalog(scripted("a"), options={"a": ModelOptions(load_timeout=20.0)}))
        stage.launcher.hold = True
        lease = stage.lease("a")
        await stage.clock.advance(21)
        with pytest.raises(ServerError, match="more than 20 seconds"):
            await lease
        assert stage.launcher.last("a").stop_deadline == 0.0

    play(scene)


def test_a_dead_worker_is_started_again_by_the_next_request() -> None:
    async def scene() -> None:
        stage = Stage()
        lease = await stage.lease("a")
        mailbox = asked(lease)
        lease.worker.die()
        await settle()
        assert isinstance((await mailbox.take())[-1], Failed)
        lease.release()
        assert stage.state("a") == "failed"
        await stage.use("a")
        assert stage.launcher.names == ["a", "a"]
        assert stage.pool.states()[0].restarts == 1

    play(scene)


def test_a_crash_loop_pauses_longer_each_time() -> None:
    async def scene() -> None:
        stage = Stage()
        for _ in range(3):
            lease = await stage.lease("a")
            lease.worker.die()
            await settle()
            lease.release()
        with pytest.raises(ServerError, match="died 3 times") as refused:
            await stage.lease("a")
        assert refused.value.report.status == 503
        assert refused.value.report.retry_after == pytest.approx(10, abs=0.1)
        assert "it was ended by signal 9" in refused.value.report.message
        await stage.clock.advance(11)
        lease = await stage.lease("a")
        lease.worker.die()
        await settle()
        lease.release()
        with pytest.raises(ServerError, match="20 seconds at the earliest"):
            await stage.lease("a")

    play(scene)


def test_a_model_larger_than_all_memory_is_refused_with_the_numbers() -> None:
    async def scene() -> None:
        catalog = StaticCatalog(scripted("a"), sizes={"a": 3 << 30})
        stage = Stage(memory=2 << 30, catalog=catalog)
        with pytest.raises(ServerError, match=r"about 3\.0 GiB, more than the 2\.0 GiB"):
            await stage.lease("a")
        assert stage.launcher.names == []

    play(scene)


def test_a_model_that_measures_more_than_estimated_sends_idle_ones_away() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.launcher.footprints = {"b": 200 * MIB}
        await stage.use("a")
        await stage.clock.advance(1)
        await stage.use("b")
        await settle()
        assert stage.loaded == "b"

    play(scene)


def test_a_caller_who_leaves_while_waiting_for_room_gives_up_the_load() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy="wait")
        busy = await stage.lease("a")
        wanted = stage.lease("b")
        await settle()
        assert stage.state("a") == "unloading"
        wanted.cancel()
        await settle()
        assert stage.state("a") == "loaded"
        assert stage.state("b") == "unloaded"
        assert stage.launcher.last("b").died.done()
        assert not stage.launcher.last("b").may_load
        busy.release()

    play(scene)


def test_a_load_goes_on_when_the_caller_leaves_but_another_waits() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.launcher.hold = True
        first, second = stage.lease("a"), stage.lease("a")
        await settle()
        first.cancel()
        await settle()
        stage.launcher.last("a").finish_load()
        assert (await second).worker is stage.launcher.last("a")
        assert stage.pool.states()[0].active == 1

    play(scene)


def test_unloading_by_hand_waits_for_requests_and_then_cuts_them() -> None:
    async def scene() -> None:
        stage = Stage(drain_timeout=10.0)
        assert not await stage.pool.unload("a")
        lease = await stage.lease("a")
        mailbox = asked(lease)
        unloading = asyncio.create_task(stage.pool.unload("a"))
        await stage.clock.advance(9)
        assert not unloading.done()
        await stage.clock.advance(2)
        assert await unloading
        assert isinstance((await mailbox.take())[-1], Failed)
        lease.release()
        assert stage.state("a") == "unloaded"

    play(scene)


def test_unloading_by_hand_calls_off_a_load() -> None:
    async def scene() -> None:
        stage = Stage(drain_timeout=0.0)
        stage.launcher.hold = True
        lease = stage.lease("a")
        await settle()
        unloading = asyncio.create_task(stage.pool.unload("a"))
        await stage.clock.advance(1)
        assert await unloading
        assert stage.launcher.launched[0].died.done()
        await settle()
        assert len(stage.launcher.launched) == 2  # the request still wants the model, and loads it again
        stage.launcher.last("a").finish_load()
        (await lease).release()

    play(scene)


def test_free_memory_is_shared_among_the_loaded_models() -> None:
    async def scene() -> None:
        stage = Stage(memory=1000 * MIB)
        await stage.use("a")
        assert stage.launcher.last("a").memory_bytes == 1000 * MIB
        await stage.use("b")
        assert stage.launcher.last("b").memory_bytes == 500 * MIB
        assert stage.launcher.last("a").changes == [{"memory_bytes": 500 * MIB}]
        await stage.pool.unload("b")
        assert stage.launcher.last("a").changes[-1] == {"memory_bytes": 1000 * MIB}

    play(scene)


def test_a_full_queue_refuses() -> None:
    async def scene() -> None:
        options = {"a": ModelOptions(max_num_seqs=2, queue_size=3)}
        stage = Stage(catalog=StaticCatalog(scripted("a"), options=options))
        stage.launcher.hold = True
        waiting = [stage.lease("a") for _ in range(5)]
        await settle()
        with pytest.raises(ServerError, match="queue of model 'a' is full") as refused:
            await stage.lease("a")
        assert refused.value.report.status == 503
        stage.launcher.last("a").finish_load()
        await asyncio.gather(*waiting)

    play(scene)


def test_one_caller_leaves_places_for_others_as_soon_as_there_are_some() -> None:
    async def scene() -> None:
        options = {"a": ModelOptions(max_num_seqs=2, queue_size=6)}
        stage = Stage(catalog=StaticCatalog(scripted("a"), options=options))
        alone = [await stage.lease("a", "greedy") for _ in range(8)]
        with pytest.raises(ServerError, match="is full; try"):
            await stage.lease("a", "greedy")
        with pytest.raises(ServerError, match="is full; try"):
            await stage.lease("a", "other")
        for lease in alone[:2]:
            lease.release()
        with pytest.raises(ServerError, match=r"full for you: 6 of 8 places are yours") as refused:
            await stage.lease("a", "greedy")
        assert refused.value.report.status == 503
        await asyncio.gather(*(stage.lease("a", name) for name in ("other", "third")))

    play(scene)


def test_closing_ends_loads_and_workers_and_refuses_what_comes() -> None:
    async def scene() -> None:
        stage = Stage()
        await stage.use("a")
        stage.launcher.hold = True
        loading = stage.lease("b")
        await settle()
        await stage.pool.close(3.0)
        with pytest.raises(ServerError, match="shutting down"):
            await loading
        with pytest.raises(ServerError, match="shutting down"):
            await stage.lease("a")
        assert all(worker.died.done() for worker in stage.launcher.launched)
        assert stage.launcher.last("a").stop_deadline == 3.0

    play(scene)


def test_statistics_caches_and_options_reach_the_worker() -> None:
    async def scene() -> None:
        stage = Stage()
        await stage.use("a")
        assert (await stage.pool.stats("a")).steps == 1
        assert (await stage.pool.stats("b")).steps == 0
        assert await stage.pool.clear_cache() == ["a"]
        assert stage.launcher.last("a").cleared == 1
        stage.catalog.changed["a"] = ModelOptions(idle_timeout=5.0)
        await stage.pool.adopt(stage.options)
        assert {"idle_timeout": 5.0} in stage.launcher.last("a").changes
        await stage.clock.advance(6)
        assert stage.state("a") == "unloaded"

    play(scene)


def test_a_lower_budget_and_a_models_own_bound_reach_the_workers_at_once() -> None:
    async def scene() -> None:
        stage = Stage(memory=1000 * MIB)
        stage.catalog.changed["b"] = ModelOptions(memory_bytes=900 * MIB)
        await stage.use("a")
        await stage.use("b")
        worker = {name: stage.launcher.last(name) for name in "ab"}
        assert worker["b"].memory_bytes == 500 * MIB, "it says the most that b takes, and a has the rest"
        stage.catalog.changed["b"] = ModelOptions(memory_bytes=150 * MIB)
        await stage.pool.adopt(ServerOptions(memory_budget_gb=0.5))
        assert worker["b"].changes == [{"memory_bytes": 150 * MIB}]
        assert worker["a"].changes[-1] == {"memory_bytes": 250_000_000}

    play(scene)


def test_the_last_loaded_model_is_known() -> None:
    async def scene() -> None:
        stage = Stage()
        assert stage.pool.last_loaded() is None
        await stage.use("a")
        await stage.use("b")
        await stage.use("a")
        assert stage.pool.last_loaded() == "b"
        await stage.pool.unload("b")
        assert stage.pool.last_loaded() == "a"

    play(scene)
