"""SIGTERM, as schedulers and preempted machines send it: finish the shard at hand, or give it up, and say so.

The signal is noticed by a thread of its own: Python runs signal handlers only between steps of the main thread, which
may sit in a compilation or wait for a device for longer than the notice that a preempted machine gets.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from jaxalign.errors import JaxalignError

STATUS = 128 + signal.SIGTERM


class Preempted(JaxalignError):
    """The run was asked to stop, and has: everything that it finished is on disk."""

    exit_status = STATUS


class Notice:
    """What is known of a request to stop.

    Attributes:
      at_hand: what is being worked on, for the message when it is given up.
    """

    def __init__(self) -> None:
        self.at_hand = "the work at hand"
        self._asked = threading.Event()
        self._left = threading.Event()

    @property
    def asked(self) -> bool:
        """Whether SIGTERM has come."""
        return self._asked.is_set()

    def _watch(self, pipe: int, grace: float) -> None:
        while received := os.read(pipe, 1):
            if received[0] == signal.SIGTERM and not self.asked:
                self._asked.set()
                _say(f"SIGTERM: stopping after {self.at_hand}, or in {grace:g} s without it")
                threading.Thread(target=self._give_up, args=(grace,), daemon=True).start()

    def _give_up(self, grace: float) -> None:
        if not self._left.wait(grace):
            _say(
                f"SIGTERM: {self.at_hand} is given up after {grace:g} s; what was finished is on disk, and the same "
                "command continues from there"
            )
            # The main thread cannot be interrupted inside a device computation. Nothing is half-written: files are
            # put in place whole.
            os._exit(STATUS)


def _say(text: str) -> None:
    sys.stderr.write(f"jaxalign: {text}\n")
    sys.stderr.flush()


_current: Notice | None = None


@contextlib.contextmanager
def stop_on_sigterm(grace: float = 20.0) -> Iterator[Notice]:
    """Takes SIGTERM over while the block runs; inside another such block it gives that one's notice.

    Args:
      grace: seconds between the signal and giving up the work at hand (preempted TPU machines get 30).
    """
    global _current
    if _current is not None:
        yield _current
        return
    notice = Notice()
    if threading.current_thread() is not threading.main_thread():
        yield notice  # only the main thread may take signals over
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    watcher = threading.Thread(target=notice._watch, args=(read, grace), daemon=True)
    watcher.start()
    old_pipe = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    old_handler = signal.signal(signal.SIGTERM, lambda *_: None)
    _current = notice
    try:
        yield notice
    finally:
        _current = None
        notice._left.set()
        signal.signal(signal.SIGTERM, old_handler or signal.SIG_DFL)
        signal.set_wakeup_fd(old_pipe)
        os.close(write)
        watcher.join()
        os.close(read)
