"""Conversations by the tokenizer and chat template in a model folder: as transformers reads them, without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError
from ...profiler.prompt import Prompt
from ..models.config_file import written_config, written_in
from .chat_turns import refusal, template_turns

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

TOKENIZER_FILE, SETTINGS_FILE, TEMPLATE_FILE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SPECIAL_FILE = "special_tokens_map.json"
MORE_FOLDER = "additional_chat_templates"  # each called by its name
GENERATION_FILE = "generation_config.json"


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """Return the tokenizer in a model folder, of whole texts; None without a file, ModelError for a bad one."""
    from tokenizers import Tokenizer

    file = folder / TOKENIZER_FILE
    if not file.is_file():
        return None
    try:
        found = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises no narrower class
        raise ModelError(f"tokenizers cannot read {file}: {error}; save it again, or update tokenizers") from error
    found.no_truncation()
    found.no_padding()
    return found


def chats_of_folder(folder: Path) -> FolderChats | None:
    """Return how a model folder's target reads conversations; None without a tokenizer.json or a chat template."""
    settings = written_in(folder / SETTINGS_FILE)
    file = folder / TEMPLATE_FILE
    template = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    more = {one.stem: one.read_text(encoding="utf-8") for one in (folder / MORE_FOLDER).glob("*.jinja")}
    tokenizer = tokenizer_of(folder) if template or more else None
    if tokenizer is None:
        return None
    named = _named(template or [], folder)
    said = settings if "added_tokens_decoder" in settings else settings | written_in(folder / SPECIAL_FILE)
    special = {name: _text(value) for name, value in said.items() if name.endswith("_token") and _text(value)}
    return FolderChats(tokenizer, named | more, special, _ends(folder, tokenizer, special.get("eos_token", "")))


def _named(template: Any, folder: Path) -> dict[str, str]:  # Any: JSON, a text or a list of named ones
    several = [{"name": "default", "template": template}] if isinstance(template, str) else template
    try:
        return {str(one["name"]): str(one["template"]) for one in several}
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"{folder / SETTINGS_FILE} has the chat template {template!r:.60}; write a text, or a list of templates "
            'as {"name": ..., "template": ...}'
        ) from error


class FolderChats:
    """A target's tokenizer and its chat templates by name; `Chats`."""

    def __init__(
        self, tokenizer: Tokenizer, templates: Mapping[str, str], special: Mapping[str, str], ends: frozenset[int]
    ) -> None:
        """Take special tokens by their names in templates, as "bos_token", and the tokens that end a turn."""
        self._tokenizer, self._templates, self._special, self._ends = tokenizer, templates, special, ends

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """Return conversations' token ids, up to the model's own turn; RequestError where the template refuses one."""
        return [tuple(self._tokenizer.encode(self._written(one), add_special_tokens=False).ids) for one in prompts]

    def decode(self, texts: Sequence[Sequence[int]]) -> list[str]:
        """Return texts up to their ends, without special tokens."""
        return [self._tokenizer.decode(until(text, self._ends), skip_special_tokens=True) for text in texts]

    def _written(self, prompt: Prompt) -> str:
        from jinja2 import TemplateError

        known = self._templates
        template = known.get("tool_use" if prompt.tools else "default", known.get("default"))
        if template is None:
            raise refusal(prompt.messages, LookupError(f"of its templates {', '.join(sorted(known))} none is default"))
        turns = template_turns(prompt.messages, template)
        given = {"messages": turns, "tools": list(prompt.tools) or None, "documents": None, **self._special}
        try:
            return _compiled(template).render(add_generation_prompt=True, **given)
        except (TemplateError, TypeError, ValueError) as error:
            raise refusal(prompt.messages, error) from error


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    from .chat_sandbox import ChatSandbox

    return ChatSandbox().from_string(template)


def until(text: Sequence[int], ends: frozenset[int]) -> list[int]:
    """Return a text's tokens before the first that ends it: a measured engine continues behind that."""
    return list(text[: next((place for place, token in enumerate(text) if token in ends), len(text))])


def _text(token: Any) -> str:  # Any: JSON, a text or a record that holds it
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _ends(folder: Path, tokenizer: Tokenizer, end: str) -> frozenset[int]:
    config = written_config(folder)
    said = written_in(folder / GENERATION_FILE) or config.get("text_config", config)
    listed = said.get("eos_token_id")
    own = tokenizer.token_to_id(end)
    return frozenset(token for token in (*(listed if isinstance(listed, list) else [listed]), own) if token is not None)
