"""What was measured of a server as a store keeps it: rounds as surfaces, and the loads that they are of.

A surface has the regime `server:ENGINE-VERSION@FINGERPRINT`, of all settings that change speed, and the role of who
drafts: "round:plain", "round:NAME". Its model is the hash of the command or URL. The loads themselves are parts of a
profile, which stays open for plans and further loads until one of the same settings begins anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

from ...db.store import OpenProfile, Store
from ...engines.bundle import Bundle, Trial, server_of
from ...errors import StoreError
from ...profiler.device import detect
from ...profiler.protocols import SurfaceKey
from ...profiler.records.measurement import Measurement
from ...profiler.records.wire import from_json, to_json
from .ran import ran_of
from .tuned_server import ServerJob

REGIME, ROLE = "server:", "round:"
BLANK = re.compile(r"\s")
SERVED = "served"  # number format of a server, which its command says
HEAD, ENDED = "bundle", "ended"  # parts of a profile; its loads are "load 0", "load 1", ...


class ServerProfile:
    """The profile of a job in a store; `bundle` is what it holds, saved or read."""

    def __init__(self, job: ServerJob, store: Store, *, fresh: bool = False) -> None:
        """Go on with an interrupted profile of the same settings; begin anew where it ended, or with `fresh`.

        The former profile stays until the first load of the new one is saved.
        """
        self._store, self._device = store, _device(job.url, store)
        self._key = _key(job.setup.fingerprint, self._device)
        self._profile = store.open_profile(self._key)
        self._begins_anew = fresh or self._profile.part(ENDED) is not None
        kept = None if self._begins_anew else _read(self._profile)
        self.bundle = kept or Bundle(spectune=version("spectune"), setup=job.setup)

    def save(self, bundle: Bundle) -> None:
        """Keep the loads that are new, each as it is and as a cell of a surface.

        MeasurementError, and nothing kept of a load, where its answers have one token each.
        """
        for number in range(len(self.bundle.trials), len(bundle.trials)):
            trial = bundle.trials[number]
            cell = self._cell(bundle, trial)
            if self._begins_anew:
                self._profile, self._begins_anew = self._store.open_profile(self._key, fresh=True), False
            if not number:
                self._profile.add_part(HEAD, to_json(replace(bundle, trials=(), failures=(), chosen=None)))
            self._profile.add_part(f"load {number}", to_json(trial))
            if cell is not None:
                self._store.add_measurements(*cell)
        self.bundle = bundle

    def end(self) -> None:
        """Say that nothing is missing, so that the next profile of these settings starts from the beginning."""
        self._profile.add_part(ENDED, "")

    def _cell(self, bundle: Bundle, trial: Trial) -> tuple[SurfaceKey, list[Measurement]] | None:
        ran, length = ran_of(trial), trial.start.at(trial.concurrency)
        rounds_ms = tuple(one.tpot_ms * ran.tokens_per_round for one in trial.load.ended if one.tpot_ms > 0.0)
        if not rounds_ms or (trial.start.is_table and not length):  # a drafter that waits is no plain decoding
            return None
        engine = bundle.setup.engine
        key = SurfaceKey(
            device=self._device,
            model=bundle.setup.server,
            role=f"{ROLE}{BLANK.sub('_', ran.source)}"[:120],
            regime=f"{REGIME}{engine}-{BLANK.sub('_', bundle.version) or 'unknown'}@{bundle.setup.fingerprint}",
            dtype=SERVED,
        )
        prompted = int((trial.counts.prompted or 0.0) / len(trial.load.ended))
        cell = Measurement(batch=trial.concurrency, context_tokens=prompted, tokens=length + 1, repeats_ms=rounds_ms)
        return key, [cell]


def newest_bundle(engine: str, place: Sequence[str], store: Store) -> Bundle:
    """Return the loads profiled last of a server, given its command, keys hidden, or its URL alone.

    StoreError where there are none.
    """
    url = "".join(place[:1]) if "://" in "".join(place[:1]) else ""
    device, server = _device(url, store), server_of(engine, place)
    rows = [row for row in store.surface_rows(device=device) if (row.model, row.dtype) == (server, SERVED)]
    found = None
    if rows:
        newest = max(rows, key=lambda row: (row.newest, row.id))
        found = _read(store.open_profile(_key(newest.regime.rpartition("@")[2], device)))
    if found is None:
        asked = f"--server {url}" if url else "-- COMMAND"
        raise StoreError(
            f"{store.url} holds no loads of this server with {engine}; run: spectune profile --engine {engine} "
            f"--prompts FILE {asked}"
        )
    return found


def _read(profile: OpenProfile) -> Bundle | None:
    head = profile.part(HEAD)
    if head is None:
        return None
    trials: list[Trial] = []
    while (told := profile.part(f"load {len(trials)}")) is not None:
        trials.append(from_json(Trial, told))
    return replace(from_json(Bundle, head), trials=tuple(trials))


def _key(fingerprint: str, device: str) -> str:
    return f"{REGIME}{fingerprint}:{device}"[:64]


def _device(url: str, store: Store) -> str:
    """Return the fingerprint of this machine's device; of a server at a URL its place, as its device is not known."""
    if url:
        return f"at {url}"[:64]
    device = detect()
    store.add_device(device)
    return device.fingerprint
