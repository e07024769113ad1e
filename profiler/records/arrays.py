"""Arrays inside records: read-only, and on the wire with their dtype."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

    ArrayText = dict[str, Any]  # JSON values: {"dtype": str, "shape": [int], "data": str}


class OnWire:
    """Marks an array field: on the wire it is its dtype, its shape and its zlib-compressed bytes in base64."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            self.decode, serialization=core_schema.plain_serializer_function_ser_schema(self.encode)
        )

    def encode(self, array: NDArray[Any]) -> ArrayText:
        """Return the JSON form of an array, bit for bit."""
        packed = zlib.compress(np.ascontiguousarray(array, dtype=self.dtype).tobytes())
        return {"dtype": self.dtype.name, "shape": list(array.shape), "data": base64.b64encode(packed).decode()}

    def decode(self, text: object) -> NDArray[Any]:
        """Return the array of a JSON form; ValueError for another form, dtype or size of the data."""
        if not isinstance(text, dict) or set(text) != {"dtype", "shape", "data"} or text["dtype"] != self.dtype.name:
            raise ValueError(f'need an array as {{"dtype": "{self.dtype.name}", "shape": [...], "data": "..."}}')
        try:
            raw = zlib.decompress(base64.b64decode(text["data"], validate=True))
            array = np.frombuffer(raw, dtype=self.dtype).reshape(text["shape"])
        except (binascii.Error, zlib.error, TypeError, ValueError) as error:
            raise ValueError(f"array data cannot be read: {error}") from error
        return array.astype(self.dtype.newbyteorder("="))


Bytes = Annotated[NDArray[np.uint8], OnWire(np.uint8)]
Shorts = Annotated[NDArray[np.int16], OnWire(np.int16)]
Ints32 = Annotated[NDArray[np.int32], OnWire(np.int32)]
Floats32 = Annotated[NDArray[np.float32], OnWire(np.float32)]


def frozen_copy(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous copy that cannot be written to."""
    copy = np.array(array, order="C")
    copy.setflags(write=False)
    return copy
