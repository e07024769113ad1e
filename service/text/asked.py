"""Requests of clients in the form of OpenAI's API, and their meaning here.

Source: OpenAI's API reference, "Completions" and "Chat"; top_k, min_p, repetition_penalty and ignore_eos as in vLLM.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ...errors import RequestError
from ...profiler.prompts import Message
from ...runtime.engine.settings import GenerationSettings

COMPLETION_TOKENS = 16  # of a completion that names no limit, as OpenAI has it
SEEDS = 2**63
Json = Any
NEUTRAL: Mapping[str, tuple[Json, ...]] = {  # what is not served, and the values that ask for nothing
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "audio": (),
    "best_of": (1,),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "tool_calls": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}
ABOUT_THE_CALLER = {  # of no matter to the text
    "metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user",
}  # fmt: skip
STOPS, STOP_LENGTH = 16, 1000  # that are compared behind every round


STRICT = ConfigDict(extra="allow", strict=True)  # true is no number, and "1" neither


class StreamOptions(BaseModel):
    """How an answer is streamed."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class Part(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class AskedMessage(BaseModel):
    """One turn of a conversation."""

    model_config = STRICT

    role: str
    content: str | list[Part]

    @field_validator("content", mode="before")
    @classmethod
    def _require_text(cls, content: Json) -> Json:
        for part in content if isinstance(content, list) else []:
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise ValueError(f"parts of type {kind!r:.40} are not served here; send text alone")
        return content

    @property
    def message(self) -> Message:
        """The turn as templates take it."""
        is_text = isinstance(self.content, str)
        text = self.content if is_text else "".join(part.text for part in self.content if isinstance(part, Part))
        return Message(role=self.role, content=str(text))


class AskedText(BaseModel):
    """What both kinds of requests have."""

    model_config = STRICT

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @field_validator("stop")
    @classmethod
    def _require_few(cls, stop: str | list[str] | None) -> str | list[str] | None:
        each = stop if isinstance(stop, list) else [stop or ""]
        if len(each) > STOPS or max(map(len, each), default=0) > STOP_LENGTH:
            raise ValueError(f"there may be {STOPS} stop strings of {STOP_LENGTH} characters each")
        return stop

    @property
    def limit(self) -> int | None:
        """New tokens at most; None: as many as there is room for."""
        return self.max_tokens

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with what it took."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def stops(self) -> list[str]:
        """Strings that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def settings(self, temperature: float, room: int) -> GenerationSettings:
        """Return how an answer is decoded, in `room` tokens behind the prompt; RequestError for a wrong setting."""
        named = {
            "top_p": self.top_p,
            "top_k": None if self.top_k == -1 else self.top_k,  # vLLM's word for all
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return GenerationSettings(
            temperature=temperature if self.temperature is None else self.temperature,
            max_new_tokens=max(room, 1) if self.limit is None else self.limit,
            seed=secrets.randbelow(SEEDS) if self.seed is None else self.seed,
            stop=self.stops,
            **{name: value for name, value in named.items() if value is not None},  # type: ignore[arg-type]
        )


class AskedCompletion(AskedText):
    """A request to go on with texts."""

    prompt: str | list[str]

    @field_validator("prompt", mode="before")
    @classmethod
    def _require_text(cls, prompt: Json) -> Json:
        if isinstance(prompt, list) and any(isinstance(one, int | float | list) for one in prompt):
            raise ValueError("token ids are not served here; send text, or a list of texts")
        return prompt

    @property
    def limit(self) -> int | None:
        """New tokens at most."""
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> list[str]:
        """The texts."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class AskedChat(AskedText):
    """A request to answer a conversation."""

    messages: Annotated[list[AskedMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def limit(self) -> int | None:
        """New tokens at most; None: as many as there is room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


Kind = TypeVar("Kind", bound=AskedText)


def asked_of(kind: type[Kind], body: bytes) -> Kind:
    """Return the request in a body; raise RequestError where it is none, or needs what is not served here."""
    try:
        asked = kind.model_validate_json(body)
    except ValidationError as error:
        raise RequestError(_told(error)) from None
    _require_served(asked.model_extra or {}, ABOUT_THE_CALLER)
    for message in asked.messages if isinstance(asked, AskedChat) else []:
        _require_served(message.model_extra or {}, {"name"})
    return asked


def _told(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the body"
    is_value = first["loc"] and first["type"] not in ("missing", "value_error")
    seen = f", got {json.dumps(first['input'], default=repr):.60}" if is_value else ""
    return f"{place}: {first['msg'].removeprefix('Value error, ')}{seen}"


def _require_served(extra: Mapping[str, Json], ignored: set[str]) -> None:
    """Raise RequestError for the first field that asks for what is not served: without it the answer is another."""
    for name, value in extra.items():
        is_neutral = value is None or any(
            value == other and isinstance(value, bool) == isinstance(other, bool) for other in NEUTRAL.get(name, ())
        )
        if name not in ignored and not is_neutral:
            raise RequestError(f"{name} is not served here, got {value!r:.60}; leave it out")
