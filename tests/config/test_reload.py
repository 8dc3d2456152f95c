"""Changes while the server runs."""

from pathlib import Path

import pytest

from pippin.config.errors import ConfigError
from pippin.config.load import load
from pippin.config.reload import change, reload
from pippin.config.settings import GivenFlag


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pippin.yaml"


def test_a_reload_takes_over_hot_options_and_names_the_others(file: Path) -> None:
    file.write_text("rate_limit: 1\nport: 1\nmodels:\n- path: m\n  temperature: 0.1\n  kv_bits: 4\n")
    settings = load((GivenFlag("--config", str(file)),), {})
    file.write_text("rate_limit: 2\nport: 2\nmodels:\n- path: m\n  temperature: 0.2\n  kv_bits: 8\n")
    reloaded = reload(settings, {})
    assert set(reloaded.changed) == {"rate_limit", "models[0].temperature"}
    assert set(reloaded.needs_restart) == {"port", "models[0].kv_bits"}
    server = reloaded.settings.server
    assert (server.rate_limit, server.port) == (2, 1)
    assert (server.models[0].options.temperature, server.models[0].options.kv_bits) == (0.2, 4)


def test_a_reload_without_a_change_changes_nothing(file: Path) -> None:
    file.write_text("rate_limit: 1\n")
    settings = load((GivenFlag("--config", str(file)),), {})
    reloaded = reload(settings, {})
    assert (reloaded.changed, reloaded.needs_restart) == ((), ())
    assert reloaded.settings == settings


def test_a_flag_still_wins_after_a_reload(file: Path) -> None:
    file.write_text("rate_limit: 1\n")
    flags = (GivenFlag("--config", str(file)), GivenFlag("--rate-limit", "5"))
    settings = load(flags, {})
    file.write_text("rate_limit: 2\n")
    assert reload(settings, {}).settings.server.rate_limit == 5


def test_a_broken_file_changes_nothing(file: Path) -> None:
    file.write_text("rate_limit: 1\n")
    settings = load((GivenFlag("--config", str(file)),), {})
    file.write_text("rate_limit: x\n")
    with pytest.raises(ConfigError, match="rate_limit: `x` is not a whole number"):
        reload(settings, {})


def test_another_list_of_models_needs_a_restart(file: Path) -> None:
    file.write_text("models: [a]\n")
    settings = load((GivenFlag("--config", str(file)),), {})
    file.write_text("models: [a, b]\n")
    assert reload(settings, {}).needs_restart == ("models",)


def test_single_values_change_and_say_who_changed_them() -> None:
    settings = load((GivenFlag("MODEL", "m"),), {})
    changed = change(settings, {"temperature": 0.4, "port": 9, "timeout": 5})
    assert set(changed.changed) == {"temperature", "timeout", "models[0].temperature"}
    assert changed.needs_restart == ("port",)
    assert changed.settings.server.model_defaults.temperature == 0.4
    assert changed.settings.server.models[0].options.temperature == 0.4
    assert str(changed.settings.origin("timeout")) == "PATCH /v1/settings"


def test_what_a_model_says_itself_is_not_changed_with_the_defaults(file: Path) -> None:
    file.write_text("models:\n- path: a\n  temperature: 0.1\n- path: b\n")
    settings = load((GivenFlag("--config", str(file)),), {})
    changed = change(settings, {"temperature": 0.9}).settings.server
    assert [entry.options.temperature for entry in changed.models] == [0.1, 0.9]


def test_settings_of_mlx_vlm_are_understood() -> None:
    settings = load((), {})
    changed = change(settings, {"kv_bits": 3, "apc_num_blocks": 10, "token_queue_timeout": 60})
    assert changed.changed == ("queue_timeout",)
    assert changed.needs_restart == ("kv_bits",)
    assert len(changed.notes) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temprature": 1}, "temprature: no such option. Did you mean `temperature`?"),
        ({"temperature": "hot"}, "temperature: `hot` is not a number from 0 to 100."),
        ({"image_model": "x"}, "image_model: no such option."),
    ],
)
def test_a_wrong_change_is_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        change(load((), {}), values)
    assert str(caught.value).startswith(message)
