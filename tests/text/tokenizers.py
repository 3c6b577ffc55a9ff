"""Small tokenizers of the two kinds, built here."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = ["the quick brown fox jumps over the lazy dog, 世界 你好 and héllo wörld 🎉🎊"] * 3
SPECIAL = "<|end|>"


def byte_level() -> Tokenizer:
    """Byte-level BPE: 256 bytes, a special token, and merges that cut across characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=[SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("«added»", special=False, normalized=False)])
    return tokenizer


def sentencepiece(*, prefix: bool = True) -> Tokenizer:
    """BPE with byte fallback in SentencePiece's manner: pieces begin with ▁, unknown characters become bytes."""
    pieces = ["<unk>", SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz,"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("d", "o"), ("do", "g"), ("▁", "dog")]
    pieces += [left + right for left, right in merges]
    model = models.BPE(
        {piece: place for place, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    return tokenizer
