"""Profiles under way over HTTP: what a killed one leaves behind is found again."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import PlainTextResponse

from ..db.profiles import ProfileJournal, profile_begun
from ..db.receipts import Receipt
from ..db.wire import Finish, OpenedProfile, Page, ProfileOpening, Surfaces, Visits
from ..profiler.records.visit import Visit
from . import examples
from .body import record_of
from .documents import gives, gives_nothing, gives_text, takes, takes_bytes
from .identities import NOTHING
from .paging import whole
from .parameters import Number, Once
from .problem import invalid, not_found
from .state import Service, service_of
from .writes import Work, answer_of, receipt_of, written

router = APIRouter(prefix="/v1/profiles", tags=["profiles"])

PART = "text/plain"
PartName = Annotated[str, Path(min_length=1, max_length=120)]
LONGEST_KEY = 64


@router.post(
    "",
    responses=gives(OpenedProfile, examples.OPENED),
    openapi_extra=takes(ProfileOpening, examples.OPENING),
)
async def post_profile(request: Request, once: Once = None) -> Response:
    """Resume the newest unfinished profile of a key, or begin one."""
    return await written(request, _open)


@router.get("/{profile_id}/visits", responses=gives(Page[Visit], Page(items=examples.VISITS.visits)))
async def get_visits(request: Request, profile_id: Number) -> Response:
    """Return every timed call so far, by ordinal."""
    service = service_of(request)

    def read() -> Receipt:
        return receipt_of(whole(_journal(service, profile_id).visits()), kind=Page[Visit])

    return answer_of(await service.read(read))


@router.post(
    "/{profile_id}/visits",
    status_code=204,
    responses=gives_nothing("Kept, all of them."),
    openapi_extra=takes(Visits, examples.VISITS),
)
async def post_visits(request: Request, profile_id: Number, once: Once = None) -> Response:
    """Keep timed calls: all of them, or none where an ordinal is taken."""
    return await written(request, partial(keep_visits, profile_id))


@router.get(
    "/{profile_id}/parts/{name:path}",
    response_class=PlainTextResponse,
    responses=gives_text(PART, "the document"),
)
async def get_part(request: Request, profile_id: Number, name: PartName) -> Response:
    """Return the document kept under a name."""
    service = service_of(request)

    def read() -> str | None:
        return _journal(service, profile_id).part(name)

    document = await service.read(read)
    if document is None:
        raise not_found(f"profile {profile_id} has no part {name!r}")
    return Response(document, media_type="text/plain; charset=utf-8")


@router.put(
    "/{profile_id}/parts/{name:path}",
    status_code=204,
    responses=gives_nothing("Kept."),
    openapi_extra=takes_bytes(PART, "the document"),
)
async def put_part(request: Request, profile_id: Number, name: PartName, once: Once = None) -> Response:
    """Keep a document under a new name; one that is taken is a conflict."""
    return await written(request, partial(keep_part, profile_id, name), is_json=False)


@router.post(
    "/{profile_id}/surfaces",
    status_code=204,
    responses=gives_nothing("Kept."),
    openapi_extra=takes(Surfaces, examples.SURFACES),
)
async def post_surfaces(request: Request, profile_id: Number, once: Once = None) -> Response:
    """Keep finished surfaces and drop the visits they were made of: all of it or nothing."""
    return await written(request, partial(finish_surfaces, profile_id))


@router.post(
    "/{profile_id}/finish",
    status_code=204,
    responses=gives_nothing("Finished."),
    openapi_extra=takes(Finish, examples.FINISH),
)
async def post_finish(request: Request, profile_id: Number, once: Once = None) -> Response:
    """Keep what was measured besides surfaces and mark the profile finished: all of it or nothing."""
    return await written(request, partial(finish_profile, profile_id))


def keep_visits(profile_id: int, service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of visits."""
    sent = record_of(Visits, body)

    def work() -> Receipt:
        journal = _journal(service, profile_id)
        for visit in sent.visits:
            journal.add_visit(visit)
        return NOTHING

    return work


def keep_part(profile_id: int, name: str, service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a PUT of a part."""
    try:
        document = body.decode()
    except UnicodeDecodeError:
        raise invalid("a part must be UTF-8 text") from None

    def work() -> Receipt:
        _journal(service, profile_id).add_part(name, document)
        return NOTHING

    return work


def finish_surfaces(profile_id: int, service: Service, _caller: str, body: bytes) -> Work:
    """Prepare a POST of finished surfaces."""
    sent = record_of(Surfaces, body)

    def work() -> Receipt:
        _journal(service, profile_id).finish_surfaces(sent.surfaces)
        return NOTHING

    return work


def finish_profile(profile_id: int, service: Service, _caller: str, body: bytes) -> Work:
    """Prepare the end of a profile."""
    sent = record_of(Finish, body)

    def work() -> Receipt:
        journal = _journal(service, profile_id)
        journal.finish(overhead=sent.overhead, traces=sent.traces, pairwise=sent.pairwise)
        return NOTHING

    return work


def _open(service: Service, _caller: str, body: bytes) -> Work:
    wanted = record_of(ProfileOpening, body)
    if not 0 < len(wanted.key) <= LONGEST_KEY:
        raise invalid(f"a profile's key has 1 to {LONGEST_KEY} characters, got {len(wanted.key)}")

    def work() -> Receipt:
        journal = service.store.open_profile(wanted.key, wanted.fresh)
        begun = profile_begun(service.store, journal.profile_id)
        return receipt_of(OpenedProfile(profile_id=journal.profile_id, is_resumed=journal.is_resumed, begun=begun))

    return work


def _journal(service: Service, profile_id: int) -> ProfileJournal:
    profile_begun(service.store, profile_id)
    return service.store.journal(profile_id)
