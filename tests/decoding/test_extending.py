"""The tutorial's code runs as it is printed, and its assertions hold."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_page_s_code_runs_from_top_to_bottom():
    text = PAGE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) >= 6
    # One name space, and line numbers that are the page's.
    space = {"__name__": "extending"}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block.group(1), str(PAGE), "exec"), space)
