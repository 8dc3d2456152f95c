"""The table of docs/sampling.md that is written from `core/parameters.py`; the words around it are the page's own."""

from pippin.config.options.declaration import options
from pippin.core import parameters
from pippin.core.parameters import Parameter
from scripts.docs.marked import marked


def sampling_page() -> str:
    """The page with a fresh table. Raises `ValueError` where the marks around the table are missing."""
    return marked("sampling.md", "src/pippin/core/parameters.py", _table())


def _table() -> str:
    rows = [
        "| Field | In a request | As an option | Does nothing at | Not given | Meaning |",
        "|---|---|---|---|---|---|",
        *(_row(parameter) for parameter in parameters.PARAMETERS),
    ]
    limits = (
        f"Of `stop`, {parameters.MOST_STOPS} texts of {parameters.LONGEST_STOP} characters; of `logit_bias`, "
        f"{parameters.MOST_BIASES} tokens with a bias from {-parameters.LARGEST_BIAS:g} to "
        f"{parameters.LARGEST_BIAS:g} are the most."
    )
    return "\n".join([*rows, "", limits, ""])


def _row(parameter: Parameter) -> str:
    field = parameter.public_name
    cells = [
        f"`{field}`",
        parameter.range if parameter.wire is None else "from {:,.15g} to {:,.15g}".format(*parameter.wire),
        parameter.range if field in options() else "",
        "" if parameter.neutral is None else f"{parameter.neutral:g}",
        _when_unset(parameter),
        f"{parameter.help} {parameter.wire_help}".strip(),
    ]
    return "| " + " | ".join(cells) + " |"


def _when_unset(parameter: Parameter) -> str:
    if parameter is parameters.SEED:
        return "a fresh one"
    if parameter.default is None:
        return "does nothing"
    return "all" if parameter.default == parameters.REPETITION_CONTEXT.high else f"{parameter.default:g}"
