"""What `spectune doctor` says of models: whether they can be computed here, before anybody waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import SpectuneError
from .finding import Finding

UNFITTED = "name a target that can be computed with --target, to see whether it fits"


def model_findings(target: str | None, drafters: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for every model; no weight is read, but those of a target with drafters are hashed.

    Models are folders, GGUF files or ids; drafters, by name, must also fit the target, which may be None.
    """
    if target is None and not drafters:
        return
    from ..profiler.hub import resolve_model
    from ..profiler.identity import identify
    from ..runtime.models.draft_role import draft_role
    from ..runtime.models.drafter import require_described, require_drafter_of
    from ..runtime.models.rehearsal import require_loadable
    from ..tuning.prompt_room import positions_of, why_shorter_at
    from ..tuning.reach import notes_of_reach

    identity = None
    if target is not None:
        try:
            place = resolve_model(target)
            require_loadable(str(place))
            identity = identify(place) if drafters else None
            seen = f"{positions_of(place):,} positions{why_shorter_at(place)}, can be computed"
            yield Finding(name="target", seen=seen)
        except SpectuneError as error:
            yield _broken("target", error)
    for name, model in drafters.items():
        try:
            place = resolve_model(model)
            role = draft_role(place)
            if role == "draft":
                require_loadable(str(place))
            if identity is None:
                require_described(place)
            else:
                require_drafter_of(place, identity)
        except SpectuneError as error:
            yield _broken(f"drafter {name}", error)
            continue
        if identity is None:
            yield Finding(name=f"drafter {name}", seen=f"{role}, sound by itself", verdict="note", advice=UNFITTED)
            continue
        yield Finding(name=f"drafter {name}", seen=f"{role}, can be computed")
        if role == "draft":
            for note in notes_of_reach(Path(identity.location), {name: place}):
                yield Finding(name=f"drafter {name}", seen=note, verdict="note", advice="keep to shorter texts")


def _broken(name: str, error: SpectuneError) -> Finding:
    return Finding(name=name, seen=" ".join(str(error).split()), verdict="broken", advice="see the message")
