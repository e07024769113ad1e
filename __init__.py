"""Measure a device once, plan the fastest lossless speculative decoding for it.

    import spectune
    decoder = spectune.load("path/to/target")

Nothing heavy is imported before one of the names below is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spectune.runtime.load import load

    __version__: str

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    if name == "load":
        return _load()
    if name == "__version__":
        from importlib.metadata import version

        return version("spectune")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")


def _load() -> object:
    from spectune.errors import NotInstalledError

    try:
        from spectune.runtime.load import load
    except ModuleNotFoundError as error:
        missing = NotInstalledError.of(error)
        if missing is None:
            raise
        raise missing from error
    return load


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
