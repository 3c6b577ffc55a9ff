"""A tokenizer from a GGUF file's metadata, built directly: no transformers, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from octavo.errors import ConfigError

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# The pre-tokenizer's pattern of Llama 3 (its tokenizer.json); Qwen2's differs in taking digits one by one.
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

# Values of `tokenizer.ggml.pre`.
_GPT2_LIKE = {"gpt-2", "gpt2", "olmo", "phi-2", "mpt"}
_DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell"}
_LLAMA3_LIKE = {"llama-bpe", "llama3", "llama-v3"}
_QWEN2_LIKE = {"qwen2"}


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """`specials` are the tokens chat templates may write, by name (`bos_token`, ...)."""

    backend: Backend
    specials: dict[str, str]
    bos_token_id: int | None
    eos_token_id: int | None
    chat_template: str | None


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> GGUFTokenizer:
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
    bos, eos = metadata.get("tokenizer.ggml.bos_token_id"), metadata.get("tokenizer.ggml.eos_token_id")
    default_add_bos = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3_LIKE
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", default_add_bos):
        _begin_with(backend, tokens[bos], bos)
    ids = {"bos_token": bos, "eos_token": eos, "unk_token": metadata.get("tokenizer.ggml.unknown_token_id")}
    specials = {name: tokens[token_id] for name, token_id in ids.items() if token_id is not None}
    return GGUFTokenizer(backend, specials, bos, eos, metadata.get("tokenizer.chat_template"))


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> Backend:
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", [])]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocabulary, merges, ignore_merges=pre in _LLAMA3_LIKE))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _GPT2_LIKE:
        backend.pre_tokenizer = plain
    elif pre in _DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    elif pre in _LLAMA3_LIKE | _QWEN2_LIKE:
        pattern = _LLAMA3_PATTERN if pre in _LLAMA3_LIKE else _QWEN2_PATTERN
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        if pre in _QWEN2_LIKE:
            backend.normalizer = normalizers.NFC()
    else:
        known = ", ".join(sorted(_GPT2_LIKE | _DIGITS_APART | _LLAMA3_LIKE | _QWEN2_LIKE))
        raise ConfigError(
            f"the GGUF file's pre-tokenizer '{pre}' is not known (known: {known}). Name a Hugging Face tokenizer "
            "directory with --tokenizer",
            "tokenizer",
        )
    backend.decoder = decoders.ByteLevel()
    return backend


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


def _begin_with(backend: Backend, token: str, token_id: int) -> None:
    backend.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, token_id)]
    )
