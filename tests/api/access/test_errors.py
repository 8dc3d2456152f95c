"""What addresses of other APIs answer."""

import pytest

from pippin.api.access.errors import GONE
from tests.api.access.test_tenants import ask
from tests.api.fakes import FakeService, application


@pytest.mark.parametrize("path", GONE)
def test_an_address_that_is_elsewhere_now_is_refused_with_the_way_out(path: str) -> None:
    reply = ask(application(FakeService()), "POST", path, json={})
    assert not reply.is_success
    assert GONE[path] in reply.text
