"""Parameters that several operations share, bounded."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Query

from .paging import MOST_ID
from .writes import KEY

Number = Annotated[int, Path(ge=1, le=MOST_ID)]
KeyPath = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")]
Key = Annotated[str, Query(min_length=1, max_length=80)]
Name = Annotated[str, Query(min_length=1, max_length=120)]
PartName = Annotated[str, Path(min_length=1, max_length=120)]
Hash = Annotated[str | None, Query(max_length=80, description="A fingerprint or key.")]
LONGEST_WORD = 120
Word = Annotated[str | None, Query(max_length=LONGEST_WORD)]
Temperature = Annotated[float, Query(ge=0, le=1000, allow_inf_nan=False)]
OptionalTemperature = Annotated[float | None, Query(ge=0, le=1000, allow_inf_nan=False)]
Once = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=f"^{KEY.pattern}$",
        description="Your name for this write: sent again, it is answered as the first time and written once.",
    ),
]
KnownTag = Annotated[str | None, Header(alias="If-None-Match")]
