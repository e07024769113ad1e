"""ETags as proxies leave them: one that packs answers marks them as weak, or puts how it packed behind the tag."""

from __future__ import annotations

import re

TAG = re.compile(r'(?:W/)?"([^"]*?)(?:--?[a-z]+)?"')  # W/"hash" of nginx, "hash-gzip" of Apache, "hash--gzip" of Jetty


def tag_of(etag: str) -> str:
    """Return the tag in an ETag, without what a proxy has added; "" where it is none."""
    found = TAG.fullmatch(etag.strip())
    return found[1] if found else ""


def is_known(asked: str | None, etag: str) -> bool:
    """Say whether the tags of an If-None-Match name an answer's, as weakly as RFC 9110 compares there."""
    return tag_of(etag) in [tag_of(each) for each in (asked or "").split(",")]
