"""The tutorial runs as it stands, and what it makes is a full citizen."""

import re
from pathlib import Path

import pytest
from planted import make_blocks

from jaxalign import rewards
from jaxalign.rewards import export, registry

PAGE = Path(__file__).parents[2] / "docs" / "new_reward_model.md"


@pytest.fixture
def tutorial(monkeypatch):
    monkeypatch.setattr(registry.METHODS, "added", {})
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL))
    names: dict = {"__name__": "tutorial"}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_the_page_runs_and_its_method_is_saved_and_adapted(tutorial, tmp_path):
    assert "temper" in rewards.names()
    model = tutorial["model"]
    export.save(model, tmp_path / "m")
    assert export.load(tmp_path / "m").method == model.method
    adapted = rewards.adapt(model, make_blocks([[1.0, 0, 0, 0]], pairs=[0]))
    assert float(adapted.user("u0")["log_scale"]) == 0.0


def test_the_method_is_about_thirty_lines(tutorial):
    first = re.search(r"@register\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert first is not None
    assert len([line for line in first.group(1).splitlines() if line.strip()]) <= 30
