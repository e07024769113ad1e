"""The images of a running target: rows of its embedding table, after those of its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...errors import RequestError
from ...planner.records.image_ids import IMAGE_IDS
from ..batch.images import Image, ImageTokens
from ..batch.sequence import Request
from .vision import VisionEncoder

IMAGES = 64  # that a target has room for at once


class ImageCache:
    """Which images are in the table, and who holds them. Invariant: image n has the ids `tokens.ids(n)`."""

    def __init__(self, table: Tensor, eyes: VisionEncoder) -> None:
        """Take the rows (images * tokens of an image, hidden) to be written, and what sees."""
        self._table, self._eyes = table, eyes
        self._room = len(table) // eyes.tokens.size
        self._places: dict[str, int] = {}  # by digest; who was asked for least recently comes first
        self._holders: WeakKeyDictionary[object, Counter[int]] = WeakKeyDictionary()

    @property
    def tokens(self) -> ImageTokens:
        """How texts hold its images."""
        return self._eyes.tokens

    @property
    def eyes(self) -> VisionEncoder:
        """The vision part."""
        return self._eyes

    @property
    def room(self) -> int:
        """How many images fit at once."""
        return self._room

    def has_room(self, images: Iterable[Image]) -> bool:
        """Return whether these images can be shown now."""
        wanted = {image.digest for image in images}
        held = self._held | {place for digest, place in self._places.items() if digest in wanted}
        return len(wanted - self._places.keys()) <= self._room - len(held)

    def shown(self, request: Request, holder: object) -> Request:
        """Return a request with the gallery's ids for its images, which `holder` then holds until `release` or its end.

        RequestError: more images are held than fit.
        """
        if not request.images:
            return request
        places = self._placed(request.images)
        moved = [place * self.tokens.size for place in places]
        ids = tuple(self._moved(token, moved) for token in request.prompt)
        shown = replace(request, prompt=ids, images=())
        self._holders.setdefault(holder, Counter()).update(set(places))
        return shown

    def release(self, prompt: Iterable[int], holder: object) -> None:
        """Let go of one use of each image of a shown prompt."""
        own = self._holders.get(holder)
        if own is not None:
            own -= Counter({(token - IMAGE_IDS) // self.tokens.size for token in prompt if token >= IMAGE_IDS})

    @property
    def _held(self) -> set[int]:
        return {place for counts in self._holders.values() for place in counts}

    def _moved(self, token: int, moved: Sequence[int]) -> int:
        if token < IMAGE_IDS:
            return token
        image, part = divmod(token - IMAGE_IDS, self.tokens.size)
        return IMAGE_IDS + moved[image] + part

    def _placed(self, images: Sequence[Image]) -> list[int]:
        """Return the places of images, written where they were missing."""
        if not self.has_room(images):
            raise RequestError(
                f"{len(self._held)} images are in use and {len(set(images))} more are wanted, of {self._room} that the "
                "target keeps at once; use fewer slots, or fewer images in a prompt"
            )
        new = [image for image in dict.fromkeys(images) if image.digest not in self._places]
        for image in images:
            if image.digest in self._places:
                self._places[image.digest] = self._places.pop(image.digest)
        wanted = {self._places[image.digest] for image in images if image.digest in self._places}
        for image, place in zip(new, self._free(len(new), wanted), strict=True):
            self._write(image, place)
        return [self._places[image.digest] for image in images]

    def _free(self, count: int, wanted: set[int]) -> list[int]:
        """Return places for new images: the first empty ones, then the least recently used that no holder has."""
        empty = sorted(set(range(self._room)) - set(self._places.values()))
        taken = self._held | wanted
        idle = [place for place in self._places.values() if place not in taken]
        return [*empty, *idle][:count]

    def _write(self, image: Image, place: int) -> None:
        rows, size = self._eyes.rows([image])[0], self.tokens.size
        self._places = {digest: at for digest, at in self._places.items() if at != place}
        with torch.no_grad():
            self._table[place * size : (place + 1) * size] = rows.to(self._table)
        self._places[image.digest] = place


def table_rows(ids: Tensor, vocabulary: int) -> Tensor:
    """Return the table's rows for ids (any,) of tokens and of parts of images, which follow the vocabulary."""
    return torch.where(ids < IMAGE_IDS, ids, ids - (IMAGE_IDS - vocabulary))
