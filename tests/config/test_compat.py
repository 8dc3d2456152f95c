"""The replaced servers: their documented names, and what they do here."""

import contextlib
import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scripts.docs.configuration_pages import server_page
from scripts.docs.standing import FILES, standing

from pippin.config.compat.servers import flag_terms, servers
from pippin.config.compat.terms import ENTRY_FIELDS, Server, Term
from pippin.config.errors import ConfigError
from pippin.config.flags import flags
from pippin.config.load import load
from pippin.config.options.declaration import options
from pippin.config.options.model import ModelOptions
from pippin.config.options.start import Compat
from pippin.config.settings import GivenFlag, Settings
from pippin.config.worker_environment import worker_environment
from pippin.core.requests import Sampling
from tests.api.fakes import FakeService, application, routes_of
from tests.config.profiles import under

DOCUMENTED: dict[str, dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("documented_names.json").read_text()
)
SAMPLES = {
    "--quantize": "8",
    "--kv-group-size": "64",
    "--kv-cache-quantization-group-size": "64",
    "--kv-quant-scheme": "uniform",
    "--kv-key-scheme": "uniform",
    "--kv-value-scheme": "uniform",
    "--model-type": "lm",
    "--log-level": "INFO",
    "--default-chat-template-kwargs": '{"enable_thinking": false}',
    "--chat-template-args": '{"enable_thinking": false}',
    "--embedding-overflow-policy": "truncate",
    "--lora-scales": "0.5,1",
    "--draft-kind": "mtp",
    "--mllm-draft-kind": "mtp",
    "--xtc-threshold": "0.1",
    "--temperature": "0.5",
    "--memory-guard": "safe",
    "--hot-cache-max-size": "8GB",
    "--max-audio-upload-size": "100MB",
    "--max-image-upload-size": "50MB",
    "--max-request-bytes": "8388608",
    "--kv-cache-dtype": "int8",
    "--speculative-config": '{"method": "mtp", "num_speculative_tokens": 3}',
    "--gpu": "max",
}
FRACTIONS = ("percent", "utilization", "top-p", "min-p", "xtc-probability", "temperature", "-pct")


def sample(name: str) -> str:
    """A value that the flag takes."""
    if name in SAMPLES:
        return SAMPLES[name]
    return "0.5" if name.endswith(FRACTIONS) else "4"


def terms_of(server: Server) -> list[Term]:
    return [*server.flags, *server.variables, *server.keys, *server.settings, *server.mcp_keys]


@pytest.mark.parametrize(
    ("server", "kind"),
    [(name, kind) for name in DOCUMENTED for kind in DOCUMENTED[name] if kind != "endpoints"],
)
def test_every_documented_name_is_known(server: str, kind: str) -> None:
    terms: dict[str, tuple[Term, ...]] = {
        "flags": servers()[server].flags,  # type: ignore[index]
        "variables": servers()[server].variables,  # type: ignore[index]
        "keys": servers()[server].keys,  # type: ignore[index]
        "settings": servers()[server].settings,  # type: ignore[index]
        "mcp_keys": servers()[server].mcp_keys,  # type: ignore[index]
    }
    assert set(DOCUMENTED[server][kind]) <= {term.name for term in terms[kind]}


@pytest.mark.parametrize("server", servers().values(), ids=servers())
def test_every_term_means_an_option_or_says_why_not(server: Server) -> None:
    meant = {None, *options(), *ENTRY_FIELDS}
    for term in terms_of(server):
        match term.effect:
            case "same" | "equivalent":
                assert term.option in meant, term.name
            case "needless" | "refused":
                assert term.note, term.name
    names = Counter(term.name for term in terms_of(server))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("server", servers().values(), ids=servers())
def test_every_flag_is_taken_or_refused_with_and_without_its_profile(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("")
    for term in server.flags:
        assert term.name in flags()
        text = None if term.takes == "switch" else sample(term.name)
        if term.name in ("--config", "--models-config"):
            text = str(file)
        for compat in (None, server.name):
            refused = pytest.raises(ConfigError, match=f"^{term.name} is not supported: ")
            meant = flag_terms(compat).get(term.name)  # None: an option's own name  # type: ignore[arg-type]
            with refused if meant is not None and meant.effect == "refused" else contextlib.nullcontext():
                load(under(compat, GivenFlag(term.name, text)), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("server", servers().values(), ids=servers())
def test_every_variable_is_taken_that_is_not_refused(server: Server) -> None:
    values = {
        "HF_HUB_OFFLINE": "1",
        "MLX_VLM_PRELOAD_MODEL": "m",
        "APC_MEMORY_MAX_GB": "auto",
        "APC_ENABLED": "1",
        "MLX_VLM_DRAFT_KIND": "mtp",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
        "OLLAMA_HOST": "0.0.0.0",
        "RAPID_MLX_MAX_REQUEST_BYTES": "8388608",
    }
    for term in server.variables:
        if term.effect == "refused":
            continue
        lower = term.name.lower()
        text = values.get(
            term.name, "0.5" if lower.endswith(("_p", "probability", "threshold", "temperature")) else "1"
        )
        text = "4" if lower.endswith("_bits") else text
        text = "64" if "group_size" in lower else "uniform" if "scheme" in lower else text
        text = "INFO" if lower.endswith("log_level") else text
        text = "50MB" if lower.endswith(("upload_size", "image_bytes")) else text
        load(under(server.name), {term.name: text})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["VLLM_MCP_ALLOW_UNSAFE", "APC_DISK_NAMESPACE"])
def test_a_variable_that_an_operator_would_miss_ends_the_start_and_names_the_way_out(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is not supported: .*(allow_shell|APC_DISK_PATH)"):
        load((), {name: "on"})
    assert load((), {name: "0"}).notes == (), "off"


def test_unverified_tokens_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^--mtp-optimistic is not supported: .*`--enable-mtp`"):
        resolved("--compat=vllm-mlx", "--model=m", "--enable-mtp", "--mtp-optimistic")


@pytest.mark.parametrize("compat", [None, "mlx-vlm", "mlx-openai-server"])
def test_a_batch_without_a_limit_is_not_promised(compat: Any) -> None:
    settings = resolved("--model=m", "--max-num-seqs=0", compat=compat)
    assert (
        settings.server.model_defaults.max_num_seqs
        == resolved("--model=m", compat=compat).server.model_defaults.max_num_seqs
    )
    [note] = settings.notes
    assert (note.severity, "every batch has a limit" in note.text) == ("warning", True)


def test_a_batch_of_none_is_refused_where_the_server_had_no_meaning_for_it() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        resolved("--model=m", "--max-num-seqs=0", compat="vllm-mlx")


def test_flags_that_several_servers_know_take_as_many_words_everywhere() -> None:
    for compat in (None, *servers()):
        for name, term in flag_terms(compat).items():
            assert (term.takes == "switch") == (flags()[name].takes == "switch"), name


@pytest.mark.parametrize("server", servers().values(), ids=servers())
def test_every_documented_endpoint_answers_or_the_page_says_what_is_in_its_place(server: Server) -> None:
    routes = routes_of(application(FakeService()))
    routed = {f"{method} {route.path}" for route in routes for method in route.methods or ()}
    documented = set(DOCUMENTED[server.name]["endpoints"])
    told = {name for what in standing(server.name).promises for name in re.findall(r"`([^`]+)`", what)}
    assert documented - routed <= told
    assert documented & routed


@pytest.mark.parametrize("server", servers().values(), ids=servers())
def test_the_page_says_what_each_name_does(server: Server) -> None:
    page = server_page(server)
    for term in terms_of(server):
        assert f"`{term.name}`" in page


def resolved(*words: str, compat: Any = None, variables: dict[str, str] | None = None) -> Settings:
    given = [GivenFlag(*word.split("=", 1)) for word in words]
    return load(under(compat, *given), variables or {})


def defaults(*words: str, **more: Any) -> ModelOptions:
    return resolved(*words, **more).server.model_defaults


@pytest.mark.parametrize(
    ("flag", "bits"),
    [
        *(("--kv-bits", bits) for bits in ("3.25", "6.5", "7", "1", "inf")),
        *((flag, bits) for flag in ("--kv-key-bits", "--kv-value-bits") for bits in ("3.5", "7", "1")),
    ],
)
def test_bits_that_no_batch_can_keep_are_refused_by_name(flag: str, bits: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag}.*2, 3, 4, 5, 6 or 8"):
        resolved(f"{flag}={bits}")


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_bits_are_kept_as_they_are(bits: int) -> None:
    given = defaults(f"--kv-bits={bits}", f"--kv-key-bits={bits}", "--kv-value-bits=16")
    assert (given.kv_bits, given.kv_key_bits, given.kv_value_bits) == (bits, bits, None)


@pytest.mark.parametrize("flag", ["--kv-quant-scheme", "--kv-key-scheme", "--kv-value-scheme"])
def test_turboquant_is_refused_by_name(flag: str) -> None:
    assert defaults(f"{flag}=uniform", "--kv-bits=4").kv_bits == 4
    with pytest.raises(ConfigError, match=f"{flag}.*not uniform"):
        resolved(f"{flag}=turboquant")


def test_half_bits_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"--kv-bits.*kv_key_bits 3 and kv_value_bits 4"):
        resolved("--kv-bits=3.5")


@pytest.mark.parametrize("flag", ["--quantized-kv-start", "--kv-cache-min-quantize-tokens"])
def test_a_threshold_of_quantisation_is_refused_unless_it_is_0(flag: str) -> None:
    resolved(f"{flag}=0")
    with pytest.raises(ConfigError, match=f"{flag}.*from the first token on"):
        resolved(f"{flag}=128")


@pytest.mark.parametrize(
    "flag", ["--specprefill", "--specprefill-draft-model=d", "--specprefill-threshold=4096"]
)
def test_sparse_prefill_is_refused_with_the_way_out(flag: str) -> None:
    with pytest.raises(ConfigError, match=r"--specprefill.*every token .* is computed.*`prefix_cache`"):
        resolved(flag)


def test_fewer_experts_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"--moe-top-k.*`num_experts_per_tok` in the model's config.json"):
        resolved("--moe-top-k=4")


@pytest.mark.parametrize(
    "flag", ["--kv-bits=70", "--kv-bits=x", "--kv-quant-scheme=other", "--model-type=other"]
)
def test_what_the_server_would_refuse_is_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match=flag.split("=")[0]):
        resolved(flag)


def test_what_is_needless_is_one_line_and_what_is_not_there_ends_the_start() -> None:
    [note] = resolved("--continuous-batching").notes
    assert note.severity == "info"
    assert note.text.startswith("--continuous-batching is accepted and not needed: ")
    with pytest.raises(ConfigError, match="a template is named as a file: `--chat-template-file`"):
        resolved("--chat-template={{ messages }}")


def test_no_name_of_a_replaced_server_is_taken_and_dropped() -> None:
    """A name that changes nothing is one that has nothing to change."""
    for server in servers().values():
        for term in terms_of(server):
            assert term.option is not None or term.effect != "equivalent"
            assert "not built in" not in term.note


def test_bits_of_a_quantised_cache_count_only_with_the_switch() -> None:
    assert defaults("--kv-cache-quantization-bits=4").kv_bits is None
    assert defaults("--kv-cache-quantization-bits=4", "--kv-cache-quantization").kv_bits == 4
    assert defaults("--kv-cache-quantization").kv_bits == 8


def test_zero_that_meant_never_is_left_unset() -> None:
    assert defaults("--max-kv-size=0").context_length is None
    assert defaults("--kv-bits=0", variables={"PIPPIN_KV_BITS": "8"}).kv_bits is None
    assert defaults("--prompt-cache-size=0", compat="mlx-openai-server").prefix_cache is False
    assert defaults("--auto-unload-idle-seconds=0").idle_timeout is None
    assert defaults("--auto-unload-idle-seconds=90").idle_timeout == 90
    assert defaults("--chunked-prefill-tokens=0").prefill_step_size == 2048


def test_a_window_is_a_window() -> None:
    assert defaults("--max-kv-size=4096").context_length == 4096


def test_variables_with_common_names_are_read_under_their_profile_alone() -> None:
    common = {"PORT": "9999", "HOST": "example", "MODEL": "qwen"}
    assert resolved(variables=common).server.port == 8000
    server = resolved("--compat=mlx-server", variables=common).server
    assert (server.port, server.host, server.models[0].path) == (9999, "example", "qwen")


def test_own_variables_win_over_foreign_ones() -> None:
    assert defaults(variables={"PIPPIN_KV_BITS": "4", "KV_BITS": "8"}).kv_bits == 4


def test_secrets_of_hugging_face_are_not_mentioned() -> None:
    assert resolved(variables={"HF_TOKEN": "x"}).notes == ()


@pytest.mark.parametrize(
    ("compat", "expected"),
    [
        ("mlx-vlm", ("0.0.0.0", 8080, 2048, None, None, "summarize")),
        ("mlx-server", ("127.0.0.1", 1234, 4096, 0.7, 0.9, "summarize")),
        ("mlx-openai-server", ("0.0.0.0", 8000, None, None, None, "error")),
        ("vllm-mlx", ("127.0.0.1", 8000, 32768, None, None, "error")),
        ("mlx-lm", ("127.0.0.1", 8080, 512, 0.0, None, "error")),
        ("omlx", ("127.0.0.1", 8000, 32768, None, None, "error")),
        ("rapid-mlx", ("127.0.0.1", 8000, 32768, None, None, "error")),
        ("ollama", ("127.0.0.1", 11434, None, None, None, "truncate")),
        ("lm-studio", ("127.0.0.1", 1234, None, None, None, "truncate")),
    ],
)
def test_a_profile_sets_the_defaults_that_differ(compat: str, expected: tuple[object, ...]) -> None:
    settings = resolved(f"--compat={compat}")
    of = settings.server.model_defaults
    assert expected == (
        settings.server.host,
        settings.server.port,
        of.max_tokens,
        of.temperature,
        of.top_p,
        of.overflow,
    )
    assert of.seed is None


def test_a_draft_model_is_the_profiles() -> None:
    given = defaults("--draft-model=d", "--draft-kind=eagle3", "--draft-block-size=6")
    assert (given.draft_model_path, given.num_draft_tokens) == ("d", 5), "a block has the last token too"
    assert given.draft_kind == "eagle3"
    with pytest.raises(ConfigError, match="--draft-kind: `medusa` is not one of dflash, eagle3, mtp"):
        defaults("--draft-kind=medusa")
    [entry] = resolved("--compat=mlx-lm", "--model=m", "--draft-model=d", "--temp=0.3").server.models
    assert (entry.options.draft_model_path, entry.options.temperature) == ("d", 0.3)


def test_the_caches_of_vllm_mlxs_other_engine_keep_their_sizes() -> None:
    words = (
        "--compat=vllm-mlx",
        "--model=m",
        "--prefix-trie-cache-size=7",
        "--prefix-trie-cache-memory-mb=9",
    )
    given = resolved(*words, "--prefix-trie-cache").server.model_defaults
    assert (given.prompt_cache_size, given.cache_memory_mb) == (7, 9)
    without = resolved(*words).server.model_defaults
    assert (without.prompt_cache_size, without.cache_memory_mb) == (None, None)


def test_vllm_mlx_drafts_with_the_head_in_the_checkpoint() -> None:
    entry, *_ = resolved(
        "--compat=vllm-mlx", "--model=m", "--enable-mtp", "--mtp-num-draft-tokens=2"
    ).server.models
    assert (entry.options.mtp, entry.options.num_draft_tokens) == (True, 2)
    entry, *_ = resolved("--compat=vllm-mlx", "--model=m", "--mtp-num-draft-tokens=2").server.models
    assert (entry.options.mtp, entry.options.num_draft_tokens) == (False, 8), "it meant nothing by itself"
    entry, *_ = resolved(
        "--compat=vllm-mlx", "--model=m", "--mllm-draft-model=d", "--mllm-draft-block-size=4"
    ).server.models
    assert (entry.options.draft_model_path, entry.options.num_draft_tokens) == ("d", 3)


def test_mlx_server_without_a_model_has_its_default_one_loaded_when_asked_for() -> None:
    entry, *known = resolved("--compat=mlx-server").server.models
    assert (entry.path, entry.preload) == ("mlx-community/gemma-3-4b-it-4bit", False)
    assert len(known) == 2
    assert all(each.listed and not each.preload for each in known)
    entry, *_ = resolved("--compat=mlx-server", "--model=qwen").server.models
    assert entry.path == "qwen"


def test_vllm_mlx_knows_models_that_nobody_named_and_lists_none_of_them() -> None:
    server = resolved(
        "--compat=vllm-mlx", "--model=m", "--embedding-model=mlx-community/multilingual-e5-small-mlx"
    ).server
    served = [entry.path for entry in server.models if entry.listed]
    assert served == ["m", "mlx-community/multilingual-e5-small-mlx"]
    kokoro = next(entry for entry in server.models if entry.name == "kokoro")
    assert (kokoro.kind, kokoro.preload, kokoro.listed) == ("speech", False, False)
    assert len([entry for entry in server.models if entry.kind == "embeddings"]) == 7
    assert (server.served_only, server.allow_downloads) == (True, True)


def test_sampling_of_a_profile_stands_beside_the_options_that_rank_above_the_checkpoint() -> None:
    settings = resolved("--compat=mlx-openai-server", "--model=m", "--top-k=3")
    [entry] = settings.server.models
    assert entry.options.fallbacks == Sampling(temperature=0.7, top_p=0.95, top_k=20, min_p=0.0)
    assert (entry.options.temperature, entry.options.top_k) == (None, 3)


@pytest.mark.parametrize(
    ("compat", "sampling"),
    [  # read in `app/models/mlx_lm.py`, `vllm_mlx/server.py`, `omlx/settings.py`, Rapid-MLX's `service/helpers.py`,
        # `api/types.go` and lmstudio-js's `lms-kv-config/src/schema.ts`
        ("mlx-openai-server", Sampling(temperature=0.7, top_p=0.95, top_k=20, min_p=0.0)),
        ("vllm-mlx", Sampling(temperature=0.7, top_p=0.9)),
        ("omlx", Sampling(temperature=1.0, top_p=0.95)),
        ("rapid-mlx", Sampling(temperature=0.7, top_p=0.9)),
        ("ollama", Sampling(temperature=0.8, top_k=40, top_p=0.9)),
        (
            "lm-studio",
            Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1),
        ),
    ],
)
def test_a_profile_samples_as_its_server_where_the_checkpoint_is_silent(
    compat: str, sampling: Sampling
) -> None:
    assert resolved(f"--compat={compat}").server.model_defaults.fallbacks == sampling


def test_mlx_lm_samples_as_its_own_server_does_whatever_the_checkpoint_says() -> None:
    found = importlib.util.find_spec("mlx_lm")
    if found is None or found.origin is None:
        pytest.skip("mlx-lm is not installed")
    source = Path(found.origin).with_name("server.py").read_text()
    theirs = {
        name: float(value)
        for name, value in re.findall(
            r'"--(temp|top-p|top-k|min-p|max-tokens)",[^)]*?default=([\d.]+)', source
        )
    }
    ours = resolved("--compat=mlx-lm").server.model_defaults
    assert theirs == {
        "temp": ours.temperature,
        "max-tokens": ours.max_tokens,
        "top-p": 1,
        "top-k": 0,
        "min-p": 0,
    }


def test_mlx_vlm_samples_as_its_own_code_does_where_the_checkpoint_is_silent() -> None:
    pytest.importorskip("mlx_vlm", reason="mlx-vlm is not installed")
    common = importlib.import_module("mlx_vlm.generate.common")
    fallbacks = resolved("--compat=mlx-vlm").server.model_defaults.fallbacks
    assert fallbacks == Sampling(temperature=common.DEFAULT_TEMPERATURE)
    assert (common.DEFAULT_TOP_P, common.DEFAULT_TOP_K, common.DEFAULT_MIN_P) == (1.0, 0, 0.0)  # no filter


def test_profiles_serve_and_download_as_their_servers_did() -> None:
    def of(*flags: str) -> tuple[bool | None, bool | None, int | None, int | None]:
        server = resolved(*flags).server
        return server.served_only, server.allow_downloads, server.max_models, server.max_models_per_kind

    assert of("--compat=mlx-vlm") == (False, True, None, 1)
    assert of("--compat=mlx-server") == (None, None, 1, None)
    assert of("--compat=mlx-openai-server") == (True, True, None, None)
    assert of("--compat=mlx-vlm", "--no-allow-downloads", "--max-models-per-kind=3") == (
        False,
        False,
        None,
        3,
    )


def test_no_key_of_the_server_reaches_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = {
        term.name for server in servers().values() for term in server.variables if term.option == "api_keys"
    }
    names = foreign | {"PIPPIN_API_KEY", "PIPPIN_API_KEYS", "PIPPIN_API_KEY_FILE"}
    assert len(names) > 3
    for name in names:
        monkeypatch.setenv(name, "secret")
    assert not names & worker_environment().keys()


@pytest.mark.parametrize("server", servers())
def test_a_promise_has_one_state_and_a_reason(server: Compat) -> None:
    stands = standing(server)
    tables = (stands.differs, stands.missing, stands.partly, stands.works)
    assert sum(map(len, tables)) == len(stands.promises)
    written = re.findall(r"^  (?!- )(.*?): ", (FILES / f"{server}.yaml").read_text(), re.MULTILINE)
    assert len(written) == len(stands.promises) + len(stands.commands), "YAML keeps the last of equal keys"
    assert all({**stands.differs, **stands.missing, **stands.partly, **stands.commands}.values())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0.0.0.0", ("0.0.0.0", 11434)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("http://example.org", ("example.org", 80)),
        ("[::1]:8080", ("::1", 8080)),
    ],
)
def test_ollamas_address_is_read_in_each_of_its_forms(given: str, expected: tuple[str, int]) -> None:
    server = resolved("--compat=ollama", variables={"OLLAMA_HOST": given}).server
    assert (server.host, server.port) == expected
    assert resolved(variables={"OLLAMA_HOST": given}).server.port == 8000, "Ollama may run beside it"


@pytest.mark.parametrize(
    ("given", "expected"), [("5m", 300.0), ("90", 90.0), ("1h30m", 5400.0), ("0", 0.0), ("-1", None)]
)
def test_a_model_stays_as_long_as_ollamas_variable_says(given: str, expected: float | None) -> None:
    assert defaults(compat="ollama").idle_timeout == 300.0
    assert defaults(compat="ollama", variables={"OLLAMA_KEEP_ALIVE": given}).idle_timeout == expected


@pytest.mark.parametrize(
    ("compat", "variables", "reason"),
    [
        ("ollama", {"OLLAMA_HOST": "localhost:x"}, "an address"),
        ("ollama", {"OLLAMA_KEEP_ALIVE": "soon"}, "a duration"),
        ("ollama", {"OLLAMA_ORIGINS": "chrome-extension://*"}, "whole origins"),
        ("ollama", {"OLLAMA_KV_CACHE_TYPE": "q5_0"}, "one of f16"),
        ("omlx", {"OMLX_SSD_CACHE_MAX_SIZE": "much"}, "a size such as 8GB"),
    ],
)
def test_a_value_that_the_peer_has_no_meaning_for_is_refused_by_name(
    compat: Compat, variables: dict[str, str], reason: str
) -> None:
    [name] = variables
    with pytest.raises(ConfigError, match=f"^{name}: .* is not .*{reason}"):
        resolved(compat=compat, variables=variables)


def test_sizes_and_shares_of_omlx_are_those_of_the_options() -> None:
    server = resolved(
        *("--compat=omlx", "--model-dir=/a,/b", "--memory-guard=safe", "--max-audio-upload-size=500MB"),
        *("--hot-cache-max-size=8GB", "--paged-ssd-cache-max-size=1.5TB", "--max-image-side-length=1024"),
    ).server
    assert (server.model_dirs, server.memory_percent, server.max_upload_mb) == (("/a", "/b"), 0.8, 500.0)
    of = server.model_defaults
    assert (of.cache_memory_mb, of.cache_disk_max_gb, of.max_pixels) == (8192, 1536.0, 1024 * 1024)
    assert defaults("--hot-cache-max-size=0", compat="omlx").cache_memory_mb is None
    assert resolved("--base-path=/o", compat="omlx").server.model_dirs == ("/o/models",)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"method": "mtp", "num_speculative_tokens": 3}, (True, False, None, None, 3)),
        ({"method": "suffix"}, (False, True, None, None, 8)),
        ({"method": "dflash", "model": "d"}, (False, False, "dflash", "d", 8)),
    ],
)
def test_what_drafts_is_read_from_rapid_mlxs_json(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    [entry] = resolved(
        "--compat=rapid-mlx", "--model=m", f"--speculative-config={json.dumps(given)}"
    ).server.models
    of = entry.options
    assert expected == (of.mtp, of.prompt_lookup, of.draft_kind, of.draft_model_path, of.num_draft_tokens)
    with pytest.raises(
        ConfigError, match=r"^--speculative-config: .*`mtp`, `suffix`, or `dflash` with its `model`"
    ):
        resolved('--speculative-config={"method": "ddtree"}')


@pytest.mark.parametrize(
    ("compat", "name", "repository"),
    [
        ("rapid-mlx", "qwen3-0.6b-4bit", "mlx-community/Qwen3-0.6B-4bit"),
        ("ollama", "llama3.2:3b", "mlx-community/Llama-3.2-3B-Instruct-4bit"),
    ],
)
def test_a_peers_names_of_models_are_known_under_its_profile_beside_the_operators(
    compat: Compat, name: str, repository: str
) -> None:
    assert name not in resolved().server.aliases
    aliases = resolved(f"--compat={compat}", "--alias=mine=a/b").server.aliases
    assert (aliases[name], aliases["mine"]) == (repository, "a/b")


def test_a_flag_of_pippins_own_means_something_else_under_its_servers_profile_alone() -> None:
    """LM Studio's `--exact` is about names of models."""
    assert defaults("--exact").exact
    assert not defaults("--exact", compat="lm-studio").exact
    own = {option.flag for option in options().values()}
    others = [term.name for term in flag_terms(None).values() if term.name in own and term.effect != "same"]
    assert others == []
