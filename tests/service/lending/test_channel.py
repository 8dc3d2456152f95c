"""The channel between two processes, over a real socket pair."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

import msgspec
import psutil

from pippin.service.lending.channel import Channel


class Told(msgspec.Struct, frozen=True, tag=True):
    text: str


Ends = tuple[Channel[Told], Channel[Told], list[tuple[str, int | None]], list[str]]


def together(check: Callable[[Ends], Awaitable[None]]) -> None:
    async def run() -> None:
        one, other = socket.socketpair()
        came: list[tuple[str, int | None]] = []
        lost: list[str] = []

        def receive(message: Told, descriptor: int | None) -> None:
            came.append((message.text, descriptor))
            if message.text == "fault":
                raise ValueError("the receiver's own")

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        sender: Channel[Told] = Channel(one, Told, lambda *_: None, lambda: lost.append("sender"))
        reader: Channel[Told] = Channel(other, Told, receive, lambda: lost.append("reader"))
        try:
            await check((sender, reader, came, lost))
        finally:
            sender.close()
            reader.close()

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)


def pipe_with(word: bytes) -> int:
    """The reading end of a pipe that holds this word."""
    reading, writing = os.pipe()
    os.write(writing, word)
    os.close(writing)
    return reading


def test_each_descriptor_comes_with_the_message_that_it_was_sent_with() -> None:
    async def check(ends: Ends) -> None:
        sender, _, came, _ = ends
        for number in range(200):
            with_one = number % 3 == 0
            # Large ones fill the socket, so that they are sent in pieces.
            text = f"{number:04}" + "x" * (200_000 if number % 20 == 0 else 10)
            sender.send(Told(text), pipe_with(b"%04d" % number) if with_one else None)
        await until(lambda: len(came) == 200)
        for number, (text, descriptor) in enumerate(came):
            assert text.startswith(f"{number:04}")
            assert (descriptor is not None) == (number % 3 == 0)
            if descriptor is not None:
                assert os.read(descriptor, 10) == b"%04d" % number
                assert not os.get_inheritable(descriptor)
                os.close(descriptor)

    together(check)


def test_a_receiver_that_fails_on_a_message_gets_each_other_one_once() -> None:
    async def check(ends: Ends) -> None:
        sender, _, came, _ = ends
        for text in ("one", "fault", "two", "three"):
            sender.send(Told(text))
        sender.send(Told("four"))
        await until(lambda: len(came) >= 2)
        sender.send(Told("five"))
        await until(lambda: came[-1][0] == "five")
        assert [text for text, _ in came] == ["one", "fault", "two", "three", "four", "five"]

    together(check)


def test_the_end_of_one_side_is_told_to_the_other_and_leaves_no_descriptor() -> None:
    async def check(ends: Ends) -> None:
        sender, reader, _, lost = ends
        sender.close()
        await until(lambda: lost == ["reader"])
        before = psutil.Process().num_fds()
        reader.send(Told("too late"), pipe_with(b"gone"))
        assert psutil.Process().num_fds() == before

    together(check)
