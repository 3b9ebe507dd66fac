"""What a row of preference data is, and the checks that one row must pass.

A row arrives as a dictionary, from a line of JSON or a record of a Parquet file, in any of the accepted forms, and
leaves as a `Preference` or a `Completion` in one normal form: ids are strings, a prompt is a string or a tuple of
messages, a response is one string. `docs/data.md` shows every accepted form.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from jaxalign.data.prompts import Prompt, clean, read_messages, split_dialogue, split_texts
from jaxalign.data.row_error import RowError
from jaxalign.errors import shown

PREFERENCE_FIELDS = ("user", "prompt", "chosen", "rejected", "group", "label", "margin", "split", "kind")
COMPLETION_FIELDS = ("user", "prompt", "completion", "group", "split")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One judgement of one user: `chosen` was preferred over `rejected` as the response to `prompt`.

    Attributes:
      user: the id, always a string and compared exactly.
      prompt: a string, or the messages of the conversation up to the response.
      chosen: the preferred response.
      rejected: the other response.
      group: the unit that no split may cut (a pair that several people judged, a conversation); None: the pair itself.
      label: probability that `chosen` is preferred; 0.5 is a tie.
      margin: how much better `chosen` is, at least 0; 0.0 where not stated.
      split: the split that the file itself states, or None.
      kind: where `rejected` comes from, for pairs that a recipe made ("lm_sample", "other_user"), or None.
    """

    user: str
    prompt: Prompt
    chosen: str
    rejected: str
    group: str | None = None
    label: float = 1.0
    margin: float = 0.0
    split: str | None = None
    kind: str | None = None

    @property
    def is_tie(self) -> bool:
        """Whether the row says nothing about which response is better."""
        return self.label == 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A text that one user wrote for one prompt; `group` and `split` are as in `Preference`."""

    user: str
    prompt: Prompt
    completion: str
    group: str | None = None
    split: str | None = None


def responses_of(row: Preference | Completion) -> tuple[str, ...]:
    """The responses that a row holds: chosen and rejected, or the completion."""
    return (row.completion,) if isinstance(row, Completion) else (row.chosen, row.rejected)


def read_id(value: Any, field: str) -> str:
    """An id as a string: "007" stays "007", 7 and 7.0 become "7", "nan" and "NA" are ordinary ids.

    Raises:
      RowError: the id is missing, empty, not a string or whole number, or cannot be written as UTF-8.
    """
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool) or value is None:
        raise RowError(
            field, f"is {'null' if value is None else 'true or false'}", "Give every row an id, as a string."
        )
    elif isinstance(value, int):
        text = str(value)
    elif isinstance(value, float) and value.is_integer():
        # Table libraries turn whole numbers into floats when a column has gaps.
        text = str(int(value))
    else:
        raise RowError(field, f"is {shown(value)}, not an id", "Write ids as strings.")
    if not text.strip():
        raise RowError(field, "is empty", "Give every row an id; rows without one are not pooled.")
    if "\0" in text or clean(text) != text:
        raise RowError(
            field, "holds a NUL character or half of a surrogate pair", "Write the id as plain text in UTF-8."
        )
    return text


@functools.lru_cache(maxsize=4096)
def meant(name: str) -> str | None:
    """The field of the schema that an unknown field `name` probably misspells."""
    import difflib

    known = [*PREFERENCE_FIELDS, "completion"]
    near = [] if name in known else difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.75)
    return near[0] if near else None


def _optional_text(row: Mapping[str, Any], field: str) -> str | None:
    value = row.get(field)
    return None if value is None else read_id(value, field)


def _number(row: Mapping[str, Any], field: str, default: float) -> float:
    value = row.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(field, f"is {shown(value)}, not a number", "Write a JSON number, without quotes.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RowError(field, "is not finite", "Write a finite number, or leave the field out.")
    return number


def _required(row: Mapping[str, Any], field: str) -> Any:
    value = row.get(field)
    if value is not None:
        return value
    problem = "is null" if field in row else "is missing"
    mend = f"Add '{field}' to the row."
    if field not in row:
        near = next((name for name in row if meant(str(name)) == field), None)
        mend = f"Rename {near!r} to '{field}'." if near else f"{mend} The row has {shown(list(row))}."
    raise RowError(field, problem, mend)


def _response(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise RowError(field, f"is {shown(value)}, not text", "Write the response as a string or a list of messages.")
    if not value.strip():
        raise RowError(field, "is empty", "Give the response its text, or remove the row.")
    return clean(value)


def _prompt(value: Any) -> Prompt:
    if isinstance(value, str):
        return clean(value)
    return read_messages(value, "prompt")


def read_preference(row: Mapping[str, Any]) -> Preference:
    """Checks one row and brings it into normal form.

    Identical responses carry no preference: such a row becomes a tie (label 0.5), and `jaxalign data check` reports it.

    Raises:
      RowError: without a place; the reader of the file adds it with `RowError.at`.
    """
    if not isinstance(row, Mapping):
        raise RowError("", "is not a JSON object", 'Write one object a line: {"user": ..., "prompt": ..., ...}.')
    user = read_id(_required(row, "user"), "user")
    chosen, rejected = _required(row, "chosen"), _required(row, "rejected")
    if isinstance(chosen, str) and isinstance(rejected, str):
        prompt = row.get("prompt")
        if prompt is None:
            if any(meant(str(name)) == "prompt" for name in row.keys() - set(PREFERENCE_FIELDS)):
                _required(row, "prompt")  # a misspelled prompt must not pass for an implicit one
            prompt, chosen, rejected = split_texts(clean(chosen), clean(rejected))
        else:
            prompt = _prompt(prompt)
    elif isinstance(chosen, str) or isinstance(rejected, str):
        raise RowError("chosen", "and 'rejected' have different forms", "Make both strings or both lists of messages.")
    else:
        prompt = row.get("prompt")
        prompt, chosen, rejected = split_dialogue(
            None if prompt is None else _prompt(prompt),
            read_messages(chosen, "chosen"),
            read_messages(rejected, "rejected"),
        )
    chosen, rejected = _response(chosen, "chosen"), _response(rejected, "rejected")
    label = _number(row, "label", 1.0)
    if not 0.0 <= label <= 1.0:
        raise RowError("label", f"is {label:g}", "It is a probability: between 0 and 1, 0.5 for a tie.")
    margin = _number(row, "margin", 0.0)
    if margin < 0.0:
        raise RowError("margin", f"is {margin:g}", "It is at least 0; swap chosen and rejected where it is not.")
    return Preference(
        user=user,
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
        group=_optional_text(row, "group"),
        label=0.5 if chosen == rejected else label,
        margin=margin,
        split=_optional_text(row, "split"),
        kind=_optional_text(row, "kind"),
    )


def read_completion(row: Mapping[str, Any]) -> Completion:
    """As `read_preference`, for a row with a text that the user wrote."""
    if not isinstance(row, Mapping):
        raise RowError("", "is not a JSON object", 'Write one object a line: {"user": ..., "prompt": ..., ...}.')
    completion = _required(row, "completion")
    if not isinstance(completion, str):
        messages = read_messages(completion, "completion")
        if len(messages) != 1:
            raise RowError("completion", f"has {len(messages)} messages", "Keep one; earlier turns belong to 'prompt'.")
        completion = messages[0].content
    return Completion(
        user=read_id(_required(row, "user"), "user"),
        prompt=_prompt(_required(row, "prompt")),
        completion=_response(completion, "completion"),
        group=_optional_text(row, "group"),
        split=_optional_text(row, "split"),
    )


def as_row(item: Preference | Completion) -> dict[str, Any]:
    """The JSON object of a row; defaults are left out, so that reading it back gives the same row."""
    row: dict[str, Any] = {}
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if value is None or (field.default is not dataclasses.MISSING and value == field.default):
            continue
        if field.name == "prompt" and not isinstance(value, str):
            value = [{"role": message.role, "content": message.content} for message in value]
        row[field.name] = value
    return row
