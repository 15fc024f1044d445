"""What blocks, in a thread of its own each: all that the front for asyncio asks, and what is
closed side by side."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeVar

from . import _process

T = TypeVar("T")


def start(thread: threading.Thread) -> None:
    """Starts it; RuntimeError where there can be none: Python before 3.12 would wait for one that
    begins while the interpreter ends, and it never does."""
    if _process.ending():
        raise RuntimeError(_process.ENDING)
    thread.start()


def held(lock: threading.RLock) -> bool:
    """Whether this thread has it. Who asks is a finalizer or a signal handler then, in the midst
    of a call that has it: what it would change there, or wait for, is for another thread."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def within_grpc() -> bool:
    """Whether this thread is in gRPC's client, which called us or which we called: a finalizer or
    a signal handler may come where it has locks that every other call needs. Not in its server,
    in whose threads applications run."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in ("grpc._channel", "grpc._common"):
            return True
        frame = frame.f_back
    return False


def later(call: Callable[[], object]) -> None:
    """Makes it in a thread of its own; returns at once."""
    start(threading.Thread(target=call, name="rdsd-later", daemon=True))


def in_thread(question: Callable[[], T]) -> asyncio.Future[T]:
    """Calls it in a thread that has begun when this returns; a cancelled answer stops nothing."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = question()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, error)

    start(threading.Thread(target=work, name="rdsd-ask", daemon=True))
    return answer


_MOST = 64  # threads for one close


def side_by_side(calls: Sequence[Callable[[], object]]) -> None:
    """Makes these calls, here and in up to 63 threads; returns when all are through.

    Each may wait for a daemon that hangs: together as many as there are threads wait no longer
    than one.
    """
    rest = deque(calls)

    def work() -> None:
        while True:
            try:
                call = rest.popleft()
            except IndexError:
                return
            call()

    threads = []
    for _ in range(min(len(calls), _MOST) - 1):
        thread = threading.Thread(target=work, name="rdsd-close", daemon=True)
        try:
            start(thread)
        except RuntimeError:  # the interpreter is ending, or has too many
            break
        threads.append(thread)
    work()
    for thread in threads:
        thread.join()
