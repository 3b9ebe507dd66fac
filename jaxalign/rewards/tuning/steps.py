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
from jax import Array

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
) -> tuple[Tree, Any, Array, Array]:
    """One step: new variables and optimiser state, the mean pair loss, and the gradients' norm.

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
    return variables, state, total["loss"] / total["weight"], norm


def zeros(variables: Tree) -> Tree:
    """What `accumulate` starts a step from; sums live where the variables do."""
    scalar = {name: jnp.zeros((), jnp.float32) for name in ("loss", "weight")}
    return {**scalar, "gradients": jax.tree.map(jnp.zeros_like, variables)}


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

    Variables and state are donated to the step that follows: copy what is to be kept. `place` puts a batch where it
    is computed.

    Raises:
      FitError: a loss, a gradient or a parameter is not finite; says at which step.
    """
    state = descent.transform.init(variables) if state is None else state
    context = min(recipe.max_length, program.config.max_position)
    for step, index in enumerate(schedule(len(pairs), recipe)):
        if step < first:
            continue
        total = zeros(variables)
        for batch, width in micro_batches(pairs, index, recipe.micro_batch, pad_id, context):
            total = accumulate(program, width, variables, held, params, place(batch), total)
        variables, state, loss, norm = update(
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
