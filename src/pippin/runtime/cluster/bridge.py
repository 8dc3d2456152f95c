"""A worker in a Ray cluster, as a command whose input and output are the worker's.

Run as `python -m` this module with: the cluster's address; the bytes that the worker needs; `shared` or `whole` (a
machine of its own); the seconds that it may wait for room (`inf`: as long as it takes); the model's name and folder.
For a rank of a group, also the name of the group's places and the rank's number.

Each bridge is a Ray driver with one actor. So Ray ends the worker's side whenever and however this side ends, and frees
its resources. The bridge exits as the worker did: with its status, or by the same signal.
"""

import asyncio
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pippin.config.cluster import set_ray_environment
from pippin.config.errors import install_command
from pippin.runtime.cluster.host import LINK, LOG, READ_SIZE, SILENT, Host, Identity, Ticket, pump, watch
from pippin.runtime.cluster.needs import Need

ASK_EVERY: Final = 3.0  # seconds between probes of the actor
LAST_WORD: Final = 15.0  # seconds from the end of the link to the worker's status
NOT_REACHED: Final = 1


class NotPlaced(Exception):
    """The worker could not be run; the message says why."""


class NoCluster(NotPlaced):
    """There is no cluster at the address."""


def main(arguments: Sequence[str]) -> int:
    """Run the bridge; returns the worker's exit status, or a negative signal number."""
    address, memory, share, within, model, path, *place = arguments
    link = socket.socket(fileno=os.dup(0))
    silence(1)
    seat = (place[0], int(place[1])) if place else None
    try:
        bridge = Bridge(link, address, Need.of(memory, share), float(within), seat)
        return asyncio.run(bridge.run(model, path))
    except NotPlaced as error:
        say(str(error))
        return NOT_REACHED


def silence(descriptor: int) -> None:
    """Discard everything printed on this descriptor. Ray repeats on it whatever the machines report, including pages of
    state when one is lost; the bridge reports what matters in a sentence."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@dataclass
class Bridge:
    """One worker, from its placement to its end."""

    link: socket.socket
    address: str
    need: Need
    within: float  # seconds to wait for room
    seat: tuple[str, int] | None  # for a rank, the name of its group's places and its number among them
    identity: Identity = field(default_factory=Identity.new)
    connections: "dict[bytes, asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]" = field(
        default_factory=dict
    )

    async def run(self, model: str, path: str) -> int:
        """Place and run the worker; returns its exit status. Raises `NotPlaced`."""
        ray = joined(self.address)
        loop = asyncio.get_running_loop()
        self.connections = {word: loop.create_future() for word in (LINK, LOG)}
        no_room = (
            f"No machine of the cluster has {self.need}. `ray status` shows what is taken; `pippin join` on another "
            "machine adds it, and --ranks splits a language model over several."
        )
        host, (certificate, machine) = await living(ray, lambda: self._actor(ray), no_room, self.within)
        say(f"{'A replica' if self.seat is None else f'Rank {self.seat[1]}'} is placed on {machine}.")
        here = ray.util.get_node_ip_address()
        context = self.identity.context(ssl.PROTOCOL_TLS_SERVER, certificate)
        server = await asyncio.start_server(self._greet, here, 0, ssl=context, backlog=2)
        ticket = Ticket(here, server.sockets[0].getsockname()[1], self.identity.certificate, model, path)
        status: asyncio.Future[int] = asyncio.wrap_future(host.run.remote(ticket).future())
        passing = asyncio.create_task(self._pass(server))
        watching = asyncio.create_task(self._until_silent(host))
        either: set[asyncio.Future[Any]] = {status, passing, watching}
        done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if status in done and status.exception() is None:
            await passing  # deliver the worker's last output
        lost = f"The machine {machine} is gone, or the worker's process there."
        if watching in done:
            raise NotPlaced(f"{lost} It has been silent for {SILENT} seconds.")
        watching.cancel()
        try:
            return await asyncio.wait_for(status, LAST_WORD)
        except (TimeoutError, ray.exceptions.RayError) as error:
            raise NotPlaced(f"{lost} {first_line(error)}".rstrip()) from error
        finally:
            passing.cancel()

    async def _until_silent(self, host: Any) -> None:
        """Wait until the actor no longer answers: its process is stopped, while its machine's kernel still accepts
        bytes."""
        import ray

        while True:
            await asyncio.sleep(ASK_EVERY)
            try:
                await asyncio.wait_for(host.introduce.remote(), SILENT)
            except TimeoutError:
                return
            except ray.exceptions.RayError:
                await asyncio.sleep(SILENT)  # it has ended; its status explains that better

    def _actor(self, ray: Any) -> Any:
        """The worker's other end, on any machine that has what it needs, or at its group's place."""
        wanted = self.need.resources(ray.cluster_resources())
        needs = {
            "num_cpus": wanted.pop("CPU"),
            "num_gpus": wanted.pop("GPU", 0),
            "memory": wanted.pop("memory"),
            "resources": wanted,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD" if self.seat is None else placed_at(ray, *self.seat),
        }
        return ray.remote(Host).options(**needs).remote()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept a connection of the actor; TLS admits nobody else."""
        watch(writer)
        word = await reader.readline()
        found = self.connections.get(word)
        if found is None or found.done():
            writer.close()
        else:
            found.set_result((reader, writer))

    async def _pass(self, server: asyncio.Server) -> None:
        """Forward the worker's link and log until both end."""
        link, log = [await self.connections[word] for word in (LINK, LOG)]
        server.close()
        own = await asyncio.open_connection(sock=self.link)
        await asyncio.gather(pump(own[0], link[1]), pump(link[0], own[1]), _printed(log[0]))


def joined(address: str) -> Any:
    """Ray, connected to a cluster. Raises `NotPlaced`."""
    set_ray_environment()
    try:
        import ray
    except ImportError:
        raise NotPlaced(
            f"Clusters need an extra on each of their machines: {install_command('cluster')}"
        ) from None
    try:
        found = answering(address)
        ray.init(address=found, namespace="pippin", log_to_driver=False, logging_level="WARNING")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise (NoCluster if isinstance(error, OSError) else NotPlaced)(
            f"No Ray cluster is reached at {address!r}: {first_line(error)} `pippin join` starts one here, and "
            "`pippin join HOST:PORT` joins another machine's."
        ) from error
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler prints a traceback
    return ray


def answering(address: str) -> str:
    """HOST:PORT of the cluster that is meant. Raises `OSError` if nobody answers there."""
    from ray._private.services import get_ray_address_from_environment

    # `auto` also finds a cluster that has ended, and Ray would wait for it for more than a minute.
    found: str = get_ray_address_from_environment(address, None)
    host, _, port = found.rpartition("/")[2].rpartition(":")  # of `ray://HOST:PORT`, too
    socket.create_connection((host.strip("[]"), int(port)), SILENT).close()
    return found


async def living(
    ray: Any, new_actor: Callable[[], Any], no_room: str, within: float
) -> tuple[Any, tuple[str, str]]:
    """Start an actor; returns it with its introduction. Raises `NotPlaced`, with the sentence `no_room` if none is
    placed `within` so many seconds.

    For some seconds Ray keeps placing actors on a machine that is gone. Such an actor dies, and another one is started
    until Ray has noticed.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        actor = new_actor()
        try:
            return actor, await asyncio.wait_for(actor.introduce.remote(), deadline - loop.time())
        except ray.exceptions.RayActorError as error:
            if error.actor_init_failed or loop.time() + ASK_EVERY > deadline:
                raise NotPlaced(f"The worker's place in the cluster was lost. {first_line(error)}") from error
        except (TimeoutError, ray.exceptions.RayError) as error:
            raise NotPlaced(f"{no_room} {first_line(error)}".rstrip()) from error
        await asyncio.sleep(ASK_EVERY)


def placed_at(ray: Any, group: str, number: int) -> Any:
    """The scheduling strategy for one of a group's places. Raises `NotPlaced`."""
    try:
        found = ray.util.get_placement_group(group)
    except ValueError as error:  # the process that held them has ended
        raise NotPlaced("The places of this group of ranks were given back.") from error
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(found, placement_group_bundle_index=number)


def first_line(error: Exception) -> str:
    """The first line of an error, or nothing; Ray's messages go on with pages of state."""
    return (str(error).strip().splitlines() or [""])[0]


def say(sentence: str) -> None:
    """Print a sentence for the server's log."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


async def _printed(log: asyncio.StreamReader) -> None:
    while data := await log.read(READ_SIZE):
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


def end_as(status: int) -> None:
    """End this process as the worker ended, so that the waiting parent sees the same exit status or signal."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # only the worker's core is worth a file
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    end_as(main(sys.argv[1:]))
