"""Special tokens and chat templates of a drafter that is a language model."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedTokenizerBase

from ...errors import SpectuneError
from ...profiler.prompt import Message, conversation
from ...runtime.engine.prompts import encode_prompt
from .finding import DrafterFinding
from .pair import Pair

SAMPLE = conversation(
    [
        Message(role="user", content="Name a prime number."),
        Message(role="assistant", content="Seven."),
        Message(role="user", content="And another one?"),
    ]
)
SPECIAL = ("bos_token", "eos_token")


def check_template(pair: Pair) -> Iterator[DrafterFinding]:
    """Yield special tokens that differ, which does not matter, and chat templates that write other tokens."""
    if pair.role != "draft" or pair.tokenizers is None:
        return
    target, drafter = pair.tokenizers
    differ = [name for name in SPECIAL if getattr(target, name) != getattr(drafter, name)]
    told = [f"{name} {getattr(drafter, name)!r}, the target's {getattr(target, name)!r}" for name in differ]
    why = "; does not matter: drafts continue the target's tokens" if told else ""
    yield DrafterFinding(check="special tokens", seen=("; ".join(told) or "as the target's") + why)
    if not (target.chat_template and drafter.chat_template):
        lacking = "the target" if drafter.chat_template else "the drafter" if target.chat_template else "neither"
        yield DrafterFinding(
            check="template", seen=f"{lacking} has {'a' if lacking == 'neither' else 'no'} chat template"
        )
    elif (own := _written(drafter)) is None or own == _written(target):
        yield DrafterFinding(check="template", seen="writes the target's tokens")
    else:
        yield DrafterFinding(
            check="template",
            seen="the drafter's chat template writes other tokens than the target's, behind which it drafts",
            severity="note",
            advice="choose a drafter that was trained with the target's template, and compare its acceptance",
        )


def _written(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...] | None:
    """Return the tokens of a sample conversation; None where the template refuses it."""
    try:
        return encode_prompt(SAMPLE, tokenizer)
    except SpectuneError:
        return None
