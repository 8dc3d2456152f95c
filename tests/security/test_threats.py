"""The known attacks and faults of this field, each with the tests that hold it off, or why it does not apply.

Numbers are those of the project's list of threats; names of tests are `file::test`.
"""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

THREATS: dict[int, tuple[str, tuple[str, ...] | str]] = {
    1: (
        "crafted paths between guard and router",
        ("api/test_guards.py::test_no_spelling_of_a_path_goes_round_the_key",),
    ),
    2: (
        "addresses without a version",
        ("api/test_guards.py::test_every_route_but_the_open_ones_needs_the_key",),
    ),
    3: (
        "timing and odd keys",
        (
            "api/test_guards.py::test_any_other_key_is_401_and_not_repeated",
            "api/test_keys.py::test_the_time_of_a_comparison_tells_nothing",
        ),
    ),
    4: ("both key headers", ("api/test_guards.py::test_a_key_is_taken_from_either_header",)),
    5: (
        "open to the network without a key",
        ("api/test_guards.py::test_a_public_address_without_a_key_warns_and_closes_management",),
    ),
    6: ("DNS rebinding", ("api/test_guards.py::test_a_foreign_host_header_is_turned_away_on_loopback",)),
    7: (
        "CORS with credentials",
        ("api/test_guards.py::test_cors_is_off_by_default_and_never_with_credentials",),
    ),
    8: (
        "simple cross-site posts",
        ("api/test_guards.py::test_bodies_that_a_page_can_send_without_asking_are_415",),
    ),
    9: ("management", ("api/test_guards.py::test_a_web_page_can_not_manage_the_server",)),
    11: (
        "slow bodies",
        (
            "api/test_guards.py::test_a_body_that_stops_coming_is_408",
            "api/test_server.py::test_a_body_that_stops_is_408",
            "api/test_bodies.py::test_a_body_that_only_ever_drips_is_408",
        ),
    ),
    12: (
        "endless headers",
        (
            "api/test_server.py::test_endless_headers_are_431",
            "api/test_server.py::test_a_great_many_headers_are_431",
        ),
    ),
    13: (
        "huge bodies",
        (
            "api/test_guards.py::test_an_endless_body_without_a_length_is_413_at_the_limit",
            "api/test_bodies.py::test_bodies_take_no_more_memory_together_than_there_is_room_for",
        ),
    ),
    14: ("forms and multipart", ("fuzz/test_openapi.py::test_no_request_of_the_document_gives_a_5xx",)),
    15: (
        "the hub's token on a redirect",
        ("catalog/test_download.py::test_the_token_goes_to_the_hub_alone",),
    ),
    16: ("scripts in a chat page", "Pippin serves no chat page."),
    18: (
        "secrets in logs and errors",
        (
            "security/test_requests.py::test_keys_and_prompts_are_in_no_log_and_no_error",
            "api/test_keys.py::test_keys_never_reach_the_log",
            "security/test_secrets.py::test_no_field_of_any_dialect_brings_what_it_holds_into_the_log",
            "security/test_secrets.py::test_a_file_of_the_server_is_in_neither_the_log_nor_the_error",
        ),
    ),
    19: (
        "addresses of objects in errors",
        ("security/test_requests.py::test_an_unexpected_failure_tells_the_client_nothing_of_the_server",),
    ),
    20: ("port in use", ("api/test_server.py::test_a_port_in_use_is_one_clear_line",)),
    21: (
        "addresses of private networks",
        (
            "api/test_media.py::test_an_address_inside_a_private_network_is_not_public",
            "api/test_media.py::test_a_private_host_is_never_connected_to",
        ),
    ),
    23: (
        "redirects inwards",
        ("api/test_media.py::test_a_redirect_to_a_host_that_is_not_listed_is_refused",),
    ),
    24: (
        "rebinding between check and connection",
        ("api/test_media.py::test_a_private_host_is_never_connected_to",),
    ),
    25: (
        "media elsewhere in a body",
        ("api/test_media.py::test_media_in_every_place_of_a_conversation_are_resolved",),
    ),
    27: ("files of the server", ("api/test_media.py::test_a_path_out_of_the_media_folder_is_refused",)),
    28: (
        "endless, slow and compressed downloads",
        (
            "api/test_media.py::test_an_endless_body_is_cut_off_at_the_limit",
            "api/test_media.py::test_a_compressed_answer_is_refused",
        ),
    ),
    29: ("paths as model names", ("catalog/test_catalog.py::test_a_request_cannot_name_a_path",)),
    30: (
        "downloads by request",
        ("catalog/test_download.py::test_a_request_downloads_nothing_where_that_is_off",),
    ),
    32: (
        "Python that a configuration names",
        (
            "security/test_foreign_code.py::test_no_loader_runs_code_of_the_model_even_where_it_trusts_it_itself",
        ),
    ),
    33: (
        "auto_map, and loaders that trust by themselves",
        (
            "security/test_foreign_code.py::test_no_loader_runs_code_of_the_model_even_where_it_trusts_it_itself",
            "security/test_foreign_code.py::test_every_loader_of_transformers_is_told_whom_to_trust",
        ),
    ),
    35: (
        "pickled weights",
        (
            "security/test_foreign_code.py::test_weights_that_are_no_safetensors_are_no_weights",
            "catalog/test_download.py::test_a_model_is_fetched_without_code_and_pickles",
        ),
    ),
    36: (
        "pickle on a socket",
        (
            "test_architecture.py::test_a_library_stays_in_its_rooms",
            "runtime/test_faults.py::test_a_worker_that_sends_rubbish_is_ended",
        ),
    ),
    37: (
        "templates of models",
        (
            "security/test_templates.py::test_a_template_reaches_nothing_outside",
            "security/test_templates.py::test_a_template_that_asks_for_the_whole_machine_is_refused_at_once",
        ),
    ),
    38: (
        "malformed weight files",
        (
            "catalog/test_gguf_hostile.py::test_mutated_files_are_imported_or_refused",
            "runtime/test_faults.py::test_a_worker_that_dies_while_loading_is_a_failed_load",
        ),
    ),
    39: ("eval in a parser", ("test_architecture.py::test_nobody_evaluates_text_or_writes_to_globals",)),
    40: (
        "templates of clients",
        ("security/test_requests.py::test_a_hostile_request_is_refused_by_name_and_quickly",),
    ),
    41: (
        "adapters of another shape",
        ("engines/language/test_lora.py::test_what_cannot_be_served_is_refused_by_name",),
    ),
    42: (
        "a million choices",
        (
            "security/test_requests.py::test_a_hostile_request_is_refused_by_name_and_quickly",
            "test_service.py::test_counts_of_choices_are_limited",
        ),
    ),
    43: ("empty prompts", ("engines/language/test_engine.py::test_an_empty_prompt_is_refused",)),
    44: (
        "a client's chat template",
        ("security/test_requests.py::test_a_hostile_request_is_refused_by_name_and_quickly",),
    ),
    46: ("grammar bombs", ("engines/language/test_constraints.py::test_grammar_bombs_are_refused_or_quick",)),
    47: ("broken grammars", ("engines/language/test_constraints.py::test_a_broken_grammar_is_refused",)),
    48: (
        "broken schemas of tools",
        ("security/test_requests.py::test_a_hostile_request_is_refused_by_name_and_quickly",),
    ),
    50: (
        "grammars without number",
        ("engines/language/test_constraints.py::test_grammars_are_kept_by_bytes_and_the_oldest_goes",),
    ),
    51: ("slow parsers of output", ("fuzz/test_coverage.py::test_seconds_of_fuzzing_find_nothing",)),
    52: (
        "deep JSON, NaN, long strings",
        (
            "security/test_requests.py::test_a_hostile_request_is_refused_by_name_and_quickly",
            "security/test_requests.py::test_duplicate_keys_and_a_very_long_string_are_read_as_ever",
            "security/test_numbers.py::test_a_number_is_honoured_or_refused_by_name_and_never_infinite",
        ),
    ),
    54: (
        "hostile logit_bias",
        (
            "security/test_requests.py::test_a_hostile_request_is_refused_by_name_and_quickly",
            "engines/language/test_preparer.py::test_what_is_out_of_range_is_refused_by_name",
        ),
    ),
    55: (
        "ids and counts out of range",
        ("engines/language/test_preparer.py::test_what_is_out_of_range_is_refused_by_name",),
    ),
    57: (
        "long bookkeeping fields",
        ("security/test_requests.py::test_a_hostile_request_is_refused_by_name_and_quickly",),
    ),
    60: (
        "damaged and foreign pictures",
        (
            "security/test_media_bombs.py::test_formats_that_are_not_on_the_list_and_damaged_ones_are_refused_without_addresses",
        ),
    ),
    61: (
        "pictures without end",
        (
            "security/test_media_bombs.py::test_a_picture_that_claims_millions_of_pixels_a_side_is_refused_before_it_is_decoded",
            "api/test_media.py::test_too_many_media_are_refused",
        ),
    ),
    62: (
        "sound bombs",
        (
            "security/test_media_bombs.py::test_sound_of_absurd_rates_and_channels_is_refused_at_once",
            "security/test_media_bombs.py::test_sound_that_lasts_too_long_is_refused",
        ),
    ),
    63: (
        "speculation and abort",
        ("engines/language/test_engine.py::test_a_cancelled_request_leaves_nothing_and_says_nothing",),
    ),
    64: (
        "tensors of clients",
        ("security/test_requests.py::test_a_hostile_request_is_refused_by_name_and_quickly",),
    ),
    66: (
        "timing of another tenant's cache",
        (
            "engines/language/test_prefix_cache.py::test_salts_keep_tenants_apart",
            "engines/language/test_preparer.py::test_adapter_and_salt_keep_caches_apart",
        ),
    ),
    69: ("more than the window", ("test_service.py::test_a_context_overflow_is_refused_with_its_numbers",)),
    70: ("connections that stay", ("api/test_server.py::test_hundreds_of_hang_ups_leave_nothing_behind",)),
    71: (
        "ids without number",
        ("security/test_requests.py::test_a_hostile_request_is_refused_by_name_and_quickly",),
    ),
    73: (
        "answers without end",
        ("engines/language/test_preparer.py::test_the_limit_of_new_tokens_is_what_the_window_leaves",),
    ),
    74: (
        "KV cache beyond memory",
        (
            "engines/language/test_scheduler.py::test_what_can_never_fit_is_refused_with_the_numbers",
            "engines/test_device.py::test_memory_is_wired_on_a_mac_alone_and_never_all_of_it",
        ),
    ),
    75: ("a process that aborts", ("runtime/test_faults.py::test_one_models_death_does_not_touch_another",)),
    76: (
        "threads on one stream",
        ("worker/test_loop.py::test_a_running_request_is_cancelled_between_two_steps",),
    ),
    78: ("storms of cancels", ("api/test_server.py::test_hundreds_of_hang_ups_leave_nothing_behind",)),
    79: (
        "lazy graphs that grow",
        ("engines/language/test_schedules.py::test_a_schedule_does_not_change_the_answers",),
    ),
    80: (
        "quantised caches in batches",
        ("engines/language/test_kv_quantization.py::test_a_batch_answers_as_a_quantised_cache_does_alone",),
    ),
    82: (
        "damaged cache files",
        ("engines/language/test_disk_cache.py::test_a_damaged_file_is_a_miss_and_goes",),
    ),
    83: (
        "a full disk",
        (
            "chaos/test_storm.py::test_a_phase_breaks_nothing",
            "catalog/test_gguf_hostile.py::test_a_full_disk_leaves_nothing_behind",
        ),
    ),
    84: (
        "signals",
        (
            "api/test_server.py::test_one_signal_lets_running_requests_finish",
            "runtime/test_faults.py::test_when_the_server_is_killed_its_workers_end",
        ),
    ),
    85: (
        "health under load",
        (
            "api/test_turns.py::test_health_goes_before_a_crowd_that_came_earlier",
            "chaos/test_storm.py::test_twenty_seconds_of_every_fault_break_nothing",
        ),
    ),
    86: ("silence in a stream", ("api/test_handler.py::test_silence_is_filled_even_while_progress_is_told",)),
    87: ("half a model", ("catalog/test_catalog.py::test_a_half_downloaded_model_is_named_as_such",)),
    89: (
        "warm and cold answers",
        ("engines/language/test_prefix_cache.py::test_a_growing_conversation_starts_from_where_it_ended",),
    ),
    91: ("a full queue", ("runtime/test_pool.py::test_a_full_queue_refuses",)),
    92: (
        "starvation",
        ("engines/language/test_scheduler.py::test_a_short_prompt_goes_before_the_rest_of_a_long_one",),
    ),
    94: (
        "MCP",
        (
            "mcp/test_servers.py::test_allow_lists_hold_for_offers_and_for_calls_by_hand",
            "mcp/test_servers.py::test_the_servers_own_secrets_are_not_passed_on",
            "mcp/test_mcp_file.py::test_a_wrong_file_is_one_clear_line",
        ),
    ),
    95: (
        "dependencies that are not pinned",
        ("security/test_threats.py::test_every_dependency_is_locked_with_its_hash",),
    ),
    96: ("tools that run code", ("mcp/test_servers.py::test_tools_that_run_commands_must_be_listed",)),
    97: (
        "markers in a user's text",
        ("engines/language/test_tokenizer.py::test_a_users_text_never_holds_a_marker",),
    ),
    98: ("OWASP's list for language models", "SECURITY.md has a row for each risk."),
}


@pytest.mark.parametrize("number", THREATS)
def test_a_threat_has_tests_that_exist_or_a_reason(number: int) -> None:
    _, held_by = THREATS[number]
    if isinstance(held_by, str):
        assert held_by.endswith(".")
        return
    for place in held_by:
        file, _, name = place.partition("::")
        names = {
            node.name
            for node in ast.walk(ast.parse((TESTS / file).read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in names, place


def test_every_dependency_is_locked_with_its_hash() -> None:
    import tomllib

    lock = tomllib.loads((TESTS.parent / "uv.lock").read_text())
    for package in lock["package"]:
        if "registry" in package["source"]:
            files = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
            assert files, package["name"]
            assert all(file["hash"].startswith("sha256:") for file in files), package["name"]
