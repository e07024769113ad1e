"""Devices and models over HTTP."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from ..db.receipts import Receipt
from ..db.wire import Page
from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity
from . import examples
from .body import record_of
from .documents import gives, gives_nothing, takes
from .paging import USUAL_LIMIT, After, Limit, page_by_place
from .parameters import KeyPath, Once
from .problem import invalid, not_found
from .state import Service, service_of
from .writes import Work, answer_of, receipt_of, written

router = APIRouter(prefix="/v1", tags=["devices and models"])
NOTHING = Receipt(status=204, body="")


@router.put(
    "/devices/{fingerprint}",
    status_code=204,
    responses=gives_nothing("Kept."),
    openapi_extra=takes(Device, examples.DEVICE),
)
async def put_device(request: Request, fingerprint: KeyPath, once: Once = None) -> Response:
    """Keep a device; what its fingerprint leaves out is updated."""
    return await written(request, partial(_keep_device, fingerprint))


@router.get("/devices", responses=gives(Page[Device], Page(items=(examples.DEVICE,))))
async def get_devices(request: Request, limit: Limit = USUAL_LIMIT, after: After = None) -> Response:
    """List devices, in the order they were first added."""
    service = service_of(request)
    devices = await service.read(service.store.devices)
    return answer_of(receipt_of(page_by_place(devices, limit, after), kind=Page[Device]))


@router.put(
    "/models/{key}",
    status_code=204,
    responses=gives_nothing("Kept."),
    openapi_extra=takes(ModelIdentity, examples.MODEL),
)
async def put_model(request: Request, key: KeyPath, once: Once = None) -> Response:
    """Keep a model; its name and location are updated."""
    return await written(request, partial(_keep_model, key))


@router.get("/models", responses=gives(Page[ModelIdentity], Page(items=(examples.MODEL,))))
async def get_models(request: Request, limit: Limit = USUAL_LIMIT, after: After = None) -> Response:
    """List models, in the order they were first added."""
    service = service_of(request)
    models = await service.read(service.store.models)
    return answer_of(receipt_of(page_by_place(models, limit, after), kind=Page[ModelIdentity]))


@router.get("/models/{key}", responses=gives(ModelIdentity, examples.MODEL))
async def get_model(request: Request, key: KeyPath) -> Response:
    """Return the model with these weights."""
    service = service_of(request)
    model = await service.read(service.store.find_model, key)
    if model is None:
        raise not_found(f"there is no model {key!r}; list them with GET /v1/models")
    return answer_of(receipt_of(model))


def _keep_device(fingerprint: str, service: Service, _caller: str, body: bytes) -> Work:
    device = record_of(Device, body)
    if device.fingerprint != fingerprint:
        raise invalid(f"the device has fingerprint {device.fingerprint}, the path says {fingerprint}; correct the path")

    def work() -> Receipt:
        service.store.add_device(device)
        return NOTHING

    return work


def _keep_model(key: str, service: Service, _caller: str, body: bytes) -> Work:
    model = record_of(ModelIdentity, body)
    if model.key != key:
        raise invalid(f"the model has key {model.key}, the path says {key}; correct the path")

    def work() -> Receipt:
        service.store.add_model(model)
        return NOTHING

    return work
