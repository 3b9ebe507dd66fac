"""The readers under test: each takes bytes, and says in a few words what became of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxalign.data.reader import rows_of
from jaxalign.data.row_error import RowError
from jaxalign.data.schema import PREFERENCE_FIELDS, as_row, read_completion, read_preference
from jaxalign.errors import JaxalignError
from jaxalign.models.config_json import from_hugging_face, read_config, to_hugging_face
from tests.fuzz.cases import CONFIGS, LLAMA3, MODEL, ROWS


def rows(content: bytes, folder: Path) -> str:
    """Reads JSON lines as preferences and as completions; a row that is accepted must be read back the same."""
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    said = set()
    try:
        for _, row in rows_of(path):
            if isinstance(row, RowError):
                said.add(_kind(row))
                continue
            for read in (read_preference, read_completion):
                try:
                    found = read(row)
                except RowError as error:
                    said.add(_kind(error))
                else:
                    assert read(as_row(found)) == found
                    said.add(f"a {type(found).__name__}")
    except JaxalignError as error:
        said.add(_kind(error))
    return "; ".join(sorted(said)) or "no rows"


def config(content: bytes, folder: Path) -> str:
    """Reads a model folder's config.json; a config that is accepted must be read back the same."""
    (folder / "config.json").write_bytes(content)
    try:
        found = read_config(folder)
    except JaxalignError as error:
        return _kind(error)
    assert from_hugging_face(to_hugging_face(found)) == found
    return f"a {found.family} model"


def _kind(error: JaxalignError) -> str:
    """The error's class, field and reason: without the names, values and places that differ from input to input."""
    text = error.problem if isinstance(error, RowError) else str(error).rpartition(".json: ")[2]
    named = error.field if isinstance(error, RowError) else text
    field = next((name for name in _FIELDS if name in named), "?")
    reason = next((reason for reason in _REASONS if reason in text), "another value is needed")
    return f"{type(error).__name__}: {field}: {reason}"


_FIELDS = [*PREFERENCE_FIELDS, "completion", *MODEL, *LLAMA3, "rope_parameters", "sliding_window", "use_sliding_window"]
_FIELDS += ["layer_types", "partial_rotary_factor", "pretraining_tp", "quantization_config", "mlp_bias"]
# The part of a message that tells one refusal from another, the more special first.
_REASONS = [
    "occurs twice", "not a JSON number", "nested too deeply", "not valid JSON", "cut off", "not JSON", "UTF-8",
    "UTF-16", "NUL", "not a JSON object", "a JSON object is needed", "is null", "is missing", "is empty",
    "not an id", "not a number", "not text", "not finite", "neither text", "empty list", "no object as message",
    "lacks a text", "different forms", "does not share", "last message before", "differ", "true or false",
    "half of a surrogate", "a list of names", "a positive integer", "a positive number", "number of tokens",
    "the field is not known", "contradict", "not a multiple", "a number is needed", "a whole number",
    "an object is needed", "is not supported", "must be", "more than any model", "is no model of", "lacks",
]  # fmt: skip


class Target(NamedTuple):
    """A reader, the inputs to begin with, and the words that its inputs are made of."""

    read: Callable[[bytes, Path], str]
    cases: Sequence[bytes]
    words: Sequence[str]


# Long cases are for the tests: mutants of them would be slow to read, and alike.
_short = [[case for case in cases.values() if len(case) < 4000] for cases in (ROWS, CONFIGS)]
_ROW_WORDS = [*PREFERENCE_FIELDS, "completion", "role", "content", "assistant", "user", "lm_sample", "prompt", "chosen"]
_MODEL_WORDS = [*_FIELDS[10:], "llama", "mistral", "qwen2", "qwen3", "llama3", "default", "LlamaForCausalLM", "silu"]
TARGETS = {"rows": Target(rows, _short[0], _ROW_WORDS), "config": Target(config, _short[1], _MODEL_WORDS)}
