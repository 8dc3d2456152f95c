"""Every promise of docs/migrating.md that is said to hold, at least in part, is shown by tests; this says by which."""

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from scripts.docs.standing import standing

from pippin.config.compat.servers import servers
from pippin.config.options.start import Compat

TESTS: Final = Path(__file__).parent.parent

V = "drop_in/test_mlx_vlm.py::"
M = "drop_in/test_mlx_server.py::"
C = "drop_in/test_mlx_openai_server.py::"
X = "drop_in/test_vllm_mlx.py::"
CATALOG = "catalog/test_catalog.py::"
CHAT = "api/dialects/test_openai_chat.py::"
COMPAT = "config/test_compat.py::"
DOWNLOAD = "catalog/test_download.py::"
READER = "output/test_reader.py::"
VISION = "engines/language/vision/"

SHOWN: Final[dict[Compat, dict[str, tuple[str, ...]]]] = {
    "mlx-vlm": {
        "`p_less`": (
            "engines/language/sampling/test_sampling.py::test_a_filter_keeps_what_its_definition_keeps",
            "engines/language/sampling/test_sampling.py::test_p_less_keeps_what_mlx_vlm_keeps",
        ),
        "image pipelines of its own": (
            "engines/images/test_library_images.py::test_a_picture_is_mlx_vlms",
            "engines/images/test_library_images.py::test_an_edited_picture_is_mlx_vlms",
            "engines/images/test_library_images.py::test_pictures_come_from_the_addresses_of_openai",
            "engines/images/test_library_families.py::test_pictures_are_mlx_vlms",
            "engines/images/test_library_families.py::test_edited_pictures_are_mlx_vlms",
            V + "test_image_generation_and_edits",
        ),
        "sound in chat": (
            VISION + "test_recordings.py::test_a_recording_is_answered_as_mlx_vlm_does",
            VISION + "test_recordings.py::test_a_recording_is_answered_as_by_mlx_vlm",
        ),
        "its families of vision models": (
            VISION + "test_families.py::test_a_picture_is_answered_as_mlx_vlm_does",
            VISION + "test_any_family.py::test_pictures_are_answered_as_by_mlx_vlm",
        ),
        "`--expert-cache-gb`": (
            V + "test_experts_are_in_memory",
            "engines/language/model/test_weights.py::test_experts_that_were_repacked_for_the_disk_are_refused",
        ),
        "diffusion language models, and their fields (`block_length`, `threshold`, ...)": (
            VISION + "test_trial.py::test_a_diffusion_language_model_is_refused_with_the_way_out",
        ),
        "a request's `model` downloads it": (
            CATALOG + "test_requests_may_download_where_the_operator_allows_it",
            COMPAT + "test_profiles_serve_and_download_as_their_servers_did",
        ),
        "one model at a time, which another of its kind evicts": (V + "test_text_input",),
        "`model` as a local path": (
            CATALOG + "test_a_path_is_a_models_name_inside_the_folders_that_were_opened_for_that",
            CATALOG + "test_a_request_cannot_name_a_path",
        ),
        "ids of `--model-dir` are absolute paths": (V + "test_list_available_models",),
        "`--kv-bits 3.5`, TurboQuant, `--quantized-kv-start`": (
            COMPAT + "test_half_bits_are_refused_with_the_way_out",
            COMPAT + "test_turboquant_is_refused_by_name",
            COMPAT + "test_a_threshold_of_quantisation_is_refused_unless_it_is_0",
        ),
        "`--kv-bits` 2, 3 and 6, bits by keys and values": (
            "engines/language/kv_cache/test_kv_quantization.py::test_the_logits_of_a_batch_are_those_of_mlx_lm_with_its_cache_quantised_after_the_prompt",
        ),
        "adapters in mlx-vlm's own format (`rank`, `alpha`)": (
            VISION + "test_vision_adapters.py::test_adapters_of_mlx_vlm_answer_as_there",
            "engines/language/model/test_lora.py::test_files_of_peft_are_read",
        ),
        "`--adapter-path` on a vision-language model": (
            V + "test_server_with_an_adapter",
            VISION + "test_vision_adapters.py::test_adapters_of_mlx_vlm_answer_as_there",
        ),
        "`adapter_path` of a request as a path": (V + "test_server_with_an_adapter",),
        "`--adapter-path` as a repository": (
            DOWNLOAD + "test_a_draft_model_and_adapters_may_be_repositories_or_aliases",
        ),
        "`/health.loaded_adapter`": (V + "test_server_with_an_adapter",),
        "`input_audio` as a string: an address, base64 or a path": (V + "test_audio_input",),
        "pictures and sound as file paths": (
            V + "test_image_input",
            "api/answers/test_media.py::test_a_path_inside_the_media_folder_is_read",
        ),
        "`/responses` with chat's parts, role `tool`, content null": (
            "api/dialects/test_openai_responses.py::test_messages_and_parts_of_chat_are_read_as_mlx_vlm_reads_them",
        ),
        "`response.completed` for an answer that meets its limit": (
            "api/clients/test_openai_responses_client.py::test_an_answer_that_was_cut_says_why",
        ),
        "`/unload`'s object": (V + "test_available_endpoints_unload", V + "test_server_with_an_adapter"),
        "pictures after `pip install mlx-vlm`": (
            "engines/test_missing_extras.py::test_a_picture_for_a_model_that_could_see_it_is_refused_with_the_command",
        ),
        "CORS for every origin": (
            M + "test_pages_in_a_browser_may_call",
            "api/access/test_guards.py::test_cors_is_off_by_default_and_never_with_credentials",
        ),
        "JSON at `GET /metrics`": (V + "test_available_endpoints_metrics",),
        "`PATCH /v1/settings` with `op: replace`": (V + "test_live_settings",),
        "settings that a loaded model was started with (`min_pixels`, `kv_bits`)": (
            V + "test_server_options_settings",
        ),
        "`/v1/models?model_dir=...`": (V + "test_list_available_models_of_other_folders",),
        "its README's body of `/responses` with `messages`": (V + "test_responses_endpoint",),
        "`POST /generate` (before 0.3)": (V + "test_generate_of_its_old_versions_is_no_more",),
        "`GET /images/defaults`": (V + "test_image_defaults",),
        "drafters DFlash, EAGLE-3, MTP": (
            "engines/language/step/test_heads.py::test_it_proposes_what_mlx_vlm_drafts",
            "engines/language/step/test_heads.py::test_a_drafter_of_another_sort_is_refused_by_name",
        ),
        "speculation on models with recurrent layers": (
            "engines/language/step/test_speculation.py::test_prompt_lookup_gives_the_models_own_answer",
        ),
        "`compact_threshold`": (CHAT + "test_what_the_other_fields_come_to",),
        "distributed inference": (
            "runtime/ranks/test_group.py::test_a_rank_on_another_machine_is_started_by_a_command",
        ),
    },
    "mlx-server": {
        "one model in memory at a time": (M + "test_model_swapping",),
        "both aliases are always listed": (M + "test_api",),
        "`/health` says `ok`": (M + "test_api",),
        "`./run.sh`, `python -m mlx_server.main`": (M + "test_quick_start",),
        "Gemma's window of 128k": (
            "catalog/test_info.py::test_a_window_that_config_json_leaves_out_is_that_of_the_architecture",
        ),
        "Gemma's calls in `tool_code` blocks": (
            "output/test_architectures.py::test_calls_of_gemma_3_are_known_by_its_architecture",
        ),
        "pictures by address": (
            "api/answers/test_media.py::test_a_host_that_the_operator_named_may_lie_on_a_private_network",
        ),
        "an overflow counts prompt and `max_tokens`": (M + "test_context_window_management",),
    },
    "mlx-openai-server": {
        "all five kinds in one program": (
            "cli/test_migrants.py::test_models_of_every_kind_are_served_beside_the_main_one",
        ),
        "`mlx-community/whisper-*` (weights.npz, no tokenizer)": (
            "engines/test_transcription.py::test_a_folder_of_weights_alone_hears_the_same",
        ),
        "without parsers nothing is parsed": (CHAT + "test_calls_stay_text_where_that_is_asked_for",),
        "`--reasoning-parser qwen3_moe` with a model that does not think": (
            C + "test_chat",
            READER + "test_an_answer_without_a_thought_is_content_whatever_parser_was_named",
        ),
        "`--reasoning-parser qwen3_next`": (
            "output/test_formats.py::test_a_replaced_systems_reasoning_parser_is_known",
        ),
        "chat with pictures and sound, `video_url`": (
            C + "test_vision",
            C + "test_audio_notebook",
            X + "test_video_analysis",
        ),
        "a picture by local path": (C + "test_responses_notebook_image_input",),
        "`GET /v1/models` lists what is served": (C + "test_start_a_server", C + "test_multi_model_config"),
        "other names are refused": (
            "service/test_names.py::test_any_name_is_the_only_model_that_is_served_where_the_operator_says_so",
            C + "test_multi_model_config",
        ),
        "an omitted `model`": (
            "service/test_names.py::test_no_models_name_means_the_first_served_model_of_the_kind_that_is_asked",
        ),
        "fields of images that a model lacks": (
            "engines/images/test_library_images.py::test_what_it_cannot_do_is_refused_by_name",
        ),
        "fields of transcriptions that Whisper lacks": (
            "api/clients/test_kinds_client.py::test_forms_that_cannot_be_honoured_are_refused_by_name",
        ),
        "`--max-tokens` 100000": ("cli/test_migrants.py::test_the_environment_of_mlx_openai_server_is_read",),
        "request > flag > checkpoint > 0.7, 0.95, 20": (
            COMPAT + "test_sampling_of_a_profile_stands_beside_the_options_that_rank_above_the_checkpoint",
        ),
        "a log file by default": ("cli/test_serve.py::test_the_log_can_be_json_and_go_to_a_file",),
        "a prompt cache on disk by default": (
            "engines/language/step/test_demo_model.py::"
            "test_a_known_prompt_is_answered_several_times_faster_after_a_restart",
        ),
        "`--draft-model-path` as a repository or alias": (
            DOWNLOAD + "test_a_draft_model_and_adapters_may_be_repositories_or_aliases",
        ),
        "`on_demand` models that are not on the disk": (
            C + "test_multi_model_config",
            DOWNLOAD + "test_a_request_fetches_what_the_operator_named_by_the_name_that_it_is_served_by",
        ),
        "an entry's name that is also a built-in alias": (
            CATALOG + "test_an_entry_of_the_operator_goes_before_an_alias",
        ),
        "`configure_mlx.sh`": ("engines/test_device.py::test_a_plan_wires_what_the_operator_says",),
        "an unknown parser stops the start": (
            "output/test_formats.py::test_an_unknown_name_is_refused_with_the_known_ones",
        ),
        "mlx-vlm's families": (VISION + "test_any_family.py::test_pictures_are_answered_as_by_mlx_vlm",),
        "`transcription.chunk` objects of a streamed transcription": (C + "test_transcription_notebook",),
        "example notebooks": (C + "test_structured_outputs_notebook", C + "test_image_edit_notebook"),
        "its PDF demo, which asks one model for vectors and answers": (C + "test_simple_rag_demo",),
        "embeddings by a model of type `lm` (its notebooks)": (C + "test_lm_embeddings_notebook",),
    },
    "vllm-mlx": {
        "`default` means the loaded language model": (X + "test_quick_start",),
        "`--embedding-model` beside chats by `default`": (X + "test_embeddings", X + "test_server_status"),
        "seven embedding models load by request": (
            X + "test_embeddings",
            COMPAT + "test_vllm_mlx_knows_models_that_nobody_named_and_lists_none_of_them",
        ),
        "names of speech models load by request": (X + "test_text_to_speech",),
        "an unknown name is 404": (X + "test_names_that_are_not_served",),
        "`GET /v1/models` lists what is served": (X + "test_models",),
        "host 0.0.0.0 of its older guide": (COMPAT + "test_a_profile_sets_the_defaults_that_differ",),
        "defaults of sampling": (
            COMPAT + "test_sampling_of_a_profile_stands_beside_the_options_that_rank_above_the_checkpoint",
        ),
        "an answer without `</think>` is content": (
            READER + "test_an_answer_without_a_thought_is_content_whatever_parser_was_named",
        ),
        "`text</think>answer` is split": (
            READER + "test_an_end_of_reasoning_alone_splits_the_answer",
            READER + "test_a_stream_that_was_split_late_keeps_what_it_sent_apart_from_what_follows",
        ),
        "without a parser, tags stay in content": (READER + "test_reasoning_and_answer_are_told_apart",),
        "thinking through `/v1/messages`": (X + "test_anthropic_messages_thinking",),
        "sound in chat, which its guide says is transcribed (`audio_url`)": (X + "test_speech_to_text",),
        "`message.reasoning` of an answer without a thought": (X + "test_streaming_with_reasoning",),
        "`tool_use` ids `call_...`": (X + "test_anthropic_messages_tool_calling",),
        "`/v1/status`: `running`, `stopped`, `not_loaded`": (
            X + "test_server_status",
            "api/routes/test_status.py::test_the_status_has_vllm_mlxs_words",
        ),
        "`/v1/status`: `cache.type`, `entries`, `memory_mb`; `embedding`": (
            X + "test_server_status",
            "api/routes/test_status.py::test_the_status_describes_the_embedding_model_in_memory",
        ),
        "`rewarm_scheduled` of `DELETE /v1/cache/prefix`": (X + "test_warm_prompts",),
        "names of its metrics": (X + "test_metrics",),
        "`/v1/cache/stats`": (X + "test_metrics",),
        "`tool_argument_recovery: buffered`": (CHAT + "test_bookkeeping_fields_are_accepted",),
        "`--enable-mtp` and its kin": (
            COMPAT + "test_vllm_mlx_drafts_with_the_head_in_the_checkpoint",
            "engines/language/kernels/test_kernel_decoder.py::test_a_draft_head_on_the_kernels_gives_the_models_own_answer",
        ),
        "`--enable-mtp` for a model without the head": (
            "engines/language/step/test_heads.py::test_a_checkpoint_without_a_prediction_head_is_told",
        ),
        "SpecPrefill": (COMPAT + "test_sparse_prefill_is_refused_with_the_way_out",),
        "`--moe-top-k`": (COMPAT + "test_fewer_experts_are_refused_with_the_way_out",),
        "`--max-kv-size`, which forgets old tokens": (COMPAT + "test_a_window_is_a_window",),
        "registries with lazy models, `--lazy-load-model`": (
            X + "test_multi_model_serving",
            "cli/test_migrants.py::test_the_registry_of_vllm_mlx_is_read_as_it_is",
        ),
        "`VLLM_MCP_ALLOW_UNSAFE`": ("mcp/test_mcp_file.py::test_a_shell_can_be_allowed_by_name",),
        "newer speech families of mlx-audio": (
            "catalog/test_info.py::test_the_kind_is_told_from_the_configuration",
        ),
        "voices of a model that is not in memory": (
            "api/access/test_tenants.py::test_voices_are_those_of_a_model_in_memory_and_never_load_one",
        ),
        "`bench`, `bench-serve`": (
            "cli/bench/test_sweep.py::test_a_server_is_measured_and_the_file_is_written",
            X + "test_metrics",
        ),
        "`/v1/mcp/status`, tools as `tools`, `execute` by `server` and `tool`": (
            X + "test_mcp_status",
            X + "test_mcp_tool_calling_example",
        ),
        "speech is wav where no format is named": (X + "test_text_to_speech",),
        "`skip_security_validation` of the MCP file": (
            "mcp/test_mcp_file.py::test_a_wrong_file_is_one_clear_line",
        ),
        "`vllm-mlx-chat`, `vllm-mlx-text-chat`": (
            X + "test_chat_completions",
            X + "test_base64_images",
            "cli/chat/test_run.py::test_a_conversation_on_a_terminal",
        ),
    },
    "mlx-lm": {},
    "omlx": {},
    "rapid-mlx": {},
    "ollama": {},
    "lm-studio": {},
}
"""By the words of the promise, below `tests/`; what differs or is refused on purpose is here where a test holds it."""


@cache
def found_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("server", servers())
def test_what_is_promised_is_shown(server: Compat) -> None:
    stands = standing(server)
    assert stands.works.keys() - SHOWN[server].keys() == set(), "name the test that shows it"
    assert SHOWN[server].keys() - stands.promises.keys() == set(), (
        "nothing of docs/migrating.md has these words any more"
    )


@pytest.mark.parametrize("server", servers())
def test_the_tests_that_are_named_exist(server: Compat) -> None:
    named = [name.split("::") for names in SHOWN[server].values() for name in names]
    assert [name for file, name in named if name not in found_in(file)] == []
