"""A server's life: it is up or says why not, it is never left behind, and what ends it is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from spectune.engines import process
from spectune.engines.load import Address
from spectune.engines.process import TAIL_BYTES, ServerProcess
from spectune.engines.server import ServerTimeouts, started
from spectune.engines.table import SERVERS
from spectune.errors import MeasurementError, NoRoomError

from ..support.llama_program import use_fake

ADVICE = "do something else"
KEY = "sesame-123"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    return [str(tmp_path / "llama-server"), "--model", str(model), "--parallel", "1", "--ctx-size", "64"]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> None:
    end = time.monotonic() + 30.0
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(pid)


@pytest.mark.parametrize("mode", ["", "stays"])
def test_a_server_answers_until_it_is_closed(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    use_fake(monkeypatch, tmp_path, mode=mode)
    monkeypatch.setattr(process, "STOP_S", 0.2)  # one that does not end is killed
    server = ServerProcess("fake", command, advice=ADVICE)
    assert Address(url=server.url).post("/tokenize", {"content": "a"}) == {"tokens": [0]}
    assert is_alive(server.pid)
    server.close()
    assert not is_alive(server.pid)


def test_a_server_that_ends_at_once_is_quoted(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch, tmp_path, mode="ends")
    with pytest.raises(
        MeasurementError, match=rf"(?s)it ended with status 1; {ADVICE}\nits last lines:.*a certain reason"
    ):
        ServerProcess("fake", command, advice=ADVICE)


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("(EngineCore pid=7) ERROR ValueError: the head has 24 numbers", MeasurementError),
        ("(EngineCore pid=7) ERROR ValueError: No available memory for the cache blocks.", NoRoomError),
    ],
)
def test_the_first_error_is_quoted_however_far_it_is_before_the_last_lines(
    cause: str, kind: type[MeasurementError]
) -> None:
    """Each process of vLLM adds a traceback of their own behind the cause."""
    script = (
        f'echo "{cause}"; for at in $(seq 50); do echo "  File line $at"; done; echo "RuntimeError: it failed"; exit 1'
    )
    with pytest.raises(MeasurementError) as raised:
        ServerProcess("fake", ["sh", "-c", script], advice=ADVICE)
    said = str(raised.value)
    assert type(raised.value) is kind
    assert f"\nits first error:\n  {cause[cause.index('Value') :]}\nits last lines:\n" in said
    assert said.endswith("RuntimeError: it failed") and "line 39" not in said


def test_a_server_that_is_not_up_in_time_is_ended(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch, tmp_path, mode="hangs")
    with pytest.raises(MeasurementError, match=rf"not up after 0\.5 s; {ADVICE}"):
        ServerProcess("fake", command, advice=ADVICE, start_s=0.5)


def test_a_server_that_the_system_kills_is_named_with_what_to_do(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch, tmp_path, mode="is killed")
    server = ServerProcess("fake", command, advice=ADVICE)
    with pytest.raises(MeasurementError, match="/completion does not answer"):
        Address(url=server.url).post("/completion", {"prompt": [1], "n_predict": 1})
    with pytest.raises(MeasurementError, match="killed by the system, most likely for want of memory: free some"):
        server.require_alive()
    server.close()


def test_what_a_server_started_ends_with_it_even_where_it_was_killed_before(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch, tmp_path)
    file = tmp_path / "child"
    begun = ["sh", "-c", f'sleep 600 & echo $! > {file}; exec "$0" "$@"', *command]
    server = ServerProcess("fake", begun, advice=ADVICE)
    child = int(file.read_text())
    os.kill(server.pid, signal.SIGKILL)
    wait_for_end(server.pid)
    assert is_alive(child)
    server.close()
    wait_for_end(child)


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=rf"none: No such file or directory; {ADVICE}"):
        ServerProcess("fake", [str(tmp_path / "none")], advice=ADVICE)


def ended(script: str, secrets: Sequence[str]) -> str:
    """Return the error of a server that ends at once."""
    with pytest.raises(MeasurementError) as raised:
        ServerProcess("fake", [sys.executable, "-c", script, *secrets], advice=ADVICE, secrets=secrets)
    return str(raised.value)


def test_the_last_lines_of_a_log_hide_keys() -> None:
    said = ended("import sys; sys.exit(f'a certain reason: {sys.argv[1]}')", [KEY])
    assert "a certain reason: ..." in said
    assert KEY not in said


@pytest.mark.parametrize("cut", range(0, len("sesame-123") + 1, 2))
def test_a_key_that_the_cut_of_a_long_log_divides_is_not_shown_in_part(cut: int) -> None:
    """Of so many bytes of the key the last ones are within what is read."""
    script = f"import sys; sys.exit('{KEY}' + 'x' * ({TAIL_BYTES} - {cut} - 8) + chr(10) + 'reason' + chr(10))"
    said = ended(script, [KEY])
    assert "reason" in said
    assert KEY[-2:] not in said.partition("its last lines")[2]


def test_keys_of_the_environment_and_of_the_command_are_hidden_where_a_server_logs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_inherited")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    script = "import os, sys; sys.exit(f'false start: {os.environ[\"HF_TOKEN\"]} {sys.argv[1:]}')"
    command = [sys.executable, "-c", script, "--api-key", KEY, "--port", "1"]
    with (
        pytest.raises(MeasurementError) as raised,
        started(SERVERS["vllm"], command, ServerTimeouts(), key="of-the-api"),
    ):
        pass
    assert "false start: ... ['--api-key', '...'" in str(raised.value)


PARENT = """
import sys
from spectune.engines.process import ServerProcess
server = ServerProcess("fake", sys.argv[1:], advice="")
print(server.pid, flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None])
def test_no_server_outlives_its_parent(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals | None
) -> None:
    use_fake(monkeypatch, tmp_path, mode="stays" if how == signal.SIGKILL else "")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    assert is_alive(server)
    if how is not None:
        os.kill(parent.pid, how)
    parent.communicate("\n")
    wait_for_end(server)
