"""What ranks in a cluster need and are told, and which machines are refused; without Ray."""

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.processes import ended
from pippin.runtime.cluster.asking import Clusters, refusal
from pippin.runtime.cluster.needs import Cluster, Need, Places
from pippin.runtime.ranks.group import RankGroup
from pippin.runtime.ranks.places import (
    EACH,
    Held,
    members_in_cluster,
    need_of_each,
    places,
    refuse_public,
)
from tests.runtime.doubles import FakeWorker

GB = 1 << 30


def spec(folder: Path, **options: object) -> WorkerSpec:
    (folder / "config.json").write_text("{}")
    info = ModelInfo(id="org/it's", kind="language", path=str(folder))
    options = {"cluster": "auto", **options}
    return WorkerSpec(info=info, options=options, expected_bytes=20 * GB + EACH)


def test_a_rank_needs_its_part_of_the_weights_and_its_own_libraries(tmp_path: Path) -> None:
    own = spec(tmp_path)
    assert need_of_each(own, ModelOptions(), 1) == Need(20 * GB + EACH, "shared")
    assert need_of_each(own, ModelOptions(), 4) == Need(5 * GB + EACH, "whole")
    assert need_of_each(own, ModelOptions(memory_bytes=40 * GB), 4) == Need(10 * GB, "shared")


def test_each_rank_is_told_its_place(tmp_path: Path) -> None:
    own = spec(tmp_path, ranks=3, memory_bytes=30 * GB)
    held = Held(
        Places("pippin-1", ("10.0.0.1", "10.0.0.2", "10.0.0.1")), Need(10 * GB, "shared"), cast(Any, None)
    )
    told = members_in_cluster(own, held)
    ranks = [each.rank for each in told if each.rank is not None]
    assert [rank.rank for rank in ranks] == [0, 1, 2]
    assert [host.rpartition(":")[0] for host in ranks[0].hosts] == list(held.places.addresses)
    ports = [place.rpartition(":")[2] for place in (*ranks[0].hosts, ranks[0].control, ranks[0].coordinator)]
    assert len(set(ports)) == 5  # two ranks share a machine
    assert ranks[2].control.startswith("10.0.0.1:")
    assert [each.options["memory_bytes"] for each in told] == [10 * GB] * 3
    assert told[1].title == '"org/it\'s" (rank 1 of 3, on 10.0.0.2)'
    words = shlex.split(told[1].command or "")
    assert words[2:] == [
        *("pippin.runtime.cluster.bridge", "auto", str(10 * GB), "shared", "60.0"),
        *("org/it's", str(tmp_path), "pippin-1", "1"),
    ]


def answering(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Have this program stand in for the one that asks the cluster."""
    module = sys.modules["pippin.runtime.cluster.asking"]
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", program))


HOLDS = """
import sys
print('{"group": "pippin-1", "addresses": ["10.0.0.1", "%s"]}', flush=True)
sys.stdin.read()
"""


def test_places_are_held_until_they_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, HOLDS % "10.0.0.2")

    async def play() -> None:
        held = await Held.open(spec(tmp_path, ranks=2))
        assert held.places == Places("pippin-1", ("10.0.0.1", "10.0.0.2"))
        assert held.process.returncode is None
        await ended(held.process)
        assert held.process.returncode is not None

    asyncio.run(play())


BEGINS = """
import sys
open('asked', 'a').write(sys.argv[1] + ' ')
begun = sys.argv[1] == 'auto'
print('{"address": "127.0.0.1:7", "nodes": [], "begun": %s}' % str(begun).lower(), flush=True)
sys.stdin.read() if begun else None
"""


def test_a_cluster_that_was_begun_here_is_kept_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, BEGINS)
    monkeypatch.chdir(tmp_path)
    info = ModelInfo(id="m", kind="language")

    async def play() -> None:
        clusters = Clusters()
        begun = Cluster("127.0.0.1:7", (), begun=True)
        found = await asyncio.gather(*(clusters.find(info, "auto") for _ in range(2)))
        assert found == [begun, begun]
        assert (await clusters.find(info, "10.0.0.1:6379")).begun is False
        assert (tmp_path / "asked").read_text() == "auto 10.0.0.1:6379 "
        [own] = psutil.Process().children()
        own.kill()
        await asyncio.sleep(0.2)
        assert await clusters.find(info, "auto") == begun
        assert (tmp_path / "asked").read_text() == "auto 10.0.0.1:6379 auto "
        [own] = psutil.Process().children()  # it ends with the server, whose part this process plays
        own.kill()
        await asyncio.sleep(0.2)

    asyncio.run(play())
    assert psutil.Process().children() == []


def test_places_on_the_internet_are_given_back_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, HOLDS % "1.1.1.1")
    before = set(psutil.Process().children())
    with pytest.raises(ServerError, match="public internet"):
        asyncio.run(Held.open(spec(tmp_path, ranks=2)))
    assert set(psutil.Process().children()) == before


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("""import sys; print('{"refused": "No room."}'); sys.stderr.write('W000 too')""", ": No room."),
        ("import sys; sys.exit('RayError: out of luck')", ": RayError: out of luck"),
        ("print('nonsense')", "without a word"),
        ("import time; time.sleep(60)", "It did not answer."),
    ],
)
def test_a_cluster_that_gives_no_places_is_told_why(
    program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, program)
    if "sleep" in program:
        monkeypatch.setattr(sys.modules["pippin.runtime.cluster.asking"], "ANSWER_WITHIN", 0.2)
    before = set(psutil.Process().children())
    with pytest.raises(ServerError, match=words) as raised:
        asyncio.run(Held.open(spec(tmp_path, ranks=2)))
    assert raised.value.report.kind == "load_failed"
    assert set(psutil.Process().children()) == before


def test_a_load_that_is_called_off_leaves_nobody_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, "import time; time.sleep(60)")
    before = set(psutil.Process().children())

    async def play() -> None:
        opening = asyncio.create_task(Held.open(spec(tmp_path, ranks=2)))
        await asyncio.sleep(0.3)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(play())
    assert set(psutil.Process().children()) == before


def test_what_the_cluster_said_last_is_told() -> None:
    error = refusal(ModelInfo(id="m", kind="language"), b"W000 some warning\nNo room.\n\n")
    assert error.report.message == "The cluster cannot run 'm': No room."
    assert "without a word" in refusal(ModelInfo(id="m", kind="language"), b"").report.message


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.4", "169.254.1.1", "127.0.0.2", "100.64.3.4"])
def test_ranks_talk_within_private_networks(address: str) -> None:
    refuse_public([address], ModelOptions())


def test_ranks_talk_over_the_internet_only_where_that_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(
        ServerError, match=r"1\.1\.1\.1 is an address of the public internet.*WireGuard"
    ) as raised:
        refuse_public(["10.0.0.1", "1.1.1.1"], ModelOptions())
    assert (raised.value.report.kind, raised.value.report.param) == ("load_failed", "rank_network")
    refuse_public(["1.1.1.1"], ModelOptions(rank_network="any"))
    with pytest.raises(ServerError, match="public internet"):
        places(
            WorkerSpec(
                info=ModelInfo(id="m", kind="language"), options={"machines": ["127.0.0.1", "1.1.1.1"]}
            )
        )


def test_a_group_that_does_not_start_gives_its_places_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, HOLDS % "10.0.0.2")
    before = set(psutil.Process().children())
    launched: list[FakeWorker] = []

    async def launch(own: WorkerSpec) -> Any:
        if launched:
            raise OSError("no more processes")
        launched.append(FakeWorker(own, 0, hold=False))
        return launched[0]

    with pytest.raises(OSError, match="no more processes"):
        asyncio.run(RankGroup.start(spec(tmp_path, ranks=2), launch))
    assert launched[0].spec.title == '"org/it\'s" (rank 0 of 2, on 10.0.0.1)'
    assert launched[0].stop_deadline == 0.0
    assert set(psutil.Process().children()) == before
