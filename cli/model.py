"""The model a person names: a path, an id of Hugging Face, or what the store calls it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from .report import tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..db.store import Store
    from ..profiler.records.model import ModelIdentity
    from .command import Args
    from .report import Settings

OF_LOAD = ("device", "store", "plan", "drafters", "workload", "temperature", "dtype", "allow_lossy")


def loading(args: Args) -> dict[str, Any]:
    """Return what was typed for `load`: all but the target."""
    return {name: vars(args)[name] for name in OF_LOAD}


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


def tell_unused(settings: Settings, target: Path | str) -> None:
    """Say that a target's layers for multi-token prediction are not used, where it has some."""
    from ..profiler.mtp_layers import note_of_mtp

    if note := note_of_mtp(Path(target)):
        tell(settings, note)


def tell_dequantised(settings: Settings, models: Iterable[Path | str], dtype: str | None) -> None:
    """Say of each model in a GGUF file how its weights run, if not as stored; ModelError where it cannot be read."""
    from ..profiler.gguf_file import is_gguf, read_gguf
    from ..profiler.records.architecture import QUANTISED

    if dtype in QUANTISED:
        return
    for model in dict.fromkeys(Path(each) for each in models):
        if is_gguf(model) and model.is_file() and (reading := read_gguf(model).reading):
            tell(settings, f"{model.name}: {reading}")
