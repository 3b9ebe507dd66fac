"""The jitted programs of a fit: many runs side by side, one run a *lane*.

A lane is one combination of a seed and values of the grid. All lanes advance together: `vmap` over lanes, `scan` over
steps. The random key of a step depends on the lane's seed and the step's number only, so a resumed fit draws what an
uninterrupted one draws.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxalign.rewards import descent
from jaxalign.rewards.pairs import Pairs
from jaxalign.rewards.protocol import Method, Tree

State = dict[str, Any]
"""One leading axis `[lanes]` everywhere: `params`, `users`, `adam`, `step`, and the best so far: `best` (`params`,
`users`), `best_loss`, `best_step`, and `waited`, the number of evaluations since."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Validation pairs on the device.

    Attributes:
      query: the pairs that are scored.
      support: pairs of the same users to adapt on, for unseen users; None for seen users.
      rows: `[users]` int32, rows of the seen users among those of the training pairs; not read with `support`.
    """

    query: Pairs
    support: Pairs | None
    rows: Array


def _with(method: Method, hyper: Mapping[str, Array]) -> Method:
    """The method with traced values in place of the varied fields."""
    return dataclasses.replace(method, **hyper)


def _weighted(pairs: Pairs, key: Array, resample: bool) -> Pairs:
    """Pairs with weights of the Bayesian bootstrap: exponential draws of mean 1, constant over a lane's steps."""
    if not resample:
        return pairs
    return dataclasses.replace(pairs, weight=jax.random.exponential(jax.random.fold_in(key, 2**31), pairs.user.shape))


def start(
    method: Method, lanes: Sequence[tuple[Mapping[str, float], int]], pairs: Pairs, prepared: Tree, *, resample: bool
) -> State:
    """The state of all lanes, `(values of the grid, seed)` each, before the first step.

    Not jitted: random draws are made on the host (`jaxalign.rewards.draws`), and little else is computed.
    """
    with jax.default_matmul_precision("float32"):
        starts = []
        for values, seed in lanes:
            key = jax.random.key(seed)
            starts.append(dataclasses.replace(method, **values).init(key, _weighted(pairs, key, resample), prepared))
    # On the host: stacking on the device would compile a program for each shape. It also makes weak types strong, which
    # the first block would do otherwise, and everything would be compiled twice.
    stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *starts)

    def put(tree: Tree) -> Tree:
        """Buffers of their own: the state is donated, and none may be donated twice."""
        return jax.tree.map(lambda leaf: jnp.array(np.array(leaf)), tree)

    adam = jax.eval_shape(jax.vmap(descent.ADAM.init), stacked)
    number = len(lanes)
    return {
        "params": put(stacked[0]),
        "users": put(stacked[1]),
        # All of Adam's numbers start at zero.
        "adam": put(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), adam)),
        "best": dict(zip(("params", "users"), put(stacked), strict=True)),
        **put({name: np.zeros(number, np.int32) for name in ("step", "best_step", "waited")}),
        "best_loss": put(np.full(number, np.inf, np.float32)),
    }


@functools.partial(jax.jit, static_argnames=("method", "block", "resample"), donate_argnames="state")
def advance(
    method: Method,
    block: int,
    state: State,
    hyper: Mapping[str, Array],
    seeds: Array,
    running: Array,
    pairs: Pairs,
    *,
    resample: bool,
) -> tuple[State, Array]:
    """`block` steps of all lanes; those not `running` `[lanes]` stay as they are. Also the losses `[lanes, block]`."""

    def lane(state: State, hyper: Mapping[str, Array], seed: Array, running: Array) -> tuple[State, Array]:
        configured, key = _with(method, hyper), jax.random.key(seed)
        weighted = _weighted(pairs, key, resample)

        def step(carry: tuple[Tree, Any, Array], _: None) -> tuple[tuple[Tree, Any, Array], Array]:
            variables, adam, index = carry
            step_key = jax.random.fold_in(key, index)
            loss, gradients = jax.value_and_grad(
                lambda variables: configured.objective(variables[0], variables[1], weighted, step_key)
            )(variables)
            rate = descent.decayed(configured.learning_rate, index, method.steps)
            variables, adam = descent.step(gradients, adam, variables, rate)
            return (variables, adam, index + 1), loss

        carry = ((state["params"], state["users"]), state["adam"], state["step"])
        ((params, users), adam, index), losses = jax.lax.scan(step, carry, None, length=block)
        moved = {**state, "params": params, "users": users, "adam": adam, "step": index}
        kept = jax.tree.map(lambda new, old: jnp.where(running, new, old), moved, state)
        return kept, jnp.where(running, losses, jnp.nan)

    with jax.default_matmul_precision("float32"):
        return jax.vmap(lane)(state, hyper, seeds, running)


def held_out_loss(method: Method, params: Tree, users: Tree, pairs: Pairs, held: HeldOut) -> Array:
    """Mean loss of the validation pairs: unseen users are adapted first, seen ones are looked up."""
    if held.support is not None:
        rows = method.adapt(params, held.support)
    else:
        seen = method.adapt(params, pairs) if method.amortised else users
        rows = jax.tree.map(lambda leaf: leaf[held.rows], seen)
    losses = method.pair_losses(method.scores(params, rows, held.query), held.query)
    return losses.sum() / jnp.maximum(held.query.weight.sum(), 1.0)


@functools.partial(jax.jit, static_argnames=("method", "resample"), donate_argnames="state")
def judge(
    method: Method,
    state: State,
    hyper: Mapping[str, Array],
    seeds: Array,
    running: Array,
    pairs: Pairs,
    held: HeldOut | None,
    *,
    resample: bool,
) -> tuple[State, Array, Array]:
    """Evaluates the running lanes and remembers their best; without validation pairs the latest is the best.

    Returns:
      The state, validation losses `[lanes]` (NaN without validation pairs), and whether all parameters are finite
      `[lanes]`.
    """

    def lane(state: State, hyper: Mapping[str, Array], seed: Array, running: Array) -> tuple[State, Array, Array]:
        configured = _with(method, hyper)
        latest = {"params": state["params"], "users": state["users"]}
        if held is None:
            loss, better = jnp.full((), jnp.nan), running
        else:
            weighted = _weighted(pairs, jax.random.key(seed), resample)
            loss = held_out_loss(configured, latest["params"], latest["users"], weighted, held)
            better = running & (loss < state["best_loss"])
        flags = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(latest)]
        new = {
            **state,
            "best": jax.tree.map(lambda new, old: jnp.where(better, new, old), latest, state["best"]),
            "best_loss": jnp.where(better, loss, state["best_loss"]) if held is not None else state["best_loss"],
            "best_step": jnp.where(better, state["step"], state["best_step"]),
            "waited": jnp.where(better, 0, state["waited"] + running.astype(jnp.int32)),
        }
        return new, jnp.where(running, loss, jnp.nan), jnp.stack(flags).all() if flags else jnp.ones((), bool)

    with jax.default_matmul_precision("float32"):
        return jax.vmap(lane)(state, hyper, seeds, running)
