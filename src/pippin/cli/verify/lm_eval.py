"""Runs tasks of the library lm-eval on the completions of the running server."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.core.errors import ServerError
from pippin.core.verification import Section

INSTALL = 'pip install "lm-eval[api]"'


def refuse_missing(tasks: str) -> None:
    """Raises `ConfigError` where lm-eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(f"--lm-eval {tasks}: the library lm-eval is not installed. Install it: {INSTALL}")


def run_tasks(tasks: str, address: str, model: str, folder: str, key: str | None) -> Section:
    """The figures of each task. lm-eval's own output goes to the standard error. Raises `ServerError` if it fails."""
    began = time.monotonic()
    given = {
        "model": model,
        "base_url": f"{address}/v1/completions",
        "tokenizer": folder,
        "tokenizer_backend": "huggingface",
        "num_concurrent": "8",
    }
    arguments = ",".join(f"{name}={value}" for name, value in given.items())
    with TemporaryDirectory() as output:
        command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments]
        command += ["--tasks", tasks, "--output_path", output]
        # lm-eval reads the key from this variable alone.
        done = subprocess.run(
            command,
            stdout=sys.stderr,
            env={**environment.variables(), "OPENAI_API_KEY": key or "none"},
            check=False,
        )
        files = sorted(Path(output).rglob("results*.json"))
        if done.returncode or not files:
            raise ServerError("load_failed", f"lm-eval ended with status {done.returncode}.")
        found = figures(json.loads(files[-1].read_bytes())["results"])
    return Section(name="lm-eval", figures=found, seconds=round(time.monotonic() - began, 1))


def figures(results: dict[str, dict[str, object]]) -> dict[str, float]:
    """Figures such as `arc_easy acc,none` from lm-eval's results."""
    return {
        f"{task} {name}": value
        for task, values in results.items()
        for name, value in values.items()
        if isinstance(value, float)
    }
