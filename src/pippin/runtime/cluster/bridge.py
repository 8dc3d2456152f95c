"""A worker of a Ray cluster, as a command whose input and output are the worker's: `python -m` this module, with the
cluster's address, the bytes that the worker needs, `shared` or `whole` (a machine of its own), and the model's name
and folder.

Each bridge is a driver of Ray's with one actor, so that Ray ends the worker's side when this side ends, however that
is, and frees what was set aside for it. The exit status is the worker's.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from pippin.config.cluster import MACHINE, set_ray_environment
from pippin.runtime.cluster.host import Host, Ticket
from pippin.runtime.cluster.pairing import Identity
from pippin.runtime.cluster.pumps import LINK, LOG, READ_SIZE, pump, watch

PLACE_WITHIN: Final = 60.0  # seconds for Ray to find a machine and start a process there
LAST_WORD: Final = 15.0  # seconds from the end of the link to the worker's status
SHARE: Final = 0.001  # of it, for a replica that leaves room for others
NOT_REACHED: Final = 1

T = TypeVar("T")


class NotPlaced(Exception):
    """The worker runs nowhere; the text says why."""


def main() -> int:
    """The worker's exit status."""
    address, memory, share, model, path = sys.argv[1:]
    # What Ray or anybody prints is no part of the link.
    link = socket.socket(fileno=os.dup(0))
    os.dup2(2, 1)
    try:
        return asyncio.run(Bridge(link, address, int(memory), alone=share == "whole").run(model, path))
    except NotPlaced as error:
        say(str(error))
        return NOT_REACHED


class Bridge:
    """One worker, from its place to its end."""

    def __init__(self, link: socket.socket, address: str, memory: int, *, alone: bool) -> None:
        self._link = link
        self._address = address
        self._memory = memory
        self._alone = alone
        self._identity = Identity.new()
        self._connections: dict[bytes, asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    async def run(self, model: str, path: str) -> int:
        """Raises `NotPlaced`."""
        ray = joined(self._address)
        loop = asyncio.get_running_loop()
        self._connections = {word: loop.create_future() for word in (LINK, LOG)}
        host = self._actor(ray)
        certificate, machine = await self._within(PLACE_WITHIN, host.introduce.remote(), self._no_room())
        say(f"A replica is placed on {machine}.")
        here = ray.util.get_node_ip_address()
        server = await asyncio.start_server(
            self._greet, here, 0, ssl=self._identity.listens_to(certificate), backlog=2
        )
        ticket = Ticket(here, server.sockets[0].getsockname()[1], self._identity.certificate, model, path)
        status: asyncio.Future[int] = asyncio.wrap_future(host.run.remote(ticket).future())
        passing = asyncio.create_task(self._pass(server))
        either: set[asyncio.Future[Any]] = {status, passing}
        done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if status in done and status.exception() is None:
            await passing  # what the worker said last
        lost = f"The machine {machine} is gone, or the worker's process there."
        result = await self._within(LAST_WORD, status, lost)
        passing.cancel()
        return result

    def _actor(self, ray: Any) -> Any:
        """The worker's other end, on whichever machine has what it needs."""
        known = ray.cluster_resources()
        # A cluster that was not made by `pippin join` has no such resource, and Ray counts memory and processors alone.
        resources = {MACHINE: 1.0 if self._alone else SHARE} if MACHINE in known else {}
        needs = {
            "num_cpus": 1,
            "num_gpus": 1 if known.get("GPU") else 0,  # Ray hides a machine's GPUs from whoever asks for none
            "memory": self._memory,
            "resources": resources,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        return ray.remote(Host).options(**needs).remote()

    def _no_room(self) -> str:
        wanted = f"{self._memory / (1 << 30):.1f} GiB of memory and a processor free"
        whole = ", and no other replica (bound them with --memory-bytes to have several on one)"
        return (
            f"No machine of the cluster has {wanted}{whole if self._alone else ''}. `ray status` shows what is taken; "
            "`pippin join` on another machine adds it."
        )

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection of the actor's; nobody else comes through TLS."""
        watch(writer)
        word = await reader.readline()
        found = self._connections.get(word)
        if found is None or found.done():
            writer.close()
        else:
            found.set_result((reader, writer))

    async def _pass(self, server: asyncio.Server) -> None:
        """Bring the link and the log of the worker here until both end."""
        link, log = [await self._connections[word] for word in (LINK, LOG)]
        server.close()
        own = await asyncio.open_connection(sock=self._link)
        await asyncio.gather(pump(own[0], link[1]), pump(link[0], own[1]), _printed(log[0]))

    async def _within(self, seconds: float, asked: Awaitable[T], otherwise: str) -> T:
        """Raises `NotPlaced` with a sentence where the answer does not come, or Ray has lost who was asked."""
        import ray

        try:
            return await asyncio.wait_for(asked, seconds)
        except (TimeoutError, ray.exceptions.RayError) as error:
            why = str(error).strip().splitlines()
            raise NotPlaced(f"{otherwise} {why[0]}" if why else otherwise) from error


def joined(address: str) -> Any:
    """Ray, connected to a cluster. Raises `NotPlaced`."""
    set_ray_environment()
    try:
        import ray
    except ImportError:
        raise NotPlaced(
            "Clusters need an extra: pip install 'pippin[cluster]', on every machine of the cluster."
        ) from None
    try:
        ray.init(address=address, namespace="pippin", log_to_driver=False, logging_level="WARNING")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        first = str(error).strip().splitlines()[0]
        raise NotPlaced(
            f"No Ray cluster is reached at {address!r}: {first} `pippin join` starts one here, and "
            "`pippin join HOST:PORT` joins another machine's."
        ) from error
    return ray


def say(sentence: str) -> None:
    """Have the server log it."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


async def _printed(log: asyncio.StreamReader) -> None:
    while data := await log.read(READ_SIZE):
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
