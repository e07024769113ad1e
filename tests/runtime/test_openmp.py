"""Workers of OpenMP are let go where another thread may decode, and loops have them again."""

from __future__ import annotations

import sys

import pytest

from ..support.fresh_process import exit_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted by /proc")

BEGIN = """
import os, threading, time
import numpy as np
import torch
from spectune.runtime import openmp

torch.set_num_threads(2)
numbers = torch.ones(2**22)

def workers():
    return len(os.listdir("/proc/self/task"))

def share():
    return float(torch.exp(numbers).sum())

told = share()
openmp.let_workers_go()
alone = workers()
assert share() == told
assert workers() == alone + 1, "torch shares among threads of OpenMP"
"""
LET_GO = """
for _ in range(3):
    openmp.let_workers_go()
    assert workers() == alone
    assert share() == told and workers() == alone + 1
"""
BESIDE = """
openmp.let_workers_go_beside_others()
assert workers() == alone + 1, "nobody else is here"
ready, end = threading.Event(), threading.Event()

def other():
    share()
    ready.set()
    end.wait()

thread = threading.Thread(target=other)
thread.start()
ready.wait()
assert workers() == alone + 3
openmp.let_workers_go_beside_others()
assert workers() == alone + 2, "another thread keeps its own"
end.set()
"""
FORKED = """
child = os.fork()
if not child:
    openmp.let_workers_go()
    os._exit(0)
for _ in range(1000):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.01)
else:
    os.kill(child, 9)
assert done and status == 0, "a child waits for its parent's workers"
"""
UNTOLD = """
openmp.MAPPED = openmp.Path("/nothing/here")
openmp._pauses.cache_clear()
openmp.let_workers_go()
assert workers() == alone + 1
"""
LOADED = """
from spectune import load
from spectune.demo.story import family_folder

model = load(family_folder() / "target", plan="none", store="none.db")
assert workers() == alone
share()
assert workers() == alone + 1
model.session(slots=1, warm=True)
assert workers() == alone
"""


@pytest.mark.parametrize(
    "code",
    [LET_GO, BESIDE, FORKED, UNTOLD, LOADED],
    ids=["let go", "beside others", "forked", "untold", "loaded"],
)
def test_workers_are_let_go_and_come_back(code: str) -> None:
    assert exit_of(BEGIN + code) == 0
