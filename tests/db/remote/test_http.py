"""Requests over a bad network: each write is done once, each fault is told in one line, and no message has a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from spectune.db.remote.certificates import CA_VARIABLE
from spectune.db.remote.service import ServiceClient, require_spoken
from spectune.db.remote.transport import BRISK, PATIENT, Ask, AwayError, RefusedError, Transport
from spectune.db.url import TOKEN_VARIABLE, service_url
from spectune.db.wire import Document, ServiceInfo
from spectune.errors import StoreError

from ...support.faulty_service import TOKEN, Fault, FaultyService, served

OBSERVATIONS = "/v1/plans/1/observations"
GONE: list[Fault | None] = [None, *(503,) * 30]  # after the first piece
PASSING: list[Fault] = ["drop before", "drop after", "cut", 429, 502, 503, 504]


@pytest.fixture
def service() -> Iterator[FaultyService]:
    with served(FaultyService(plans={1: "{}"})) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


OPENED: list[Transport] = []


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def transport(url: str, waits: list[float] | None = None, timeout_s: float = 5.0) -> Transport:
    """Return one that notes how long it would have waited, and does not; it is closed after the test."""
    made = Transport(service_url(url), ([] if waits is None else waits).append, httpx.Timeout(timeout_s))
    OPENED.append(made)
    return made


def client(service: FaultyService, waits: list[float] | None = None, timeout_s: float = 5.0) -> ServiceClient:
    return ServiceClient(transport(service.url, waits, timeout_s))


def observe(service: ServiceClient) -> None:
    service.write("POST", OBSERVATIONS, Document(document="seen"))


@pytest.mark.parametrize("fault", PASSING)
def test_a_write_that_meets_a_fault_is_done_once(service: FaultyService, fault: Fault) -> None:
    service.faults["POST"].extend([fault, fault])
    observe(client(service))
    assert service.outcomes == ["seen"]
    assert len(service.told("POST", "observations")) == 3


def test_all_attempts_of_a_write_have_one_key_and_another_write_has_another(service: FaultyService) -> None:
    service.faults["POST"].append("drop after")
    observe(client(service))
    observe(client(service))
    first, again, other = [seen.headers["idempotency-key"] for seen in service.told("POST", "observations")]
    assert first == again != other


def test_a_slow_answer_is_not_waited_for(service: FaultyService) -> None:
    service.faults["POST"].append("slow")
    observe(client(service, timeout_s=0.2))
    service.enough.set()
    assert len(service.told("POST", "observations")) == 2


@pytest.mark.parametrize("fault", PASSING)
def test_a_read_that_meets_a_fault_is_repeated(service: FaultyService, fault: Fault) -> None:
    service.faults["GET"].append(fault)
    assert client(service).text("/v1/plans/1") == "{}"


def test_waits_grow_and_are_bounded() -> None:
    waits = [[PATIENT.wait_s(attempt) for _ in range(50)] for attempt in range(12)]
    assert all(0.125 <= wait <= 8.0 for drawn in waits for wait in drawn)
    assert max(waits[0]) < min(waits[3]) < max(waits[3]) < min(waits[11])
    assert len(set(waits[5])) > 1


def test_a_service_that_never_answers_is_away(service: FaultyService) -> None:
    waits: list[float] = []
    service.faults["GET"].extend([503] * 20)
    with pytest.raises(AwayError, match=r"^http://127.0.0.1:\d+ is not ready: not now$"):
        client(service, waits).text("/v1/plans/1")
    assert len(service.seen) == PATIENT.attempts == len(waits) + 1


@pytest.mark.parametrize("fault", [429, 503])
def test_retry_after_is_waited_for(service: FaultyService, fault: Fault) -> None:
    waits: list[float] = []
    service.faults["GET"].append(fault)
    service.retry_after = "17"
    client(service, waits).text("/v1/plans/1")
    assert waits == [17.0]


def test_a_retry_after_of_an_hour_is_not_waited_for(service: FaultyService) -> None:
    waits: list[float] = []
    service.faults["GET"].append(429)
    service.retry_after = "3600"
    with pytest.raises(AwayError, match="takes no more requests of this token for now"):
        client(service, waits).text("/v1/plans/1")
    assert waits == []


def test_a_refusal_is_not_repeated_and_tells_the_service_s_words(service: FaultyService) -> None:
    with pytest.raises(RefusedError, match=r"^there is no /plans/9/observations$") as refused:
        client(service).write("POST", "/v1/plans/9/observations", Document(document="seen"))
    assert refused.value.status == 404
    assert len(service.seen) == 1


def test_a_service_that_cannot_be_reached_is_named_with_the_reason() -> None:
    with served(FaultyService()) as gone:
        pass
    with pytest.raises(AwayError, match=r"http://127.0.0.1:\d+ cannot be reached: .*refused"):
        client(gone).fetch("/v1", patience=BRISK)


def test_the_token_is_sent_and_never_shown(service: FaultyService) -> None:
    opened = transport(service.url.replace("://", f"://:{TOKEN}@"))
    opened.send(Ask(method="GET", path="/v1"))
    assert service.seen[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in repr(opened.url) + str(opened.url) + opened.url.shown + repr(ServiceClient(opened).url)


def test_a_wrong_token_is_told_without_the_token(service: FaultyService) -> None:
    opened = transport(service.url.replace("://", "://:wrong@"))
    with pytest.raises(RefusedError, match=r"asks for a token.*was refused.*spectune token create") as refused:
        opened.send(Ask(method="GET", path="/v1"))
    assert "wrong" not in str(refused.value)


def test_large_bodies_are_packed(service: FaultyService) -> None:
    client(service).write("POST", OBSERVATIONS, Document(document="x" * 5000))
    assert service.seen[0].headers["content-encoding"] == "gzip"
    assert int(service.seen[0].headers["content-length"]) < 500
    assert service.outcomes == ["x" * 5000]


@pytest.mark.parametrize("faults", [[], ["drop after"], ["drop before", "drop after", None, "drop after", 503]])
def test_a_huge_body_arrives_in_pieces_once(service: FaultyService, faults: list[Fault | None]) -> None:
    service.faults["PATCH"].extend(faults)
    document = "0123456789abcdef" * 2**16 * 9  # 9 MiB
    client(service).write("POST", OBSERVATIONS, Document(document=document))
    assert service.outcomes == [document]
    assert len(service.told("PATCH", "upload")) >= 3


def test_a_huge_body_whose_last_answer_is_lost_is_kept_once(service: FaultyService) -> None:
    service.faults["POST"].extend([None, "drop after"])
    client(service).write("POST", OBSERVATIONS, Document(document="x" * 2**23))
    assert len(service.told("POST", "finish")) == 2
    assert service.outcomes == ["x" * 2**23]


def test_an_upload_that_breaks_off_is_dropped_there(service: FaultyService) -> None:
    service.faults["PATCH"].extend(GONE)
    with pytest.raises(AwayError):
        client(service).write("POST", OBSERVATIONS, Document(document="x" * 2**23))
    assert len(service.told("DELETE", "upload")) == 1


def test_an_upload_that_is_interrupted_is_dropped_there(service: FaultyService) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    service.faults["PATCH"].append(503)
    OPENED.append(Transport(service_url(service.url), interrupt))
    with pytest.raises(KeyboardInterrupt):
        ServiceClient(OPENED[-1]).write("POST", OBSERVATIONS, Document(document="x" * 2**23))
    assert len(service.told("DELETE", "upload")) == 1


def test_an_upload_that_is_all_there_is_left_to_a_service_that_is_slow_to_finish_it(service: FaultyService) -> None:
    service.faults["POST"].extend(GONE)
    with pytest.raises(AwayError):
        client(service).write("POST", OBSERVATIONS, Document(document="x" * 2**23))
    assert len(service.told("POST", "finish")) == PATIENT.attempts
    assert not service.told("DELETE", "upload")


def test_an_upload_that_is_refused_at_its_end_is_dropped_there(service: FaultyService) -> None:
    service.faults["POST"].extend([None, 403])
    with pytest.raises(RefusedError):
        client(service).write("POST", OBSERVATIONS, Document(document="x" * 2**23))
    assert len(service.told("DELETE", "upload")) == 1


def test_another_answer_than_expected_is_told(service: FaultyService) -> None:
    with pytest.raises(StoreError, match=r"answered what this spectune \(.*\) does not understand: .*ServiceInfo"):
        client(service).get(ServiceInfo, "/v1/plans/1")


@pytest.mark.parametrize(("api", "advice"), [(0, "update the service"), (2, "update this client")])
def test_a_service_of_another_language_is_refused(api: int, advice: str) -> None:
    with pytest.raises(StoreError, match=rf"speaks version {api} .*{advice}"):
        require_spoken(ServiceInfo(spectune="9", schema="1", api=api), "https://host")


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_without_certificates_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv(CA_VARIABLE, str(file))
    with pytest.raises(StoreError, match=r"SPECTUNE_CA_FILE names .*ca.pem, which holds no certificates"):
        Transport(service_url("https://localhost"))


def test_a_plain_server_under_an_https_url_is_told(service: FaultyService) -> None:
    opened = transport(service.url.replace("http:", "https:"))
    with pytest.raises(StoreError, match="cannot be trusted: no TLS with it"):
        opened.send(Ask(method="GET", path="/v1"))


class TestUrls:
    def test_secrets_and_slashes_are_left_out(self) -> None:
        assert service_url("HTTPS://:secret@Plans.Example:8443/team/").shown == "https://plans.example:8443/team"

    def test_a_token_in_the_url_goes_before_the_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(TOKEN_VARIABLE, "of the variable".replace(" ", "_"))
        assert service_url("https://:of-the-url@host").token == "of-the-url"
        assert service_url("https://host").token == "of_the_variable"

    def test_a_token_does_not_travel_in_clear(self) -> None:
        with pytest.raises(StoreError, match=r"token would travel to http://plans.example .*use https") as refused:
            service_url("http://:secret@plans.example")
        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1:9", "[::1]:8080"])
    def test_this_machine_may_see_it(self, host: str) -> None:
        assert service_url(f"http://:secret@{host}").token == "secret"

    @pytest.mark.parametrize("place", ["https://", "https://:secret@", "https://:secret@host:port", "http://[::1"])
    def test_what_is_no_url_is_refused_without_its_secrets(self, place: str) -> None:
        with pytest.raises(StoreError, match="cannot read the URL of the service") as refused:
            service_url(place)
        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize("place", ["https://secret@host", "https://host?token=secret", "https://host/#secret"])
    def test_a_secret_in_another_place_is_refused(self, place: str) -> None:
        with pytest.raises(StoreError, match="parts that mean nothing here") as refused:
            service_url(place)
        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize("token", ["two%20words", "line%0Abreak", "%C3%BC"])
    def test_what_cannot_be_a_token_is_refused(self, token: str) -> None:
        with pytest.raises(StoreError, match="characters no token has"):
            service_url(f"https://:{token}@host")

    def test_files_are_filed_by_url_whatever_the_token(self) -> None:
        assert service_url("https://:a@host").folder_name == service_url("https://:b@host/").folder_name
        assert service_url("https://host").folder_name != service_url("https://host:1").folder_name
