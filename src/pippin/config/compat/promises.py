"""What the documents and newest code of the replaced servers promise, and Pippin once did not do: where each stands.

`works`: it does what they say. `partly` and `not yet`: the note says what holds today. `differs` and `refused`: kept on
purpose, for the reason that the note gives. Everything else that they promise works and needs no line.
"""

from typing import Final, Literal

from msgspec import Struct

from pippin.config.options.start import Compat

State = Literal["works", "partly", "not yet", "differs", "refused"]


class Promise(Struct, frozen=True):
    what: str
    state: State
    note: str


SMALL = "works with small models in the real format; real weights were not to be had"
SHOWN = "shown by `tests/drop_in`"

PROMISES: Final[dict[Compat, tuple[Promise, ...]]] = {
    "mlx-vlm": (
        Promise(
            "a request's `model` downloads it",
            "works",
            "under the profile; `--no-allow-downloads` forbids it",
        ),
        Promise("one model at a time, which another of its kind evicts", "works", SHOWN),
        Promise(
            "`model` as a local path",
            "works",
            "inside folders that `--model-root` names; elsewhere it is refused, because it could read any folder",
        ),
        Promise(
            "ids of `--model-dir` are absolute paths",
            "differs",
            "names here: a path tells strangers of the operator's disk; inside `--model-root` the path answers too",
        ),
        Promise("adapters in mlx-vlm's own format (`rank`, `alpha`)", "works", "so are mlx-lm's and PEFT's"),
        Promise(
            "`--adapter-path` on a vision-language model",
            "works",
            "compared with mlx-vlm on small models; several by request where they are of the language model alone",
        ),
        Promise(
            "`adapter_path` of a request as a path",
            "works",
            "a path that the operator gave, or a name; other paths of clients are not opened",
        ),
        Promise("`--adapter-path` as a repository", "works", "downloaded where downloads are allowed"),
        Promise("`/health.loaded_adapter`", "works", "the operator's words for it"),
        Promise(
            "`--kv-bits` 2, 3, 6 and 3.5, TurboQuant, bits by keys and values",
            "works",
            "in batches too; TurboQuant by mlx-vlm's own codec",
        ),
        Promise(
            "`input_audio` as a string: an address, base64 or a path", "works", "a path inside `--media-path`"
        ),
        Promise(
            "pictures and sound as file paths",
            "differs",
            "inside `--media-path` alone: anywhere else a client could read any file of the server",
        ),
        Promise(
            "`/responses` with chat's parts, role `tool`, content null",
            "works",
            "also `audio_url` and `video_url`",
        ),
        Promise(
            "`response.completed` for an answer that meets its limit",
            "differs",
            "`response.incomplete`, as OpenAI and its newest version have it",
        ),
        Promise("`/unload`'s object", "works", SHOWN),
        Promise("pictures after `pip install mlx-vlm`", "works", "after `pip install 'pippin[mlx-vlm]'`"),
        Promise("CORS for every origin", "works", "under the profile; off otherwise"),
        Promise("JSON at `GET /metrics`", "works", f"{SHOWN}; under the profile"),
        Promise(
            "`PATCH /v1/settings` with `op: replace`",
            "works",
            f"{SHOWN}: what requests have changed is taken back",
        ),
        Promise(
            "settings that a loaded model was started with (`min_pixels`, `kv_bits`)",
            "differs",
            "the answer of `PATCH /v1/settings` names them in `needs_restart`; a request's own counts at once",
        ),
        Promise(
            "`/v1/models?model_dir=...`",
            "refused",
            "a client's word opens no folder: `--model-dir`, or paths inside `--model-root`",
        ),
        Promise(
            "its README's body of `/responses` with `messages`",
            "differs",
            "400 names `input`, which its own server asks for too",
        ),
        Promise(
            "`POST /generate` (before 0.3)",
            "refused",
            "its newest version has it no more; use `/chat/completions`, which it had too",
        ),
        Promise(
            "`GET /images/defaults`",
            "works",
            f"{SHOWN}; `guidance` is null for a model that takes none, and nothing is downloaded for it",
        ),
        Promise(
            "`WS /v1/realtime`",
            "refused",
            "its own events and fields are refused by name: connect as OpenAI's clients do, with `--stt-model` and "
            "`--tts-model` beside the model that writes (docs/clients.md)",
        ),
        Promise(
            "audio out of chat", "refused", "it has it in `/v1/realtime` alone; `/v1/audio/speech` speaks"
        ),
        Promise("`/v1/decisions`", "partly", "about text; `images` and `audio` are refused by name"),
        Promise(
            "`--expert-cache-gb`, `/v1/moe-offload/stats`",
            "works",
            "of checkpoints that `mlx_vlm.moe_offload` repacked, by its own code, in batches; others are refused with "
            "the flag: docs/models-in-memory.md",
        ),
        Promise(
            "drafters DFlash, EAGLE-3, MTP",
            "works",
            "all of them, in batches: docs/speculation.md",
        ),
        Promise("speculation on models with recurrent layers", "works", "by replaying the layers' inputs"),
        Promise("`p_less`", "works", "in the batch, beside the other samplers"),
        Promise(
            "`compact_threshold`",
            "refused",
            "compaction begins when the conversation does not fit, and nothing is lost before",
        ),
        Promise(
            "pictures for embeddings and reranking",
            "partly",
            "Qwen3-VL-Embedding, Qwen3-VL-Reranker and models of chat take them; ColQwen, ColIdefics, "
            "LFM2-ColBERT, SigLIP, Llama-Nemotron-VL and EmbeddingGemma 2 are refused at the load, each with its "
            "reason",
        ),
        Promise(
            "image pipelines of its own",
            "works",
            "pixel by pixel as mlx-vlm on small models: docs/images.md; masks and previews are refused by name",
        ),
        Promise(
            "diffusion language models",
            "works",
            "one request at a time, by mlx-vlm's own loop: docs/diffusion.md; fields that the loop does not follow are "
            "refused by name",
        ),
        Promise(
            "text architectures that mlx-lm lacks",
            "partly",
            "they load through mlx-vlm, one request at a time, which is how its own models run alone; no checkpoint of "
            "one was to be had",
        ),
        Promise(
            "distributed inference",
            "partly",
            "`--machines` and `--ranks`, for the layers that mlx-lm splits; `sharded_generate.py` is Python of its own",
        ),
        Promise(
            "its Python API (`from mlx_vlm import load, generate`), notebooks and `examples/*.py`",
            "refused",
            "there is no module to import: keep mlx-vlm beside it, or ask the server by OpenAI's client",
        ),
        Promise("`--reload`", "differs", "options are read again on SIGHUP"),
        Promise(
            "its families of vision models",
            "works",
            "all that its 0.7.10 has, compared with it on small models: docs/vision.md has each; those whose media "
            "can't be batched answer one request at a time, and the log says so",
        ),
        Promise("sound in chat", "works", "all families that take it, as mlx-vlm: docs/vision.md has each"),
        Promise(
            "fields of speech and transcriptions that a model lacks (`max_tokens`, `chunk_duration`, `instruct` ...)",
            "differs",
            "refused by name; there they were dropped",
        ),
        Promise("segmentation, detection, depth", "refused", "its server has no endpoint for them either"),
    ),
    "mlx-server": (
        Promise("one model in memory at a time", "works", "`max_models` of the profile"),
        Promise("both aliases are always listed", "works", '`"state": "not_downloaded"` until they are here'),
        Promise("`/health` says `ok`", "works", SHOWN),
        Promise(
            "`./run.sh`, `python -m mlx_server.main`",
            "differs",
            "`pippin serve --compat mlx-server [gemma|qwen]`",
        ),
        Promise(
            "Gemma's window of 128k",
            "works",
            "from the architecture's default where config.json says nothing",
        ),
        Promise("Gemma's calls in `tool_code` blocks", "works", "found by the architecture"),
        Promise(
            "pictures by address",
            "works",
            "of the open internet, and of hosts on a private network that `--media-host` names",
        ),
        Promise(
            "an overflow counts prompt and `max_tokens`",
            "differs",
            "a prompt that leaves no room is one; an answer that meets the window ends with `length`",
        ),
        Promise("Apple Silicon", "partly", "made for it, and never run on it: docs/gaps.md"),
    ),
    "mlx-openai-server": (
        Promise("macOS on Apple Silicon", "partly", "made for it, and never run on it: docs/gaps.md"),
        Promise("all five kinds in one program", "works", "images by the families of docs/images.md"),
        Promise("`mlx-community/whisper-*` (weights.npz, no tokenizer)", "works", SMALL),
        Promise(
            "installation from PyPI or git",
            "not yet",
            "Pippin is not published there; from a clone: `pip install .`",
        ),
        Promise(
            "without parsers nothing is parsed",
            "differs",
            "formats are found from the template; `parse_tool_calls: false` leaves calls in the text",
        ),
        Promise(
            "`--reasoning-parser qwen3_moe` with a model that does not think",
            "works",
            f"{SHOWN}, streamed too",
        ),
        Promise("`--reasoning-parser qwen3_next`", "works", SHOWN),
        Promise(
            "images and edits, all twelve config names",
            "refused",
            "mlx-vlm's pipelines paint FLUX.2, Qwen-Image 2.1, Z-Image and others, as the model's folder says, but no "
            "FLUX.1 and no FIBO (docs/images.md)",
        ),
        Promise("chat with pictures and sound, `video_url`", "works", f"{SHOWN}; {SMALL}"),
        Promise(
            "a picture by local path",
            "differs",
            "inside `--media-path` alone: anywhere else a client could read any file of the server",
        ),
        Promise("`GET /v1/models` lists what is served", "works", "also what is still to be downloaded"),
        Promise(
            "other names are refused",
            "differs",
            "with several models of a kind; the only one of its kind answers any name, as its examples ask",
        ),
        Promise("an omitted `model`", "works", "the first served of the kind that the request needs"),
        Promise("fields of images that a model lacks", "differs", "refused by name; there they were ignored"),
        Promise(
            "fields of transcriptions that Whisper lacks",
            "differs",
            "refused by name; there they were ignored",
        ),
        Promise(
            "`--max-tokens` 100000",
            "differs",
            "the rest of the window, which is what so large a number meant",
        ),
        Promise(
            "request > flag > checkpoint > 0.7, 0.95, 20",
            "works",
            "the profile's values rank below the checkpoint's",
        ),
        Promise(
            "a log file by default", "differs", "`--log-file` writes one; a server does not litter its folder"
        ),
        Promise("a prompt cache on disk by default", "differs", "where `--prompt-cache-dir` names a folder"),
        Promise(
            "`--draft-model-path` as a repository or alias", "works", "downloaded where downloads are allowed"
        ),
        Promise(
            "`on_demand` models that are not on the disk", "works", "listed, asked by served name, downloaded"
        ),
        Promise("an entry's name that is also a built-in alias", "works", "the entry wins"),
        Promise(
            "`configure_mlx.sh`",
            "differs",
            "`--wired-limit-gb` within what macOS allows; system limits are the operator's",
        ),
        Promise(
            "an unknown parser stops the start",
            "differs",
            "the load fails and names those that are known; others go on",
        ),
        Promise(
            "`image_url` on `/v1/embeddings`",
            "differs",
            "its newest version ignores the field; here it is refused: a picture goes into `input` or `messages`",
        ),
        Promise("mlx-vlm's families", "works", "see mlx_vlm.server above"),
        Promise(
            "`transcription.chunk` objects of a streamed transcription",
            "differs",
            "OpenAI's events, `transcript.text.delta` and `.done`, which OpenAI's client reads",
        ),
        Promise(
            "example notebooks",
            "differs",
            "its own run against Pippin (`tests/drop_in`); Pippin's are others, in `examples/`",
        ),
        Promise(
            "its PDF demo, which asks one model for vectors and answers",
            "works",
            "with two entries of the model in the file, as `embeddings` and as `lm`, each by its own name",
        ),
        Promise(
            "sampling of `--model-type multimodal`",
            "differs",
            "as of other models: the checkpoint's, then 0.7; there it was greedy, which is `--temperature 0`",
        ),
        Promise(
            "embeddings by a model of type `lm` (its notebooks)",
            "differs",
            "with `--model-type embeddings`, as its newest version asks",
        ),
        Promise("MIT licence", "differs", "Apache-2.0"),
    ),
    "vllm-mlx": (
        Promise("`default` means the loaded language model", "works", SHOWN),
        Promise("`--embedding-model` beside chats by `default`", "works", SHOWN),
        Promise(
            "seven embedding models load by request",
            "works",
            f"{SHOWN}; downloads were tried against a hub on loopback",
        ),
        Promise(
            "names of speech models load by request",
            "partly",
            f"{SHOWN} for a small model; the weights of these families were not to be had",
        ),
        Promise("an unknown name is 404", "works", "`served_only`, an option of its own"),
        Promise("`GET /v1/models` lists what is served", "works", SHOWN),
        Promise("host 0.0.0.0 of its older guide", "differs", "127.0.0.1, as its newest version"),
        Promise("defaults of sampling", "works", "0.7 and 0.9 where the checkpoint says nothing"),
        Promise(
            "an answer without `</think>` is content", "works", "whole and streamed, whatever parser is named"
        ),
        Promise(
            "`text</think>answer` is split",
            "works",
            "whole; a stream has sent the text by then, and goes on with the answer without the tag",
        ),
        Promise(
            "without a parser, tags stay in content",
            "differs",
            "thoughts are told from the answer by the template",
        ),
        Promise("thinking through `/v1/messages`", "works", "by default under the profile"),
        Promise(
            "`message.reasoning` of an answer without a thought",
            "differs",
            "absent, as in its newest version; `hasattr` or `getattr`, as its guide's example of streams does",
        ),
        Promise("`tool_use` ids `call_...`", "differs", "`toolu_...`, as Anthropic's"),
        Promise("`/v1/status`: `running`, `stopped`, `not_loaded`", "works", SHOWN),
        Promise("`/v1/status`: `cache.type`, `entries`, `memory_mb`; `embedding`", "works", SHOWN),
        Promise(
            "`rewarm_scheduled` of `DELETE /v1/cache/prefix`",
            "works",
            f"{SHOWN}: warm prompts are computed again",
        ),
        Promise(
            "names of its metrics",
            "partly",
            "all but `vllm_mlx_embedding_truncated_total`: a text is cut where that was asked for",
        ),
        Promise(
            "`/v1/cache/stats`",
            "partly",
            "`engine_cache`, and mlx-vlm's names beside it; no `pil_image_cache`, `pixel_values_cache`",
        ),
        Promise(
            "`tool_argument_recovery: buffered`", "refused", "arguments that break off are shown as they are"
        ),
        Promise("Open WebUI in a container", "partly", "`--host 0.0.0.0` on Linux; not run"),
        Promise("its speed", "partly", "compared on CPUs (docs/performance.md); no figure on Metal"),
        Promise(
            "`--enable-mtp` and its kin",
            "partly",
            "the heads named in docs/speculation.md; tokens that were not verified are never sent",
        ),
        Promise(
            "`--enable-mtp` for a model without the head",
            "differs",
            "its load says so and names the way out; there it went on without",
        ),
        Promise(
            "`mllm_draft` and its flags",
            "partly",
            "EAGLE-3, DFlash and MTP, for all requests; the field is refused",
        ),
        Promise(
            "SpecPrefill",
            "partly",
            "its flags and fields; models with windows, recurrent layers or media are refused at the start",
        ),
        Promise("`--moe-top-k`", "works", "for mixtures that mlx-lm runs; in its documents, not in its code"),
        Promise(
            "`--max-kv-size`, which forgets old tokens",
            "differs",
            "refused or summarised: nothing is lost silently",
        ),
        Promise(
            "registries with lazy models, `--lazy-load-model`", "works", "also those that are not on the disk"
        ),
        Promise(
            "`VLLM_MCP_ALLOW_UNSAFE`",
            "refused",
            "a server of the file may say `allow_shell: true` for itself",
        ),
        Promise(
            "Kokoro",
            "partly",
            "with `pippin[kokoro]`, whose packages are partly GPL; no weights were to be had",
        ),
        Promise(
            "Chatterbox, VibeVoice, VoxCPM, CSM, Parakeet",
            "partly",
            "known by name; Parakeet writes what mlx-audio does on a small model, the others were not tried: their "
            "weights were not to be had (docs/audio.md)",
        ),
        Promise(
            "newer speech families of mlx-audio",
            "works",
            "by mlx-audio's own registry; their weights were not tried",
        ),
        Promise(
            "sound in chat, which its guide says is transcribed (`audio_url`)",
            "differs",
            "models that hear take it, files inside `--media-path`; for others ask `/v1/audio/transcriptions` first",
        ),
        Promise(
            "`language` and `duration` of a transcription in JSON",
            "differs",
            "with `response_format=verbose_json`, as at OpenAI; `usage.seconds` is always there",
        ),
        Promise(
            "voices of a model that is not in memory",
            "differs",
            "409 says to load it: a look must not load a model",
        ),
        Promise(
            "separation and enhancement of sound (`AudioProcessor`, SAM-Audio)",
            "refused",
            "it has no endpoint for them either: they are Python of mlx-audio, which stays",
        ),
        Promise(
            "`bench`, `bench-serve`",
            "works",
            "its own `bench-serve` measures Pippin too, with its workload files; `pippin bench` has lengths, clients, "
            "datasets, JSON and CSV, and compares two runs",
        ),
        Promise(
            "`/v1/mcp/status`, tools as `tools`, `execute` by `server` and `tool`",
            "works",
            f"{SHOWN}; its newest version has other addresses, which answer too",
        ),
        Promise(
            "speech is wav where no format is named",
            "works",
            f"{SHOWN}; `--speech-format` under other profiles",
        ),
        Promise(
            "`skip_security_validation` of the MCP file",
            "refused",
            "its own code refuses the key too; leave it out: no list of commands is kept, as only the operator writes "
            "the file",
        ),
        Promise("`bench-detok`, `bench-kv-cache`", "refused", "they measure its own parts"),
        Promise(
            "`vllm-mlx-chat`, `vllm-mlx-text-chat`",
            "works",
            "these pages ask Pippin as they stand; it has its own at `/`, and `pippin run` in a terminal",
        ),
        Promise(
            "`model convert`, `register`, `qualify`",
            "partly",
            "`pippin convert`, and `pippin import` for GGUF; a folder beside the others needs no registration",
        ),
        Promise(
            "its Python API (`from vllm_mlx import ...`), `examples/*.py` that use it, the vLLM plugin",
            "refused",
            "there is no module to import: keep vllm-mlx beside it, or ask the server by OpenAI's client",
        ),
        Promise(
            "DeepSeek V4 without a template",
            "refused",
            "chat needs a template: that of the folder, or `--chat-template-file`",
        ),
    ),
    "mlx-lm": (),
}
