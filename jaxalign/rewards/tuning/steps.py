"""Steps of training: gradients summed over micro-batches, one step of the optimiser, and again.

What step n draws depends on the seed and on n only, so a run that was killed resumes to bitwise the same parameters.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jaxalign.errors import FitError
from jaxalign.models.config import DecoderConfig
from jaxalign.models.transformer import Params
from jaxalign.rewards.tuning.backbone import Backbone
from jaxalign.rewards.tuning.method import PairBatch, Tree, TunedMethod, rows_of
from jaxalign.rewards.tuning.pairs import TokenPairs, micro_batches
from jaxalign.rewards.tuning.recipe import Descent, Recipe


class Program(NamedTuple):
    """What is compiled into a gradient: all static and hashable."""

    config: DecoderConfig
    method: TunedMethod
    backbone: Backbone
    remat: bool


@functools.partial(jax.jit, static_argnames=("program", "width"), donate_argnames="total")
def accumulate(
    program: Program, width: int, variables: Tree, held: Tree, params: Params, batch: PairBatch, total: Tree
) -> Tree:
    """`total` plus a micro-batch's sums of losses, weights and gradients of `variables`; `held` is not differentiated.

    `variables` and `held` together are `{"backbone", "head", "users"}`.
    """

    def objective(variables: Tree) -> Array:
        everything = {**held, **variables}
        tuned = program.backbone.apply(params, everything["backbone"])
        user = rows_of(everything["users"], batch.user)

        def rewards(user: Tree) -> Array:
            both = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), user)
            method, head = program.method, everything["head"]
            return method.rewards(program.config, tuned, head, both, batch.texts, width, program.remat)

        return jnp.sum(batch.weight * program.method.pair_losses(rewards, everything["head"], user, batch))

    loss, gradients = jax.value_and_grad(objective)(variables)
    added = {"loss": loss, "weight": jnp.sum(batch.weight), "gradients": gradients}
    return jax.tree.map(jnp.add, total, added)


@functools.partial(jax.jit, static_argnames=("method", "descent"), donate_argnames=("variables", "state", "total"))
def update(
    method: TunedMethod, descent: Descent, variables: Tree, state: Any, total: Tree, pairs: Array, step: Array
) -> tuple[Tree, Any, Tree, Array, Array]:
    """One step: new variables and optimiser state, `total` set to zero, the mean pair loss, the gradients' norm.

    Args:
      method: for its penalty, which counts once for all `pairs` of the data.
      descent: the optimiser.
      variables: what is trained.
      state: the optimiser's.
      total: of `accumulate`, over the step.
      pairs: number of training pairs, float32.
      step: int32.
    """
    gradients = jax.tree.map(lambda leaf: leaf / total["weight"], total["gradients"])
    if "users" in variables:
        prior = jax.grad(method.penalty)(variables["users"])
        gradients["users"] = jax.tree.map(lambda a, b: a + b / pairs, gradients["users"], prior)
    variables, state, norm = descent.apply(gradients, state, variables, step)
    return variables, state, jax.tree.map(jnp.zeros_like, total), total["loss"] / total["weight"], norm


def home(params: Params) -> Sharding:
    """Where small arrays go that every device of the language model needs."""
    sharding = jax.tree.leaves(params)[0].sharding
    return NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else sharding


def zeros(variables: Tree, everywhere: Sharding) -> Tree:
    """What `accumulate` starts from; sums live where the variables do.

    Committed to their devices, as all that follows them is: otherwise the first step would be compiled for itself.
    """

    def zero(leaf: Array) -> Array:
        return jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)

    scalar = {name: jax.device_put(np.zeros((), np.float32), everywhere) for name in ("loss", "weight")}
    return {**scalar, "gradients": jax.tree.map(zero, variables)}


def start(descent: Descent, variables: Tree, everywhere: Sharding) -> Any:
    """The optimiser's state before the first step: zeros, each where its variable lives."""
    shapes = jax.eval_shape(descent.transform.init, variables)
    # Adam's two moments are trees like the variables; what else there is are counters.
    places = optax.tree_map_params(
        descent.transform,
        lambda _, leaf: leaf.sharding,
        shapes,
        variables,
        transform_non_params=lambda _: everywhere,
    )
    return jax.tree.map(lambda leaf, place: jax.device_put(np.zeros(leaf.shape, leaf.dtype), place), shapes, places)


def schedule(pairs: int, recipe: Recipe) -> Iterator[np.ndarray]:
    """The pairs of each step, shuffled anew in each epoch; an epoch's last step may be smaller."""
    for epoch in range(recipe.epochs):
        order = np.random.default_rng([recipe.seed, epoch]).permutation(pairs)
        for first in range(0, pairs, recipe.batch_size):
            yield order[first : first + recipe.batch_size]


def descend(
    program: Program,
    recipe: Recipe,
    descent: Descent,
    params: Params,
    variables: Tree,
    held: Tree,
    pairs: TokenPairs,
    pad_id: int,
    *,
    first: int = 0,
    state: Any = None,
    place: Callable[[Tree], Tree] = lambda batch: batch,
) -> Iterator[tuple[Tree, Any, float, float]]:
    """Runs the steps from `first` on; gives variables, optimiser state, loss and gradient norm after each.

    Variables and state are donated to the step that follows: copy what is to be kept. Variables must be committed to
    the devices of `params`. `place` puts a batch where it is computed.

    Raises:
      FitError: a loss, a gradient or a parameter is not finite; says at which step.
    """
    everywhere = home(params)
    state = start(descent, variables, everywhere) if state is None else state
    total = zeros(variables, everywhere)
    context = min(recipe.max_length, program.config.max_position - program.method.prefix)
    for step, index in enumerate(schedule(len(pairs), recipe)):
        if step < first:
            continue
        for batch, width in micro_batches(pairs, index, recipe.micro_batch, pad_id, context):
            total = accumulate(program, width, variables, held, params, place(batch), total)
        variables, state, total, loss, norm = update(
            program.method,
            descent,
            variables,
            state,
            total,
            jnp.asarray(len(pairs), jnp.float32),
            jnp.asarray(step, jnp.int32),
        )
        if not (math.isfinite(float(loss)) and math.isfinite(float(norm))):
            raise FitError(
                f"Tuning '{program.method.name}' diverged at step {step + 1} of {descent.steps}: the loss is "
                f"{float(loss)} and the gradients' norm {float(norm)}. Lower learning_rate ({descent.peak:g}), or look "
                "for weights of the language model that are not finite."
            )
        yield variables, state, float(loss), float(norm)
