"""Text that others wrote, made inert before it is shown: nothing in it may act on a page, a terminal or a spreadsheet.

Escaping for HTML is the template's job (autoescape) and that of `svg`; what is done here is needed everywhere.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

# Characters that reorder, hide or join what surrounds them. Zero-width joiners (U+200C, U+200D) and variation selectors
# stay: Persian, Indic scripts and emoji need them.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
# More marks than this on one letter are a picture, not a script.
_STACKED = re.compile("([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})"
                      "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")  # fmt: skip


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e8U+{code:04X}\u27e9"


def clean(text: str) -> str:
    """`text` with control, bidirectional and invisible characters as visible stand-ins; newlines and tabs are kept.

    A right-to-left override becomes `⟨U+202E⟩`, an escape character `␛`, half a surrogate pair U+FFFD.
    """
    text = _SURROGATE.sub("\ufffd", text.replace("\r\n", "\n"))
    text = _CONTROL.sub(_picture, text)
    text = _INVISIBLE.sub(lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", text)
    return _STACKED.sub(r"\1", text)


def line(text: str, limit: int) -> str:
    """`text` cleaned, on one line and at most `limit` characters long; what is cut shows as an ellipsis."""
    short = " ".join(clean(text[: 4 * limit + 100]).split())
    return short if len(short) <= limit else short[: limit - 1].rstrip() + "\u2026"


def cells(text: str) -> float:
    """The width of `text` in units of an average Latin letter, to lay out labels without a font at hand."""
    total = 0.0
    for letter in text:
        if unicodedata.combining(letter):
            continue
        if unicodedata.east_asian_width(letter) in "WF":
            total += 1.8
        else:
            total += 0.5 if letter in "iljtf.,:;'|!()[] " else 1.5 if letter in "mwMW@%\u2014" else 1.0
    return total


def prompt_messages(prompt: Any) -> list[tuple[str, str]]:
    """A prompt as (role, text) of each message; the role of plain text is empty."""
    if isinstance(prompt, str):
        return [("", prompt)]
    if isinstance(prompt, Sequence):
        messages = [message for message in prompt if isinstance(message, Mapping)]
        return [(str(message.get("role", "")), str(message.get("content", ""))) for message in messages]
    return [("", str(prompt))]
