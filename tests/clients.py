"""The real clients as tests have them: they validate every answer strictly, and ask once."""

from anthropic import Anthropic
from openai import OpenAI

SECONDS = 600  # a model on a machine that is shared


def openai_of(address: str, key: str = "x") -> OpenAI:
    return OpenAI(
        base_url=f"{address}/v1",
        api_key=key,
        max_retries=0,
        timeout=SECONDS,
        _strict_response_validation=True,
    )


def anthropic_of(address: str, key: str = "x") -> Anthropic:
    return Anthropic(
        base_url=address, api_key=key, max_retries=0, timeout=SECONDS, _strict_response_validation=True
    )
