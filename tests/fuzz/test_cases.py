"""The corpus and some thousand mutants of it, read in the default suite; the long run is `python -m tests.fuzz`."""

import random

import pytest

from jaxalign.errors import JaxalignError
from tests.fuzz.cases import CONFIGS, ROWS
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS, config, rows

READ = {  # every other case is refused
    "rows": {
        *("plain", "completion", "messages", "three rows", "byte order mark", "half a surrogate pair"),
        *("right-to-left override", "a formula", "a path", "a script", "a template", "minus zero"),
    },
    "config": {"plain", "scaled", "qwen2", "qwen3", "mistral", "byte order mark"},
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name, tmp_path):
    outcome = rows(ROWS[name], tmp_path)
    assert ("a Preference" in outcome or "a Completion" in outcome) == (name in READ["rows"]), outcome


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(name, tmp_path):
    outcome = config(CONFIGS[name], tmp_path)
    assert outcome.startswith("a ") == (name in READ["config"]), outcome
    assert outcome.startswith(("a ", "ModelError: ")), outcome


@pytest.mark.parametrize("name", TARGETS)
def test_mutants_have_typed_errors(name, tmp_path):
    target, rng = TARGETS[name], random.Random(1)
    outcomes = {target.read(mutate(rng, target.cases, target.words), tmp_path) for _ in range(1000)}
    assert len(outcomes) > 40  # mutants get past the first check


@pytest.mark.parametrize("name", TARGETS)
def test_another_error_is_noticed(name, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr("tests.fuzz.targets.read_preference", broken)
    monkeypatch.setattr("tests.fuzz.targets.read_config", broken)
    assert not issubclass(KeyError, JaxalignError)
    with pytest.raises(KeyError):
        TARGETS[name].read(TARGETS[name].cases[0], tmp_path)
