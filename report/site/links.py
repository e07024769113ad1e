"""Where the pages of a store lie: at addresses of a service, or as parts of one file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

HOME, PLANS, DRIFT, JOBS = "overview", "plans", "drift", "jobs"


class Links(Protocol):
    """Finds pages by their names; a name is made by one of the functions below."""

    def to(self, name: str) -> str | None:
        """Return where a page lies, None where it is not part of what is written."""
        ...

    def within(self, name: str, part: str) -> str | None:
        """Return where a part of a page lies."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLinks:
    """Every page has its address."""

    root: str = ""  # before every path, without a slash at its end

    def to(self, name: str) -> str | None:
        """Return the address of a page."""
        return f"{self.root}/{'' if name == HOME else quote(name)}"

    def within(self, name: str, part: str) -> str | None:
        """Return the address of a part of a page."""
        return f"{self.to(name)}#{anchor(name)}-{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLinks:
    """Pages are parts of one file; those that are not in it have no place."""

    names: Set[str]

    def to(self, name: str) -> str | None:
        """Return the anchor of a page, None where the file lacks it."""
        return f"#{anchor(name)}" if name in self.names else None

    def within(self, name: str, part: str) -> str | None:
        """Return the anchor of a part of a page, None where the file lacks the page."""
        return f"#{anchor(name)}-{part}" if name in self.names else None


def anchor(name: str) -> str:
    """Return the id of a page's element: its name with dashes."""
    return name.replace("/", "-")


def device_page(fingerprint: str) -> str:
    """Return the name of a device's page; its fingerprint may be any text of a store."""
    is_plain = fingerprint.isascii() and fingerprint.isalnum()
    return f"devices/{fingerprint if is_plain else digest(fingerprint)}"


def surface_page(slug: str) -> str:
    """Return the name of a surface's page."""
    return f"surfaces/{slug}"


def trace_page(number: int) -> str:
    """Return the name of a trace's page."""
    return f"traces/{number}"


def plan_page(number: int) -> str:
    """Return the name of a plan's page."""
    return f"plans/{number}"


def difference_page(older: int, newer: int) -> str:
    """Return the name of the page of two plans' differences."""
    return f"plans/{older}/diff/{newer}"


def digest(*parts: str) -> str:
    """Return 16 hex digits that name some texts, whatever is in them."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


NAMED = (anchor, device_page, surface_page, trace_page, plan_page, difference_page)  # for templates
