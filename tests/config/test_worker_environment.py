"""What of the operator's environment a worker gets."""

import json
import os
from pathlib import Path

import pytest

from pippin.config.worker_environment import (
    choose_gpu,
    multiply_exactly,
    rank_environment,
    worker_environment,
)
from pippin.core.models import RankBackend, RankSpec

TF32 = "MLX_ENABLE_TF32"
SECRETS = {
    "HF_TOKEN": "hf_x",
    "HUGGING_FACE_HUB_TOKEN": "hf_x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "OPENAI_API_KEY": "x",
    "PIPPIN_API_KEYS": "x",
    "PIPPIN_API_KEY_FILE": "x",
    "MLX_VLM_SERVER_API_KEY": "x",
    "DATABASE_URL": "postgres://u:p@h/d",
    "SSH_AUTH_SOCK": "/x",
    "HTTPS_PROXY": "http://user:password@proxy:3128",
}
NEEDED = {
    "PATH": "/bin",
    "HOME": "/home/x",
    "LC_ALL": "C.UTF-8",
    "HF_HOME": "/hf",
    "CUDA_VISIBLE_DEVICES": "0",
    "LD_LIBRARY_PATH": "/lib",
    "DYLD_LIBRARY_PATH": "/lib",
    "AGX_RELAX_CDM_CTXSTORE_TIMEOUT": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MLX_METAL_FAST_SYNCH": "1",
    "MKL_NUM_THREADS": "1",
    "https_proxy": "http://proxy:3128",
    "PIPPIN_HOME": "/pippin",
}


def test_a_worker_gets_what_libraries_need_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SECRETS | NEEDED).items():
        monkeypatch.setenv(name, value)
    given = worker_environment()
    assert not SECRETS.keys() & given.keys()
    assert given.items() >= NEEDED.items()


def test_an_operator_may_pass_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("PIPPIN_WORKER_VARIABLES", "HF_TOKEN, OTHER")
    assert worker_environment()["HF_TOKEN"] == "hf_x"


@pytest.mark.parametrize(("given", "found"), [(None, "0"), ("1", "1")])
def test_float32_is_multiplied_exactly_unless_the_operator_says_otherwise(
    given: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TF32, given or "")
    if given is None:
        monkeypatch.delenv(TF32)  # as before the test, when it ends
    multiply_exactly()
    assert os.environ[TF32] == found


def place(rank: int, backend: RankBackend, *hosts: str) -> RankSpec:
    return RankSpec(rank=rank, size=len(hosts), backend=backend, coordinator="10.0.0.1:7", hosts=hosts)


@pytest.mark.parametrize("backend", ["ring", "jaccl", "nccl"])
def test_mlx_is_told_of_the_ranks_as_its_own_launcher_does(
    backend: RankBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "MLX_RANK MLX_WORLD_SIZE MLX_HOSTFILE MLX_JACCL_COORDINATOR NCCL_HOST_IP NCCL_PORT".split()
    for name in names:
        monkeypatch.setenv(name, "")  # which is taken back after the test
    monkeypatch.setenv("MLX_IBV_DEVICES", "/etc/devices.json")
    with rank_environment(place(1, backend, "10.0.0.1:20000", "10.0.0.2:20001")):
        said = {name: os.environ[name] for name in names}
        hosts = json.loads(Path(said.pop("MLX_HOSTFILE")).read_text())
    assert hosts == [["10.0.0.1:20000"], ["10.0.0.2:20001"]]
    assert list(said.values()) == ["1", "2", "10.0.0.1:7", "10.0.0.1", "7"]
    assert os.environ["MLX_IBV_DEVICES"] == "/etc/devices.json"


def test_the_operators_devices_reach_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MLX_IBV_DEVICES": "/etc/devices.json", "MLX_JACCL_RING": "1", "NCCL_SOCKET_IFNAME": "en5"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert worker_environment().items() >= given.items()


@pytest.mark.parametrize(
    ("rank", "backend", "given", "expected"),
    [
        (0, "nccl", "", "0"),
        (2, "nccl", "", "1"),
        (2, "nccl", "4,6", "6"),
        (2, "nccl", "5", "5"),  # a cluster has dealt out one already
        (1, "nccl", "", ""),  # it has its machine for itself
        (2, "ring", "", ""),
    ],
)
def test_ranks_of_nccl_on_one_machine_see_different_gpus(
    rank: int, backend: RankBackend, given: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    choose_gpu(place(rank, backend, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:2"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == expected
