"""Prompts to token ids, with every complaint before any work."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxalign.errors import InputError
from jaxalign.models.tokenizer import Tokenizer

# A text, chat messages, or token ids.
Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]


class Encoded(NamedTuple):
    """Token ids of one prompt, and how many were cut from its left."""

    ids: list[int]
    cut: int


def is_ids(prompt: object) -> bool:
    """Whether a prompt is given as token ids."""
    return (
        isinstance(prompt, (Sequence, np.ndarray))
        and not isinstance(prompt, str)
        and all(isinstance(item, (int, np.integer)) for item in prompt)
    )


def encode_prompts(
    tokenizer: Tokenizer | None,
    prompts: Sequence[Prompt],
    context: int,
    on_long_prompt: str,
    vocab_size: int,
    beside: int = 0,
) -> list[Encoded]:
    """Token ids of every prompt.

    Args:
      tokenizer: None when the model has none; prompts must then be ids.
      prompts: texts (one user message of the chat template), chat messages, or ids.
      context: longest sequence in tokens.
      on_long_prompt: `error` or `truncate_left`.
      vocab_size: ids must be below it.
      beside: tokens of the context that must be left free.

    Raises:
      InputError: naming the prompt by its place in the list, from 0.
    """
    if isinstance(prompts, str):
        raise InputError("prompts is one text; give a list of prompts")
    if len(prompts) == 0:
        raise InputError("there are no prompts: the batch is empty")
    if on_long_prompt not in ("error", "truncate_left"):
        raise InputError(f"on_long_prompt = {on_long_prompt!r}: use 'error' or 'truncate_left'")
    return [
        _encode(tokenizer, prompt, f"prompt {i}", context, on_long_prompt, vocab_size, beside)
        for i, prompt in enumerate(prompts)
    ]


def _encode(
    tokenizer, prompt: Prompt, where: str, context: int, on_long_prompt: str, vocab_size: int, beside: int
) -> Encoded:
    if len(prompt) == 0:
        raise InputError(f"{where} is empty")
    if is_ids(prompt):
        ids = [int(token) for token in prompt]  # type: ignore[arg-type]
        if wrong := [token for token in ids if not 0 <= token < vocab_size]:
            raise InputError(f"{where}: id {wrong[0]} is not in the vocabulary of {vocab_size}")
    elif tokenizer is None:
        raise InputError(f"{where} is text, and the model has no tokenizer: give token ids")
    else:
        ids = tokenizer.prompt(prompt, where)
    room = context - beside
    if len(ids) <= room:
        return Encoded(ids, 0)
    if on_long_prompt == "error":
        taken = f", {beside} of them for the candidates" if beside else ""
        raise InputError(
            f"{where} has {len(ids)} tokens and the context holds {context}{taken}: shorten it, or use truncate_left"
        )
    return Encoded(ids[-room:], len(ids) - room)
