"""What a reward model with a tuned backbone is: the protocol between its methods, training and the guided decoder.

A method is a frozen dataclass of hyper-parameters with pure functions on plain pytrees, as those on cached features
(`jaxalign.rewards.protocol`), but it reads tokens: its reward of a text is a function of the language model's own
passes over it. What is trained has three parts:

  backbone  of the language model, see `backbone`,
  head      of the method, shared by all users,
  users     personal, stacked over users: every leaf is `[users, ...]`; an empty dictionary where nothing is.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.decoding.guidance import Guidance
from jaxalign.errors import InputError
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Params
from jaxalign.rewards.losses import BRADLEY_TERRY, Loss
from jaxalign.rewards.tuning.forward import TextBatch

Tree = Any


class PairBatch(NamedTuple):
    """Pairs in training; arrays as in `TextBatch`.

    Attributes:
      texts: `2 * pairs` rows: the chosen texts, then the rejected ones.
      user: `[pairs]` int32, rows of the users' parameters.
      label: `[pairs]` float32, probability that chosen is preferred.
      margin: `[pairs]` float32.
      weight: `[pairs]` float32, 0 for padding.
    """

    texts: TextBatch
    user: Any
    label: Any
    margin: Any
    weight: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedMethod(abc.ABC):
    """Base of the methods that tune the language model.

    Attributes:
      loss: the loss on pairs of rewards.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    cost: ClassVar[str]
    """Forward passes per generated token, and the pass's width in tokens, the language model's own included."""
    learning_rate: ClassVar[float]
    """The default for LoRA."""
    user_rate: ClassVar[float] = 1.0
    """The learning rate of personal parameters is so many times that of the others."""
    personal: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    """Whether the reward needs the log-probability under the model before tuning."""

    loss: Loss = BRADLEY_TERRY

    @property
    def prefix(self) -> int:
        """Positions that the method puts in front of a text."""
        return 0

    # What a new method writes.

    @abc.abstractmethod
    def init(self, key: Array, config: DecoderConfig, params: Params, pairs: np.ndarray) -> tuple[Tree, Tree]:
        """Head and users `[users, ...]`; `pairs` `[users]` is how many each has. Shares no buffer with `params`."""

    @abc.abstractmethod
    def rewards(
        self, config: DecoderConfig, params: Params, head: Tree, user: Tree, texts: TextBatch, width: int, remat: bool
    ) -> Array:
        """Rewards `[rows]` float32 of whole responses; `user` holds each row's own parameters, `[rows, ...]`."""

    @abc.abstractmethod
    def guidance(
        self, config: DecoderConfig, params: Params, tuned: bool, head: Tree, users: Tree, weight: Any
    ) -> Guidance:
        """The guidance of the fitted model; `Rows.user` counts rows of `users`. `tuned`: `params` are not the LM's."""

    def prior(self, head: Tree) -> Tree:
        """The parameters of a user of whom nothing is known: one user's slice."""
        return {}

    def penalty(self, users: Tree) -> Array:
        """A scalar added to the sum of all pair losses: minus the log of a prior."""
        return jnp.zeros((), jnp.float32)

    def pair_losses(self, rewards: Callable[[Tree], Array], head: Tree, user: Tree, batch: PairBatch) -> Array:
        """`[pairs]` losses; `rewards(user)` gives `[2 * pairs]` rewards for the users' parameters `[pairs, ...]`."""
        both = rewards(user)
        pairs = batch.user.shape[0]
        return self.loss(both[:pairs], both[pairs:], batch.label, batch.margin, batch.weight)

    def check(self) -> None:
        """Refuses hyper-parameters; called before anything else.

        Raises:
          InputError: naming the field and the mend.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not 0 <= value < math.inf:
                raise InputError(f"{self.name}: {field.name} must be at least 0 and finite, not {value}.")
            if isinstance(value, int) and value < 1:
                raise InputError(f"{self.name}: {field.name} must be at least 1, not {value}.")


def rows_of(users: Tree, index: Array) -> Tree:
    """The parameters of each of `index` `[rows]`."""
    return jax.tree.map(lambda leaf: leaf[index], users)
