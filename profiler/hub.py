"""Models by their usual names: a path, or an id of Hugging Face, which is fetched where the cache lacks it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from .identity import require_no_adapter, weight_files

ID = re.compile(r"(?P<repo>(?:\w[\w.-]*/)?\w[\w.-]*?)(?P<file>/[\w./-]+\.gguf)?(?:@(?P<revision>[\w./-]+))?", re.ASCII)
FILES = (".gguf", ".json", ".safetensors")  # endings of paths, which no id has unless it names a file in a repository
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")  # neither pickles nor code
UNWANTED = ("*/*", "consolidated*")  # other forms of the same weights
MOST_NAMED = 12  # files in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class HubId:
    """An id as it was typed; without a file it is a model folder."""

    repo: str
    revision: str | None
    file: str


def resolve_model(text: str) -> Path:
    """Return the path of a model: `org/name`, `name` or `org/name/file.gguf`, each with an optional `@revision`.

    What exists here comes first. An id is looked up in the cache, and fetched where a part is missing, with progress on
    a terminal. What can be no id is returned as a path. ModelError where there is no such path, and the id cannot be
    fetched or holds nothing that can be loaded.
    """
    asked = hub_id(text)
    if asked is None:
        return Path(text)
    try:
        return _cached(asked) or _fetched(asked)
    except (ModelError, ModuleNotFoundError):
        raise
    except Exception as error:  # of httpx or httpx2, by the hub's version, of hf_xet, of the disk
        revision = f" --revision {asked.revision}" if asked.revision else ""
        raise ModelError(
            f"no model folder at {text}, and {asked.repo} cannot be fetched from Hugging Face: "
            f"{_reason(error, asked)}; to fetch it by hand: hf download {asked.repo}{revision}"
        ) from error


def cached_model(text: str) -> Path | None:
    """Return a model's path in Hugging Face's cache, or None; uses no network, and works without huggingface_hub."""
    asked = hub_id(text)
    try:
        return None if asked is None else _cached(asked)
    except ModuleNotFoundError:
        return None


def hub_id(text: str) -> HubId | None:
    """Return the id that a text is; None where it is the path of something or can only be a path."""
    found = ID.fullmatch(text)
    if found is None or os.path.exists(text):
        return None
    repo, file, revision = found["repo"], (found["file"] or "").removeprefix("/"), found["revision"]
    if (file and "/" not in repo) or (not file and repo.endswith(FILES)):
        return None
    return HubId(repo=repo, revision=revision, file=file)


def _cached(asked: HubId) -> Path | None:
    """Return where a model lies whole in the cache.

    Other programs fetch files one by one, so a tokenizer is required. A drafter without one is looked up on the hub
    each time.
    """
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        place = _snapshot(asked, is_local=True)
        if asked.file:
            return place if place.is_file() else None
        weight_files(place)
    except (LocalEntryNotFoundError, HFValidationError, ModelError):
        return None
    has_tokenizer = any((place / name).is_file() for name in TOKENIZERS)
    return place if has_tokenizer and (place / "config.json").is_file() else None


def _fetched(asked: HubId) -> Path:
    """Return where a fetched model lies, or where it lies as far as is known without a network."""
    place = _snapshot(asked)
    if not asked.file:
        require_no_adapter(place)
    is_there = place.is_file() if asked.file else (place / "config.json").is_file() and any(place.glob("*.safetensors"))
    if not is_there:
        raise ModelError(_contents(asked))
    if not asked.file:
        weight_files(place)
    return place


def _snapshot(asked: HubId, *, is_local: bool = False) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **{**options, "disable": None})  # type: ignore[no-untyped-call]  # None: on a terminal

    folder = snapshot_download(
        asked.repo,
        revision=asked.revision,
        allow_patterns=[asked.file] if asked.file else [*WANTED],
        ignore_patterns=None if asked.file else [*UNWANTED],
        local_files_only=is_local,
        tqdm_class=Bar,
    )
    return Path(folder, asked.file)


def _contents(asked: HubId) -> str:
    from huggingface_hub import HfApi

    files = HfApi().list_repo_files(asked.repo, revision=asked.revision)
    revision = f"@{asked.revision}" if asked.revision else ""
    if ggufs := [f"{asked.repo}/{file}{revision}" for file in files if file.endswith(".gguf")]:
        more = f" and {len(ggufs) - MOST_NAMED} more" if len(ggufs) > MOST_NAMED else ""
        what = f"no file {asked.file}" if asked.file else "GGUF files and no model folder"
        return f"{asked.repo} holds {what}; name one of its files: {', '.join(ggufs[:MOST_NAMED])}{more}"
    if pickles := [file for file in files if file.endswith((".bin", ".pt", ".pth"))]:
        named = ", ".join(pickles[:MOST_NAMED])
        return f"{asked.repo} holds only pickles ({named}), which can run code when loaded; take one with safetensors"
    seen = ", ".join(files[:MOST_NAMED]) or "no files"
    return f"{asked.repo} holds no config.json with safetensors beside it, but {seen}; take a language model"


def _reason(error: Exception, asked: HubId) -> str:
    from huggingface_hub import constants, errors

    causes = list(_causes(error))
    if any(getattr(cause, "errno", None) == errno.ENOSPC or "No space left" in str(cause) for cause in causes):
        return f"the disk of {constants.HF_HUB_CACHE} is full; free some space, or set HF_HOME to a folder elsewhere"
    reasons: tuple[tuple[type[Exception], str], ...] = (
        (
            errors.GatedRepoError,
            f"it is gated; accept its terms at {constants.ENDPOINT}/{asked.repo} and give a token: hf auth login",
        ),
        (errors.RepositoryNotFoundError, "it is not there, or private; for that give a token: hf auth login"),
        (errors.RevisionNotFoundError, f"it has no revision {asked.revision!r}"),
        (errors.OfflineModeIsEnabled, f"HF_HUB_OFFLINE is set, and {constants.HF_HUB_CACHE} holds no whole copy"),
    )
    for kind, words in reasons:
        if any(isinstance(cause, kind) for cause in causes):
            return words
    answer = next((cause for cause in causes if isinstance(cause, errors.HfHubHTTPError)), None)
    if answer is not None:
        status = answer.response.status_code
        token = "; the token is wrong or has no right to it: hf auth login" if status in (401, 403) else ""
        return f"{constants.ENDPOINT} answers {status}{token}"
    last = " ".join(str(causes[-1]).split())
    if isinstance(error, errors.LocalEntryNotFoundError):
        return f"{constants.ENDPOINT} cannot be reached ({last}), and {constants.HF_HUB_CACHE} holds no whole copy"
    return f"{type(error).__name__}: {last}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
