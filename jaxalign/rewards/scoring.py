"""Rewards of pairs under a fitted model, and the numbers that every fit reports."""

import dataclasses
import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.data.blocks import PairBlocks
from jaxalign.metrics.accuracy import count, macro, micro, worst_tenth
from jaxalign.metrics.calibration import expected_calibration_error
from jaxalign.rewards.adapting import check_width
from jaxalign.rewards.pairs import Pairs, check, to_device
from jaxalign.rewards.precision import in_float32
from jaxalign.rewards.protocol import Method, RewardModel, Tree

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairRewards:
    """Standardised rewards of both texts of each pair; zeros at padding.

    Attributes:
      chosen: `[users, pairs]` float32.
      rejected: `[users, pairs]` float32.
    """

    chosen: np.ndarray
    rejected: np.ndarray


@functools.partial(jax.jit, static_argnames="method")
def _sides(method: Method, params: Tree, users: Tree, pairs: Pairs) -> tuple[Array, Array, Array]:
    """Raw rewards of both sides and losses, each `[pairs]`."""
    with jax.default_matmul_precision("float32"):
        scores = method.scores(params, users, pairs)
        return scores[pairs.chosen], scores[pairs.rejected], method.pair_losses(scores, pairs)


def _score(model: RewardModel, blocks: PairBlocks) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    check_width(model, blocks)
    check(blocks)
    rows = [model.index(user) for user in blocks.users]
    users = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), model.user_params)
    pairs = to_device(blocks, model.shared["statistics"])
    chosen, rejected, losses = _sides(model.method, model.shared["params"], users, pairs)
    return np.asarray(chosen), np.asarray(rejected), np.asarray(losses)


@in_float32
def pair_rewards(model: RewardModel, blocks: PairBlocks) -> PairRewards:
    """Rewards of all pairs of users whom the model knows (seen, or adapted to).

    Raises:
      InputError: a user is unknown to the model.
      DataError: the pairs cannot be used.
    """
    chosen, rejected, _ = _score(model, blocks)
    deviation = np.asarray(model.shared["margin_deviation"])

    def spread(values: np.ndarray) -> np.ndarray:
        block = np.zeros(blocks.mask.shape, np.float32)
        block[blocks.mask] = values / deviation
        return block

    return PairRewards(chosen=spread(chosen), rejected=spread(rejected))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a reward model does on a set of pairs. None where nothing can be said, for lack of pairs.

    Attributes:
      loss: mean of the method's own pair loss.
      macro: mean over users of their accuracy.
      micro: accuracy over pairs.
      worst_tenth: mean accuracy of the tenth of users with the lowest.
      ece: expected calibration error of sigmoid(margin), on rewards as trained.
      reward_mean: mean standardised reward of all texts in pairs.
      reward_spread: its standard deviation.
      pairs: number of pairs with a right answer.
      ties: pairs whose two rewards are equal.
      users: users with such pairs.
    """

    loss: float | None
    macro: float | None
    micro: float | None
    worst_tenth: float | None
    ece: float | None
    reward_mean: float | None
    reward_spread: float | None
    pairs: int
    ties: int
    users: int

    def as_json(self) -> dict[str, Any]:
        """Field names to numbers."""
        return dataclasses.asdict(self)


def warn_of_ties(method: str, pairs: int, ties: int) -> None:
    """Says so where most rewards do not tell the two texts apart: an accuracy near one half then hides a broken model.

    Rewards of `reference` are equal by design.
    """
    if 2 * ties > pairs and method != "reference":
        _log.warning("%s gives both texts the same reward in %d of %d pairs: each counts one half", method, ties, pairs)


@in_float32
def evaluate(model: RewardModel, blocks: PairBlocks) -> Evaluation:
    """Loss, accuracy, calibration and spread on pairs of users whom the model knows; raises as `pair_rewards`."""
    chosen, rejected, losses = _score(model, blocks)
    block = np.zeros((2, *blocks.mask.shape), np.float32)
    block[:, blocks.mask] = chosen, rejected
    counts = count(block[0], block[1], blocks.mask, blocks.label)
    rewards = np.concatenate([chosen, rejected]) / float(model.shared["margin_deviation"])
    some = bool(losses.size)
    pairs, ties = int(np.asarray(counts.pairs).sum()), int(np.asarray(counts.ties).sum())
    warn_of_ties(model.method.name, pairs, ties)
    return Evaluation(
        loss=float(losses.mean(dtype=np.float64)) if some else None,
        macro=macro(counts),
        micro=micro(counts),
        worst_tenth=worst_tenth(counts),
        ece=expected_calibration_error(chosen - rejected, blocks.label[blocks.mask]),
        reward_mean=float(rewards.mean(dtype=np.float64)) if some else None,
        reward_spread=float(rewards.std(dtype=np.float64)) if some else None,
        pairs=pairs,
        ties=ties,
        users=int((np.asarray(counts.pairs) > 0).sum()),
    )
