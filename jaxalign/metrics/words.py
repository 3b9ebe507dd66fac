"""The words of a text in any script, as the overlap and diversity measures count them.

On plain ASCII they are exactly those of rouge-score (lower case, runs of letters and digits); its own tokenizer drops
every other character, so that two identical Chinese texts would share nothing.
"""

import functools
import re
import unicodedata

# Thai and Lao, Burmese, Khmer, kana, Han: written without spaces between words.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_ASCII_WORD = re.compile("[a-z0-9]+")


@functools.lru_cache(maxsize=65536)
def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] == "M" or "\U0001f3fb" <= character <= "\U0001f3ff":  # skin tones belong to the emoji before them
        return "mark"
    if _UNSPACED_CHARACTER.match(character) or (category == "So" and character >= "\u2190"):
        return "alone"
    if category[0] in "LN":
        return "letter"
    # Joiners are invisible: Persian and Indic words have them inside.
    return "ignored" if category == "Cf" else "gap"


def words(text: str) -> list[str]:
    """The words of a text, in lower case and composed form; punctuation is left out.

    A word is a run of letters, digits and their marks. Characters of scripts that are written without spaces, and
    emoji, are words of their own.
    """
    text = text.lower()
    if text.isascii():
        return _ASCII_WORD.findall(text)
    found: list[str] = []
    open_word = attached = False  # may a letter, may a mark, continue the last word?
    for character in unicodedata.normalize("NFC", text):
        kind = _kind(character)
        if kind == "letter":
            if open_word:
                found[-1] += character
            else:
                found.append(character)
            open_word = attached = True
        elif kind == "alone":
            found.append(character)
            open_word, attached = False, True
        elif kind == "mark" and attached:
            found[-1] += character
        elif kind == "gap":
            open_word = attached = False
    return found


def spaced(text: str) -> str:
    """The text with spaces around each character of a script that is written without them; other text as it is."""
    return text if text.isascii() else _UNSPACED_CHARACTER.sub(r" \g<0> ", text)
