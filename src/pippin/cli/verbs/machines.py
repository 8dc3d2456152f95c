"""Several machines: `pippin join` adds this one to a Ray cluster, `worker` runs a model for a server on another one."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pippin.cli.arguments import argument, number, verb
from pippin.cli.local import fetched, open_catalog
from pippin.cli.terminal import say
from pippin.config.cluster import MACHINE, OBJECTS, TOKEN, memory_here, ray_environment, token_file
from pippin.config.errors import ConfigError, install_command
from pippin.config.load import load
from pippin.config.worker_environment import worker_environment

JOINING: Final = (
    "Make this machine a part of a cluster, until Ctrl-C: `pippin serve --cluster auto` places replicas, and "
    "parts of a model (`--ranks`), on its machines. "
    "Without an address a new cluster begins here. Ray does it (the extra `cluster`): the same versions of Pippin, "
    "Python and Ray must be on every machine, and the cluster's token."
)
READY: Final = "Ray runtime started."
"""What `ray start` prints once the machine is a part of the cluster."""
OF_RAY: Final = frozenset((8265, *range(10_001, 20_000), 52_365))
"""Ports that Ray uses on every machine, for the dashboard, its processes, and their agents."""
WORKING: Final = (
    "Run a model, or a part of one, for a server on another machine (`pippin serve --machines A,B`). "
    "That server starts this by ssh, or through a cluster; nobody types it. A model that is not here is fetched."
)


@verb(
    "join",
    argument("address", nargs="?", help="HOST:PORT of the cluster; a new one if not given"),
    argument("--port", type=int, default=6379, help="of a new cluster (default: 6379)"),
    argument("--host", help="this machine's address, at which the others reach it"),
    number(
        "--memory-gb", least=0, kind=float, help="what replicas may take (default: all but 2; 0: none run)"
    ),
    description=JOINING,
)
def join(parsed: Namespace) -> int:
    """Does not return on success: the process is replaced by Ray's."""
    if not 0 < parsed.port < 1 << 16 or parsed.port in OF_RAY:
        raise ConfigError(
            f"--port {parsed.port} cannot be the cluster's: Ray keeps 8265, 10001 to 19999 and 52365 for its "
            "processes. The usual one is 6379."
        )
    if find_spec("ray") is None:
        raise ConfigError(f"`pippin join` needs an extra: {install_command('cluster')}")
    memory = memory_here() if parsed.memory_gb is None else int(parsed.memory_gb * (1 << 30))
    environment = ray_environment()
    ray = _program()
    token = token_file(environment)
    words = [ray, "start", "--block", f"--memory={max(memory, 1)}", f"--object-store-memory={OBJECTS}"]
    words.append(f'--resources={{"{MACHINE}": {1 if memory > 0 else 0}}}')
    words += [] if memory > 0 else ["--num-cpus=0"]
    words += [f"--node-ip-address={parsed.host}"] if parsed.host else []
    if parsed.address:
        if token is not None and not token.exists():
            raise ConfigError(
                f"Copy the cluster's token first, from {TOKEN} of the machine that began it, to {token} here."
            )
        words.append(f"--address={parsed.address}")
    else:
        if token is not None and not token.exists():
            generate = [ray, "get-auth-token", "--generate"]
            subprocess.run(generate, check=True, capture_output=True, env=environment)
            token.chmod(0o600)
        words += ["--head", f"--port={parsed.port}", "--dashboard-host=127.0.0.1"]
    _say_when_ready(_next_steps(parsed.address, parsed.host or _address(), parsed.port, token))
    sys.stdout.flush()
    os.execve(ray, words, environment)


def _next_steps(joined: str | None, host: str, port: int, token: Path | None) -> list[str]:
    """What is said once this machine is a part of the cluster `joined`, or of a new one."""
    if joined:
        return [f"This machine is ready: the cluster at {joined} has it until Ctrl-C."]
    copy = "" if token is None else f"copy {TOKEN} there, then "
    return [
        "The cluster is ready, until Ctrl-C.",
        f"On each other machine: {copy}`pippin join {host}:{port}`.",
        "On this one: `pippin serve MODEL --cluster auto --replicas N`, or `--ranks N` to split it.",
    ]


def _say_when_ready(sentences: list[str]) -> None:
    """A process of its own reads from now on what this one prints. It says the sentences once Ray is ready, and shows
    what Ray has printed only if Ray ends before."""
    reading, writing = os.pipe()
    if os.fork():
        os.dup2(writing, 1)
        os.close(writing)
        os.close(reading)
        return
    os.close(writing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of Ray's output ends it
    printed: list[str] = []
    with os.fdopen(reading, errors="replace") as output:
        for line in output:
            printed.append(line)
            if READY in line:
                say("\n".join(sentences))
                break
        else:
            say("".join(printed))
        for _ in output:
            pass
    os._exit(0)


def _program() -> str:
    """Ray's command, preferably from the Python environment that Pippin runs in."""
    beside = Path(sys.executable).parent / "ray"
    return str(beside) if beside.exists() else shutil.which("ray") or str(beside)


def _address() -> str:
    """The address at which other machines most probably reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address (RFC 5737); nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@verb(
    "worker",
    argument("model", help="name of the model"),
    argument("path", help="its folder on the server, which is looked for here first"),
    description=WORKING,
)
def worker(parsed: Namespace) -> int:
    folder = Path(parsed.path)
    if not folder.exists():
        folder = Path(fetched(open_catalog(load()), parsed.model, "Fetching").path or "")
    os.execve(sys.executable, [sys.executable, "-m", "pippin.worker", "-", str(folder)], worker_environment())
