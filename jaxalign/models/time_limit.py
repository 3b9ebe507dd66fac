"""A bound on the time of Python code that others wrote, such as the chat template of a model folder."""

import contextlib
import ctypes
import threading
from collections.abc import Iterator


class _OutOfTime(BaseException):
    """Raised inside the block; no ordinary handler of an exception catches it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends the block when its time is over, in any thread; a signal would serve the main thread alone.

    The interpreter raises between two instructions: one call into C that takes long is ended when it returns.

    Raises:
      TimeoutError: the block took more than `seconds` seconds of wall time.
    """
    thread, lock, over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def stop() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_OutOfTime))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                over = True
                # Withdrawn, where it was asked for and has not come yet: it must not hit what comes after the block.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
    except _OutOfTime:
        raise TimeoutError(f"it took more than {seconds:g} seconds") from None
