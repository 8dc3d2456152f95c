"""What of requests and options mlx-vlm's own `generate` follows."""

from msgspec.structs import asdict

from pippin.config.options.model import ModelOptions
from pippin.core.parameters import PARAMETERS, OfEveryAnswer
from pippin.core.requests import GenerationRequest
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.refusals import refused

SAMPLING = ("temperature", "seed", "top_p", "top_k", "min_p")
"""Fields of `Sampling` that it follows."""
WITHOUT = (
    *("adapter_path", "adapters", "draft_model_path", "draft_kind", "mtp", "prompt_lookup"),
    *("kv_bits", "kv_key_bits", "kv_value_bits", "warm_prompts", "thinking_budget"),
)
"""Options that it does not follow."""
MODEL = "a model that answers one request at a time"


def ignored(options: ModelOptions, published: OfEveryAnswer) -> list[str]:
    """The operator's sampling defaults, and what the checkpoint asks of every answer, that it does not follow."""
    return [
        each.public_name
        for each in PARAMETERS
        if each.name not in SAMPLING and each.acts(getattr(options, each.public_name, None))
    ] + [name for name, value in asdict(published).items() if value and name != "stop_strings"]


def check(request: GenerationRequest, options: ModelOptions, tokenizer: Tokenizer) -> None:
    """Raises `ServerError` naming a field that it cannot honour.

    Values equal to the operator's, the profile's or the checkpoint's defaults pass: no client asked for them, and they
    were logged when the model was loaded.
    """
    choice, published = request.tool_choice, tokenizer.asked
    usual = published.biases(tokenizer.rows, tokenizer.eos)
    # Fields that need the engine's own choice of each token, and whether the request asks for them.
    beyond = (
        ("response_format", request.output_format is not None),
        ("tool_choice", choice.mode == "required"),
        ("tools", choice.mode != "none" and any(tool.strict for tool in request.tools)),
        ("logprobs", request.logprobs is not None),
        ("prompt_logprobs", request.prompt_logprobs is not None),
        ("logit_bias", (request.sampling.logit_bias or {}) != usual),
        ("min_tokens", request.min_tokens > (published.min_new_tokens or 0)),
        ("thinking_budget", request.thinking.budget is not None),
        ("adapter_path", request.adapter is not None),
    )
    for name, asked in beyond:
        if asked:
            raise refused(name, f"cannot be had of {MODEL}: leave it out.", "unsupported")
    for each in PARAMETERS:
        value = getattr(request.sampling, each.name)
        default = value in (getattr(options, each.public_name, None), getattr(options.fallbacks, each.name))
        if each.name not in SAMPLING and each.acts(value) and not default:
            why = f"is not among what this model's loop follows ({', '.join(SAMPLING)})"
            raise refused(each.public_name, f"{why}: leave it out.", "unsupported")
