import threading

import pytest

from jaxalign.models.time_limit import call_within


def forever():
    while True:
        pass


def test_an_endless_function_is_ended_in_any_thread():
    caught = []

    def run():
        try:
            call_within(0.1, forever)
        except TimeoutError as error:
            caught.append(str(error))

    run()
    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert caught == ["it took more than 0.1 seconds"] * 2


@pytest.mark.parametrize("work", [0, 100, 2000, 20_000])
def test_what_ends_in_time_is_left_alone_and_nothing_comes_after_it(work):
    """The end of the function and the end of its time meet in every order."""
    before = threading.active_count()
    ended = 0
    for _ in range(200):
        try:
            assert call_within(1e-4, lambda: sum(range(work))) == sum(range(work))
        except TimeoutError:
            ended += 1
        sum(range(2000))  # where a late one would come
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    assert threading.active_count() == before
    assert 0 <= ended <= 200


def test_errors_of_the_function_are_its_own():
    with pytest.raises(ZeroDivisionError):
        call_within(60, lambda: 1 // 0)
