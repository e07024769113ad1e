"""Triton's kernels called on the GPU or, without one, in Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, so the interpreter has a process of its own: this file, run.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from traceback import format_exception
from typing import Any

import torch
from torch import Tensor

from spectune.runtime.models.kernels.jitted import has_triton

HAS_GPU = torch.cuda.is_available()


def launch(function: Callable[..., Tensor | None], *tensors: Tensor | None, **options: Any) -> list[Tensor | None]:
    """Return a function's result and its tensors as it left them, on the CPU; strides arrive as they are given.

    The function is found by its name in the process that runs it. What is raised there is an error here.
    """
    with BytesIO() as message:
        torch.save((function, tensors, options), message)
        reply = answer(message.getvalue(), "cuda") if HAS_GPU else interpreter()(message.getvalue())
    answered: list[Tensor | None] = torch.load(BytesIO(reply), weights_only=False)
    return answered


@cache
def interpreter() -> Callable[[bytes], bytes]:
    """Return what sends a message to the interpreter, which is started once and ends with this process."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    talk_in, talk_out = process.stdin, process.stdout
    assert talk_in is not None and talk_out is not None

    def ask(message: bytes) -> bytes:
        pickle.dump(message, talk_in)
        talk_in.flush()
        reply = pickle.load(talk_out)
        if isinstance(reply, Exception):
            raise reply
        return bytes(reply)

    atexit.register(process.kill)
    return ask


def answer(message: bytes, device: str) -> bytes:
    """Return the result of the call in a message, and its tensors afterwards."""
    function, tensors, options = torch.load(BytesIO(message), map_location=device, weights_only=False)
    after = [function(*tensors, **options), *tensors]
    with BytesIO() as reply:
        torch.save([None if tensor is None else tensor.cpu() for tensor in after], reply)
        return reply.getvalue()


def patch_once_a_launch() -> None:
    """Let Triton replace the words of its language once for all functions of a launch: half of its time is for that.

    It replaces them before a launch, for its end to put them back, and then before every function that a kernel calls,
    though they stand replaced already. A Triton that does so in another way is left as it is.
    """
    if not has_triton():
        return
    from triton import language
    from triton.runtime import interpreter

    if not all(hasattr(interpreter, name) for name in ("_patch_lang", "_LangPatchScope")):
        return
    patch, replaced = interpreter._patch_lang, set[str]()

    def patched(function: Any) -> Any:  # Any: as Triton has no types
        words = {one.__name__ for one in function.__globals__.values() if one is language or one is language.core}
        if words <= replaced:
            return interpreter._LangPatchScope()
        scope = patch(function)
        replaced.update(words)
        put_back = scope.restore

        def restore() -> None:
            replaced.clear()
            put_back()

        scope.restore = restore
        return scope

    interpreter._patch_lang = patched


def serve() -> None:
    """Answer messages from standard input until it ends."""
    replies, sys.stdout = sys.stdout.buffer, sys.stderr
    sys.path.append(str(Path(__file__).parents[2]))  # functions of tests are found by the names pytest gives them
    torch.set_num_threads(1)
    patch_once_a_launch()
    while True:
        try:
            message = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        reply: bytes | Exception
        try:
            reply = answer(message, "cpu")
        except Exception as error:  # whatever a kernel does wrong is the test's to tell
            reply = RuntimeError("".join(format_exception(error)))
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    serve()
