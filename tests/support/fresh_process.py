"""Code that is run in a process of its own, where nobody has loaded or compiled a kernel yet.

Such a process is the fork of one that has imported the heavy libraries and nothing else: they take it five seconds.
"""

from __future__ import annotations

import atexit
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache

FORKING = """
import gc, os, pickle, sys, traceback
import torch
from transformers import LlamaConfig, LlamaForCausalLM

assert "numba" not in sys.modules and len(os.listdir("/proc/self/task")) == 1
replies, sys.stdout = sys.stdout.buffer, sys.stderr
gc.freeze()  # nobody touches, and so copies, what all of them share

def status_of(code):
    try:
        exec(compile(code, "code", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        return ended.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

while True:
    try:
        code = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    child = os.fork()
    if not child:
        os._exit(status_of(code))  # taking all modules apart takes a second
    pickle.dump(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), replies)
    replies.flush()
"""


def exit_of(code: str) -> int:
    """Return the exit status of Python code; an exception that it leaves is 1."""
    return _forking()(code)


@cache
def _forking() -> Callable[[str], int]:
    """Return what has code run; the process that forks for it is started once and ends with this one."""
    process = subprocess.Popen([sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    talk_in, talk_out = process.stdin, process.stdout
    assert talk_in is not None and talk_out is not None

    def ask(code: str) -> int:
        pickle.dump(code, talk_in)
        talk_in.flush()
        return int(pickle.load(talk_out))

    atexit.register(process.kill)
    return ask
