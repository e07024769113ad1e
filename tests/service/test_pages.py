"""Pages at a service: whole, guarded by a token in a cookie that counts nowhere else, under a strict policy."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from spectune.db.jobs.access import Tokens
from spectune.service.app import create_app
from spectune.service.callers import COOKIE, is_page
from spectune.service.settings import ServiceSettings

from ..support.drawn_pages import parsed
from ..support.site_store import NASTY, filled_store

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def open_site() -> Iterator[TestClient]:
    """A service that needs no token."""
    with filled_store() as store, TestClient(create_app(store, ServiceSettings(auth="off", workers=0))) as client:
        yield client


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[TestClient, str]]:
    """A service that needs one, and a token that may read."""
    with filled_store() as store:
        token = Tokens(store).create("reader", "read")
        app = create_app(store, ServiceSettings(auth="required", workers=0))
        with TestClient(app, headers=BROWSER, follow_redirects=False) as client:
            yield client, token


@pytest.fixture
def stranger(guarded: tuple[TestClient, str]) -> TestClient:
    """A browser without a token."""
    guarded[0].cookies.clear()
    return guarded[0]


def test_every_link_from_the_first_page_on_leads_to_a_whole_page(open_site: TestClient) -> None:
    waiting, seen = ["/"], set()
    while waiting:
        place = waiting.pop()
        answer = open_site.get(place)
        page = parsed(answer.text)
        seen.add(place)
        assert (answer.status_code, page.is_whole, len(page.all("script"))) == (200, True, 2), place
        links = [link for link in page.all("a") if "download" not in link.attributes]
        places = {link.attributes["href"].partition("#")[0] for link in links} - {""}
        waiting += sorted(places - seen - set(waiting))
    kinds = {re.sub(r"[0-9a-f]{16}|\d+", "*", place) for place in seen}
    assert kinds == {
        "/", "/plans", "/plans/*", "/plans/*/diff/*", "/drift", "/jobs", "/devices/*", "/surfaces/*", "/traces/*",
    }  # fmt: skip


@pytest.mark.parametrize(
    "place",
    [
        "/plans/99", "/plans/0", "/plans/x", "/plans/99999999999999999999", "/plans/1/diff/99", "/traces/7",
        "/devices/nobody", "/surfaces/nothing", "/plans/%3Cscript%3E", "/traces/1'--",
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_page_that_says_so(open_site: TestClient, place: str) -> None:
    answer = open_site.get(place)
    page = parsed(answer.text)
    assert answer.status_code == 404
    assert page.is_whole
    assert len(page.all("script")) == 2


def test_only_the_page_s_own_style_and_scripts_may_run(open_site: TestClient) -> None:
    answer = open_site.get("/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    page = parsed(answer.text)
    nonces = {each.attributes["nonce"] for each in (*page.all("script"), *page.all("style"))}
    assert policy["default-src"] == "'none'"
    assert {policy["script-src"], policy["style-src"]} == {f"'nonce-{nonces.pop()}'"}
    assert not nonces
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"


def test_every_answer_has_a_nonce_of_its_own(open_site: TestClient) -> None:
    first, second = (open_site.get("/drift").headers["content-security-policy"] for _ in range(2))
    assert first != second


def test_a_browser_without_a_token_is_asked_for_one_and_comes_back(stranger: TestClient) -> None:
    answer = stranger.get("/plans/1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/plans/1")
    form = parsed(stranger.get(answer.headers["location"]).text)
    assert {
        each.attributes["name"]: each.attributes.get("value") for each in form.all("input") if "name" in each.attributes
    } == {
        "token": None,
        "next": "/plans/1",
    }


def test_a_stranger_is_told_nothing_of_the_store(stranger: TestClient) -> None:
    page = parsed(stranger.get("/sign-in").text)
    assert page.all("div", "foot")[0].text == ""
    assert [link.attributes["href"] for link in page.all("a")] == ["#content", "/"]


def test_a_token_that_may_read_opens_the_pages(guarded: tuple[TestClient, str], stranger: TestClient) -> None:
    answer = stranger.post("/sign-in", data={"token": guarded[1], "next": "/plans/1"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/plans/1")
    manners = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= manners
    page = stranger.get("/plans/1")
    assert page.status_code == 200
    assert [form.attributes["action"] for form in parsed(page.text).all("form") if "action" in form.attributes] == [
        "/sign-out"
    ]


def test_the_cookie_is_secure_where_the_service_is(guarded: tuple[TestClient, str], stranger: TestClient) -> None:
    answer = stranger.post("https://testserver/sign-in", data={"token": guarded[1]})
    assert "Secure" in answer.headers["set-cookie"]


def test_the_cookie_opens_nothing_but_pages(guarded: tuple[TestClient, str], stranger: TestClient) -> None:
    stranger.cookies.set(COOKIE, guarded[1])
    assert stranger.get("/").status_code == 200
    assert {stranger.get(place).status_code for place in ("/v1", "/v1/plans", "/metrics", "/openapi.json")} == {401}
    assert stranger.post("/v1/plans", content=b"{}").status_code == 401
    assert stranger.post("/plans/1").headers["location"] == "/sign-in?next=/plans/1"


@pytest.mark.parametrize("token", ["", "wrong", "spt_" + "0" * 40, "a" * 3000, "x; HttpOnly", "\N{SNOWMAN}"])
def test_a_wrong_token_is_refused_and_not_kept(stranger: TestClient, token: str) -> None:
    answer = stranger.post("/sign-in", data={"token": token, "next": "/"})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert not token or token not in answer.text


@pytest.mark.parametrize(
    "place",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/%0d%0aX: y\r\nZ", NASTY],
)
def test_nobody_is_sent_to_another_site_after_signing_in(
    guarded: tuple[TestClient, str], stranger: TestClient, place: str
) -> None:
    answer = stranger.post("/sign-in", data={"token": guarded[1], "next": place})
    assert answer.headers["location"] == "/"
    (hidden,) = [
        e
        for e in parsed(stranger.get("/sign-in", params={"next": place}).text).all("input")
        if e.attributes["type"] == "hidden"
    ]
    assert hidden.attributes["value"] == "/"


def test_a_form_of_another_site_neither_signs_in_nor_out(guarded: tuple[TestClient, str], stranger: TestClient) -> None:
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert stranger.post("/sign-in", data={"token": guarded[1]}, headers=foreign).status_code == 403
    assert stranger.post("/sign-out", headers=foreign).status_code == 403


def test_a_huge_form_is_refused(stranger: TestClient) -> None:
    assert stranger.post("/sign-in", content=b"token=" + b"a" * 10_000).status_code == 413


def test_fields_that_the_form_does_not_have_are_passed_over(
    stranger: TestClient, guarded: tuple[TestClient, str]
) -> None:
    more = {f"field{number}": "x" for number in range(9)}
    assert stranger.post("/sign-in", data={"token": "unknown", **more}).status_code == 401
    assert stranger.post("/sign-in", data={"token": guarded[1], **more}).status_code == 303


def test_signing_out_forgets_the_token(guarded: tuple[TestClient, str], stranger: TestClient) -> None:
    stranger.post("/sign-in", data={"token": guarded[1]})
    answer = stranger.post("/sign-out")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert stranger.get("/").status_code == 303


def test_a_revoked_token_opens_no_page() -> None:
    with filled_store() as store:
        tokens = Tokens(store)
        token = tokens.create("reader", "read")
        app = create_app(store, ServiceSettings(auth="required", workers=0, fresh_s=1e-6))
        with TestClient(app, headers=BROWSER, follow_redirects=False) as client:
            client.cookies.set(COOKIE, token)
            assert client.get("/").status_code == 200
            tokens.revoke("reader")
            assert client.get("/").status_code == 303


@pytest.mark.parametrize("path", ["/", "/plans", "/plans/1", "/plans/1/diff/2", "/drift", "/jobs", "/devices/a"])
def test_pages_are_where_the_cookie_counts(path: str) -> None:
    assert is_page(path)


@pytest.mark.parametrize("path", ["/v1", "/v1/plans", "/metrics", "/openapi.json", "/plans1", "/healthz", "//v1/plans"])
def test_nothing_else_is_a_page(path: str) -> None:
    assert not is_page(path)
