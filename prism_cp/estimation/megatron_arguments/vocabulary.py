"""Vocabulary: its size comes from the tokenizer; ``--vocab-size`` counts for the one that has no vocabulary."""

from __future__ import annotations

from prism_cp.estimation.megatron_arguments.reading import Arguments, UnsupportedArgument

# Entries of the published vocabularies behind Megatron-LM's tokenizer types (megatron/training/tokenizer).
TYPES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceCase": 28996,
    "BertWordPieceLowerCase": 30522,
    "Llama2Tokenizer": 32000,
}
# Entries of published vocabularies by a part of the path that names them, the first that fits.
PATHS = (
    ("llama-2", 32000), ("llama2", 32000), ("llava-1.5", 32000), ("vicuna", 32000), ("mixtral", 32000),
    ("mistral", 32000), ("llama-3", 128256), ("llama3", 128256), ("internlm3", 128512), ("chatglm3", 65024),
    ("glm4", 151552), ("bloom", 250680), ("gemma", 256000), ("deepseek2", 102400), ("deepseek-v3", 129280),
    ("256k", 256000), ("baichuan2", 125696), ("minicpm", 122753), ("phi35", 32064), ("qwen2", 151936),
    ("qwen3", 151936),
    ("grok1_hf", 32000),  # the folder of MindSpeed-LLM's tests comes with Llama's vocabulary
)  # fmt: skip
DEFAULT_MULTIPLE = 128


def vocabulary(arguments: Arguments, default_type: str, name: str = "") -> tuple[int, int]:
    """Entries of the vocabulary, and the number that they are padded to a multiple of (times tp).

    Parameters
    ----------
    default_type
        Tokenizer of the training program when the arguments name none.
    name
        Of the run; tells the family where the tokenizer's path is not recorded.
    """
    if arguments.has("padded-vocab-size"):
        return arguments.size("padded-vocab-size"), 1
    multiple = arguments.size("make-vocab-size-divisible-by", DEFAULT_MULTIPLE)
    kind = arguments.text("tokenizer-type", default_type)
    path = (arguments.text("tokenizer-model") + " " + arguments.text("tokenizer-name-or-path")).lower()
    if kind == "NullTokenizer":
        return arguments.integer("vocab-size") + 1, multiple
    size = next((size for part, size in PATHS if part in path), 0)
    if not size and not path.strip():
        size = next((size for part, size in PATHS if name.lower().startswith(part)), 0)
    if not size and kind not in TYPES and arguments.has("vocab-size"):
        size = arguments.integer("vocab-size")
    if not size:
        size = TYPES.get(kind, 0)
    if not size:
        raise UnsupportedArgument(
            "tokenizer-type", kind, "the size of its vocabulary is not known", "padded-vocab-size"
        )
    return size + arguments.integer("vocab-extra-ids", 0), multiple
