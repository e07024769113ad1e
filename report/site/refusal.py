"""Pages that say why there is nothing to show, and the page that asks for a token."""

from __future__ import annotations

from .links import HOME, Links
from .markup import joined, tag
from .page import SitePage, head, link, note

SIGN_IN = "sign-in"


def refusal_page(links: Links, title: str, why: str) -> SitePage:
    """Return a page that says what is wrong."""
    return SitePage(
        name="refused", title=title, body=joined(head(None, title, why), note(link(links, HOME, "Overview")))
    )


def sign_in_page(where: str, fault: str = "") -> SitePage:
    """Return the page that asks for a token, then goes to the path `where`; `fault` says what was wrong before."""
    form = tag(
        "form",
        tag("input", type="text", autocomplete="username", value="spectune", hidden=True),  # for password managers
        tag("label", "Token", for_="token"),
        tag("input", type="password", name="token", id="token", required=True, autocomplete="current-password"),
        tag("input", type="hidden", name="next", value=where),
        tag("p", fault, class_="warning", role="alert") if fault else None,
        tag("button", "Sign in", type="submit"),
        method="post",
        action="/sign-in",
        class_="sign-in",
    )
    lede = joined(
        "This service shows its pages to who has a token of scope read; ",
        tag("code", "spectune token create"),
        " makes one.",
    )
    said = note(
        "The token is kept in a cookie that scripts cannot read, for twelve hours, and only lets pages be read."
    )
    return SitePage(name=SIGN_IN, title="Sign in", body=joined(head(None, "Sign in", lede), form, said))
