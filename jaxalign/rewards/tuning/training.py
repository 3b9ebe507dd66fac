"""Fitting a reward model with a tuned backbone: pairs in, the best model on validation pairs out, resumable."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxalign.data.schema import Preference
from jaxalign.data.splits import in_fixed_order
from jaxalign.errors import FitError, InputError
from jaxalign.models.language_model import LanguageModel
from jaxalign.models.sharding import ShardingRules
from jaxalign.models.transformer import layers_of
from jaxalign.rewards.checkpoint import Checkpoints
from jaxalign.rewards.protocol import finite
from jaxalign.rewards.scoring import Evaluation
from jaxalign.rewards.tuning.backbone import Backbone, Full, Lora
from jaxalign.rewards.tuning.method import Tree, TunedMethod
from jaxalign.rewards.tuning.model import TunedModel, evaluate, log_probs
from jaxalign.rewards.tuning.pairs import TokenPairs, encode_pairs
from jaxalign.rewards.tuning.recipe import Descent, Recipe
from jaxalign.rewards.tuning.steps import Program, descend, home, schedule, start

Progress = Callable[[int, int], None]
"""Called with the steps done and the steps planned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneReport:
    """How training went.

    Attributes:
      method: the method's name.
      train_loss: `[steps]` mean pair loss of each step's pairs, before the step.
      gradient_norm: `[steps]` norm of all gradients before clipping.
      validation_loss: by step, in the order of the steps; empty without validation pairs.
      best_step: the step whose parameters are returned.
      validation: evaluation of the returned model, or None.
      pairs, dropped, cut: pairs trained on, pairs left out, and texts whose prompt was cut.
      trained: number of trained parameters.
      seconds: wall time, compilation included.
    """

    method: str
    train_loss: np.ndarray
    gradient_norm: np.ndarray
    validation_loss: Mapping[int, float]
    best_step: int
    validation: Evaluation | None
    pairs: int
    dropped: int
    cut: int
    trained: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["validation"] = None if self.validation is None else self.validation.as_json()
        fields["train_loss"], fields["gradient_norm"] = self.train_loss.tolist(), self.gradient_norm.tolist()
        fields["validation_loss"] = {str(step): loss for step, loss in self.validation_loss.items()}
        return fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneResult:
    """A fitted model and how training went."""

    model: TunedModel
    report: TuneReport


def tune(
    method: TunedMethod,
    lm: LanguageModel,
    train: Sequence[Preference],
    validation: Sequence[Preference] | None = None,
    *,
    backbone: Backbone | None = None,
    recipe: Recipe | None = None,
    rules: ShardingRules | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Fits `method` on seen users, the language model's backbone with it.

    Args:
      method: what to fit.
      lm: the language model; its parameters are read, never changed. Computation is in their dtype.
      train: pairs. Their order does not matter.
      validation: pairs of the same users; the parameters with the lowest loss on them are returned. Without, the last.
      backbone: what is trained of the language model: `Lora()` where None, or `Full()`, `Frozen()`.
      recipe: settings of training.
      rules: as `lm` was loaded with, when it was loaded on a mesh: what is trained is split as the weights are, and
        micro-batches over the `batch` axis.
      checkpoints: where to save the state of training and to resume from.
      progress: told about steps.

    Raises:
      InputError: hyper-parameters, pairs or checkpoints that cannot be used.
      FitError: training diverged; says at which step.
    """
    began = time.perf_counter()
    backbone, recipe = backbone or Lora(), recipe or Recipe()
    method.check()
    recipe.check()
    pairs = encode_pairs(lm, in_fixed_order(train), min(recipe.max_length, lm.config.max_position - method.prefix))
    if method.needs_reference:
        pairs = dataclasses.replace(pairs, reference=log_probs(lm, pairs, recipe.micro_batch))
    seen = set(pairs.users)
    if unknown := [row.user for row in validation or () if method.personal and row.user not in seen]:
        raise InputError(f"Validation user '{unknown[0]}' has no training pairs. Give pairs of training users.")
    steps = sum(1 for _ in schedule(len(pairs), recipe))
    descent = Descent(
        peak=recipe.peak(method, isinstance(backbone, Full)),
        steps=steps,
        warm_up=int(recipe.warm_up * steps),
        weight_decay=recipe.weight_decay,
        clip=recipe.clip,
        user_rate=method.user_rate,
    )
    first_key, second_key = jax.random.split(jax.random.key(recipe.seed))
    head, users = method.init(second_key, lm.config, lm.params, pairs.counts)
    variables = {"backbone": backbone.init(first_key, lm.params), "head": head, "users": users}
    variables, place = _placed(variables, backbone, lm, rules or ShardingRules(), recipe)
    trained = sum(leaf.size for leaf in jax.tree.leaves(variables))
    if not trained:
        raise InputError(f"'{method.name}' with a frozen backbone has nothing to train. Use Lora() or Full().")

    def model_of(variables: Tree) -> TunedModel:
        return TunedModel(
            method=method,
            backbone=backbone,
            config=lm.config,
            variables=variables,
            users=pairs.users if method.personal else (),
            fitted_for=lm.fingerprint,
        )

    every = recipe.eval_every or -(-len(pairs) // recipe.batch_size)
    state = start(descent, variables, home(lm.params))
    lanes = {"variables": variables, "state": state, "best": _copy(variables)}
    record = {
        "loss": np.full(steps, np.nan),
        "norm": np.full(steps, np.nan),
        "validation": np.full(steps + 1, np.nan),
        "done": np.zeros((), np.int32),
        "best": np.zeros((), np.int32),
    }
    if checkpoints is not None:
        mark = _mark(method, backbone, recipe, lm, pairs, validation)
        leaves, structure = jax.tree.flatten(lanes)
        leaves, record = checkpoints.resume({"lanes": leaves, "record": record}, mark)
        lanes = jax.tree.unflatten(structure, leaves)

    def look(done: int, variables: Tree) -> None:
        """Evaluates after `done` steps and keeps the best."""
        if validation:
            loss = evaluate(model_of(variables), lm, validation, batch_size=2 * recipe.micro_batch).loss
            assert loss is not None
            record["validation"][done] = loss
            better = np.nanargmin(record["validation"]) == done
        else:
            better = True
        if better:
            record["best"] = np.asarray(done, np.int32)
            lanes["best"] = _copy(variables)

    program = Program(lm.config, method, backbone, recipe.remat)
    done = int(record["done"])
    for variables, state, loss, norm in descend(
        program,
        recipe,
        descent,
        lm.params,
        lanes["variables"],
        {},
        pairs,
        lm.pad_id,
        first=done,
        state=lanes["state"],
        place=place,
    ):
        record["loss"][done], record["norm"][done] = loss, norm
        done += 1
        if done % every == 0 or done == steps:
            look(done, variables)
            record["done"] = np.asarray(done, np.int32)
            if checkpoints is not None:
                saved = {"variables": variables, "state": state, "best": lanes["best"]}
                checkpoints.save(done, {"lanes": jax.tree.leaves(saved), "record": record})
        if progress is not None:
            progress(done, steps)
    if checkpoints is not None:
        checkpoints.wait()
    model = model_of(lanes["best"])
    if not finite(model.variables):
        raise FitError(f"Tuning '{method.name}' gave parameters that are not finite. Lower learning_rate.")
    looked = np.flatnonzero(np.isfinite(record["validation"]))
    report = TuneReport(
        method=method.name,
        train_loss=record["loss"],
        gradient_norm=record["norm"],
        validation_loss={int(step): float(record["validation"][step]) for step in looked},
        best_step=int(record["best"]),
        validation=evaluate(model, lm, validation, batch_size=2 * recipe.micro_batch) if validation else None,
        pairs=len(pairs),
        dropped=pairs.dropped,
        cut=pairs.cut,
        trained=trained,
        seconds=time.perf_counter() - began,
    )
    return TuneResult(model=model, report=report)


@jax.jit
def _copy(tree: Tree) -> Tree:
    """Buffers of their own: the originals are donated to the next step."""
    return jax.tree.map(jnp.copy, tree)


def _placed(
    variables: Tree, backbone: Backbone, lm: LanguageModel, rules: ShardingRules, recipe: Recipe
) -> tuple[Tree, Callable[[Tree], Tree]]:
    """Variables on the devices of the language model, and a function that puts a batch there.

    On a mesh, what is trained is laid out as the model's parameters are, and a batch's rows are split.
    """
    everywhere = home(lm.params)
    placed = {name: jax.device_put(variables[name], everywhere) for name in ("head", "users")}
    if not isinstance(everywhere, NamedSharding):
        return {**placed, "backbone": jax.device_put(variables["backbone"], everywhere)}, lambda batch: batch
    mesh = everywhere.mesh
    assert isinstance(mesh, Mesh)
    axis = rules.batch if rules.batch in mesh.axis_names else None
    if axis is not None and recipe.micro_batch % mesh.shape[axis]:
        raise InputError(
            f"micro_batch = {recipe.micro_batch} pairs do not divide over {mesh.shape[axis]} devices of axis '{axis}'."
        )
    where = backbone.shardings(lm.config, mesh, rules, layers_of(lm.params))
    rows = NamedSharding(mesh, PartitionSpec(axis))
    placed["backbone"] = jax.device_put(variables["backbone"], where)
    return placed, lambda batch: jax.device_put(batch, rows)


def _mark(
    method: TunedMethod,
    backbone: Backbone,
    recipe: Recipe,
    lm: LanguageModel,
    pairs: TokenPairs,
    validation: Sequence[Preference] | None,
) -> dict[str, str]:
    """What a run is: equal marks compute the same numbers, on the same machine."""
    digest = hashlib.sha256(repr((pairs.chosen, pairs.rejected, pairs.users)).encode())
    for array in (pairs.user, pairs.label, pairs.margin):
        digest.update(array.tobytes())
    digest.update(repr(in_fixed_order(validation or ())).encode("utf-8", "surrogatepass"))
    return {
        "method": repr(method),
        "backbone": repr(backbone),
        "recipe": repr(recipe),
        "language model": json.dumps([lm.fingerprint, lm.dtype, layers_of(lm.params)], sort_keys=True),
        "data": digest.hexdigest(),
    }
