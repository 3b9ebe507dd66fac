"""A tiny language model with a byte tokenizer."""

import sys
from pathlib import Path

import pytest

from jaxalign import models

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """The model's folder."""
    import tiny
    from letters import CONFIG

    root = tmp_path_factory.mktemp("tuned") / "lm"
    tiny.save(root, CONFIG, bos_token_id=0, eos_token_id=1)
    return tiny.save_tokenizer(root)


@pytest.fixture(scope="session")
def lm(folder) -> models.LanguageModel:
    """Scanned layers: one compiled body."""
    return models.load(str(folder), layers="scanned")
