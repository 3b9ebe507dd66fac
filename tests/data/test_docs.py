"""Every row that docs/data.md shows is read as it says."""

import json
import re
import types
from pathlib import Path

import tiny

from jaxalign.data.prompts import Message
from jaxalign.data.schema import Completion, Preference, read_completion, read_preference
from jaxalign.models.tokenizer import Tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_examples_of_the_page():
    rows = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)]
    plain, full, chat, implicit, written = rows
    same = {"user": "ann", "chosen": "Crust.", "rejected": "Bakery."}
    assert read_preference(plain).chosen == "The Salty Crust."
    stated = {"prompt": "Name a bakery.", "group": "bakery", "label": 0.9, "margin": 0.5, "split": "train"}
    assert read_preference(full) == Preference(**same, **stated)
    said = [("user", "Hi."), ("assistant", "Hello."), ("user", "Name a bakery.")]
    assert read_preference(chat) == Preference(**same, prompt=tuple(Message(*turn) for turn in said))
    assert read_preference(implicit) == Preference(**same, prompt=(Message("user", "Name a bakery."),))
    assert isinstance(read_completion(written), Completion)


def test_the_rows_of_the_readme():
    (block,) = re.findall(r"```json\n(.*?)```", (PAGE.parents[1] / "README.md").read_text(), re.DOTALL)
    rows = [json.loads(line) for line in block.splitlines()]
    pairs = [read_preference(row) for row in rows[:-1]]
    assert [pair.label for pair in pairs] == [1.0, 0.5, 1.0, 1.0]
    assert pairs[3].prompt == (Message("user", "Hi."),)
    assert (pairs[3].chosen, pairs[3].rejected) == ("Hello!", "What?")
    assert read_completion(rows[-1]).completion == "On bread"


def test_the_code_of_the_page(tmp_path):
    tiny.save_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    names = {"lm": types.SimpleNamespace(tokenizer=Tokenizer.from_folder(tmp_path))}
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(code, names)
    assert (names["made"].shown, names["made"].dropped) == (1, 0)
    assert [message["content"] for message in names["made"].messages] == ["Title: bread", "On bread", "Title: rye"]
