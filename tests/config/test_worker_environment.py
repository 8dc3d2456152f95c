"""What of the operator's environment a worker gets."""

import json
import os
from pathlib import Path

import pytest

from pippin.config.worker_environment import rank_environment, worker_environment
from pippin.core.models import RankSpec

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


def test_mlx_is_told_of_the_ranks_as_its_own_launcher_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLX_RANK", "MLX_HOSTFILE"):
        monkeypatch.setenv(name, "")  # which is taken back after the test
    with rank_environment(RankSpec(rank=1, size=2, hosts=("10.0.0.1:20000", "10.0.0.2:20001"))):
        hosts = json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text())
        assert os.environ["MLX_RANK"] == "1"
    assert hosts == [["10.0.0.1:20000"], ["10.0.0.2:20001"]]
