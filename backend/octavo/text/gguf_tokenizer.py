"""A tokenizer from a GGUF file's metadata, built directly: no transformers, no torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.errors import ConfigError
from octavo.text.parts import TokenizerParts, surround

logger = logging.getLogger("octavo.text")

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPECIAL_KEYS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}

# Patterns of the checkpoints' own tokenizer.json. Qwen2's differs from Llama 3's in taking digits one by one.
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_CODER_PATTERNS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")

# Values of `tokenizer.ggml.pre`, by how they split a text.
_GPT2_LIKE = {"gpt-2", "gpt2", "olmo", "phi-2", "mpt"}
_DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell"}
_LLAMA3_LIKE = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"}
_QWEN2_LIKE = {"qwen2", "deepseek-r1-qwen"}
_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_LLAMA3_LIKE | {"dbrx", "smaug-bpe"}, (_LLAMA3_PATTERN,)),
    **dict.fromkeys(_QWEN2_LIKE, (_QWEN2_PATTERN,)),
    "tekken": (_TEKKEN_PATTERN,),
    "deepseek-coder": _DEEPSEEK_CODER_PATTERNS,
}
# In these a word of the vocabulary is one token, whether or not merges lead to it, and texts begin with the
# beginning-of-text token unless the file says otherwise.
_WHOLE_WORDS = _LLAMA3_LIKE | {"tekken"}


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Raises ConfigError for a vocabulary of a kind that octavo cannot rebuild exactly."""
    tokens: list[str] | None = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ConfigError("the GGUF file holds no vocabulary; name a tokenizer with --tokenizer", "tokenizer")
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend = _byte_level(metadata, tokens)
    elif kind == "llama":
        backend = _sentencepiece(metadata, tokens)
    else:
        raise ConfigError(
            f"the GGUF file's vocabulary is of kind '{kind}'; octavo rebuilds gpt2 and llama. Name a Hugging Face "
            "tokenizer directory with --tokenizer",
            "tokenizer",
        )
    _add_special_tokens(backend, metadata, tokens)
    ids = {name: _token_id(metadata, key, len(tokens)) for name, key in _SPECIAL_KEYS.items()}
    bos, eos = ids["bos_token"], ids["eos_token"]
    begins = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or _pre(metadata) in _WHOLE_WORDS)
    ends = metadata.get("tokenizer.ggml.add_eos_token", False)
    if begins or ends:
        surround(backend, bos if begins else None, eos if ends else None)
    specials = {name: tokens[token_id] for name, token_id in ids.items() if token_id is not None}
    return TokenizerParts(backend, specials, bos, eos, metadata.get("tokenizer.chat_template"))


def _token_id(metadata: Mapping[str, Any], key: str, size: int) -> int | None:
    token_id: int | None = metadata.get(key)
    if token_id is not None and not 0 <= token_id < size:
        raise ConfigError(f"the GGUF file is damaged: {key} is {token_id}, and it has {size} tokens", "tokenizer")
    return token_id


def _pre(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("tokenizer.ggml.pre", "default"))


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> Backend:
    pre = _pre(metadata)
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", [])]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    try:
        backend = Backend(models.BPE(vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS))
    except Exception as error:  # the library raises no narrower class
        raise ConfigError(f"the GGUF file's vocabulary is damaged: {error}", "tokenizer") from error
    backend.pre_tokenizer = _pre_tokenizer(pre)
    if pre in _QWEN2_LIKE:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    """How a text is cut into words before merging."""
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "default":
        logger.warning(
            "the GGUF file doesn't say how its tokenizer splits words; GPT-2's way is taken. If the model was trained "
            "with another, its answers suffer: name a Hugging Face tokenizer directory with --tokenizer"
        )
        return plain
    if pre in _GPT2_LIKE:
        return plain
    if pre in _DIGITS_APART:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    if pre in _SPLITS:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[pre]]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join(sorted(_GPT2_LIKE | _DIGITS_APART | _SPLITS.keys()))
    raise ConfigError(
        f"the GGUF file's pre-tokenizer '{pre}' is not known (known: {known}). Name a Hugging Face tokenizer "
        "directory with --tokenizer",
        "tokenizer",
    )


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str]) -> Backend:
    scores: list[float] = metadata.get("tokenizer.ggml.scores", [0.0] * len(tokens))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = Backend(
        models.BPE(
            {token: place for place, token in enumerate(tokens)},
            _merges_by_score(tokens, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefixed else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_by_score(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes up a token, best score first: SentencePiece's BPE merges the best pair next."""
    known = {token: place for place, token in enumerate(tokens)}
    ranked: list[tuple[float, tuple[str, str]]] = []
    for place, token in enumerate(tokens):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [(left, right) for left, right in pairs if left in known and right in known]
        pairs.sort(key=lambda pair: (known[pair[0]], known[pair[1]]))
        ranked.extend((-scores[place], pair) for pair in pairs)
    ranked.sort(key=lambda one: one[0])
    return [pair for _, pair in ranked]


def _add_special_tokens(backend: Backend, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type", [])
    special = [tokens[place] for place, kind in enumerate(kinds) if kind in (_CONTROL, _UNKNOWN)]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    user = [tokens[place] for place, kind in enumerate(kinds) if kind == _USER_DEFINED]
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in user])
