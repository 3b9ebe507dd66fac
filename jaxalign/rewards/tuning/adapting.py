"""Adapting a fitted model to further users: their own parameters are fitted, everything else is fixed."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np

from jaxalign.data.schema import Preference
from jaxalign.data.splits import in_fixed_order
from jaxalign.errors import InputError
from jaxalign.models.language_model import LanguageModel
from jaxalign.rewards.tuning.model import TunedModel, log_probs
from jaxalign.rewards.tuning.pairs import encode_pairs
from jaxalign.rewards.tuning.recipe import Descent, Recipe
from jaxalign.rewards.tuning.steps import Program, descend, home


def adapt(
    model: TunedModel,
    lm: LanguageModel,
    support: Sequence[Preference],
    users: Sequence[str] = (),
    *,
    steps: int = 30,
    learning_rate: float = 0.1,
    max_length: int = 512,
    batch_size: int = 4,
) -> TunedModel:
    """The model for the users of `support`, and for `users` without pairs, who get the prior.

    Every step reads all support pairs, and Adam treats each number by itself, so no user's result depends on the
    others.

    Args:
      model: fitted, of a personal method.
      lm: the language model it was fitted on.
      support: pairs of the users.
      users: further users, or those of `support` too.
      steps: of Adam, with a cosine decay.
      learning_rate: at the first step.
      max_length: longest prompt and response together, in tokens.
      batch_size: pairs that are in memory at once.

    Raises:
      InputError: a method without personal parameters, another language model, no user, or pairs that cannot be used.
      FitError: adaptation diverged.
    """
    method = model.method
    if not method.personal:
        raise InputError(f"'{method.name}' has no personal parameters: it is the same for every user.")
    model = model.on(lm)
    known = tuple(sorted({row.user for row in support} | set(users)))
    if not known:
        raise InputError("There is no user to adapt to: give pairs, or users.")
    prior = method.prior(model.variables["head"])
    start = jax.tree.map(lambda leaf: np.broadcast_to(np.asarray(leaf), (len(known), *leaf.shape)), prior)
    start = jax.device_put(start, home(lm.params))
    if support:
        pairs = encode_pairs(
            lm, in_fixed_order(support), min(max_length, lm.config.max_position - method.prefix), known
        )
        if method.needs_reference:
            pairs = dataclasses.replace(pairs, reference=log_probs(lm, pairs, batch_size))
        recipe = Recipe(epochs=steps, batch_size=len(pairs), micro_batch=batch_size, max_length=max_length)
        descent = Descent(peak=learning_rate, steps=steps, warm_up=0, weight_decay=0.0, clip=math.inf, user_rate=1.0)
        program = Program(lm.config, method, model.backbone, remat=False)
        held = {name: model.variables[name] for name in ("backbone", "head")}
        for fitted, _, _, _ in descend(program, recipe, descent, lm.params, {"users": start}, held, pairs, lm.pad_id):
            start = fitted["users"]
    return dataclasses.replace(model, variables={**model.variables, "users": start}, users=known)
