"""Runs tasks of the library lm-eval on the completions of a server."""

import importlib.util
import subprocess
import sys

from pippin.config import environment
from pippin.config.errors import ConfigError

INSTALL = 'pip install "lm-eval[api]"'


def refuse_missing(tasks: str) -> None:
    """Raises `ConfigError` where lm-eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(f"--lm-eval {tasks}: the library lm-eval is not installed. Install it: {INSTALL}")


def run_tasks(tasks: str, address: str, model: str, folder: str, key: str | None) -> int:
    """Let lm-eval print its table. Returns its exit status."""
    server = f"model={model},base_url={address}/v1/completions,tokenizer={folder},num_concurrent=8"
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", server]
    # lm-eval reads the key from this variable alone.
    variables = {**environment.variables(), "OPENAI_API_KEY": key or "none"}
    return subprocess.run([*command, "--tasks", tasks], env=variables, check=False).returncode
