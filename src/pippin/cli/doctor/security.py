"""Checks what the configuration exposes, and what a running server allows strangers to do."""

from argparse import Namespace
from collections.abc import Iterator
from typing import Final, Literal

from pippin.cli.doctor.findings import Finding
from pippin.cli.running import address, ask, is_there
from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.config.load import load
from pippin.config.settings import Sources
from pippin.core.errors import ServerError

SECONDS: Final = 60
FOREIGN: Final = "https://pippin-doctor.invalid"
"""The origin of a web page that no operator allows."""


def check_security() -> Iterator[Finding]:
    """Findings about the configuration. Flags that a running server was started with are reported by that server."""
    from pippin.api.access.posture import security_findings  # not needed in every run

    try:
        options = load(Sources()).server
    except ConfigError as error:
        yield Finding("problem", str(error))
        return
    for found in security_findings(options):
        yield Finding(found.state, f"Configuration: {found.text}")


def check_running_security(parsed: Namespace) -> Iterator[Finding]:
    """The server's own findings, which it tells administrators, and its answers to strangers."""
    if not is_there(parsed):
        yield Finding("ok", "No server runs here; name one with --server.")
        return
    base = address(parsed)
    try:
        told = ask(parsed, "GET", "/v1/security")["findings"]
    except ServerError as error:
        yield Finding(
            "warning", f"{base} does not tell of itself ({error}) Show an administrator's --api-key."
        )
    else:
        yield from (Finding(each["state"], f"{base}: {each['text']}") for each in told)
    yield from _probes(base, is_keyed=bool(parsed.api_key or environment.client_key()))


def _probes(base: str, *, is_keyed: bool) -> Iterator[Finding]:
    """Try requests that must be refused. They change nothing even if they are not."""
    import httpx

    try:
        with httpx.Client(base_url=base, timeout=SECONDS, trust_env=False) as client:
            page = client.get("/v1/models", headers={"origin": FOREIGN, "sec-fetch-site": "cross-site"})
            stranger = client.get("/v1/models")
            manager = client.patch("/v1/settings", json={})
    except httpx.TransportError as error:
        yield Finding("problem", f"No server answers at {base} ({type(error).__name__}).")
        return
    if page.is_success:
        yield Finding("warning", f"{base} answers a web page of {FOREIGN}: see --allowed-origin.")
    else:
        yield Finding("ok", f"{base} refuses a web page of another origin.")
    if is_keyed and stranger.is_success:
        yield Finding("warning", f"{base} answers without a key.")
    elif not stranger.is_success:
        yield Finding("ok", f"{base} answers nobody without a key.")
    if manager.is_success:
        state: Literal["warning", "problem"] = "problem" if is_keyed else "warning"
        yield Finding(state, f"{base} lets anyone who reaches it manage it, as no key is set.")
    else:
        yield Finding("ok", f"{base} lets nobody manage it without a key.")
