"""The page of docs/ that is written from the contracts of dialects and kinds."""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from pippin.api import kinds
from pippin.api.dialects.registry import find_dialects
from pippin.api.dialects.shared.fields import Contract

Contracts = Mapping[str, Contract[Any]]

API: Final = """<!-- Written by `make docs`; the words are in src/pippin/api/. -->
# The APIs

Pippin speaks OpenAI's Chat Completions, Completions and Responses, Anthropic's Messages, Gemini's and Ollama's API.
Every address works with and without `/v1`; those under `/api` and `/v1beta` have no other. A field of a contract is honoured, or
refused by name with status 400; a few fields for bookkeeping are accepted and change nothing. A field that no contract
knows is ignored, and named once in the log; so are unknown keys of objects in fields, by their path.

## Gemini

| Address | What it does |
|---|---|
| `POST /v1beta/models/{name}:generateContent` | answers |
| `POST /v1beta/models/{name}:streamGenerateContent` | the same in pieces: server-sent events with `?alt=sse`, else a JSON array |
| `POST /v1beta/models/{name}:countTokens` | how many prompt tokens `contents`, or a `generateContentRequest`, would have |
| `POST /v1beta/models/{name}:embedContent`, `:batchEmbedContents` | vectors of texts and pictures |
| `GET /v1beta/models`, `GET /v1beta/models/{name}` | the available models, in pages of `pageSize`, and one of them |

- **At `/v1`** they are too: the method in the address, the header `x-goog-api-key` or `?key=` tells `/v1/models` from OpenAI's.
- **Names** of fields are in camel or in snake case. A model's may begin with `models/` or `tunedModels/`; `gemini-*` that no
  model here has means the default one.
- **Thoughts** are shown with `includeThoughts`. Either way the `thoughtSignature` of the next part holds them, encoded, and
  gives them back to the model in a later request.
- **Left out** with a warning in the log are tools that run at Google's (`googleSearch`, `codeExecution`, ...), and refused its
  files (`gs:`, `files/`) and caches. `taskType` of embeddings chooses among the model's own prompts, if it has any.

## Ollama

| Address | What it does |
|---|---|
| `POST /api/chat`, `POST /api/generate` | answers, as lines of JSON unless `stream` is false |
| `POST /api/embed`, `POST /api/embeddings` | vectors of texts |
| `GET /api/tags`, `GET /api/ps`, `POST /api/show` | the available models, those in memory, and one of them |
| `POST /api/pull`, `DELETE /api/delete` | downloads a model, deletes one; for administrators |
| `POST /api/copy` | gives a model a second name, until the server ends; for administrators |
| `GET /api/version` | the version of Ollama whose API this is |

- **An empty prompt**, or no messages, loads the model; with `keep_alive: 0` it unloads it.
- **Names** have the tag `:latest` in lists; requests may use it or leave it out.
- **`options.num_ctx`** bounds prompt and answer together: the oldest turns of a longer conversation are dropped, or the
  request is refused if `truncate` is false. `num_keep` and the options of Ollama's runner
  (`num_gpu`, `num_thread`, ...) change nothing; `mirostat`, `template` and `context` are refused by name.
- `POST /api/create` and `/api/push` are refused: models are imported with `pippin import`, not uploaded.

## LM Studio

| Address | What it does |
|---|---|
| `GET /api/v0/models`, `GET /api/v0/models/{id}` | the available models, with kind, state and context |
| `POST /api/v0/chat/completions`, `/api/v0/completions`, `/api/v0/embeddings` | as OpenAI's addresses of these names |

There is no `/api/v1`: models are loaded by `POST /v1/models/load`, and `/v1/responses` keeps conversations.

## Responses

| Address | What it does |
|---|---|
| `POST /v1/responses` | answers, whole, streamed, or in the background |
| `GET /v1/responses/{id}` | the stored response, or the progress of a background response |
| `GET /v1/responses/{id}?stream=true&starting_after=N` | the events of a background response after event N |
| `DELETE /v1/responses/{id}` | deletes it, and stops it if it runs in the background |
| `POST /v1/responses/{id}/cancel` | stops a background response |
| `GET /v1/responses/{id}/input_items` | all items that the model was given, in pages |
| `POST /v1/responses/input_tokens` | how many prompt tokens the request would have |
| WebSocket `/v1/responses` | `response.create` events, answered one at a time; `response.steer` |
| `POST /v1/responses/compact` | the user's messages and a summary of the conversation, as items for the next request |
| `POST`, `GET`, `DELETE /v1/conversations...` | conversations and their items |

- **The store** keeps responses (unless `store` is false) and conversations separately for each API key, within
  `response_store_entries`, `response_store_mb` and `response_store_hours`; the least recently used are deleted first.
  It is in memory, or in the SQLite file that `response_store` names, which survives a restart.
- **Reasoning** comes as raw text (`reasoning_text` in the item's `content`, with `response.reasoning_text.delta`),
  because a local model's reasoning is raw text. A client that asks for a summary (`reasoning.summary`) gets the
  same text in the fields and events of the summary instead, never in both. `include: ["reasoning.encrypted_content"]` adds it
  as an opaque text that a later request may send back; it is encoded, not encrypted.
- **WebSocket**: each `response.create` event has the fields of a request; the answer is the events of a stream. A
  connection remembers its last response even if `store` is false. `generate: false` takes the input without answering
  it. Errors are events of type `error` with a `status`.
- **Tools**: `function` is passed on as it is. `custom`, `local_shell`, `shell` and `apply_patch` become functions, and
  their calls come back as items of their own type; the functions of a `namespace` are prefixed with its name. Tools
  that run on OpenAI's servers (`code_interpreter` ..., and `web_search` unless Pippin [searches](mcp.md#searching-the-web))
  are left out of the prompt with a warning in the log, and a `tool_choice` that forces one is refused. Of a custom tool's grammars, a regular expression is enforced; a
  Lark grammar is only shown to the model.
- **`reasoning.context`** is accepted with a warning in the log: the chat template decides which reasoning of earlier
  turns the model is shown.
- **Tools of MCP servers** are called while the response is generated ([mcp.md](mcp.md)): `mcp_list_tools` and `mcp_call`
  items show them, and `max_tool_calls` bounds them.
- **Status**: a response that reaches `max_output_tokens` is `incomplete` and ends its stream with
  `response.incomplete`; one that fails ends with `response.failed`; a refusal before the first byte is a status code.
- **Steering**: `response.steer` ends the running response of a connection as `steered`, and the next goes on from what was said
  with the client's words. If the response calls the client's tools, the words wait for the results (`response.steer.pending`).
- **Items** `configuration_update` set effort and format of the text from their place on; a last item `compaction_trigger` is
  answered by a summary of the conversation alone.
- **`context_management`** of type `compaction` has the model summarise the oldest turns when the conversation does
  not fit its window, whatever the threshold; `truncation: auto` drops them.
- **`input_file`** is a PDF or UTF-8 text, in `file_data` or at `file_url`.

## Files and batches

| Address | What it does |
|---|---|
| `POST`, `GET /v1/files`; `GET`, `DELETE /v1/files/{id}`; `GET /v1/files/{id}/content` | files |
| `POST`, `GET /v1/batches`; `GET /v1/batches/{id}`; `POST /v1/batches/{id}/cancel` | batches of OpenAI's API |

- **Files** have the purpose `batch`; others are refused. `expires_after` is honoured, and `files_mb` bounds the files
  of one key.
- **Batches** are for Chat Completions, Completions, Responses and Embeddings, with at most 50,000 lines. A file
  with a line that is not a request fails as a whole, and the batch names the lines. Streams are refused.
- A batch yields to every other request ([operating.md](operating.md#batches)), continues after a restart, and answers
  each line once. A line that the server could not answer is tried again; other errors are its answer.

## Chat Completions and Completions

- **`return_progress`** is llama.cpp's: a stream reports the progress of the prompt, in chunks whose choice is empty and
  whose `prompt_progress` has `total`, `processed` and `cache` (the part of `processed` from the prefix cache) in tokens,
  and `time_ms` since the prompt was accepted. The first chunk has `processed` 0; a prompt that is computed in one step
  has no other. Answers that are not streamed have none.

## Messages

| Address | What it does |
|---|---|
| `POST /v1/messages` | answers, whole or streamed |
| `POST /v1/messages/count_tokens` | the exact prompt tokens of the same request |

- **Thinking** is off unless `thinking` or `enable_thinking` asks for it, as in Anthropic's API; `adaptive` and
  `between_tools` switch it on. Thinking blocks have a signature; with `display: omitted` the signature contains the
  thought, so that clients can send it back.
- **Usage**: `cache_read_input_tokens` were read from the prefix cache and are not in `input_tokens`. Newly written
  tokens are `cache_creation_input_tokens` if the request has a `cache_control`; otherwise they count as input.
  `cache_control` asks the cache to keep the prompt up to that point.
- **A last message of the assistant** is continued.
- **Tools of MCP servers**: a tool of type `mcp_toolset` names a server that the operator has set up ([mcp.md](mcp.md)).
- **Anthropic's own tools** that have no schema are left out with a warning, except those that the client runs: `bash_*`,
  `text_editor_*`, `memory_*`, `computer_*` and the toolsets of computer and browser get the schema that Anthropic's models know.
  `tool_choice` may name a toolset or one of its members. `web_search_*` searches if Pippin [does](mcp.md#searching-the-web).
- **Tools that change**: `tool_addition` and `tool_removal` blocks count wherever they stand; the tools on offer are those after
  all changes.
- **`compaction`** of type `summarize` is answered by a block that stands for the messages before it in later requests.
- **Documents** (PDF, text, inline content) and search results are read; file ids and citations are refused.
- **Models**: a request for a `claude-*` name that no model has is answered by the model of the option `claude_model`, or
  by the default model, unless `list_claude_names` gave it to another. The answer has the requested name, because Claude Code drops the thinking of other models.
- The line `x-anthropic-billing-header:` in a system prompt is left out, because it would spoil the prefix cache.
- **Every reply**, streams and errors too, has a `request-id` header, which Anthropic's clients show as `_request_id`.
- **Errors** have Anthropic's shape; an overloaded server answers 529. `anthropic-version` may be missing, but if present it
  must be a date. Keys are sent as `x-api-key` or as a bearer token.

## Fields

`PATCH /v1/settings` and `pippin serve` set the defaults of most ([configuration.md](configuration.md)); `GET /openapi.json` has the
types. Fields that are accepted change nothing. Fields that are refused may be null, false, zero or empty.
"""  # noqa: E501 - rows of tables are one line each

KEYS: Final = """
## Keys of objects

`GET /openapi.json` has the keys of objects in fields. A key that asks for something unsupported is refused by name. One
that is not known is ignored, and named once in the log, as `tools[].function.colour`; those of messages, items of
`input`, blocks of `system`, JSON schemas, `metadata` and variables of the chat template are not looked for.
"""


def contracts_of_dialects() -> Contracts:
    """The contract of every dialect, by the head of its column: "Chat completions"."""
    return {
        dialect.name.replace("_", " ").capitalize(): dialect.contract for dialect in find_dialects().values()
    }


def api_page() -> str:
    contracts = contracts_of_dialects()
    return "\n".join([API, *field_lines(contracts), KEYS, *kind_lines()]) + "\n"


def field_lines(contracts: Contracts) -> list[str]:
    """What becomes of each field: those that are honoured, and why the others are not."""
    shared: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for name, fates in fates_of(contracts).items():
        honouring = [head for head, (mark, _) in fates.items() if mark == "honoured"]
        if honouring:
            said = meaning([fates[head][1] for head in honouring])
            shared.setdefault(tuple(honouring), []).append((f"`{name}`", said))
    lines = []
    for heads, rows in sorted(shared.items(), key=lambda item: -len(item[1])):
        if len(rows) >= MANY:
            lines += ["", f"### Honoured by {named(heads, contracts)}", ""]
            lines += [f"- {name}: {said}" for name, said in rows]
    lines += ["", "### Honoured by others", ""]
    lines += sorted(
        f"- {name} ({named(heads, contracts)}): {said}"
        for heads, rows in shared.items()
        if len(rows) < MANY
        for name, said in rows
    )
    for title, mark in (("Refused", "refused"), ("Accepted without effect", "accepted")):
        lines += ["", f"### {title}", "", *grouped(contracts, mark)]
    return lines


MANY: Final = 12
"""Fields that several APIs honour have a table of their own from this number on."""

Fate = tuple[str, str]  # honoured, accepted, refused or unknown, and what is said of it


def fates_of(contracts: Contracts) -> Mapping[str, Mapping[str, Fate]]:
    """By field, what becomes of it in each contract."""
    described = {head: descriptions(contract) for head, contract in contracts.items()}
    names = sorted({name for contract in contracts.values() for name in fields_of(contract)})
    return {
        name: {head: fate(contract, name, described[head]) for head, contract in contracts.items()}
        for name in names
    }


def fate(contract: Contract[Any], name: str, described: Mapping[str, str]) -> Fate:
    found = status(contract, name, described)
    texts = {"refused": contract.refused, "accepted": contract.accepted, "honoured": described}.get(found, {})
    why = texts.get(name) or described.get(name, "")
    return found, why.removeprefix("Accepted: ") if found == "accepted" else why


def grouped(contracts: Contracts, mark: str) -> list[str]:
    """A list of the fields with this fate: those of which the same is said stand together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, fates in fates_of(contracts).items():
        heads: dict[str, list[str]] = {}
        for head, (found, why) in fates.items():
            if found == mark:
                heads.setdefault(why, []).append(head)
        for why, saying in heads.items():
            reasons.setdefault((named(saying, contracts), why), []).append(f"`{name}`")
    return [f"- {', '.join(names)} ({apis}): {why}" for (apis, why), names in reasons.items()]


def named(heads: Sequence[str], contracts: Contracts) -> str:
    others = [head for head in contracts if not head.startswith(("Gemini", "Ollama"))]
    return "OpenAI's and Anthropic's" if list(heads) == others else ", ".join(heads)


def contracts_of_kinds() -> Mapping[str, Contract[Any]]:
    """By address, those of every module in `api/kinds` that has some."""
    found: dict[str, Contract[Any]] = {}
    for module in pkgutil.iter_modules(kinds.__path__):
        found |= getattr(importlib.import_module(f"{kinds.__name__}.{module.name}"), "CONTRACTS", {})
    return found


def kind_lines() -> list[str]:
    """The fields of each address that is no generation; what the address before has too is not repeated."""
    lines = ["", "## Fields of the other addresses"]
    before, known = "", dict[str, Fate]()
    for address, contract in contracts_of_kinds().items():
        fates = {name: fates[address] for name, fates in fates_of({address: contract}).items()}
        lines += ["", f"### {address}", ""]
        rows = fates
        if known and known.keys() <= fates.keys():
            lines += [f"As `{before}`, and:", ""]
            rows = {name: fate for name, fate in fates.items() if known.get(name) != fate}
        before, known = address, fates
        lines += [f"- `{name}`: {why}" for name, (mark, why) in rows.items() if mark == "honoured"]
        others: dict[Fate, list[str]] = {}
        for name, other in rows.items():
            if other[0] != "honoured":
                others.setdefault(other, []).append(f"`{name}`")
        lines += [
            f"- {', '.join(names)} ({mark}): {why}"
            for (mark, why), names in sorted(others.items(), reverse=True)
        ]
    return lines


def fields_of(contract: Contract[Any]) -> set[str]:
    honoured = {field.encode_name for field in msgspec.structs.fields(contract.body)}
    return honoured | set(contract.accepted) | set(contract.refused)


def status(contract: Contract[Any], name: str, described: Mapping[str, str]) -> str:
    if name in contract.refused:
        return "refused"
    if name in described:
        # A field may stand in a struct that dialects share, and still mean nothing to one of them.
        return "accepted" if described[name].startswith("Accepted") else "honoured"
    return "accepted" if name in contract.accepted else "unknown"


def meaning(sentences: list[str]) -> str:
    return " ".join(dict.fromkeys(filter(None, sentences)))


def descriptions(contract: Contract[Any]) -> dict[str, str]:
    """Of each honoured field, what its annotation says; empty for fields that are only names."""
    hints = get_type_hints(contract.body, include_extras=True)
    fields = msgspec.structs.fields(contract.body)
    return {field.encode_name: _description(hints[field.name]) for field in fields}


def _description(hint: Any) -> str:
    """What the annotation of a type says, or of one of the types of a union."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    own = [each.description for each in extras if isinstance(each, msgspec.Meta) and each.description]
    return next(iter(own), "") or next(filter(None, map(_description, get_args(hint))), "")
