"""The experiments that ship: their headers say what they must, and their configs are valid."""

import dataclasses
from pathlib import Path

import pytest

from jaxalign.cli.run import load_experiment

FOLDER = Path(__file__).parents[2] / "experiments"
EXPERIMENTS = sorted(FOLDER.glob("*.py"))


def test_all_that_are_promised_are_there():
    names = {path.stem for path in EXPERIMENTS}
    assert names >= {
        "quickstart",
        "argument_preferences",
        "title_writing",
        "tldr",
        "prism",
        "lamp_titles",
        "lamp_headlines",
        "lamp_tweets",
        "scaling_qwen25",
    }


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_header_and_config(path):
    header = path.read_text().split('"""')[1]
    for word in ("Claim:", "Command:", "Hardware:", "Time:", "Expected:", f"jaxalign run experiments/{path.name}"):
        assert word in header
    experiment = load_experiment(path)
    assert experiment.name == path.stem
    if experiment.source != "simulated":
        with pytest.raises(ValueError, match="needs data"):
            experiment.check()
    dataclasses.replace(experiment, data=Path("somewhere")).check()
