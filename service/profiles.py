"""Profiles under way over HTTP: what a killed one leaves behind is found again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from ..db.jobs.receipts import Receipt
from ..db.sql.profiles import ProfileJournal, profile_begun
from ..db.wire import Finish, OpenedProfile, Page, ProfileOpening, Surfaces, Visits
from ..profiler.records.visit import Visit
from . import examples
from .body import record_of
from .documents import gives, gives_nothing, gives_text, takes, takes_bytes
from .parameters import Number, PartName, whole
from .problem import invalid, not_found
from .routes import writes
from .state import Service, service_of
from .writes import NOTHING, Prepare, Work, answer_of, receipt_of

router = APIRouter(prefix="/v1/profiles", tags=["profiles"])

PART = "text/plain"
LONGEST_KEY = 64


def keeps(verb: str, place: str, said: str, **facts: Any) -> Callable[[Prepare], Prepare]:
    """Declare a write to one profile, which may be too large for one body."""
    answers = gives_nothing(said)
    path = f"/{{profile_id}}/{place}"
    return writes(router, verb, path, status_code=204, responses=answers, may_be_large=True, **facts)


@writes(router, "POST", "", responses=gives(OpenedProfile, examples.OPENED), **takes(ProfileOpening, examples.OPENING))
def post_profile(service: Service, _caller: str, body: bytes) -> Work:
    """Resume the newest unfinished profile of a key, or begin one."""
    wanted = record_of(ProfileOpening, body)
    if not 0 < len(wanted.key) <= LONGEST_KEY:
        raise invalid(f"a profile's key has 1 to {LONGEST_KEY} characters, got {len(wanted.key)}")

    def work() -> Receipt:
        journal = service.store.open_profile(wanted.key, wanted.fresh)
        begun = profile_begun(service.store, journal.profile_id)
        return receipt_of(OpenedProfile(profile_id=journal.profile_id, is_resumed=journal.is_resumed, begun=begun))

    return work


@router.get("/{profile_id}/visits", responses=gives(Page[Visit], Page(items=examples.VISITS.visits)))
async def get_visits(request: Request, profile_id: Number) -> Response:
    """Return every timed call so far, by ordinal."""
    service = service_of(request)

    def read() -> Receipt:
        return receipt_of(whole(_journal(service, profile_id).visits()), kind=Page[Visit])

    return answer_of(await service.read(read))


@keeps("POST", "visits", "Kept, all of them.", is_news=False, **takes(Visits, examples.VISITS))
def post_visits(service: Service, _caller: str, body: bytes, *, profile_id: int) -> Work:
    """Keep timed calls: all of them, or none where an ordinal is taken."""
    sent = record_of(Visits, body)

    def keep(journal: ProfileJournal) -> None:
        for visit in sent.visits:
            journal.add_visit(visit)

    return partial(_done, service, profile_id, keep)


@router.get(
    "/{profile_id}/parts/{name:path}", response_class=PlainTextResponse, responses=gives_text(PART, "the document")
)
async def get_part(request: Request, profile_id: Number, name: PartName) -> Response:
    """Return the document stored under a name."""
    service = service_of(request)
    document = await service.read(lambda: _journal(service, profile_id).part(name))
    if document is None:
        raise not_found(f"profile {profile_id} has no part {name!r}")
    return Response(document, media_type="text/plain; charset=utf-8")


@keeps("PUT", "parts/{name:path}", "Kept.", is_news=False, is_json=False, **takes_bytes(PART, "the document"))
def put_part(service: Service, _caller: str, body: bytes, *, profile_id: int, name: str) -> Work:
    """Keep a document under a new name; one that is taken is a conflict."""
    try:
        document = body.decode()
    except UnicodeDecodeError:
        raise invalid("a part must be UTF-8 text") from None
    return partial(_done, service, profile_id, lambda journal: journal.add_part(name, document))


@keeps("POST", "surfaces", "Kept.", **takes(Surfaces, examples.SURFACES))
def post_surfaces(service: Service, _caller: str, body: bytes, *, profile_id: int) -> Work:
    """Keep finished surfaces and drop the visits they were made of: all of it or nothing."""
    sent = record_of(Surfaces, body)
    return partial(_done, service, profile_id, lambda journal: journal.finish_surfaces(sent.surfaces))


@keeps("POST", "finish", "Finished.", **takes(Finish, examples.FINISH))
def post_finish(service: Service, _caller: str, body: bytes, *, profile_id: int) -> Work:
    """Keep what was measured besides surfaces and mark the profile finished: all of it or nothing."""
    sent = record_of(Finish, body)

    def keep(journal: ProfileJournal) -> None:
        journal.finish(overhead=sent.overhead, traces=sent.traces, pairwise=sent.pairwise)

    return partial(_done, service, profile_id, keep)


def _done(service: Service, profile_id: int, do: Callable[[ProfileJournal], None]) -> Receipt:
    do(_journal(service, profile_id))
    return NOTHING


def _journal(service: Service, profile_id: int) -> ProfileJournal:
    profile_begun(service.store, profile_id)
    return service.store.journal(profile_id)
