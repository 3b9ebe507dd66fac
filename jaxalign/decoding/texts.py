"""Prompt and response pairs to token ids, and into batches of similar length."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxalign.decoding.buckets import bucket, few_shapes, power_of_two
from jaxalign.decoding.prompts import Prompt, encode_prompts, is_ids
from jaxalign.errors import InputError
from jaxalign.models.language_model import LanguageModel
from jaxalign.models.tokenizer import left_pad


class Text(NamedTuple):
    """Token ids of a prompt followed by a response.

    Attributes:
      ids: the prompt's ids, then the response's.
      response: number of ids that are the response, at least 1.
      cut: tokens cut from the left of the prompt.
    """

    ids: list[int]
    response: int
    cut: int


def encode_texts(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    responses: Sequence[str | Sequence[int]],
    context: int,
    on_long_prompt: str = "error",
) -> list[Text]:
    """Token ids of each prompt and response; the response is encoded on its own and is never cut.

    Args:
      lm: the language model whose tokenizer is used.
      prompts: texts, chat messages or ids; see `prompts`.
      responses: texts or ids, one per prompt. No end token is added.
      context: longest allowed sum of both, in tokens.
      on_long_prompt: `error`, or `truncate_left` to cut the prompt so that both fit (at least 1 token of it remains).

    Raises:
      InputError: naming the text by its place in the list: an empty response, numbers that differ, or no room.
    """
    if len(prompts) != len(responses):
        raise InputError(f"{len(prompts)} prompts and {len(responses)} responses: one response per prompt is needed")
    # The prompt alone may fill the context only in part; its own limit is checked below, with the response.
    encoded = encode_prompts(lm.tokenizer, prompts, 1 << 60, on_long_prompt, lm.config.vocab_size)
    texts = []
    for i, (prompt, response) in enumerate(zip(encoded, responses, strict=True)):
        where = f"response {i}"
        if len(response) == 0:
            raise InputError(f"{where} is empty")
        if is_ids(response):
            ids = [int(token) for token in response]
            if wrong := [token for token in ids if not 0 <= token < lm.config.vocab_size]:
                raise InputError(f"{where}: id {wrong[0]} is not in the vocabulary of {lm.config.vocab_size}")
        elif lm.tokenizer is None:
            raise InputError(f"{where} is text, and the model has no tokenizer: give token ids")
        else:
            ids = lm.tokenizer.encode(str(response))
        total = len(prompt.ids) + len(ids)
        if total > context and (on_long_prompt == "error" or len(ids) >= context):
            raise InputError(
                f"prompt {i} and its response have {total} tokens ({len(ids)} of them the response) and the context "
                f"holds {context}: shorten them" + (", or use truncate_left" if len(ids) < context else "")
            )
        cut = max(0, total - context)
        texts.append(Text(prompt.ids[cut:] + ids, len(ids), cut))
    return texts


class Batch(NamedTuple):
    """Texts of similar length, padded on the left to one static shape.

    Attributes:
      places: places of the real rows in the list; rows after `len(places)` repeat the last one.
      rows: `[batch]` places in the list, padding rows included.
      tokens: `[batch, length]` int32.
      lengths: `[batch]` int32, tokens of prompt and response.
      responses: `[batch]` int32, tokens of the response.
      width: static bound of `responses`.
    """

    places: list[int]
    rows: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray
    responses: np.ndarray
    width: int


def batches(texts: Sequence[Text], batch_size: int, pad_id: int, context: int) -> Iterator[Batch]:
    """Batches of up to `batch_size` texts, longest first (when memory does not suffice, that shows at once)."""
    order = sorted(range(len(texts)), key=lambda i: (-len(texts[i].ids), i))
    parts = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    wanted = []
    for index in parts:
        length = min(bucket(max(len(texts[i].ids) for i in index)), context)
        width = min(bucket(max(texts[i].response for i in index)), length)
        wanted.append((min(power_of_two(len(index)), batch_size), length, width))
    for index, (size, length, width) in zip(parts, few_shapes(wanted), strict=True):
        rows = np.asarray(index + [index[-1]] * (size - len(index)))
        responses = np.asarray([texts[i].response for i in rows], np.int32)
        tokens, lengths = left_pad([texts[i].ids for i in rows], length, pad_id)
        yield Batch(index, rows, tokens, lengths, responses, width)
