"""An encoder of media that rests between its modules, so that passes of running sequences come between.

A family's encoder is one call of its library, which knows of no rest. So it is called on a thread of its own, of which
the modules ask for leave: either that thread computes or the one that waits for it, never both.
"""

import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.language.upstream.classes import Method, replace_method


class GivenUpError(BaseException):
    """Ends the call of an encoder for which nobody waits any more. No handler of a library's takes it for a fault."""


class Paced:
    """A call that is computed in parts."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self.done = False
        self._call = call
        self._until = 0.0
        self._given_up = False
        self._turn, self._rest = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, name="encoder", daemon=True)

    def advance(self, until: float) -> bool:
        """Compute a part that ends about `until` (monotonic seconds), at least one module; whether all is done."""
        self._until = until
        if self.thread.ident is None:
            self.thread.start()
        self._turn.release()
        self._rest.acquire()
        return self.done

    def give_up(self) -> None:
        if self.thread.ident is not None and not self.done:
            self._given_up = True
            self.advance(math.inf)

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self.result = self._call()
        except GivenUpError:
            pass
        except Exception as error:
            self.error = error
        self.done = True
        self._rest.release()

    def ask(self, seconds: float) -> None:
        """On the call's own thread: wait for the next part if another `seconds` would not end in this one."""
        if time.monotonic() + seconds > self._until:
            self._rest.release()
            self._turn.acquire()
        if self._given_up:
            raise GivenUpError


class Pacing:
    """Paces the calls of a model's encoders."""

    def __init__(self, model: nn.Module) -> None:
        """Has the modules beside `language_model` ask for leave, where they are called within `begin`."""
        self._own = threading.local()  # `call`: the one of a thread
        self._seconds: dict[str, float] = {}  # that modules took, by their paths without numbers
        for path, module in model.named_modules():
            if path and not path.startswith("language_model") and not module.children():
                replace_method(module, "__call__", self._asking(re.sub(r"\d+", "", path)), mark="unpaced")

    def begin(self, call: Callable[[], Any]) -> Paced:
        def own() -> Any:
            self._own.call = paced
            return call()

        paced = Paced(own)
        return paced

    def _asking(self, name: str) -> Callable[[Method], Method]:
        def around(own: Method) -> Method:
            def asked(*given: Any, **named: Any) -> Any:
                call = getattr(self._own, "call", None)
                if call is None:
                    return own(*given, **named)
                call.ask(self._seconds.get(name, 0.0))
                began = time.monotonic()
                found = own(*given, **named)
                mx.eval(found)  # and what comes before it and is no module, such as attention
                self._seconds[name] = time.monotonic() - began
                return found

            return asked

        return around
