"""The conformance suite of MCP: Pippin as a client."""

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
    initialize tools_call sse-retry request-metadata
    http-standard-headers http-custom-headers http-invalid-tool-headers json-schema-ref-no-deref
    json-schema-2020-12-preservation sep-2640-client-no-prefetch sep-2640-client-verify-digest
    sep-2640-client-verify-size sep-2640-client-verify-frontmatter
""".split()
NOT_SPOKEN: Final = ("auth/", "elicitation-", "sep-2322-client-request-state")
"""How the names of the scenarios begin that docs/mcp.md names as not spoken. The last one asks for a person's input."""


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
    spoken = [name for name in scenarios("Client") if not name.startswith(NOT_SPOKEN)]
    assert sorted(OF_CLIENTS) == sorted(spoken)
