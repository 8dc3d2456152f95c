"""The project's own OpenAPI document as a source of requests: none gives a 5xx, every refusal says why.

The service behind plays events; what is tried here is everything between the socket and the door to it.
"""

import atexit
import shutil
import tempfile
import time
import warnings
from functools import cache
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.api.fakes import FakeService, application
from tests.fuzz.budget import seconds_of_requests


@cache
def operations() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = tempfile.mkdtemp(prefix="pippin-fuzz-")  # those of the user may be held by another server
        atexit.register(shutil.rmtree, files, ignore_errors=True)
        app = application(FakeService(), allowed_hosts=("testserver",), files_dir=files)
        schema = schemathesis.openapi.from_asgi("/openapi.json", app)
        found = [result.ok() for result in schema.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


@st.composite
def cases(draw: st.DrawFn, operation: Any) -> Any:
    mode = draw(st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]))
    return draw(operation.as_strategy(generation_mode=mode))


def attack(name: str, examples: int) -> None:
    operation = operations()[name]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=cases(operation))
    def one(case: Any) -> None:
        reply = case.call()
        assert reply.status_code < 500 or reply.status_code == 529, (case.body, reply.text[:500])
        if reply.status_code >= 400 and "/settings" not in name:  # which has a shape of its own
            error = reply.json()["error"]
            assert error["message"] if isinstance(error, dict) else error

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one()


@pytest.mark.parametrize("name", sorted(operations()))
def test_no_request_of_the_document_gives_a_5xx(name: str) -> None:
    attack(name, 3)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(operations()))
def test_hundreds_of_requests_of_the_document_give_no_5xx(name: str) -> None:
    seconds = seconds_of_requests(len(operations()))
    ends = time.monotonic() + (seconds or 0)
    sent = 200 if seconds is None else 20
    attack(name, sent)
    while time.monotonic() < ends:
        attack(name, 20)
        sent += 20
    print(f"{name}: {sent} requests")
