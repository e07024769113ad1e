"""Outcomes of plans at a service: observations wait here until they are there."""

from __future__ import annotations

import json
from uuid import uuid4

from .remote_client import RemoteClient
from .remote_http import BRISK, AwayError, RefusedError
from .remote_queue import OF_THE_DOCUMENT, Waiting
from .remote_service import INVALID, Params
from .wire import MOST_ITEMS, Document, Page

TOKENS_OF_A_ROUND = ("predicted_tokens_per_round", "tokens_per_round")  # older services refuse rows that have them


class RemoteOutcomes(RemoteClient):
    """Observations and validations of plans; each method is that of a store in a database."""

    def add_observation(self, plan_id: int, document: str) -> None:
        """Store what a decoder saw while it ran a plan: at the service, or here until it answers.

        Waiting ones go first, oldest first, some with every call; while any is left, or the service refuses this
        client, this one waits too.

        Raises:
            StoreError: there is no such plan, or neither the service nor the disk takes the document.
        """
        waiting = Waiting(plan_id=plan_id, document=document, key=str(uuid4()))
        try:
            if self._reader.is_away:
                raise AwayError(f"{self.url} did not answer a moment ago")
            if self._queue.deliver(self._observe):
                self._observe(waiting)
            else:
                self._queue.add(waiting)
        except AwayError as error:
            self._reader.went_away(error)
            self._queue.add(waiting)
        except RefusedError as error:
            if error.status in OF_THE_DOCUMENT:
                raise
            self._queue.add(waiting)  # who sends it is refused, or the service is in trouble

    def observations(self, plan_id: int) -> list[str]:
        """Return every observation of a plan, oldest first; those that wait here are not among them."""
        return self._documents("observations", plan_id)

    def newest_observations(self, plan_id: int, limit: int) -> list[str]:
        """Return a plan's newest observations, at most so many, oldest first; an older service sends all."""
        if limit <= MOST_ITEMS:
            asked: Params = {"newest": True, "limit": limit}
            page = self._service.get(Page[Document], f"/v1/plans/{plan_id:d}/observations", asked)
            if page.next is None:
                return [each.document for each in page.items]
        return self.observations(plan_id)[-limit:]

    def add_validation(self, plan_id: int, document: str) -> None:
        """Store what a plan delivered, for an older service without the tokens of a round; or raise StoreError."""
        place = f"/v1/plans/{plan_id:d}/validations"
        try:
            self._service.write("POST", place, Document(document=document))
        except RefusedError as error:
            if error.status != INVALID:
                raise
            known = _without_tokens(document)
            if known == document:
                raise
            self._service.write("POST", place, Document(document=known))

    def validations(self, plan_id: int) -> list[str]:
        """Return every validation of a plan, oldest first."""
        return self._documents("validations", plan_id)

    def _observe(self, waiting: Waiting) -> None:
        place = f"/v1/plans/{waiting.plan_id:d}/observations"
        self._service.write("POST", place, Document(document=waiting.document), key=waiting.key, patience=BRISK)

    def _documents(self, what: str, plan_id: int) -> list[str]:
        found = self._service.all(Document, f"/v1/plans/{plan_id:d}/{what}")
        return [each.document for each in found]


def _without_tokens(document: str) -> str:
    """Return a validation without the tokens of a round in its rows; as it is where it has none, or is none."""
    try:
        told = json.loads(document)
        rows = [{name: row[name] for name in row if name not in TOKENS_OF_A_ROUND} for row in told["rows"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return document
    return document if rows == told["rows"] else json.dumps({**told, "rows": rows})
