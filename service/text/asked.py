"""What clients ask for, in the form of OpenAI's API, and what that means here.

Source: OpenAI's API reference, "Completions" and "Chat"; top_k, min_p and repetition_penalty as vLLM adds them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...errors import RequestError
from ...runtime.generation import GenerationSettings

COMPLETION_TOKENS = 16  # of a completion that names no limit, as OpenAI has it
MOST_CHOICES = 128
SEEDS = 2**63
Json = Any
NEUTRAL: Mapping[str, tuple[Json, ...]] = {  # what is not served, and the values that ask for nothing
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
}
ABOUT_THE_CALLER = {  # of no matter to the text
    "metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user",
}  # fmt: skip


class StreamOptions(BaseModel):
    """How an answer is streamed."""

    include_usage: bool = False


class Part(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class AskedMessage(BaseModel):
    """One turn of a conversation."""

    role: str
    content: str | list[Part]

    @property
    def text(self) -> str:
        """Its content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Asked(BaseModel):
    """What both kinds of requests have."""

    model_config = ConfigDict(extra="allow")

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def limit(self) -> int | None:
        """New tokens at most; None: as many as there is room for."""
        return self.max_tokens

    def settings(self, temperature: float, room: int) -> GenerationSettings:
        """Return how an answer is decoded.

        Args:
            temperature: where it names none.
            room: tokens that fit behind the prompt.

        Raises:
            RequestError: a setting is out of range.
        """
        heat = temperature if self.temperature is None else self.temperature
        named = {
            "top_p": self.top_p,
            "top_k": None if self.top_k == -1 else self.top_k,  # vLLM's word for all
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return GenerationSettings(
            temperature=heat,
            max_new_tokens=max(room, 1) if self.limit is None else self.limit,
            seed=secrets.randbelow(SEEDS) if self.seed is None else self.seed,
            stop=[self.stop] if isinstance(self.stop, str) else self.stop or [],
            **{name: value for name, value in named.items() if value is not None},  # type: ignore[arg-type]
        )


class AskedCompletion(Asked):
    """A request to go on with texts."""

    prompt: str | list[str]

    @property
    def limit(self) -> int | None:
        """New tokens at most."""
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> list[str]:
        """The texts."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class AskedChat(Asked):
    """A request to answer a conversation."""

    messages: Annotated[list[AskedMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def limit(self) -> int | None:
        """New tokens at most; None: as many as there is room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


Kind = TypeVar("Kind", bound=Asked)


def asked_of(kind: type[Kind], body: bytes) -> Kind:
    """Return the request in a body.

    Raises:
        RequestError: it is none, or asks for what is not served here.
    """
    try:
        asked = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise RequestError(f"{place}: {first['msg']}") from None
    for name, value in (asked.model_extra or {}).items():
        if name not in ABOUT_THE_CALLER and value not in NEUTRAL.get(name, (None,)):
            raise RequestError(f"{name} is not served here, got {value!r:.60}; leave it out")
    return asked
