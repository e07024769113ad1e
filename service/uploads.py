"""Large bodies in parts over HTTP: begun, resumed where they broke off, finished as their request."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from ..db.jobs.receipts import Receipt
from ..db.jobs.uploads import NoUploadError, UploadRow
from ..db.wire import UPLOAD_OFFSET, NewUpload, UploadState
from . import examples
from .body import read_body, record_of
from .documents import gives, gives_nothing, refusals, takes, takes_bytes
from .parameters import MOST_ID, KeyPath, Once
from .problem import ProblemError, invalid
from .routes import prepare_of_upload, writes
from .settings import MIB
from .state import Service, caller_of, service_of
from .writes import NOTHING, Work, answer_of, receipt_of, written

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])

LARGE_BYTES = 64 * MIB  # uploads above it are finished one at a time, for their memory
LONGEST_WORD = 120  # of what an upload is called
LONGEST_TARGET = 2000
Offset = Annotated[int, Header(alias=UPLOAD_OFFSET, ge=0, le=MOST_ID)]


@writes(
    router,
    "POST",
    "",
    status_code=201,
    responses=gives(UploadState, examples.UPLOADED, 201, "Send the bytes next."),
    **takes(NewUpload, examples.UPLOAD),
)
def post_upload(service: Service, caller: str, body: bytes) -> Work:
    """Announce a body that comes in parts, and the request it belongs to."""
    new = record_of(NewUpload, body)
    prepare_of_upload(f"{new.method} {new.target}")
    if len(new.target) > LONGEST_TARGET:
        raise invalid(f"the path of an upload's request has {len(new.target)} characters; name the part shorter")
    if new.size > service.settings.upload_bytes:
        raise ProblemError(
            413, "too-large", f"an upload has at most {service.settings.upload_bytes} bytes, got {new.size}"
        )
    target = f"{new.method} {new.target}"

    def work() -> Receipt:
        row = service.uploads.begin(
            caller, kind=new.kind[:LONGEST_WORD], target=target, size=new.size, sha256=new.sha256
        )
        return receipt_of(UploadState(key=row.key, received=0), 201)

    return work


@router.get("/{key}", responses=gives(UploadState, examples.UPLOADED))
async def get_upload(request: Request, key: KeyPath) -> Response:
    """Return how many bytes have arrived."""
    return await _state(request, key)


@router.head(
    "/{key}", response_class=Response, responses={200: {"description": "See the header Upload-Offset."}, **refusals()}
)
async def head_upload(request: Request, key: KeyPath) -> Response:
    """Tell by the header Upload-Offset how many bytes have arrived."""
    return await _state(request, key)


@router.patch(
    "/{key}",
    responses=gives(UploadState, examples.UPLOADED),
    **takes_bytes("application/octet-stream", "the next bytes"),
)
async def patch_upload(request: Request, key: KeyPath, offset: Offset) -> Response:
    """Send the next bytes; they are stored once this answers. Packed by gzip, offsets count unpacked bytes."""
    service = service_of(request)
    content = await read_body(request, service.settings)
    row = await service.write(service.uploads.add, caller_of(request).name, key, offset, content)
    return _told(row)


@router.post(
    "/{key}/finish",
    responses={
        **gives(dict[str, object], {"added": 1}, 200, "As the request it stands for answers."),
        **gives(dict[str, object], {"added": 1}, 201, "As the request it stands for answers."),
        204: {"description": "As the request it stands for answers."},
    },
)
async def post_upload_finish(request: Request, key: KeyPath, once: Once = None) -> Response:
    """Check the bytes, and do what the request they stand for does, in one transaction with dropping them."""
    service = service_of(request)
    try:
        row = await service.read(service.uploads.find, caller_of(request).name, key)
        is_large = row.size > LARGE_BYTES
    except NoUploadError:  # there may be a receipt of it
        is_large = False
    return await written(request, partial(_finish, key), is_json=False, is_large=is_large)


@router.delete("/{key}", status_code=204, responses=gives_nothing("Dropped."))
async def delete_upload(request: Request, key: KeyPath) -> Response:
    """Drop an upload that will not be finished."""
    service = service_of(request)
    await service.write(service.uploads.end, caller_of(request).name, key)
    return answer_of(NOTHING)


def _finish(key: str, service: Service, caller: str, _body: bytes) -> Work:
    """Prepare the request an upload was for; where it has ended, its receipt may still know the answer."""
    try:
        row = service.uploads.find(caller, key)
        prepare = prepare_of_upload(row.target)
        prepared = prepare(service, caller, service.uploads.content(caller, key))
    except NoUploadError as gone:
        return partial(_raise, gone)

    def work() -> Receipt:
        service.uploads.end(caller, key)
        return prepared()

    return work


def _raise(error: NoUploadError) -> Receipt:
    raise error


async def _state(request: Request, key: str) -> Response:
    service = service_of(request)
    return _told(await service.read(service.uploads.find, caller_of(request).name, key))


def _told(row: UploadRow) -> Response:
    answer = answer_of(receipt_of(UploadState(key=row.key, received=row.received)))
    answer.headers[UPLOAD_OFFSET] = str(row.received)
    return answer
