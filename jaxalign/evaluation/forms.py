"""The scores by which a guided policy ranks two responses: three forms, each as a sum and per token.

| form | S_u(y) | asks |
| --- | --- | --- |
| `policy` | sum over t of log pi_u(y_t), normalised over the k most probable tokens joined with y_t | does the adapted language model prefer the right response? |
| `score` | sum over t of [log p(y_t) + w r_u(x, y_1..t)] | does the function that the search maximises? |
| `sequence` | log p(y) + w r_u(x, y) | would best-of-n? |

`mean` divides by the number of tokens, since a sum favours short responses. In `sequence` it divides log p alone: the
reward is of the whole response, and so the limits hold in both conventions: at w = 0 it is the language model's own
ranking, as w grows it becomes that of the reward.
"""  # noqa: E501

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from jaxalign.data.blocks import PairBlocks
from jaxalign.evaluation.judging import Entry, Judgements
from jaxalign.metrics.accuracy import PairCounts, count

Form = Literal["policy", "score", "sequence"]
Length = Literal["sum", "mean"]
FORMS: tuple[Form, ...] = ("policy", "score", "sequence")
LENGTHS: tuple[Length, ...] = ("sum", "mean")


def scores(judged: Judgements, method: str, form: Form, length: Length) -> np.ndarray:
    """`[entries, W, K]` float64 scores S_u of every entry, in nats; `score` and `sequence` are the same for every k."""
    weight = np.asarray(judged.weights, np.float64)[None, :, None]
    log_prob = judged.log_prob[:, None, None]
    tokens = judged.tokens[:, None, None] if length == "mean" else 1.0
    if form == "policy":
        return judged.policy[method] / tokens
    if form == "score":
        value = (log_prob + weight * judged.reward_sum[method][:, None, None]) / tokens
    else:
        value = log_prob / tokens + weight * judged.reward[method][:, None, None]
    return np.broadcast_to(value, (*value.shape[:2], len(judged.top_ks)))


def likelihood(judged: Judgements, length: Length) -> np.ndarray:
    """`[entries]` float64, the language model's own log-probability: the policy without a reward."""
    return judged.log_prob / (judged.tokens if length == "mean" else 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedPairs:
    """Pairs of users whose two sides are entries of one `Judgements`.

    Attributes:
      users: ids, in the order of the rows of all counts.
      user: `[pairs]` index into `users`.
      chosen: `[pairs]` entry of the chosen text.
      rejected: `[pairs]` entry of the rejected text.
      label: `[pairs]` probability that chosen is preferred.
    """

    users: tuple[str, ...]
    user: np.ndarray
    chosen: np.ndarray
    rejected: np.ndarray
    label: np.ndarray

    @classmethod
    def of(cls, blocks: PairBlocks, entries: Mapping[Entry, int]) -> "JudgedPairs":
        """The pairs of `blocks`, in its order, given the place of each (text, user)."""
        user, place = np.nonzero(blocks.mask)

        def side(texts: np.ndarray) -> np.ndarray:
            found = [entries[Entry(int(t), blocks.users[u])] for u, t in zip(user, texts[user, place], strict=True)]
            return np.asarray(found, np.int64)

        return cls(
            users=blocks.users,
            user=user,
            chosen=side(blocks.chosen),
            rejected=side(blocks.rejected),
            label=blocks.label[user, place],
        )

    def counts(self, values: np.ndarray) -> PairCounts:
        """Pairs that `[entries, ...]` scores rank as labelled, per user: every field `[users, ...]`."""
        gap = np.sign(values[self.chosen] - values[self.rejected])
        flat = gap.reshape(len(gap), -1)
        # As blocks of one user each, since `count` is the one place that says what a tie and a label are worth.
        counted = count(
            flat.T[..., None].reshape(-1, 1),
            np.zeros((flat.size, 1)),
            np.ones((flat.size, 1), bool),
            np.tile(self.label, flat.shape[1])[:, None],
        )

        def total(each: np.ndarray) -> np.ndarray:
            columns = np.asarray(each, np.float64).reshape(flat.shape[1], len(gap))
            sums = [np.bincount(self.user, weights=column, minlength=len(self.users)) for column in columns]
            return np.stack(sums, axis=1).reshape(len(self.users), *values.shape[1:])

        return PairCounts(correct=total(counted.correct), pairs=total(counted.pairs), ties=total(counted.ties))


def entries_of(parts: Sequence[PairBlocks]) -> list[Entry]:
    """All (text, user) that occur in pairs, each once, in a fixed order."""
    found = {
        Entry(int(text), blocks.users[user])
        for blocks in parts
        for user, place in zip(*np.nonzero(blocks.mask), strict=True)
        for text in (blocks.chosen[user, place], blocks.rejected[user, place])
    }
    return sorted(found)
