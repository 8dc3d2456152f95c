"""The resolving of defaults, file, environment and flags."""

from pathlib import Path

import msgspec
import pytest

from pippin.config.errors import ConfigError
from pippin.config.flags import POSITIONAL
from pippin.config.load import load
from pippin.config.options.declaration import options
from pippin.config.settings import GivenFlag, Settings
from pippin.config.worker_environment import blas_threads, worker_environment


def given(*flags: str) -> tuple[GivenFlag, ...]:
    """Flags as `--name=value` or `--switch`; a word without dashes is a model."""
    found = []
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not flag.startswith("-"):
            found.append(GivenFlag(POSITIONAL, flag))
        else:
            found.append(GivenFlag(name, text if equals else None))
    return tuple(found)


def settings(*flags: str, variables: dict[str, str] | None = None) -> Settings:
    return load(given(*flags), variables or {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pippin.yaml"


def test_without_anything_every_option_has_its_default() -> None:
    resolved = settings()
    assert resolved.server.port == 8000
    assert resolved.server.models == ()
    assert resolved.origin("port").source == "default"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text("port: 1\nmax_num_seqs: 2\nseed: 3\n")
    variables = {"PIPPIN_PORT": "10", "PIPPIN_MAX_NUM_SEQS": "20"}
    resolved = settings(f"--config={file}", "--port=100", variables=variables)
    assert resolved.server.port == 100
    assert resolved.server.model_defaults.max_num_seqs == 20
    assert resolved.server.model_defaults.seed == 3
    assert str(resolved.origin("port")) == "--port"
    assert str(resolved.origin("max_num_seqs")) == "PIPPIN_MAX_NUM_SEQS"
    assert str(resolved.origin("seed")) == f"{file}: seed"


def test_the_file_may_be_named_by_the_environment(file: Path) -> None:
    file.write_text("port: 77\n")
    assert settings(variables={"PIPPIN_CONFIG": str(file)}).server.port == 77


def test_a_profile_lies_under_the_file(file: Path) -> None:
    file.write_text("compat: mlx-vlm\nmax_tokens: 5\n")
    resolved = settings(f"--config={file}")
    assert (resolved.server.host, resolved.server.port) == ("0.0.0.0", 8080)
    assert resolved.server.model_defaults.max_tokens == 5
    assert str(resolved.origin("port")) == "--compat mlx-vlm"


def test_dashes_and_underscores_are_alike_in_keys(file: Path) -> None:
    file.write_text("max-num-seqs: 7\n")
    assert settings(f"--config={file}").server.model_defaults.max_num_seqs == 7


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--port=70000", "--port: `70000` is not a whole number from 0 to 65535."),
        ("--temperature=nan", "--temperature: `nan` is not a number from 0 to 100."),
        ("--max-num-seqs=-1", "--max-num-seqs: `-1` is not a whole number at least 1."),
        (
            "--log-level=warn1",
            "--log-level: `warn1` is not one of debug, error, info, warning. Did you mean `warning`?",
        ),
        (
            "--overflow=trunkate",
            "--overflow: `trunkate` is not one of error, summarize, truncate. Did you mean `truncate`?",
        ),
        ("--replicas=1-6", "--replicas: `1-6` is not a whole number from 1 to 64."),
        ("--adapter=name", "--adapter: `name` is not NAME=VALUE pairs."),
        ("--config=/nowhere.yaml", "/nowhere.yaml: cannot be read (No such file or directory)."),
    ],
)
def test_a_wrong_value_is_one_clear_line(flag: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(flag)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "prot: no such option. Did you mean `port`?"),
        (
            "models:\n- path: x\n  temprature: 1",
            "models[0].temprature: no such option. Did you mean `temperature`?",
        ),
        ("models:\n- name: x", "models[0] needs `path`."),
        ("models: 3", "models must be a list."),
        ("models:\n- 3", "models[0] must be a mapping with `path`, or the path itself."),
        ("models:\n- path: x\n  name: 3", "models[0].name: `3` is not text."),
        ("- 1", "the file must be a mapping of options."),
        ("port: [", "not YAML ("),
        ("config: other.yaml", "config: no such option."),
        ("server: 3", "server must be a mapping."),
    ],
)
def test_a_wrong_file_is_one_clear_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        settings(f"--config={file}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_variable_names_itself() -> None:
    with pytest.raises(ConfigError, match=r"^PIPPIN_PORT: `tcp://10\.0\.0\.1:80` is not a whole number"):
        settings(variables={"PIPPIN_PORT": "tcp://10.0.0.1:80"})


def test_an_unknown_variable_is_a_warning_with_the_nearest_name() -> None:
    [note] = settings(variables={"PIPPIN_PROT": "1", "PIPPIN_HOME": "/x", "HOME": "/y"}).notes
    assert note.severity == "warning"
    assert note.text == "No option has the variable PIPPIN_PROT. Did you mean `PIPPIN_PORT`?"


def test_lists_and_mappings_can_be_written_in_several_ways() -> None:
    resolved = settings(
        "--api-key=a",
        "--api-key=b,c",
        "--alias=small=org/one",
        '--alias={"big": "org/two"}',
        variables={"PIPPIN_MODEL_DIRS": '["/x", "/y"]', "PIPPIN_CHAT_TEMPLATE_KWARGS": '{"deep": [1]}'},
    )
    assert resolved.server.api_keys == ("a", "b", "c")
    assert resolved.server.aliases == {"small": "org/one", "big": "org/two"}
    assert resolved.server.model_dirs == ("/x", "/y")
    assert resolved.server.model_defaults.chat_template_kwargs == {"deep": [1]}


def test_a_switch_can_be_turned_off_everywhere(file: Path) -> None:
    file.write_text("accelerated_blas: off\n")
    resolved = settings(f"--config={file}", "--no-prefix-cache", variables={"PIPPIN_MEDIA_FETCH": "no"})
    assert resolved.server.model_defaults.accelerated_blas is False
    assert resolved.server.model_defaults.prefix_cache is False
    assert resolved.server.media_fetch is False


def test_models_of_the_file_are_complete_over_the_defaults(file: Path) -> None:
    file.write_text(
        "temperature: 0.5\noverflow: summarize\nmodels:\n- plain\n- path: x\n  name: y\n  overflow: error\n"
        "  kv_bits: 8\n  preload: false\n"
    )
    plain, own = settings(f"--config={file}", "--seed=1").server.models
    assert (plain.path, plain.name, plain.preload, plain.options.overflow) == (
        "plain",
        None,
        True,
        "summarize",
    )
    assert (own.name, own.preload, own.options.overflow, own.options.kv_bits) == ("y", False, "error", 8)
    assert (own.options.temperature, own.options.seed) == (0.5, 1)


def test_a_model_of_the_file_that_is_named_again_stays_one(file: Path) -> None:
    file.write_text("models:\n- path: x\n  name: y\n")
    assert [entry.path for entry in settings(f"--config={file}", "y", "z").server.models] == ["x", "z"]


def test_adapters_stand_in_the_file_for_a_model_or_for_all(file: Path) -> None:
    file.write_text(
        "adapters: {all: /lora/all}\nmodels:\n- plain\n- path: x\n  adapter_path: /lora/own\n"
        "  adapters: {formal: /lora/formal}\n"
    )
    plain, own = (entry.options for entry in settings(f"--config={file}").server.models)
    assert (plain.adapter_path, plain.adapters) == (None, {"all": "/lora/all"})
    assert (own.adapter_path, own.adapters) == ("/lora/own", {"formal": "/lora/formal"})


def test_an_adapter_belongs_to_the_models_named_beside_it() -> None:
    resolved = settings("m", "--embedding-model=e", "--adapter-path=/a").server
    assert [entry.options.adapter_path for entry in resolved.models] == ["/a", None]
    assert resolved.model_defaults.adapter_path is None
    assert settings("--adapter-path=/a").server.model_defaults.adapter_path == "/a"


def test_a_served_name_and_kind_are_those_of_the_first_model() -> None:
    first, second = settings("m", "n", "--served-model-name=s", "--model-kind=language").server.models
    assert (first.name, first.kind, second.name, second.kind) == ("s", "language", None, None)


def test_lazy_models_are_not_loaded_at_the_start() -> None:
    assert not settings("m", "--lazy-load").server.models[0].preload


def test_every_option_has_help_and_a_section() -> None:
    assert all(option.help.endswith(".") and option.section for option in options().values())


def test_no_two_options_share_a_flag() -> None:
    flags = [option.flag for option in options().values()]
    assert len(flags) == len(set(flags))


def test_the_value_of_every_option_survives_its_own_text() -> None:
    """What `config show` prints of a default can be given again."""
    for option in options().values():
        if option.scope == "start" or option.default in (None, (), {}):
            continue
        text = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
        resolved = load((), {option.variable: text})
        holder = resolved.server if option.scope == "server" else resolved.server.model_defaults
        assert msgspec.structs.asdict(holder)[option.name] == option.default


def test_a_variable_of_a_list_may_be_singular_and_the_plural_wins() -> None:
    assert settings(variables={"PIPPIN_API_KEY": "a"}).server.api_keys == ("a",)
    both = {"PIPPIN_API_KEY": "a", "PIPPIN_API_KEYS": "b,c"}
    assert settings(variables=both).server.api_keys == ("b", "c")


@pytest.mark.parametrize(("given", "threads"), [("1", 1), ("3", 3), ("", 4), ("none", 4)])
def test_threads_of_linear_algebra_are_the_operators_or_a_share_of_the_cores(
    given: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert blas_threads(residents=2) == threads


def test_workers_ask_for_huge_pages_unless_the_operator_has_tuned_malloc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert "glibc.malloc.hugetlb=1" in worker_environment()["GLIBC_TUNABLES"].split(":")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert worker_environment()["GLIBC_TUNABLES"] == "glibc.malloc.check=1"
