"""The config of an experiment: whatever it holds, it is accepted or refused by field, before any work."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign.cli.run import load_experiment, main
from jaxalign.errors import InputError
from jaxalign.evaluation.experiment import Experiment
from jaxalign.evaluation.run_folder import RunFolder

FIELDS = [field.name for field in dataclasses.fields(Experiment)]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 3)
    | st.floats()
    | st.floats(-0.5, 1.5)
    | st.text(st.characters(exclude_categories=[]), max_size=8)
    | st.sampled_from(["bt", "lm_sample", "policy", "mean", "in_context_bm25_4", "users=2", "../x", 10**400])
    | st.builds(Path, st.just("x.jsonl"))
)
VALUES = SCALARS | st.tuples(SCALARS) | st.tuples(SCALARS, SCALARS) | st.lists(SCALARS, max_size=2) | st.just({})


@settings(max_examples=500)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3))
def test_any_value_is_accepted_or_refused_by_field(values):
    experiment = Experiment(**values)
    try:
        experiment.check()
    except InputError as error:
        refusal = str(error)
    else:
        assert experiment.folder.parent == Path("results") or experiment.out is not None
        return
    # `methods` are refused by the registry, in its own words.
    assert any(field in refusal for field in [*values, "source", "reward model"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weights": [0.5, 1.0]}, r"weights = \[0.5, 1.0\]: a tuple, each item a finite number, is needed"),
        ({"weights": ()}, "weights is empty"),
        ({"weights": (float("nan"),)}, "a finite number"),
        ({"data": "pairs.jsonl"}, r"data = 'pairs.jsonl': a pathlib.Path or None is needed"),
        ({"test": "0.2"}, "test = '0.2': a finite number is needed"),
        ({"test": float("nan")}, "test = nan"),
        ({"test": 0.8, "validation": 0.4}, "test = 0.8, validation = 0.4: shares from 0, together at most 1"),
        ({"unseen_users": -0.1}, "unseen_users = -0.1"),
        ({"batch_size": True}, "batch_size = True: a whole number is needed"),
        ({"seed": -1}, "seed = -1: at least 0 is needed"),
        ({"seed": 2**40}, "a whole number is needed"),
        ({"shots": (1, 0)}, "shots = 0: at least 1 is needed"),
        ({"top_ks": (0,)}, "top_ks = 0"),
        ({"dtype": "float16"}, "dtype = 'float16': one of float32, bfloat16 is needed"),
        ({"margin": 0.0}, "margin = 0.0"),
        ({"mesh": "users=" + "9" * 5000}, "is not an axis and its size"),
        ({"mesh": "users=\u0664"}, "is not an axis and its size"),
        ({"in_context": ("in_context_bm25_" + "9" * 5000,)}, "in_context_bm25_4"),
    ],
)
def test_what_is_wrong_is_named_with_its_mend(values, message):
    with pytest.raises(InputError, match=message):
        Experiment(**values).check()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "/etc",
        "c:x",
        "x.",
        " x",
        "a\0",
        "a\n",
        "\ud800",
        "x" * 101,
        "é" * 60,
        "a*",
    ],
)
def test_a_name_that_leads_out_of_the_folder_of_results_is_refused(name):
    with pytest.raises(InputError, match="it names the folder of results"):
        Experiment(name=name).check()


@pytest.mark.parametrize("name", ["quickstart", "Ann's run, 2 %", "título", "a.b-c_d"])
def test_other_names_are_folders_of_their_own(name):
    experiment = Experiment(name=name)
    experiment.check()
    assert experiment.folder == Path("results") / name


def test_runs_whose_names_differ_in_case_share_no_folder(tmp_path):
    """Where the file system takes both names for one, the second run is refused."""
    RunFolder(tmp_path, Experiment(name="Mine"))
    RunFolder(tmp_path, Experiment(name="Mine"))
    with pytest.raises(InputError, match="name: 'Mine' there, 'mine' now"):
        RunFolder(tmp_path, Experiment(name="mine"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiment = 1", "it must define `experiment`"),
        ("", "it must define `experiment`"),
        ("raise SystemExit(0)", "it fails with SystemExit: 0"),
        ("import nothing_of_this_name", "it fails with ModuleNotFoundError"),
        ("def f(): f()\nf()", "it fails with RecursionError"),
        ("experiment = (", "it fails with SyntaxError"),
        ("\0", "it fails with (SyntaxError|ValueError)"),
    ],
)
def test_a_config_file_that_fails_is_named(tmp_path, text, message):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        load_experiment(path)
    assert str(error.value).startswith(str(path))


def test_what_is_no_config_file_is_named(tmp_path):
    (tmp_path / "mine.txt").write_text("experiment = 1")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(InputError, match=r"a Python file, NAME\.py"):
        load_experiment(tmp_path / "mine.txt")
    for path in (tmp_path / "folder.py", tmp_path / "absent.py", Path("x" * 300 + ".py"), Path("a\0.py")):
        with pytest.raises(InputError, match="there is no such experiment file"):
            load_experiment(path)


@pytest.mark.parametrize("value", ["0", "-1", "two", "", "9" * 5000, "\u0664", "1.5"])
def test_numbers_of_processes(tmp_path, value):
    path = tmp_path / "mine.py"
    path.write_text("from jaxalign.evaluation.experiment import Experiment\nexperiment = Experiment()")
    with pytest.raises(InputError, match=r"--processes .*: a number is needed"):
        main([str(path), "--processes", value])
