"""A tokenizer from a model directory: its tokenizer.json as it stands, or through transformers where there is none.

The tokenizer's class that tokenizer_config.json names is not asked: transformers' classes of some names (GPT2Tokenizer,
LlamaTokenizer) make a pre-tokenizer of their own and leave out what tokenizer.json says, such as splitting digits.
Reading the file also spares the seconds that importing transformers takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo.errors import ConfigError
from octavo.text.parts import TokenizerParts, surround

_VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def build_directory_tokenizer(path: Path, *, trust_remote_code: bool) -> TokenizerParts:
    """Raises ConfigError if the directory has no tokenizer, or one that cannot be read."""
    if not any((path / name).is_file() for name in _VOCABULARY_FILES):
        raise ConfigError(
            f"'{path}' has no tokenizer (none of {', '.join(_VOCABULARY_FILES)}): name one with tokenizer=, or pass "
            "skip_tokenizer_init=True and use token ids",
            "tokenizer",
        )
    config = _read_json(path / "tokenizer_config.json")
    # A tokenizer with code of its own is read by that code, if it is trusted.
    if (path / "tokenizer.json").is_file() and "auto_map" not in config:
        return _from_json(path, {**_read_json(path / "special_tokens_map.json"), **config})
    return _through_transformers(path, trust_remote_code)


def _read_json(path: Path) -> dict[str, Any]:
    """The file's object; empty if there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{path}' cannot be read: {error}", "tokenizer") from None
    if not isinstance(value, dict):
        raise ConfigError(f"'{path}' must hold a JSON object, not {type(value).__name__}", "tokenizer")
    return value


def _from_json(path: Path, config: Mapping[str, Any]) -> TokenizerParts:
    file = path / "tokenizer.json"
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises no narrower class
        raise ConfigError(f"'{file}' cannot be read: {error}", "tokenizer") from error
    specials = {name: content for name in _NAMES if (content := _content(config.get(name))) is not None}
    _add_tokens(backend, config, list(specials.values()))
    bos, eos = (backend.token_to_id(specials[name]) if name in specials else None for name in _NAMES[:2])
    _add_around(backend, bos if config.get("add_bos_token") else None, eos if config.get("add_eos_token") else None)
    return TokenizerParts(backend, specials, bos, eos, _chat_template(path, config))


def _add_around(backend: Backend, begin: int | None, end: int | None) -> None:
    """Adds what tokenizer_config.json asks for and tokenizer.json leaves out; where it asks for nothing, tokenizer.json
    is not overruled."""
    ids = backend.encode("a").ids
    begins, ends = begin is not None and ids[:1] == [begin], end is not None and ids[-1:] == [end]
    if (begin is None or begins) and (end is None or ends):
        return
    plain = backend.encode("a", add_special_tokens=False).ids
    first = ids[0] if ids[:1] != plain[:1] else None
    last = ids[-1] if ids[-1:] != plain[-1:] else None
    surround(backend, first if begin is None else begin, last if end is None else end)


def _content(token: object) -> str | None:
    """A token's text; the files write it alone, or as an object with `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_tokens(backend: Backend, config: Mapping[str, Any], named: list[str]) -> None:
    """Tokens that tokenizer_config.json declares and tokenizer.json doesn't; special ones only if they are words of the
    vocabulary, since the model has no embedding for others."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared: Mapping[str, Any] = config.get("added_tokens_decoder") or {}
    for _, token in sorted(declared.items(), key=lambda item: int(item[0])):
        if isinstance(token, Mapping) and token.get("content") not in known:
            flags = {name: token[name] for name in ("lstrip", "rstrip", "normalized", "single_word") if name in token}
            backend.add_tokens([AddedToken(token["content"], special=bool(token.get("special")), **flags)])
            known.add(token["content"])
    more = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    extra = [_content(token) for token in (more if isinstance(more, list) else more.values())]
    missing = [content for content in [*named, *extra] if content is not None and content not in known]
    backend.add_special_tokens(
        [AddedToken(content, special=True) for content in missing if backend.token_to_id(content) is not None]
    )


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """The default template: of chat_template.jinja, else of tokenizer_config.json, which may hold several."""
    file = path / "chat_template.jinja"
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        own = config.get("chat_template")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{file}' cannot be read: {error}", "chat_template") from None
    if isinstance(own, list):
        own = next((one.get("template") for one in own if one.get("name") == "default"), None)
    return own if isinstance(own, str) else None


def _through_transformers(path: Path, trust_remote_code: bool) -> TokenizerParts:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        loaded = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    except (ValueError, OSError, KeyError, TypeError, ImportError, AttributeError) as error:
        raise ConfigError(f"the tokenizer in '{path}' cannot be loaded: {error}", "tokenizer") from None
    if not isinstance(loaded, PreTrainedTokenizerFast):
        raise ConfigError(
            f"the tokenizer in '{path}' ({type(loaded).__name__}) has no fast version; octavo needs one", "tokenizer"
        )
    template = loaded.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    specials = {name: str(token) for name in _NAMES if (token := getattr(loaded, name, None)) is not None}
    return TokenizerParts(loaded.backend_tokenizer, specials, loaded.bos_token_id, loaded.eos_token_id, template)
