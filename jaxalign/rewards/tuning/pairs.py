"""Preference rows as token ids, and the micro-batches of a training step."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxalign.data.schema import Preference
from jaxalign.decoding.buckets import bucket, power_of_two
from jaxalign.decoding.texts import Text, encode_texts
from jaxalign.errors import InputError
from jaxalign.models.language_model import LanguageModel
from jaxalign.models.tokenizer import left_pad
from jaxalign.rewards.features import chat_prompt
from jaxalign.rewards.tuning.forward import TextBatch
from jaxalign.rewards.tuning.method import PairBatch

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenPairs:
    """Pairs as token ids.

    Attributes:
      chosen: the preferred texts, prompt and response.
      rejected: the others.
      user: `[pairs]` int32, index into `users`.
      label: `[pairs]` float32, probability that chosen is preferred.
      margin: `[pairs]` float32.
      reference: `[2, pairs]` float32, log-probabilities of chosen and rejected before tuning; zeros unless asked for.
      users: the user ids.
      cut: how many texts lost tokens at the left of their prompt.
      dropped: how many rows are not here, since a response alone does not fit or has no token.
    """

    chosen: list[Text]
    rejected: list[Text]
    user: np.ndarray
    label: np.ndarray
    margin: np.ndarray
    reference: np.ndarray
    users: tuple[str, ...]
    cut: int
    dropped: int

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def counts(self) -> np.ndarray:
        """`[users]` int, pairs per user."""
        return np.bincount(self.user, minlength=len(self.users))


def encode_pairs(
    lm: LanguageModel, rows: Sequence[Preference], max_length: int, users: Sequence[str] | None = None
) -> TokenPairs:
    """Rows as token ids, in their order.

    Args:
      lm: the language model whose tokenizer is used.
      rows: the pairs.
      max_length: longest prompt and response together, in tokens; prompts are cut from the left, responses never.
      users: the user ids in the order of their parameters; those of the rows, sorted, where None.

    Raises:
      InputError: there are no rows that fit, or a row's user is not among `users`.
    """
    if lm.tokenizer is None:
        raise InputError("The language model has no tokenizer: pairs are texts, and cannot be encoded.")
    if max_length < 2:
        raise InputError(f"max_length = {max_length}: a text has at least 2 tokens, one of them the response's.")
    known = tuple(sorted({row.user for row in rows}) if users is None else users)
    place = {user: number for number, user in enumerate(known)}
    if unknown := [row.user for row in rows if row.user not in place]:
        raise InputError(f"User '{unknown[0]}' is not known to the reward model. Adapt it to the pairs of that user.")
    tokenised: dict[str, list[int]] = {}
    for row in rows:
        for text in (row.chosen, row.rejected):
            if text not in tokenised:
                tokenised[text] = lm.tokenizer.encode(text)
    fits = {text for text, ids in tokenised.items() if 0 < len(ids) < max_length}
    kept = [row for row in rows if row.chosen in fits and row.rejected in fits]
    dropped = len(rows) - len(kept)
    if not kept:
        raise InputError(
            f"None of {len(rows)} pairs can be used: a response must have from 1 to {max_length - 1} tokens. Raise "
            "max_length."
        )
    if dropped:
        _log.warning("%d of %d pairs are left out: a response has no token, or does not fit", dropped, len(rows))
    sides = []
    for texts in ([row.chosen for row in kept], [row.rejected for row in kept]):
        prompts = [chat_prompt(row.prompt) for row in kept]
        sides.append(encode_texts(lm, prompts, [tokenised[text] for text in texts], max_length, "truncate_left"))
    return TokenPairs(
        chosen=sides[0],
        rejected=sides[1],
        user=np.asarray([place[row.user] for row in kept], np.int32),
        label=np.asarray([row.label for row in kept], np.float32),
        margin=np.asarray([row.margin for row in kept], np.float32),
        reference=np.zeros((2, len(kept)), np.float32),
        users=known,
        cut=sum(text.cut > 0 for side in sides for text in side),
        dropped=dropped,
    )


class MicroBatch(NamedTuple):
    """Arrays of a few pairs, and the static bound of their responses' lengths."""

    pairs: PairBatch
    width: int


def micro_batches(
    pairs: TokenPairs, index: Sequence[int] | np.ndarray, size: int, pad_id: int, max_length: int
) -> Iterator[MicroBatch]:
    """The pairs `index` of one step, in micro-batches of `size`: similar lengths together, longest first.

    Which pairs make up the step is not changed by it, and sizes are rounded, so a few programs serve all steps.
    """
    sizes = [max(len(pairs.chosen[i].ids), len(pairs.rejected[i].ids)) for i in index]
    order = [int(index[i]) for i in np.argsort(sizes, kind="stable")[::-1]]
    for first in range(0, len(order), size):
        part = order[first : first + size]
        filled = np.asarray(part + part[-1:] * (size - len(part)))
        texts = [pairs.chosen[i] for i in filled] + [pairs.rejected[i] for i in filled]
        length = min(bucket(max(len(text.ids) for text in texts), 32), max_length)
        responses = np.asarray([text.response for text in texts], np.int32)
        tokens, lengths = left_pad([text.ids for text in texts], length, pad_id)
        batch = TextBatch(tokens, lengths, responses, pairs.reference[:, filled].reshape(-1))
        real = (np.arange(size) < len(part)).astype(np.float32)
        arrays: Any = PairBatch(batch, pairs.user[filled], pairs.label[filled], pairs.margin[filled], real)
        yield MicroBatch(arrays, min(power_of_two(max(int(responses.max()), 32)), length))
