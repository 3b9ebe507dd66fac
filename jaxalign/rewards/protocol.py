"""What a personal reward model is: the protocol between methods, fitting, and the guided decoder.

A *method* is a frozen dataclass of hyper-parameters with pure functions on plain pytrees. A *fitted* model holds

  shared       what all users share: parameters, feature statistics, the scale of its rewards,
  user_params  what is personal, stacked over users: every leaf is `[users, ...]`,

and its reward is one pure function, `method.reward(shared, user, hidden, prompt)`, of the LM's raw hidden state. The
decoder gathers one user's slice of `user_params` by index inside jit and calls it on the hidden states of its
candidates; reading it at token t gives the reward of the prefix up to t, reading it at the last content token that of
the response. Methods compare and hash by value, as does `RewardModel.reward`: it may be a static argument of jit.

To keep the work per user small, a reward is split in three: a part of the text alone, a part of the user alone, and
what combines them. Fitting computes the first once a text and the second once a user:

  reward = combine(encode_text(features), encode_prompt(prompt), encode_user(user)) / margin_deviation
"""

import abc
import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from jaxalign.data.blocks import PairBlocks
from jaxalign.errors import InputError
from jaxalign.rewards.descent import minimise
from jaxalign.rewards.losses import BRADLEY_TERRY, Loss
from jaxalign.rewards.pairs import Pairs, standardise

Tree = Any
"""A pytree of arrays: nested dictionaries with string keys, or one array."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(abc.ABC):
    """Base of all methods; `docs/new_reward_model.md` adds one in 30 lines.

    Float fields that `fit` varies in its grid may be traced values inside a fit: use them in formulas only, never in an
    `if` and never as a size.

    Attributes:
      learning_rate: Adam's step size in `fit`, decayed along half a cosine.
      steps: full-batch steps of `fit`; 0 for closed forms.
      adapt_learning_rate: Adam's step size in `adapt`.
      adapt_steps: steps of `adapt`.
      loss: the loss on pairs.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    cost: ClassVar[str]
    """Extra work per scored text and user, beside one matrix product of the text that all users share."""
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    """The values of float fields that `fit` tries where there is validation data and no other grid is given."""
    amortised: ClassVar[bool] = False
    """Whether a seen user's parameters come from `adapt` on their pairs, rather than from training."""
    random: ClassVar[bool] = True
    """Whether fitting uses its random key; without, all seeds give the same model."""

    learning_rate: float = 0.01
    steps: int = 300
    adapt_learning_rate: float = 0.1
    adapt_steps: int = 150
    loss: Loss = BRADLEY_TERRY

    # What a new method writes.

    def prepare(self, blocks: PairBlocks, pairs: Pairs) -> Tree:
        """Whatever `init` needs and is easier computed once, before any tracing; the same for all seeds."""
        return ()

    @abc.abstractmethod
    def init(self, key: Array, pairs: Pairs, prepared: Tree) -> tuple[Tree, Tree]:
        """Initial parameters and user parameters `[users, ...]` (an empty dictionary if not trained)."""

    def encode_text(self, params: Tree, features: Array) -> Tree:
        """The part of a text alone; standardised features `[..., width]` to leaves `[..., *]`."""
        return features

    def encode_prompt(self, params: Tree, prompts: Array) -> Tree:
        """The part of the prompt alone; standardised features `[..., width]` to leaves `[..., *]`."""
        return ()

    def encode_user(self, params: Tree, user: Tree) -> Tree:
        """The part of one user alone."""
        return user

    @abc.abstractmethod
    def combine(self, params: Tree, text: Tree, prompt: Tree, user: Tree) -> Array:
        """Rewards `[...]` of encoded texts `[..., *]` for one encoded prompt and one encoded user."""

    @abc.abstractmethod
    def prior(self, params: Tree) -> Tree:
        """The parameters of a user of whom nothing is known: one user's slice."""

    def penalty(self, params: Tree, users: Tree) -> Array:
        """A scalar added to the sum of pair losses, in `fit` and in `adapt`: minus the log of a prior."""
        return jnp.zeros(())

    def linear(self, params: Tree, user: Tree) -> tuple[Array, Array] | None:
        """A `[width]` vector and a bias with reward = features . vector + bias, for methods that have them."""
        return None

    def check(self, blocks: PairBlocks) -> None:
        """Refuses hyper-parameters and data that do not fit together; called before anything else.

        Raises:
          InputError: naming the field and the mend.
        """
        self.check_hyper()

    def check_hyper(self) -> None:
        """Refuses values that no data could suit; also called for every point of a grid.

        Raises:
          InputError: naming the field and the mend.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not value >= 0:
                raise InputError(f"{self.name}: {field.name} must be at least 0, not {value}.")
            size = isinstance(value, int) and not isinstance(value, bool) and "steps" not in field.name
            if size and value < 1:
                raise InputError(f"{self.name}: {field.name} must be at least 1, not {value}.")
            if field.name.endswith("rate") and not 0 < value < math.inf:
                raise InputError(f"{self.name}: {field.name} must be positive and finite, not {value}.")

    # What follows from it, and may be replaced by something better.

    def scores(self, params: Tree, users: Tree, pairs: Pairs) -> Array:
        """Rewards `[slots]` of every text for every user who judged it."""
        texts = self.encode_text(params, pairs.features)
        prompts = self.encode_prompt(params, pairs.prompts)
        encoded = jax.vmap(lambda user: self.encode_user(params, user))(users)

        def one(text: Array, user: Array) -> Array:
            take = jax.tree.map
            return self.combine(
                params,
                take(lambda leaf: leaf[text], texts),
                take(lambda leaf: leaf[text], prompts),
                take(lambda leaf: leaf[user], encoded),
            )

        return jax.vmap(one)(pairs.slot_text, pairs.slot_user)

    def pair_losses(self, scores: Array, pairs: Pairs) -> Array:
        """Weighted losses `[pairs]` from `[slots]` scores."""
        losses = self.loss(scores[pairs.chosen], scores[pairs.rejected], pairs.label, pairs.margin, pairs.weight)
        return pairs.weight * losses

    def objective(self, params: Tree, users: Tree, pairs: Pairs, key: Array) -> Array:
        """The scalar that `fit` minimises: mean loss of a pair, plus the penalty on the same scale."""
        losses = self.pair_losses(self.scores(params, users, pairs), pairs)
        return (losses.sum() + self.penalty(params, users)) / jnp.maximum(pairs.weight.sum(), 1.0)

    def adapt(self, params: Tree, pairs: Pairs) -> Tree:
        """User parameters `[users, ...]` from support pairs, `params` fixed; users without pairs keep the prior."""
        start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (pairs.users, *leaf.shape)), self.prior(params))
        if not jax.tree.leaves(start):
            return start

        def objective(users: Tree) -> Array:
            return self.pair_losses(self.scores(params, users, pairs), pairs).sum() + self.penalty(params, users)

        return minimise(objective, start, self.adapt_steps, self.adapt_learning_rate)

    # What fitted models and the decoder call.

    def reward(self, shared: Tree, user: Tree, hidden: Array, prompt: Array) -> Array:
        """Rewards `[...]` float32 of raw hidden states, in units of the method's margin deviation on training pairs.

        Args:
          shared: `RewardModel.shared`.
          user: one user's slice of `RewardModel.user_params`.
          hidden: `[..., width]`, hidden states after the final norm, any float type, not standardised.
          prompt: `[width]`, the hidden state at the last prompt token; most methods ignore it.
        """
        statistics, params = shared["statistics"], shared["params"]
        with jax.default_matmul_precision("float32"):
            text = self.encode_text(params, standardise(hidden, statistics["features"]))
            context = self.encode_prompt(params, standardise(prompt, statistics["prompts"]))
            rewards = self.combine(params, text, context, self.encode_user(params, user))
        return rewards / shared["margin_deviation"]

    def linear_form(self, shared: Tree, user: Tree) -> tuple[Array, Array] | None:
        """`([width], [])` with reward = hidden . vector + bias on raw hidden states; None if the method is not linear.

        One matrix product then scores many users and methods: stack the vectors.
        """
        with jax.default_matmul_precision("float32"):
            form = self.linear(shared["params"], user)
            if form is None:
                return None
            described = shared["statistics"]["features"]
            vector = form[0] * described["inverse"]
            bias = form[1] - vector @ described["mean"]
        return vector / shared["margin_deviation"], bias / shared["margin_deviation"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearMethod(Method):
    """Base of the methods whose reward is (features P) . a(user), with P shared and possibly the identity."""

    def project(self, params: Tree) -> Array | None:
        """P `[width, rank]`, or None for the identity."""
        return None

    @abc.abstractmethod
    def encode_user(self, params: Tree, user: Tree) -> Array:
        """a(user) `[rank]`."""

    def encode_text(self, params: Tree, features: Array) -> Array:
        """Features P, `[..., rank]`."""
        projection = self.project(params)
        return features if projection is None else features @ projection

    def combine(self, params: Tree, text: Array, prompt: Tree, user: Array) -> Array:
        """`[..., rank]` . `[rank]`."""
        return text @ user

    def linear(self, params: Tree, user: Tree) -> tuple[Array, Array]:
        """P a(user), and no bias."""
        projection, weights = self.project(params), self.encode_user(params, user)
        return (weights if projection is None else projection @ weights), jnp.zeros(())

    def scores(self, params: Tree, users: Tree, pairs: Pairs) -> Array:
        """As in `Method`; one matrix product where the texts are shared, and no copy of features per user."""
        texts = self.encode_text(params, pairs.features)
        if not jax.tree.leaves(users):
            return self.combine(params, texts, (), self.encode_user(params, users))[pairs.slot_text]
        weights = jax.vmap(lambda user: self.encode_user(params, user))(users)
        # The full table costs `texts * users` products, of which only the slots are read: still faster than gathering
        # wide rows for each slot, up to a few times as many products.
        if texts.shape[0] * pairs.users <= 8 * pairs.slot_text.shape[0]:
            return (texts @ weights.T).reshape(-1)[pairs.slot_text * pairs.users + pairs.slot_user]
        # Not einsum: a batched product of thousands of vectors is slow on CPU.
        return (texts[pairs.slot_text] * weights[pairs.slot_user]).sum(axis=-1)


@dataclasses.dataclass(frozen=True)
class RewardFunction:
    """`Method.reward` of one method, as a static argument of jitted functions.

    Equal for equal methods, which bound methods of Python are not: those compare the object they are bound to by
    identity, and each loaded copy of a model would compile anew.
    """

    method: Method

    def __call__(self, shared: Tree, user: Tree, hidden: Array, prompt: Array) -> Array:
        """Rewards `[...]` of hidden states `[..., width]`; see `Method.reward`."""
        return self.method.reward(shared, user, hidden, prompt)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardModel:
    """A fitted reward model of some users.

    Attributes:
      method: the hyper-parameters, with the values that were chosen.
      shared: `{"params", "statistics", "margin_deviation"}`, a pytree of arrays. Rewards are divided by
        `margin_deviation`, the deviation of chosen minus rejected on training pairs, so that one guidance weight means
        the same for all methods.
      user_params: every leaf `[users, ...]`; an empty dictionary where nothing is personal.
      users: the user ids, in the order of the rows.
      backbone: what says which LM the hidden states come from (name, hashes); an empty one matches nothing but itself.
    """

    method: Method
    shared: Tree
    user_params: Tree
    users: tuple[str, ...]
    backbone: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def reward(self) -> "RewardFunction":
        """`reward(shared, user, hidden, prompt)`; pure, hashable, equal for equal methods."""
        return RewardFunction(self.method)

    def linear_form(self, shared: Tree, user: Tree) -> tuple[Array, Array] | None:
        """As in `Method`."""
        return self.method.linear_form(shared, user)

    @property
    def width(self) -> int:
        """Size of the hidden states."""
        return self.shared["statistics"]["features"]["mean"].shape[0]

    def index(self, user: str) -> int:
        """The row of a user.

        Raises:
          InputError: the model does not know the user; names near ones.
        """
        try:
            return self.users.index(user)
        except ValueError:
            near = difflib.get_close_matches(user, self.users, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise InputError(
                f"The reward model '{self.method.name}' does not know user '{user}'.{hint} "
                "Adapt it to the pairs of that user (none are needed for the prior)."
            ) from None

    def user(self, user: str) -> Tree:
        """One user's slice of `user_params`; raises as `index` does."""
        return row_of(self.user_params, self.index(user))

    @property
    def prior(self) -> Tree:
        """The slice of a user of whom nothing is known."""
        return self.method.prior(self.shared["params"])


def row_of(tree: Tree, row: int) -> Tree:
    """One entry of the leading axis of every leaf, traced or not."""

    def take(leaf: Array) -> Array:
        if isinstance(leaf, Tracer):
            return leaf[row]
        # On the host: indexing on the device would compile a program for every shape.
        return jnp.asarray(np.asarray(leaf)[row])

    return jax.tree.map(take, tree)


def finite(tree: Tree) -> bool:
    """Whether every number of a pytree is finite."""
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in jax.tree.leaves(tree))
