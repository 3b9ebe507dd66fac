"""Preference data: the schema, readers, builders of real sources, splits that cannot leak, simulated users.

    from jaxalign import data

    rows = data.load_preferences("preferences.jsonl")
    split = data.personal_split(rows, seed=0)

Importing this package imports nothing heavy: only `data.builders` needs TensorFlow Datasets, and Parquet files pyarrow.
"""

from jaxalign.data.blocks import PairBlocks
from jaxalign.data.check import check_file
from jaxalign.data.demonstrations import demonstrations
from jaxalign.data.presets import prism_protocol, tldr_protocol
from jaxalign.data.prompts import Message, Prompt
from jaxalign.data.reader import load_completions, load_preferences, write_rows
from jaxalign.data.recipe import against_lm, against_others, history_and_targets
from jaxalign.data.row_error import RowError
from jaxalign.data.schema import Completion, Preference
from jaxalign.data.simulated import SimulatedUsers, load_prompts
from jaxalign.data.splits import by_group, by_user, few_shot, limit_per_user, personal_split, support_query

__all__ = [
    "Completion",
    "Message",
    "PairBlocks",
    "Preference",
    "Prompt",
    "RowError",
    "SimulatedUsers",
    "against_lm",
    "against_others",
    "by_group",
    "by_user",
    "check_file",
    "demonstrations",
    "few_shot",
    "history_and_targets",
    "limit_per_user",
    "load_completions",
    "load_preferences",
    "load_prompts",
    "personal_split",
    "prism_protocol",
    "support_query",
    "tldr_protocol",
    "write_rows",
]
