"""How a service asks the C library for memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from spectune.service import heap

MAPPINGS = """
import ctypes
from spectune.service.heap import bound_heaps
print(bound_heaps())
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
before = library.mallinfo2().hblks
kept = [library.malloc(40 * 1024) for _ in range(50)]
print(library.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told so")
@pytest.mark.parametrize(("word", "is_bounded"), [(None, True), ("MALLOC_ARENA_MAX", False)])
def test_pieces_are_mapped_by_themselves_unless_the_environment_decides(
    word: str | None, is_bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in heap.OWN_WORDS:
        monkeypatch.delenv(one, raising=False)
    if word is not None:
        monkeypatch.setenv(word, "2")
    done = subprocess.run([sys.executable, "-c", MAPPINGS], capture_output=True, text=True, check=True)
    told, mapped = done.stdout.split()
    assert told == str(is_bounded)
    assert (int(mapped) >= 40) == is_bounded  # a few fit into what is free already


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in heap.OWN_WORDS:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert heap.bound_heaps() is False
