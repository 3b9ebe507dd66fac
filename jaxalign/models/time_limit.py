"""A bound on the time of Python code that others wrote, such as the chat template of a model folder."""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


class _OutOfTime(BaseException):
    """Raised inside the function; no ordinary handler of an exception catches it."""


def call_within(seconds: float, function: Callable[[], Value]) -> Value:
    """What `function` returns; it is ended when its time is over, in any thread (a signal would serve the main one).

    The interpreter raises between two instructions: one call into C that takes long is ended when it returns.

    Raises:
      TimeoutError: it took more than `seconds` seconds of wall time.
    """
    thread, lock, over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def stop() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_OutOfTime))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    # Not a context manager: the exception may come anywhere, also between its block and the code that leaves it.
    try:
        try:
            timer.start()
            return function()
        finally:
            timer.cancel()
            with lock:
                over = True
                # Withdrawn, where it was asked for and has not come yet: it must not hit what comes later.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
    except _OutOfTime:
        raise TimeoutError(f"it took more than {seconds:g} seconds") from None
