"""The conformance suite of MCP: Pippin as a client.

The suite's newest release is an alpha, because the last stable one names a wrong issuer in a scenario of its own
(`auth/2025-03-26-oauth-metadata-backcompat`), which RFC 8414 has clients refuse.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.agents.programs import node_folder

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
]  # the first run fetches the suite

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("@modelcontextprotocol/conformance@0.2.0-alpha.12", "node@22.23.3")

OF_CLIENTS: Final = """
    initialize tools_call elicitation-sep1034-client-defaults sse-retry request-metadata
    auth/metadata-default auth/metadata-var1 auth/metadata-var2 auth/metadata-var3 auth/basic-cimd
    auth/scope-from-www-authenticate auth/scope-from-scopes-supported
    auth/scope-omitted-when-undefined auth/scope-step-up auth/scope-retry-limit
    auth/token-endpoint-auth-basic auth/token-endpoint-auth-post auth/token-endpoint-auth-none
    auth/pre-registration auth/2025-03-26-oauth-metadata-backcompat
    auth/2025-03-26-oauth-endpoint-fallback auth/resource-mismatch auth/offline-access-scope
    auth/offline-access-not-supported auth/authorization-server-migration auth/iss-supported
    auth/iss-not-advertised auth/iss-supported-missing auth/iss-wrong-issuer auth/iss-unexpected
    auth/iss-normalized auth/metadata-issuer-mismatch auth/client-credentials-basic
    sep-2322-client-request-state http-standard-headers
    http-custom-headers http-invalid-tool-headers json-schema-ref-no-deref
    json-schema-2020-12-preservation sep-2640-client-no-prefetch sep-2640-client-verify-digest
    sep-2640-client-verify-size sep-2640-client-verify-frontmatter
""".split()
NOT_SPOKEN: Final = (
    *("auth/client-credentials-jwt", "auth/enterprise-managed-authorization", "auth/wif-jwt-bearer"),
    *("auth/dpop", "auth/dpop-nonce"),
)
"""Scenarios for logins that docs/mcp.md names as not supported."""


def suite(*words: str) -> str:
    folder = node_folder("mcp-conformance", *PACKAGES) / "node_modules"
    node = folder / "node" / "bin" / "node"
    program = folder / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    done = subprocess.run(
        [node, program, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def scenarios(kind: str) -> list[str]:
    """All that the suite has for clients or servers."""
    listed = suite("list").partition(f"{kind} scenarios")[2].partition("\n\n")[0]
    return re.findall(r"^  - (\S+)", listed, re.MULTILINE)


@pytest.mark.parametrize("name", OF_CLIENTS)
def test_pippin_as_a_client(name: str) -> None:
    client = f"{sys.executable} {Path(__file__).with_name('conformance_client.py')}"
    said = suite("client", "--command", client, "--scenario", name, "--timeout", "60000")
    assert "OVERALL: PASSED" in said, said


def test_each_of_the_suites_scenarios_for_clients_is_run() -> None:
    assert sorted((*OF_CLIENTS, *NOT_SPOKEN)) == sorted(scenarios("Client"))
