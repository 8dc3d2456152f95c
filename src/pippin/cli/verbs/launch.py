"""`pippin launch`: `serve` under the verb and with the defaults of mlx-openai-server."""

from collections.abc import Sequence
from typing import Final

from pippin.cli.arguments import Parser
from pippin.cli.verbs import serve

COMPAT: Final = "mlx-openai-server"


def new_parser() -> Parser:
    return serve.new_parser("pippin launch", COMPAT)


def run(arguments: Sequence[str]) -> int:
    return serve.serve(arguments, new_parser(), compat=COMPAT)
