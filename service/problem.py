"""Refusals as `application/problem+json` (RFC 9457), and which of our errors is which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from ..db import wire
from ..db.jobs.jobs import JobEndedError, LostJobError, NoJobError
from ..db.jobs.uploads import NoUploadError, TooManyUploadsError, UploadConflictError
from ..db.sql.profiles import NoProfileError
from ..errors import NoPlanError, SpectuneError, StoreAwayError, StoreError
from ..profiler.records.wire import to_json

MEDIA_TYPE = "application/problem+json"
NAMESPACE = "urn:spectune:problem:"
RETRY_S = 5
NOT_FOUND = (NoJobError, NoUploadError, NoProfileError)
P = ParamSpec("P")
Result = TypeVar("Result")
CONFLICTS = (JobEndedError, UploadConflictError, LostJobError)


class ProblemError(Exception):
    """A request that is refused, with everything its answer says."""

    def __init__(self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        """Take the answer; `kind` ends its type, `detail` is what is wrong, seen and to do, without secrets."""
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, " ".join(detail.split())
        self.headers = dict(headers or {})

    def body(self, path: str, request_id: str) -> bytes:
        """Return the JSON of the answer."""
        told = wire.Problem(
            type=f"{NAMESPACE}{self.kind}",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            instance=path,
            request_id=request_id,
        )
        return to_json(told).encode(errors="replace")


def not_found(what: str) -> ProblemError:
    """Return the refusal for something that is not there."""
    return ProblemError(404, "not-found", what)


def invalid(why: str) -> ProblemError:
    """Return the refusal of a body or parameter."""
    return ProblemError(422, "invalid", why)


def conflict(why: str) -> ProblemError:
    """Return the refusal of what does not fit to what is stored."""
    return ProblemError(409, "conflict", why)


def required(read: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Return what is read by its number; ProblemError (404) where it is missing, StoreError while the store is away."""
    try:
        return read(*args, **kwargs)
    except StoreAwayError:
        raise
    except StoreError as error:
        told = problem_of(error)
        raise not_found(str(error)) if told.status == 409 else told from error


def problem_of(error: SpectuneError | OverflowError | RecursionError) -> ProblemError:
    """Return the refusal for one of our errors."""
    text = str(error)
    if isinstance(error, NoPlanError):
        return ProblemError(404, wire.NO_PLAN, text)
    if isinstance(error, NOT_FOUND):
        return not_found(text)
    if isinstance(error, TooManyUploadsError):
        return ProblemError(429, "too-many", text, {"Retry-After": str(RETRY_S)})
    if isinstance(error, CONFLICTS):
        return conflict(text)
    if isinstance(error, StoreError):
        return _of_store(error)
    if isinstance(error, OverflowError):
        return invalid("a number is larger than the store can keep; send a smaller one")
    if isinstance(error, RecursionError):
        return invalid("the JSON is nested too deeply; send a flatter one")
    return invalid(text)


def _of_store(error: StoreError) -> ProblemError:
    """Return 503 where the database is away, 422 where it refuses a value; else the request does not fit its rows."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, DataError | OverflowError):
        return invalid(str(error))
    if isinstance(cause, IntegrityError):  # somebody else's row is there already
        return conflict(str(error))
    if isinstance(error, StoreAwayError) or isinstance(cause, SQLAlchemyError):
        return ProblemError(503, "store-away", str(error), {"Retry-After": str(RETRY_S)})
    return conflict(str(error))
