"""The first moments of `pippin serve`: a process for its first model starts before the rest is imported, which takes as
long as what that process imports meanwhile."""

import contextlib
import resource
import signal
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pippin.runtime.workers.process import Child, end_all

if TYPE_CHECKING:
    from pippin.cli.arguments import Parser

MOST_FILES: Final = 65_536


class Serve:
    """`Verb` of `serve`, whose arguments also hold the processes that wait for a model (`waiting`)."""

    def new_parser(self) -> "Parser":
        from pippin.cli.verbs.serve import serve

        return serve.new_parser()

    def run(self, arguments: Sequence[str]) -> int:
        allow_many()  # the workers, too
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, no child can be waited for
        with begun(arguments) as waiting:
            from pippin.cli.verbs.serve import serve

            return serve.act(serve.new_parser().parse(arguments, Namespace(waiting=waiting)))


serve: Final = Serve()


def allow_many() -> None:
    """Raise the limit of open files: every connection takes one, and macOS starts a process with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    while soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
        except (ValueError, OSError):  # macOS has a further limit, `kern.maxfilesperproc`
            wanted //= 2


@contextlib.contextmanager
def begun(arguments: Sequence[str]) -> Iterator[list[Child]]:
    """A process for a model that is named first and runs here; none is left at the end. Whether it is needed, the
    options tell."""
    named = bool(arguments) and not arguments[0].startswith("-")
    waiting = [Child()] if named and not any(word.startswith("--cluster") for word in arguments) else []
    try:
        yield waiting
    finally:
        end_all(waiting)
