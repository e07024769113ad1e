"""The model a person names: a path, an id of Hugging Face, or what the store calls it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..db.store import Store
    from ..profiler.records.model import ModelIdentity


def model_places(named: Mapping[str, str]) -> dict[str, Path]:
    """Return where each of several models lies, by name; missing ids are fetched, ModelError where that fails."""
    from ..profiler.hub import resolve_model

    return {name: resolve_model(text) for name, text in named.items()}


def named_model(text: str, store: Store) -> ModelIdentity:
    """Return the model in a folder, in the store by name or key, or of an id in the cache.

    ModelError: none of them, or several models share the name.
    """
    from ..profiler.gguf_file import is_gguf
    from ..profiler.hub import cached_model
    from ..profiler.identity import identify

    if Path(text).is_dir() or (is_gguf(text) and Path(text).is_file()):
        return identify(Path(text))
    known = store.models()
    found = [model for model in known if text in (model.name, model.key)]
    if len(found) > 1:
        keys = ", ".join(model.key for model in found)
        raise ModelError(f"{len(found)} models in {store.url} are called {text!r}; give a key instead: {keys}")
    if not found and (place := cached_model(text)) is not None:
        return identify(place)
    if not found:
        names = ", ".join(dict.fromkeys(model.name for model in known)) or "no model"
        raise ModelError(
            f"there is no model folder at {text}, and {store.url} knows {names}; give a folder or a profiled id"
        )
    return found[0]
