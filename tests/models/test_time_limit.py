import threading

import pytest

from jaxalign.models.time_limit import time_limit


def forever():
    while True:
        pass


def test_an_endless_block_is_ended_in_any_thread():
    caught = []

    def run():
        try:
            with time_limit(0.1):
                forever()
        except TimeoutError as error:
            caught.append(str(error))

    run()
    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert caught == ["it took more than 0.1 seconds"] * 2


def test_a_block_in_time_is_left_alone_and_nothing_comes_after_it():
    before = threading.active_count()
    for _ in range(200):
        # As long as the limit: the end of the block and the end of its time meet in every order.
        try:
            with time_limit(1e-4):
                sum(range(2000))
        except TimeoutError:
            continue
        sum(range(2000))
    with time_limit(60), pytest.raises(ZeroDivisionError):
        1 // 0  # noqa: B018
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    assert threading.active_count() == before
