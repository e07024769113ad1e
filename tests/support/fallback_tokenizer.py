"""A tokenizer with byte fallback, as Llama-2, Mistral, Phi-3 and Gemma have it."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

END = "</s>"


def fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Return one whose own decoding lets a byte that is no character make its whole run of bytes unreadable.

    Token 3 + n is byte n; 1 and 2 are words. Every other character of a text is written in bytes.
    """
    pieces = ["<unk>", "▁to", "▁be", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({piece: place for place, piece in enumerate(pieces)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
