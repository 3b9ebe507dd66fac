"""Every row that docs/data.md shows is read as it says."""

import json
import re
from pathlib import Path

from jaxalign.data.prompts import Message
from jaxalign.data.schema import Completion, Preference, read_completion, read_preference

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
