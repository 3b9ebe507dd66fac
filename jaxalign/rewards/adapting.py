"""Unseen users: hundreds of them in one jitted call, from any number of pairs, none included."""

import dataclasses
import functools
from typing import Any

import jax

from jaxalign.data.blocks import PairBlocks
from jaxalign.errors import DataError, FitError, InputError
from jaxalign.rewards.pairs import Pairs, check, to_device
from jaxalign.rewards.precision import in_float32
from jaxalign.rewards.protocol import Method, RewardModel, Tree, finite, row_of


@functools.partial(jax.jit, static_argnames="method")
def adapt_on_device(method: Method, params: Tree, pairs: Pairs) -> Tree:
    """User parameters `[users, ...]`; one compilation per method and shape of `pairs`."""
    with jax.default_matmul_precision("float32"):
        return method.adapt(params, pairs)


@in_float32
def adapt(model: RewardModel, support: PairBlocks) -> RewardModel:
    """The same reward model for the users of `support`: `shared` as it was, `user_params` adapted to their pairs.

    A user without pairs gets the method's documented prior. Users do not influence each other.

    Raises:
      DataError: the pairs cannot be used, or their features have another width than the model's.
      FitError: a user's parameters became non-finite; names the user.
    """
    check_width(model, support)
    check(support)
    pairs = to_device(support, model.shared["statistics"])
    users = adapt_on_device(model.method, model.shared["params"], pairs)
    if not finite(users):
        bad = next(row for row in range(len(support.users)) if not finite(row_of(users, row)))
        raise FitError(
            f"Adapting '{model.method.name}' to user '{support.users[bad]}' gave numbers that are not finite. Lower "
            f"adapt_learning_rate ({model.method.adapt_learning_rate})."
        )
    return dataclasses.replace(model, user_params=users, users=tuple(support.users))


def check_width(model: RewardModel, blocks: PairBlocks) -> None:
    """Raises a `DataError` where features have another width than those that the model was fitted on."""
    if blocks.features.ndim != 2 or blocks.features.shape[1] != model.width:
        raise DataError(
            f"The features have shape {blocks.features.shape}, but '{model.method.name}' was fitted on a width of "
            f"{model.width}. Use the same language model and pooling."
        )


def check_backbone(model: RewardModel, backbone: dict[str, Any]) -> None:
    """Raises an `InputError` where hidden states come from another LM than the one that the model was fitted for."""
    names = sorted({*model.backbone, *backbone})
    wrong = [name for name in names if model.backbone.get(name) != backbone.get(name)]
    if wrong:
        told = "; ".join(f"{name}: fitted for {model.backbone.get(name)}, given {backbone.get(name)}" for name in wrong)
        raise InputError(
            f"The reward model '{model.method.name}' was fitted for another language model ({told}). Give the one "
            "it was fitted for, or fit it again."
        )
