"""What `spectune doctor` looks at: the devices, the libraries and the store."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotInstalledError, SpectuneError
from .inspection import Inspection, inspect_devices
from .kept_devices import KeptDevice, compare
from .kept_devices import findings_of as kept_findings
from .readings import Finding
from .readings import findings_of as device_findings

if TYPE_CHECKING:
    from ..profiler.prompts import Prompt
    from ..tuning.doctor.checkup import Checkup
    from ..tuning.doctor.finding import DrafterFinding

MINIMUM = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)")
OF_RUN = re.compile(r"extra == ['\"]run['\"]")  # what measures and decodes, which plans do without


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Everything that was found; a part that could not be looked at is a finding that says why."""

    findings: tuple[Finding, ...]
    devices: tuple[Inspection, ...] = ()
    kept: tuple[KeptDevice, ...] = ()
    checkups: tuple[Checkup, ...] = ()


def examine(
    store: str | None,
    *,
    measure: bool,
    target: str | None = None,
    drafters: Mapping[str, str] | None = None,
    prompts: Callable[[], Sequence[Prompt]] | None = None,
) -> Examination:
    """Return what was found about everything; it stores a measured bandwidth at most.

    `measure` allows to measure an unknown memory bandwidth; `target` and `drafters`, by name, are looked at if given,
    and drafts are compared with the target's own text behind `prompts`.
    """
    system = Finding(name="spectune", seen=f"{version('spectune')}, Python {platform.python_version()}")
    libraries = library_findings(requires("spectune") or [])
    here = _guarded("devices", lambda: _devices(measure))
    software = _guarded("torch", lambda: _torch(here.devices))
    kept = _guarded("store", lambda: _store(store, here.devices))
    models = _guarded("models", lambda: Examination(findings=tuple(model_findings(target, drafters or {}))))
    drafts = Examination(findings=())
    is_sound = all(finding.verdict != "broken" for finding in models.findings)
    if prompts is not None and target is not None and drafters and is_sound:
        drafts = _guarded("drafts", lambda: _drafts(target, drafters, prompts()))
    parts = here, software, kept, models, drafts
    findings = (system, *libraries, *(finding for part in parts for finding in part.findings))
    return Examination(findings=findings, devices=here.devices, kept=kept.kept, checkups=drafts.checkups)


def library_findings(requirements: list[str]) -> Iterator[Finding]:
    """Yield a finding for every `name>=minimum`, and of the extra `run` for what is here; other extras are left out."""
    for requirement in requirements:
        is_needed = "extra ==" not in requirement
        if not (is_needed or OF_RUN.search(requirement)) or not (found := MINIMUM.match(requirement)):
            continue
        name, minimum = found.groups()
        try:
            seen = version(name)
        except PackageNotFoundError:
            if not is_needed:
                continue
            seen = ""
        is_enough = bool(seen) and _release(seen) >= _release(minimum)
        yield Finding(
            name=name,
            seen=f"{seen or 'missing'} (at least {minimum})",
            verdict="ok" if is_enough else "broken",
            advice="" if is_enough else f"pip install '{name}>={minimum}'",
            command=f"pip show {name}",
        )


def _release(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, trailing zeros left out: 2.13.0+cpu is (2, 13)."""
    numbers = [int(part) for part in re.match(r"[0-9.]*", text)[0].strip(".").split(".") if part]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _guarded(name: str, look: Callable[[], Examination]) -> Examination:
    """Return what a look finds; an error that stops it is a finding too."""
    try:
        return look()
    except (SpectuneError, ImportError, OSError) as error:
        known = NotInstalledError.of(error) if isinstance(error, ModuleNotFoundError) else error
        advice = "see the message" if isinstance(known, SpectuneError) else "install spectune anew"
        fault = Finding(name=name, seen=" ".join(str(known or error).split()), verdict="broken", advice=advice)
    return Examination(findings=(fault,))


def _devices(measure: bool) -> Examination:
    devices = inspect_devices(measure)
    findings = [finding for found in devices for finding in device_findings(found)]
    if not any(found.device.kind == "cuda" for found in devices):
        seen, advice = "no NVIDIA driver or no visible GPU", "nothing, on a CPU"
        findings.append(Finding(name="NVML", seen=seen, verdict="note", advice=advice, command="nvidia-smi"))
    findings.extend(_order(devices))
    return Examination(findings=tuple(findings), devices=devices)


def _order(devices: Sequence[Inspection]) -> Iterator[Finding]:
    """Yield a note where CUDA may count GPUs in another order than the driver: it puts the fastest model first."""
    models = {found.device.name for found in devices if found.device.kind == "cuda"}
    if len(models) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        seen, advice = (
            f"GPUs of {len(models)} models",
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that cuda:N is the one shown",
        )
        yield Finding(name="GPU order", seen=seen, verdict="note", advice=advice, command="nvidia-smi -L")


def _torch(devices: Sequence[Inspection]) -> Examination:
    try:
        import torch
    except ModuleNotFoundError:
        seen, advice = "not installed: plans are made, nothing is measured", "pip install 'spectune[run]' to measure"
        return Examination(findings=(Finding(name="torch", seen=seen, verdict="note", advice=advice),))

    build, threads = torch.version.cuda, torch.get_num_threads()
    cores = min((found.device.cores or threads for found in devices if found.device.kind == "cpu"), default=threads)
    is_blind = any(found.device.kind == "cuda" for found in devices) and not torch.cuda.is_available()
    built = Finding(
        name="torch build",
        seen=f"CUDA {build}" if build else "CPU only",
        verdict="note" if is_blind else "ok",
        advice="install a torch for CUDA to use the GPU" if is_blind else "",
        command="python -m torch.utils.collect_env",
    )
    threaded = Finding(
        name="torch threads",
        seen=f"{threads} of {cores} cores",
        verdict="note" if threads > cores else "ok",
        advice=f"set OMP_NUM_THREADS={cores} or less" if threads > cores else "",
        command='python -c "import torch; print(torch.get_num_threads())"',
    )
    return Examination(findings=(built, threaded, *_backends(devices)))


def _backends(devices: Sequence[Inspection]) -> Iterator[Finding]:
    """Yield what would run the rounds of plain decoding on each device that torch sees."""
    import torch

    from ..runtime.backends.names import name_on

    for found in devices:
        if found.device.kind == "cpu" or torch.cuda.is_available():
            yield Finding(name=f"backend on {found.place}", seen=name_on(torch.device(found.place)))


def _store(url: str | None, devices: Sequence[Inspection]) -> Examination:
    from ..db import open_store
    from ..db.sql.migrate import OlderSchemaError
    from ..db.url import is_sqlite_memory, resolve_url, shown, sqlite_file

    place = resolve_url(url)
    file = sqlite_file(place)
    if file is not None and not file.exists():
        return Examination(findings=(_absent_store(file),))
    try:
        opened = open_store(url, upgrade=is_sqlite_memory(place))
    except OlderSchemaError as older:  # most commands that open it would upgrade it; this one changes nothing
        return Examination(findings=(Finding(name="store", seen=older.seen, verdict="note", advice=older.advice),))
    with opened as store:
        kept = compare(store.devices(), [found.device for found in devices])
        found = Finding(name="store", seen=f"{shown(place)}, {len(store.plans())} plans", command="spectune list")
    return Examination(findings=(found, *kept_findings(kept)), kept=kept)


def _absent_store(file: Path) -> Finding:
    folder = next(parent for parent in file.parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        advice = "give another --store, or set SPECTUNE_STORE"
        return Finding(name="store", seen=f"{file} cannot be made: {folder}", verdict="broken", advice=advice)
    return Finding(name="store", seen=f"{file}, not there yet", verdict="note", advice="spectune profile makes it")


UNFITTED = "name a target that can be computed with --target, to see whether it fits"


def model_findings(target: str | None, drafters: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings for every model; no weight is read, but a target's are hashed for drafters that name it so.

    Models are folders, GGUF files or ids; drafters, by name, must also fit the target, which may be None.
    """
    if target is None and not drafters:
        return
    from ..profiler.hub import resolve_model
    from ..profiler.mtp_layers import note_of_mtp
    from ..runtime.models.rehearsal import require_loadable
    from ..tuning.doctor.registry import file_findings
    from ..tuning.prompt_room import positions_of, why_shorter_at

    sound = None
    if target is not None:
        try:
            place = resolve_model(target)
            require_loadable(str(place))
            seen = f"{positions_of(place):,} positions{why_shorter_at(place)}, can be computed"
            yield Finding(name="target", seen=seen)
            sound = place
            if note := note_of_mtp(place):
                yield Finding(name="target: MTP", seen=note, verdict="note", advice="nothing, to draft without them")
        except SpectuneError as error:
            yield _broken("target", error)
    for name, model in drafters.items():
        try:
            place = resolve_model(model)
        except SpectuneError as error:
            yield _broken(f"drafter {name}", error)
            continue
        yield _fit(name, sound, place)
        if sound is not None:
            yield from (_shown(name, each) for each in file_findings(name, sound, place))


def _fit(name: str, target: Path | None, place: Path) -> Finding:
    """Return whether a drafter can be loaded, beside a target where there is one."""
    from ..profiler.identity import identify
    from ..runtime.models.drafter import require_described, require_drafter_of
    from ..runtime.models.formats import draft_role
    from ..runtime.models.rehearsal import require_loadable
    from ..runtime.models.vocabulary import require_one_vocabulary

    try:
        role = draft_role(place)
        if role == "draft":
            require_loadable(str(place))
        if target is None:
            require_described(place)
            return Finding(name=f"drafter {name}", seen=f"{role}, sound by itself", verdict="note", advice=UNFITTED)
        if role == "draft":  # what a target's weights are does not matter
            require_one_vocabulary(str(target), str(place))
        else:
            require_drafter_of(place, identify(target))
    except SpectuneError as error:
        return _broken(f"drafter {name}", error)
    return Finding(name=f"drafter {name}", seen=f"{role}, can be computed")


def _shown(name: str, found: DrafterFinding) -> Finding:
    return Finding(name=f"drafter {name}: {found.check}", seen=found.seen, verdict=found.severity, advice=found.advice)


def _drafts(target: str, drafters: Mapping[str, str], prompts: Sequence[Prompt]) -> Examination:
    """Return what the drafters' forwards show along the target's own text."""
    from ..profiler.hub import resolve_model
    from ..tuning.doctor.checkup import check_up, findings_of

    places = {name: resolve_model(model) for name, model in drafters.items()}
    done = tuple(check_up(resolve_model(target), places, prompts))
    findings = tuple(_shown(each.name, found) for each in done for found in findings_of(each))
    return Examination(findings=findings, checkups=done)


def _broken(name: str, error: SpectuneError) -> Finding:
    return Finding(name=name, seen=" ".join(str(error).split()), verdict="broken", advice="see the message")
