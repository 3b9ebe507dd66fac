"""Text in, ids out, and back: chat templates, special tokens that text cannot forge, end tokens, left padding.

One class, so that training, evaluation and decoding turn the same text into the same ids.
"""

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxalign.errors import InputError, ModelError, shown
from jaxalign.files import read_json
from jaxalign.models.time_limit import call_within

Message = dict[str, str]

# Put after each character of a text that could begin a marker (`<` of `<|im_end|>`), so that the marker is not found
# there; the tokenizer's normaliser then removes it. A Unicode noncharacter: it has no place in real text.
_BREAK = "\ufdd0"
# Chat templates look for these in an assistant's earlier turns (to drop old reasoning), so there they stay what they
# are. They are no turn markers: nothing can be forged with them.
_REASONING = ("<think>", "</think>")
_DATE = "26 Jul 2024"  # what Llama 3's templates use where there is no clock
_TEMPLATE_SECONDS = 10.0  # a conversation takes milliseconds
_TEMPLATE_CHARACTERS = 10_000_000  # besides 100 for each character of the messages
_ROLE = re.compile(r"[A-Za-z_]+")


class _EndlessTemplate(InputError):
    pass


class Tokenizer:
    """The tokenizer of a model folder.

    Text never becomes a control token: `<|im_end|>` inside a message or a raw prompt is encoded as the characters it is
    written with, as are markers that the tokenizer does not flag as special (`<tool_call>`). Ids of ordinary text equal
    the library's own. To use control tokens on purpose, give ids.

    Attributes:
      end_ids: the ids that end a generation: those of generation_config.json and config.json, the tokenizer's
        end-of-sequence token, and what the chat template puts after an assistant's answer. May be empty.
      bos_id: the beginning-of-sequence token, or None.
      pad_id: an id for padded positions. It may equal an end id, so padding is found by length, never by this id.
      vocab_size: the largest id plus one.
      fingerprint: SHA-256 of tokenizer.json and the chat template, for caches of anything made from ids.
    """

    def __init__(self, library: Any, folder: Path):
        """Use `from_folder`. `library` is a `transformers` tokenizer with a `tokenizers` backend."""
        import tokenizers

        self.folder = folder
        self._library = library
        template = library.chat_template  # one text, or several by name
        self._template: str | None = template.get("default") if isinstance(template, dict) else template
        definition = json.loads(library.backend_tokenizer.to_str())
        self._markers = _markers(definition, self._template or "")
        self._encoder = tokenizers.Tokenizer.from_str(json.dumps(_breakable(definition, self._markers)))
        starts = "".join(sorted({re.escape(marker[0]) for marker in self._markers}))
        self._start = f"[{starts}]" if starts else None
        self.bos_id: int | None = library.bos_token_id
        # Some tokenizers add it to every text, others leave it to the chat template.
        self._adds_bos = self.bos_id is not None and library("a").input_ids[:1] == [self.bos_id]
        self.vocab_size: int = 1 + max(library.get_vocab().values())
        self.end_ids = self._find_end_ids()
        pad = library.pad_token_id
        self.pad_id: int = pad if pad is not None else self.end_ids[0] if self.end_ids else 0
        file = folder / "tokenizer.json"
        content = file.read_bytes() if file.is_file() else library.backend_tokenizer.to_str().encode()
        self.fingerprint = hashlib.sha256(content + b"\0" + (self._template or "").encode()).hexdigest()

    @classmethod
    def from_folder(cls, folder: Path | str) -> "Tokenizer":
        """Reads the tokenizer files of `folder`; needs no torch and no network, and runs no code from the folder.

        Raises:
          ModelError: there is no tokenizer, or it cannot be read.
        """
        folder = Path(folder)
        if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
            raise ModelError(f"{folder}: no tokenizer here (tokenizer.json, tokenizer.model or vocab.json).")
        try:
            library = _library_class(folder).from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            # The library raises anything from KeyError to a bare Exception of its Rust part.
            raise ModelError(f"{folder}: cannot read the tokenizer: {type(error).__name__}: {error}") from error
        if getattr(library, "backend_tokenizer", None) is None:
            raise ModelError(
                f"{folder}: {type(library).__name__} has no fast version (tokenizer.json); convert it first."
            )
        return cls(library, folder)

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: nothing added, and markers in it encoded as ordinary characters. May be empty."""
        return self._encoder.encode(self._break(text), add_special_tokens=False).ids

    def raw(self, text: str, where: str = "prompt") -> list[int]:
        """Ids of a text to be continued as it is, without a template; begins with BOS if the tokenizer adds one.

        Raises:
          InputError: `text` is empty; named by `where`.
        """
        if not text:
            raise InputError(f"{where}: the text is empty; give at least one character.")
        return self._one_bos(self.encode(text))

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, where: str = "prompt") -> list[int]:
        """Ids of a conversation through the chat template, with exactly one BOS if the tokenizer uses one.

        A template that writes today's date (Llama 3) gets a fixed one: ids must not change from day to day.

        Args:
          messages: each with `role` and `content`; all values are strings.
          add_generation_prompt: end with the opening of an assistant's turn.
          where: what to call the conversation in an error, for instance `prompts.jsonl line 3`.

        Raises:
          InputError: no template; no message, or none with content; a malformed message; or the template refuses them.
        """
        if self._template is None:
            raise InputError(f"{where}: the tokenizer of {self.folder} has no chat template; give text, not messages.")
        _check_messages(messages, where)
        safe = [
            {field: text if field == "role" else self._break(text, message["role"]) for field, text in message.items()}
            for message in messages
        ]
        rendered = self._render(safe, add_generation_prompt, where)
        return self._one_bos(self._encoder.encode(rendered, add_special_tokens=False).ids)

    def prompt(self, prompt: str | Sequence[Message], where: str = "prompt") -> list[int]:
        """Ids of a prompt as a user gives it: text becomes one user message, or is taken raw if there is no template.

        Raises:
          InputError: an empty prompt, or what `chat` refuses; named by `where`.
        """
        if not isinstance(prompt, str):
            return self.chat(prompt, where=where)
        if not prompt:
            raise InputError(f"{where}: the prompt is empty; give at least one character.")
        if self._template is None:
            return self.raw(prompt, where)
        return self.chat([{"role": "user", "content": prompt}], where=where)

    def decode(self, ids: Sequence[int] | np.ndarray, skip_special: bool = True) -> str:
        """The text of `ids`; special tokens are left out unless `skip_special` is false."""
        plain = [int(token) for token in ids]
        return self._library.decode(plain, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)

    def fit_prompt(
        self,
        ids: Sequence[int],
        limit: int,
        policy: Literal["error", "truncate_left"] = "error",
        where: str = "prompt",
    ) -> tuple[list[int], int]:
        """`ids` in at most `limit` tokens, and how many were cut.

        `truncate_left` drops the oldest tokens; a BOS that the tokenizer adds to every text is kept.

        Raises:
          InputError: `limit` leaves no room, or the prompt is longer and `policy` is `error`.
        """
        ids = list(ids)
        keep = ids[:1] if self._adds_bos and ids[:1] == [self.bos_id] else []
        if limit <= len(keep):
            raise InputError(f"{where}: there is room for {limit} prompt tokens; at least {len(keep) + 1} are needed.")
        if policy not in ("error", "truncate_left"):
            raise InputError(f"policy '{policy}' for long prompts is unknown; use 'error' or 'truncate_left'.")
        cut = max(0, len(ids) - limit)
        if cut and policy == "error":
            raise InputError(
                f"{where}: {len(ids)} tokens, and there is room for {limit}; shorten it, generate fewer tokens, or cut "
                "it from the left with the policy 'truncate_left'."
            )
        return (keep + ids[len(keep) + cut :], cut) if cut else (ids, 0)

    def check_vocab(self, rows: int) -> None:
        """Refuses a model whose embedding has fewer than `vocab_size` rows: an id beyond it would read nonsense.

        Raises:
          ModelError: with both numbers. More rows than ids are fine: embeddings are often padded.
        """
        largest = max(self.vocab_size - 1, *self.end_ids, 0)
        if largest >= rows:
            raise ModelError(
                f"{self.folder}: the tokenizer has ids up to {largest}, but the embedding has {rows} rows; "
                "tokenizer and weights are not of the same model."
            )

    def _break(self, text: str, role: str = "user") -> str:
        """`text` as valid Unicode in which no marker is found; the encoder takes the breaks out again."""
        text = _clean(text)
        if self._start is None:
            return text
        kept = f"(?!{'|'.join(map(re.escape, _REASONING))})" if role == "assistant" else ""
        return re.sub(f"{kept}({self._start})", rf"\1{_BREAK}", text)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool, where: str) -> str:
        """What the chat template makes of the messages, in bounded time.

        A template is a program that came with the model. The library runs it in a sandbox that keeps it from files and
        from code; that it ends, and that its errors are named, is seen to here.
        """
        import jinja2

        def render() -> Any:
            return self._library.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, date_string=_DATE
            )

        try:
            rendered = call_within(_TEMPLATE_SECONDS, render)
        except jinja2.TemplateError as error:
            raise InputError(f"{where}: the chat template refuses these messages: {error}") from error
        except TimeoutError as error:
            raise _EndlessTemplate(f"{where}: the chat template of {self.folder} does not end: {error}.") from None
        except Exception as error:
            # Templates compute: whatever Python raises may come out of them.
            kind = type(error).__name__
            raise InputError(
                f"{where}: the chat template of {self.folder} fails: {kind}: {shown(str(error))}"
            ) from error
        most = _TEMPLATE_CHARACTERS + 100 * sum(len(text) for message in messages for text in message.values())
        if not isinstance(rendered, str) or len(rendered) > most:
            raise InputError(f"{where}: the chat template of {self.folder} makes more than {most:,} characters of it.")
        return rendered

    def _one_bos(self, ids: list[int]) -> list[int]:
        """Drops a doubled BOS at the start; adds a missing one where the tokenizer adds it to every text."""
        while len(ids) > 1 and ids[0] == ids[1] == self.bos_id:
            ids = ids[1:]
        if self._adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids = [self.bos_id, *ids]
        return ids

    def _find_end_ids(self) -> tuple[int, ...]:
        found: list[int] = []
        for name in ("generation_config.json", "config.json"):
            found += _declared_end_ids(self.folder / name)
        if self._library.eos_token_id is not None:
            found.append(self._library.eos_token_id)
        if (turn := self._end_of_turn()) is not None:
            found.append(turn)
        return tuple(dict.fromkeys(found))

    def _end_of_turn(self) -> int | None:
        """The marker that the template puts right after an assistant's answer."""
        if self._template is None:
            return None
        probe = "jaxalign"
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": probe}]
        try:
            rendered = self._render(messages, False, "chat template")
        except _EndlessTemplate as error:
            raise ModelError(str(error)) from None
        except InputError:
            return None  # a template for other conversations; the declared end tokens remain
        after = rendered[rendered.rfind(probe) + len(probe) :].lstrip() if probe in rendered else ""
        found = [marker for marker in self._markers if after.startswith(marker)]
        return self._encoder.token_to_id(max(found, key=len)) if found else None


def left_pad(rows: Sequence[Sequence[int]], length: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch of prompts of unequal lengths, right-aligned.

    Returns:
      tokens: `[batch, length]` int32, `pad_id` on the left.
      lengths: `[batch]` int32, the real tokens of each row. Only these say what is padding.

    Raises:
      InputError: an empty batch, an empty row, or a row longer than `length`.
    """
    if not rows:
        raise InputError("the batch is empty: give at least one prompt.")
    tokens = np.full((len(rows), length), pad_id, np.int32)
    for index, row in enumerate(rows):
        if not 0 < len(row) <= length:
            raise InputError(f"prompt {index} of the batch has {len(row)} tokens; from 1 to {length} are possible.")
        tokens[index, length - len(row) :] = row
    return tokens, np.array([len(row) for row in rows], np.int32)


def _library_class(folder: Path) -> Any:
    """The class to read `folder` with: what tokenizer.json says, if there is one, else what the model's family does.

    A family's class builds its own pipeline around the vocabulary, and may differ from the file that the model was
    trained with: transformers 5 reads SmolLM2 (class GPT2Tokenizer) without the rule that splits digits.
    """
    # transformers warns at import that models need PyTorch. We use none of its models.
    logger = logging.getLogger("transformers")
    silence = lambda record: "PyTorch was not found" not in record.getMessage()  # noqa: E731
    logger.addFilter(silence)
    try:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast
    finally:
        logger.removeFilter(silence)
    return PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer


def _markers(definition: dict[str, Any], template: str) -> list[str]:
    """The added tokens that act as markers: flagged special, used by the template, or written in brackets.

    Other added tokens are ordinary text (runs of spaces, words added for a domain) and stay so.
    """
    bracketed = re.compile(r"<.+>|\[.+\]|\{.+\}", re.DOTALL)
    return [
        token["content"]
        for token in definition.get("added_tokens", [])
        if len(token["content"]) > 1
        and token["content"].strip()
        and (token["special"] or token["content"] in template or bracketed.fullmatch(token["content"]))
    ]


def _breakable(definition: dict[str, Any], markers: Sequence[str]) -> dict[str, Any]:
    """The tokenizer with a normaliser that removes `_BREAK` after markers were looked for, before all else."""
    for token in definition.get("added_tokens", []):
        if token["content"] in markers:
            token["normalized"] = False  # look for it in the text as given, where the break is still there
    remove = {"type": "Replace", "pattern": {"String": _BREAK}, "content": ""}
    normalizer = definition.get("normalizer")
    definition["normalizer"] = (
        {"type": "Sequence", "normalizers": [remove, normalizer]} if normalizer is not None else remove
    )
    definition["truncation"] = definition["padding"] = None
    return definition


def _clean(text: str) -> str:
    """Valid Unicode: halves of a surrogate pair are joined, a lone half and `_BREAK` become U+FFFD."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace(_BREAK, "\ufffd")
    return text


def _check_messages(messages: Sequence[Message], where: str) -> None:
    if not isinstance(messages, Sequence):
        raise InputError(f"{where}: a prompt is a text or a list of messages, not {type(messages).__name__}.")
    if not messages:
        raise InputError(f"{where}: the list of messages is empty.")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise InputError(f"{where}, message {index}: needs the fields 'role' and 'content'.")
        if not isinstance(message["role"], str) or not _ROLE.fullmatch(message["role"]):
            raise InputError(f"{where}, message {index}: role {message['role']!r} is not a word such as 'user'.")
        for field, value in message.items():
            if not isinstance(value, str):
                kind = type(value).__name__
                raise InputError(f"{where}, message {index}: field '{field}' must be a string, not {kind}.")
    if not any(message["content"] for message in messages):
        raise InputError(f"{where}: the prompt is empty: no message has any content.")


def _declared_end_ids(file: Path) -> list[int]:
    """`eos_token_id` of a JSON file: an int, a list, null or missing; no file is as good as a missing field."""
    if not file.is_file():
        return []
    content = read_json(file, ModelError)
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object.")
    value = content.get("eos_token_id")
    values = [] if value is None else value if isinstance(value, list) else [value]
    for item in values:
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise ModelError(f"{file}: eos_token_id {shown(value)} is neither an id, a list of ids, nor null.")
    return values
