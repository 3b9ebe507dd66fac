"""Each operation that writes fails once, or is the last of its process; the same command then gives the same."""

import contextlib

import pytest
from disk import ERRORS, Killed, faulty
from tiny_run import RESULTS, save_model, settings

from jaxalign import models
from jaxalign.evaluation.pipeline import run
from jaxalign.files import UNFINISHED

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return models.load(str(save_model(tmp_path_factory.mktemp("tiny") / "model")))


def small(place):
    return settings(place, methods=("bt",), weights=(1.0,), writing_users=1, in_context=("in_context_bm25_1",))


def results(experiment):
    return {name: (experiment.folder / name).read_bytes() for name in RESULTS}


@pytest.fixture(scope="module")
def undisturbed(lm, tmp_path_factory):
    """Results of a whole run, and how many operations wrote them."""
    place = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch, faulty([place]) as disk:
        patch.setenv("JAXALIGN_CACHE", str(place / "cache"))
        experiment = small(place / "run")
        disk.operations.clear()
        run(experiment, lm)
    return results(experiment), disk.operations


def attempt(experiment, lm, place, at, how):
    """Whether the operation `at` was reached, and failed the run in a way that says what happened and where."""
    told = None
    with faulty([place / "cache", experiment.folder], at, how) as disk, contextlib.suppress(Killed):
        try:
            run(experiment, lm)
        except OSError as error:
            told = error
    if disk.failed and how != "kill":
        assert told is not None, f"{disk.operations[at]} failed, and nobody was told"
        assert told.errno == ERRORS[how]
        assert told.filename
    return disk.failed


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "no space"])
def test_a_failure_further_on_each_time(how, undisturbed, lm, tmp_path, monkeypatch):
    """One folder, in which each attempt gets further than the last, until one succeeds."""
    monkeypatch.setenv("JAXALIGN_CACHE", str(tmp_path / "cache"))
    experiment = small(tmp_path / "run")
    attempts = 0
    while attempt(experiment, lm, tmp_path, 12 * attempts, how):
        attempts += 1
    assert attempts > 3
    assert results(experiment) == undisturbed[0]
    assert not list(experiment.folder.rglob(f".*{UNFINISHED}"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("how", ["kill", *ERRORS])
def test_each_operation_of_a_whole_run(how, undisturbed, lm, tmp_path, monkeypatch):
    """A fresh folder for each operation: it fails, and the run after it gives what an undisturbed one gives."""
    expected, operations = undisturbed
    for at in range(len(operations)):
        place = tmp_path / str(at)
        monkeypatch.setenv("JAXALIGN_CACHE", str(place / "cache"))
        experiment = small(place / "run")
        assert attempt(experiment, lm, place, at, how), operations[at]
        run(experiment, lm)
        assert results(experiment) == expected, operations[at]
    print(f"{how}: {len(operations)} operations, each failed once")
