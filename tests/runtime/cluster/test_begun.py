"""`--cluster auto` on a machine that has joined no cluster: the server begins one, and it ends with the server."""

from pathlib import Path

import openai
import psutil
import pytest

from tests.running_server import running_server
from tests.runtime.cluster.nodes import wait_for, workers
from tests.service.doubles import write_script

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def of_ray(home: Path) -> list[psutil.Process]:
    """Ray's processes on behalf of servers with this home."""
    return [
        each
        for each in psutil.process_iter(["name", "environ"])
        if each.info["name"] in ("raylet", "gcs_server")
        and (each.info["environ"] or {}).get("HOME") == str(home)
    ]


def test_a_server_begins_a_cluster_where_there_is_none(home: Path) -> None:
    pytest.importorskip("ray")
    if any(each.info["name"] == "raylet" for each in psutil.process_iter(["name"])):
        pytest.skip("this machine has joined a cluster")
    model = write_script(home, {"when": {"user": "."}, "say": "one two three"})
    with (
        running_server(home, str(model), "--cluster", "auto", "--replicas", "2") as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "go"}])
        assert answer.choices[0].message.content == "one two three"
        wait_for("two replicas", lambda: len(workers(home)) == 2)
        assert of_ray(home)
    wait_for("the end of the cluster", lambda: not of_ray(home) and not workers(home))
