"""The table of docs/models-in-memory.md that is written from what the loaders read of a model's folder."""

from collections.abc import Iterable

from pippin.catalog.info import WINDOW_KEYS
from pippin.core.parameters import LEFT_OUT, OF_CHECKPOINTS, OfEveryAnswer
from pippin.engines.embeddings import ACTIVATIONS, LAID_OVER, MODES
from pippin.engines.encoding import CLEANED
from pippin.engines.language.model.adapter_files import MORE_THAN_LAYERS, STORED
from pippin.engines.language.upstream.fields import COMPUTING
from pippin.engines.language.upstream.quantised import LEFT_FORMATS, LEFT_TO_LIBRARIES, METHODS
from pippin.engines.language.vision.preprocessor import PIXELS, SIZES
from pippin.engines.whisper.settings import OTHERS, PASSED, TOKENS, UNREAD
from scripts.docs.marked import marked


def folder_page() -> str:
    """The page with a fresh table. Raises `ValueError` where the marks around the table are missing."""
    return marked("models-in-memory.md", "what the loaders read", _table())


def _table() -> str:
    drawn = (*(each.name for each in OF_CHECKPOINTS), "do_sample", "eos_token_id")
    generation = drawn + OfEveryAnswer.__struct_fields__
    rows = [
        ("File", "What is read", "What is not"),
        ("---",) * 3,
        (
            "`config.json`",
            "the fields of the architecture's class in mlx-lm or mlx-vlm, in older spellings and transformers 5's; the "
            f"window from {_listed(WINDOW_KEYS)}; `eos_token_id`, `vocab_size`",
            f"refused where mlx-lm's class lacks them and they differ from the usual value: {_listed(COMPUTING)}",
        ),
        (
            "its `quantization_config`",
            f"bits as the arrays have them; as numbers: {_listed((*METHODS, 'auto-round'))}; packed as "
            f"they are: {_listed(LEFT_TO_LIBRARIES)}, mlx-vlm's {_listed(LEFT_FORMATS)}",
            "other methods are refused by name",
        ),
        (
            "`generation_config.json`",
            _listed(generation),
            f"told by `pippin show`: {'; '.join(f'{_listed(names)}: {why}' for why, names in LEFT_OUT.items())}",
        ),
        (
            "`tokenizer_config.json`",
            "as transformers reads it, cut as `tokenizer.json` or `fix_mistral_regex` says; `chat_template`; "
            "`model_max_length` where nothing else tells a window; encoders: `tokenizer.json`, `add_bos_token`, "
            f"`add_eos_token`, `add_prefix_space`, of BERT's classes {_listed(CLEANED)}",
            "`clean_up_tokenization_spaces`: answers keep spaces",
        ),
        (
            "`tokenizer.json`",
            "`model`, `normalizer`, `pre_tokenizer`, `post_processor`, `decoder`, `added_tokens`; without it "
            "`tokenizer.model` as SentencePiece reads it",
            "`padding`, `truncation` and a model's `dropout`: none happens",
        ),
        (
            "`special_tokens_map.json`, `added_tokens.json`",
            "as transformers reads them",
            "encoders: words that `tokenizer.json` lacks are refused",
        ),
        (
            "`model.safetensors.index.json`",
            "`weight_map`, if its files hold all of its tensors; else every `model*.safetensors`, each tensor once",
            "files beside those of the index",
        ),
        (
            "`modules.json` and the folders that it names",
            f"pooling by {_listed(MODES)}, or several of them; `Dense` with {_listed(ACTIVATIONS)} and `use_residual`; "
            "`LayerNorm`, `Normalize`, `Dropout`; `LogitScore`",
            "refused by name: other modules, poolings and names of inputs, `include_prompt` false",
        ),
        (
            "`config_sentence_transformers.json`, `sentence_bert_config.json` and its older names",
            "`prompts`, `default_prompt_name`, `truncate_dim`; `max_seq_length`, `do_lower_case`, `modality_config`",
            "`similarity_fn_name`: the client compares; `activation_fn`, `sbert_ce_default_activation_function`: scores"
            f" are sigmoids; refused: {_listed(LAID_OVER)}",
        ),
        (
            "`adapter_config.json`",
            "`r`, `lora_alpha`, `rank_pattern`, `alpha_pattern`, "
            f"{_listed(sorted({*STORED, 'use_rslora'}))}; of mlx-lm `lora_parameters`",
            f"refused by name: {_listed(sorted(MORE_THAN_LAYERS))}, other fields `use_...` and `..._config`",
        ),
        (
            "`preprocessor_config.json`, `video_preprocessor_config.json`, or `image_processor`, `video_processor`, "
            "`feature_extractor` in `processor_config.json`",
            "by the family's processor in transformers or mlx-vlm; what is left out is as transformers takes it",
            f"media are refused where it leaves out {_listed((*PIXELS, *SIZES, 'num_frames'))}, or has another number; "
            f"refused for Whisper where it is another: {_listed(UNREAD)}",
        ),
        (
            "Whisper's `generation_config.json`",
            "`language`, `forced_decoder_ids`, `lang_to_id`, `suppress_tokens`, `begin_suppress_tokens`, "
            "`bad_words_ids`, `max_initial_timestamp_index`, `repetition_penalty`, `alignment_heads`, "
            f"{_listed(PASSED)}",
            f"refused where the tokenizer has another: {_listed(TOKENS)}, `task_to_id`, `is_multilingual`; refused: "
            f"{_listed(OTHERS)}; times are always drawn, and the address says the task",
        ),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
