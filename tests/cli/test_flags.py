"""Command lines of all sorts: flags that are wrong end with status 2, and files that are none with a typed error."""

import contextlib
import dataclasses
import importlib
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxalign import cli
from jaxalign.cli import data, flags
from jaxalign.evaluation.experiment import Experiment

# Beside these, `bench` hands its arguments on to a benchmark.
NAMES = ("report", "compare", "generate", "score", "fit", "tune", "adapt", "methods", "fetch", "plan", "env")
OPTIONS = {name: importlib.import_module(f"jaxalign.cli.{name}").Options for name in NAMES}
OPTIONS |= {"data check": data.Check, "data prepare": data.Prepare, "run x.py": Experiment}


def test_every_command_is_tried():
    assert {name.split()[0] for name in OPTIONS} | {"bench"} == set(cli.COMMANDS)


def quietly(function, *arguments, **settings):
    """The value of a call, or the status that it exits with; what it prints, an encoding of UTF-8 must take."""
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            return function(*arguments, **settings)
        except SystemExit as stopped:
            return stopped.code


HOSTILE = ["", "0", "-1", "nan", "inf", "1e999", "9" * 5000, "None", "()", "{}", "[/red]", "[bold]", "{0}", "%s", "@x"]
HOSTILE += [
    "\0",
    "\ud800",
    "\u202e",
    "--",
    "-",
    "=",
    "--=",
    "-x",
    "../..",
    "a" * 300,
    "a=b=c",
    "users=1",
    "\n",
    "\x1b[31m",
]
NUMBERS = st.floats().map(str) | st.integers().map(str)


@pytest.mark.parametrize("command", OPTIONS)
@settings(max_examples=40)
@given(arguments=st.data())
def test_any_flags_give_options_or_an_exit(command, arguments):
    options = OPTIONS[command]
    names = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(options)]
    word = st.sampled_from([*names, *HOSTILE]) | NUMBERS | st.text(st.characters(exclude_categories=[]), max_size=5)
    joined = st.builds("{}={}".format, st.sampled_from(names), st.sampled_from(HOSTILE))
    words = arguments.draw(st.lists(word | joined | st.sampled_from(names), max_size=6))
    default = Experiment() if options is Experiment else None
    found = quietly(flags.parse, command, options, words, default=default)
    assert isinstance(found, options) or found in (0, 2)


# Arguments of whole commands, @ for a path that may be anything.
LINES = {
    "generate": "--model @ --prompts @",
    "generate with a reward": "--model @ --prompt x --rewards @ --user @",
    "score": "--model @ --responses @",
    "fit": "--model @ --data @ --out @ --method @ --set @",
    "tune": "--model @ --data @ --out @ --set @ --merged @",
    "adapt": "--model @ --rewards @ --data @ --out @",
    "fetch": "@",
    "report": "@",
    "compare": "@ @ --csv @",
    "data check": "@ --json",
    "data prepare": "@ --data @ --data-dir @",
    "run": "@ --processes @ --name @",
    "methods": "--name @",
    "bench": "@",
    "@": "@",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with files and folders that are not what any command asks for."""
    folder = tmp_path_factory.mktemp("place")
    row = {"user": "u", "prompt": "p", "chosen": "a", "rejected": "b"}
    contents = {
        "rows.jsonl": json.dumps(row),
        "broken.jsonl": "{}\n[",
        "deep.jsonl": "[" * 100_000,
        "config.py": "experiment = 1",
        "exits.py": "raise SystemExit(3)",
        "vector.npy": "x",
        "empty": "",
        "model/config.json": "[" * 100_000,
        "rewards/reward_model.json": '{"format": 1, "method": [], "users": 1, "backbone": []}',
        "rewards/reward_model.safetensors": "[",
        "tuned/tuned.json": '{"format": 1}',
        "tuned/tuned.safetensors": "[",
        "run/config.json": '{"schema": 2, "config": {}}',
        "run/metrics.jsonl": "9" * 5000,
    }
    for name, text in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "folder.jsonl").mkdir()
    return folder, [*contents, "folder.jsonl", "model", "rewards", "tuned", "run"]


@pytest.mark.parametrize("command", LINES)
@settings(max_examples=25)
@given(arguments=st.data())
def test_any_paths_give_a_status_and_no_traceback(command, arguments, place):
    folder, made = place
    path = st.sampled_from([*made, *HOSTILE, "absent", "absent/deeper", "/dev/null", "x" * 300 + "/y", "rank=0", "bt"])
    words = [arguments.draw(path) if word == "@" else word for word in f"{command} {LINES[command]}".split()]
    words = [word for word in words if word not in ("with", "a", "reward")]
    with contextlib.chdir(folder):
        status = quietly(cli.main, words)
    assert status in (0, 1, 2)
