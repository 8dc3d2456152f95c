"""`pippin launch`: `serve` under the verb and with the defaults of mlx-openai-server."""

from collections.abc import Sequence

from pippin.cli.verbs.serve import serve


def run(arguments: Sequence[str]) -> int:
    return serve(arguments, "pippin launch", compat="mlx-openai-server")
