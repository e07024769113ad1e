"""Conversations by the tokenizer and chat template in a model folder: as transformers reads them, without loading it.

Source: transformers' `render_jinja_template`, whose environment, filters and functions templates are written for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...profiler.prompt import Prompt
from ..chat_turns import refusal, template_turns
from ..models.config_file import written_config, written_in

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE, SETTINGS_FILE, TEMPLATE_FILE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
MORE_FOLDER = "additional_chat_templates"  # each called by its name
GENERATION_FILE = "generation_config.json"


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """Return the tokenizer in a model folder; None where there is no tokenizer.json."""
    from tokenizers import Tokenizer

    file = folder / TOKENIZER_FILE
    return Tokenizer.from_file(str(file)) if file.is_file() else None


def chats_of_folder(folder: Path) -> FolderChats | None:
    """Return how a model folder's target reads conversations; None without a tokenizer.json or a chat template."""
    settings = written_in(folder / SETTINGS_FILE)
    file = folder / TEMPLATE_FILE
    template = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    tokenizer = tokenizer_of(folder) if template else None
    if tokenizer is None:
        return None
    more = {one.stem: one.read_text(encoding="utf-8") for one in (folder / MORE_FOLDER).glob("*.jinja")}
    several = template if isinstance(template, list) else [{"name": "default", "template": str(template)}]
    named = {one["name"]: one["template"] for one in several}
    special = {name: _text(value) for name, value in settings.items() if name.endswith("_token") and _text(value)}
    return FolderChats(tokenizer, named | more, special, _ends(folder, tokenizer, special.get("eos_token", "")))


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
        template = known.get("tool_use" if prompt.tools else "default") or known.get("default", "")
        turns = template_turns(prompt.messages, template)
        given = {"messages": turns, "tools": list(prompt.tools) or None, "documents": None, **self._special}
        try:
            return str(_environment().from_string(template).render(add_generation_prompt=True, **given))
        except (TemplateError, TypeError, ValueError) as error:
            raise refusal(prompt.messages, error) from error


def until(text: Sequence[int], ends: frozenset[int]) -> list[int]:
    """Return a text's tokens before the first that ends it: an engine that is measured goes on behind that."""
    return list(text[: next((place for place, token in enumerate(text) if token in ends), len(text))])


def _environment() -> Any:  # Any: jinja2's, which is loaded where a template is written
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """A block around what a model said, of which only trainers take note."""

        tags: set[str] = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refused(message: str) -> None:
        raise TemplateError(message)

    def written(value: Any, ensure_ascii: bool = False, **form: Any) -> str:  # the usual one escapes HTML
        return json.dumps(value, ensure_ascii=ensure_ascii, **form)

    found = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    found.filters["tojson"] = written
    found.globals |= {"raise_exception": refused, "strftime_now": lambda form: datetime.now().strftime(form)}
    return found


def _text(token: Any) -> str:  # Any: JSON, a text or a record that holds it
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _ends(folder: Path, tokenizer: Tokenizer, end: str) -> frozenset[int]:
    config = written_config(folder)
    said = written_in(folder / GENERATION_FILE) or config.get("text_config", config)
    listed = said.get("eos_token_id")
    own = tokenizer.token_to_id(end)
    return frozenset(token for token in (*(listed if isinstance(listed, list) else [listed]), own) if token is not None)
