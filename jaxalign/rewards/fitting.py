"""Fitting a reward model: all users, seeds and values of a grid at once, chosen on validation pairs only."""

import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxalign.data.blocks import PairBlocks
from jaxalign.errors import FitError, InputError
from jaxalign.rewards import training
from jaxalign.rewards.adapting import adapt, adapt_on_device
from jaxalign.rewards.checkpoint import Checkpoints, fingerprint
from jaxalign.rewards.ensemble import Ensemble
from jaxalign.rewards.pairs import Statistics, check, statistics, to_device
from jaxalign.rewards.precision import in_float32
from jaxalign.rewards.protocol import Method, RewardModel, Tree, finite, row_of
from jaxalign.rewards.scoring import Evaluation, evaluate, pair_rewards

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the steps done and the steps planned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitReport:
    """How a fit went.

    Attributes:
      method: the method's name.
      chosen: the values of the grid that won.
      candidates: every combination of the grid, with its mean validation loss over seeds (None: it diverged, or there
        was no validation) and the step at which a seed of it diverged (None: it did not).
      best_step: the step whose parameters are returned, for each seed.
      train: evaluation on the training pairs, for the returned model.
      validation: evaluation on the validation pairs, or None.
      train_loss: `[seeds, steps]` objective at each step of the chosen combination; NaN after early stopping.
      validation_loss: `[seeds, evaluations]`, every `eval_every` steps from step 0; NaN after early stopping.
      eval_every: steps between two of them.
      seeds: the seeds; one where the method does not use them.
      seconds: wall time, compilation included.
    """

    method: str
    chosen: Mapping[str, float]
    candidates: tuple[Mapping[str, Any], ...]
    best_step: tuple[int, ...]
    train: Evaluation
    validation: Evaluation | None
    train_loss: np.ndarray
    validation_loss: np.ndarray
    eval_every: int
    seeds: tuple[int, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The report as JSON; NaN becomes null."""

        def clean(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return clean(value.tolist())
            if isinstance(value, (list, tuple)):
                return [clean(item) for item in value]
            if isinstance(value, Mapping):
                return {key: clean(item) for key, item in value.items()}
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return clean(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitResult:
    """A fitted model, how it went, and its siblings of other seeds.

    Attributes:
      model: the model of the seed with the lowest validation loss (the first seed without validation).
      report: how it went.
      ensemble: the models of all seeds.
    """

    model: RewardModel
    report: FitReport
    ensemble: Ensemble


@in_float32
def fit(
    method: Method,
    train: PairBlocks,
    validation: PairBlocks | None = None,
    *,
    support: PairBlocks | None = None,
    seeds: Sequence[int] = (0,),
    grid: Mapping[str, Sequence[float]] | None = None,
    resample: bool = False,
    eval_every: int = 20,
    patience: int = 5,
    backbone: Mapping[str, str] | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Fits `method` on seen users.

    Args:
      method: what to fit; fields in `grid` take their values from there.
      train: pairs of the seen users.
      validation: pairs that decide when to stop and which values win. Without `support` they are held-out pairs of seen
        users; with it, pairs of unseen users, who are first adapted on `support`.
      support: pairs of the validation users to adapt on; the same users in the same order, some perhaps without pairs.
      seeds: one model each.
      grid: values to try, by field; `method.grid` where None and there is validation data. `{}` tries nothing.
      resample: weighs the pairs of each seed by a Bayesian bootstrap, so that an ensemble also differs by data.
      eval_every: steps between evaluations, and between checkpoints.
      patience: evaluations without a better one after which a run stops.
      backbone: what says which LM the features come from; kept in the model.
      checkpoints: where to save the state of training and to resume from.
      progress: told about steps.

    Raises:
      DataError: the pairs cannot be used; see `jaxalign.rewards.pairs.check`.
      InputError: hyper-parameters, grid or validation do not fit together.
      FitError: training diverged for all values of the grid; says at which step.
    """
    began = time.perf_counter()
    check(train)
    method.check(train)
    if not train.mask.any():
        raise InputError(f"Fitting '{method.name}' needs pairs, and no user has any.")
    if eval_every < 1 or patience < 1:
        raise InputError("eval_every and patience must be at least 1.")
    combinations = _combinations(method, grid, validation is not None)
    seeds = tuple(seeds) if method.random or resample else tuple(seeds)[:1]
    if not seeds:
        raise InputError("Give at least one seed.")

    described = statistics(train)
    pairs = to_device(train, described)
    held = None if validation is None else _held_out(train, validation, support, described)
    lanes = [(values, seed) for values in combinations for seed in seeds]
    names = tuple(combinations[0])
    hyper = {name: jnp.asarray([values[name] for values, _ in lanes], jnp.float32) for name in names}
    lane_seeds = jnp.asarray([seed for _, seed in lanes], jnp.uint32)
    # The varied fields are traced: their values must not distinguish compiled programs.
    blank = dataclasses.replace(method, **dict.fromkeys(names, 0.0))

    state = training.start(method, lanes, pairs, method.prepare(train, pairs), resample=resample)
    evaluations = 1 + -(-method.steps // eval_every)
    record = {
        "train": np.full((len(lanes), method.steps), np.nan, np.float32),
        "validation": np.full((len(lanes), evaluations), np.nan, np.float32),
        "diverged": np.full(len(lanes), -1, np.int32),
        "done": np.zeros((), np.int32),
    }
    if checkpoints is not None:
        mark = fingerprint(method, combinations, seeds, (resample, eval_every, patience), (train, validation, support))
        state, record = checkpoints.resume({"lanes": state, "record": record}, mark)

    def look(done: int) -> None:
        """Evaluates after `done` steps, and notes lanes whose parameters are not finite."""
        nonlocal state
        state, losses, sound = training.judge(blank, state, hyper, lane_seeds, running, pairs, held, resample=resample)
        record["validation"][:, -(-done // eval_every)] = losses
        broken = running & ~np.asarray(sound) & (record["diverged"] < 0)
        record["diverged"][broken] = done
        record["done"] = np.asarray(done, np.int32)
        if checkpoints is not None:
            checkpoints.save(done, {"lanes": state, "record": record})

    running = np.ones(len(lanes), bool)
    if record["done"] == 0:
        look(0)
    while (done := int(record["done"])) < method.steps:
        running = (np.asarray(state["waited"]) < patience) & (record["diverged"] < 0)
        if held is None:
            running = record["diverged"] < 0
        if not running.any():
            break
        block = min(eval_every, method.steps - done)
        state, losses = training.advance(blank, block, state, hyper, lane_seeds, running, pairs, resample=resample)
        losses = np.asarray(losses)
        record["train"][:, done : done + block] = losses
        wild = running & ~np.isfinite(losses).all(axis=1)
        record["diverged"][wild] = done + 1 + np.argmax(~np.isfinite(losses[wild]), axis=1)
        look(done + block)
        if progress is not None:
            progress(done + block, method.steps)
    if checkpoints is not None:
        checkpoints.wait()

    best_loss = np.asarray(state["best_loss"], np.float64).reshape(len(combinations), len(seeds))
    diverged = record["diverged"].reshape(len(combinations), len(seeds))
    winner = _choose(method, combinations, best_loss, diverged, validation is not None)
    chosen = dataclasses.replace(method, **combinations[winner])
    rows = range(winner * len(seeds), (winner + 1) * len(seeds))
    members = tuple(
        _finish(chosen, row_of(state["best"], row), train, pairs, described, backbone or {}) for row in rows
    )
    first = 0 if validation is None else int(np.argmin(best_loss[winner]))
    model = members[first]
    judged = None
    if validation is not None:
        judged = evaluate(model if support is None else adapt(model, support), validation)
    report = FitReport(
        method=method.name,
        chosen=combinations[winner],
        candidates=_candidates(combinations, best_loss, diverged),
        best_step=tuple(int(step) for step in np.asarray(state["best_step"])[list(rows)]),
        train=evaluate(model, train),
        validation=judged,
        train_loss=record["train"][list(rows)],
        validation_loss=record["validation"][list(rows)],
        eval_every=eval_every,
        seeds=seeds,
        seconds=time.perf_counter() - began,
    )
    if judged is not None and report.best_step[first] == 0 and np.isfinite(report.train_loss[first]).sum() > 1:
        _log.warning(
            "%s: no step made the validation loss smaller, so that the model is the one before training. Lower "
            "learning_rate (%g), or give more pairs.",
            method.name,
            method.learning_rate,
        )
    return FitResult(model=model, report=report, ensemble=Ensemble.of(members))


def choose(
    methods: Sequence[Method], train: PairBlocks, validation: PairBlocks, **settings: Any
) -> tuple[FitResult, tuple[FitResult, ...]]:
    """Fits variants that differ in shapes (a rank, a width), which one program cannot hold, and picks by validation
    loss.

    Returns:
      The result with the lowest validation loss, and all results in order. `settings` are those of `fit`.
    """
    if not methods:
        raise InputError("There is nothing to choose from: give at least one method.")
    results = tuple(fit(method, train, validation, **settings) for method in methods)

    def loss(result: FitResult) -> float:
        assert result.report.validation is not None
        return math.inf if result.report.validation.loss is None else result.report.validation.loss

    return min(results, key=loss), results


def _combinations(
    method: Method, grid: Mapping[str, Sequence[float]] | None, validated: bool
) -> list[dict[str, float]]:
    """All combinations of the grid; one that is empty where there is no grid."""
    values = (method.grid if validated else {}) if grid is None else grid
    for name, options in values.items():
        if not isinstance(getattr(method, name, None), float):
            known = [
                field.name for field in dataclasses.fields(method) if isinstance(getattr(method, field.name), float)
            ]
            raise InputError(f"The grid varies '{name}', but '{method.name}' can vary only {', '.join(known)}.")
        if not options or any(math.isnan(option) or option < 0.0 for option in options):
            raise InputError(f"The grid's values of '{name}' must be numbers of at least 0, not {list(options)}.")
    combinations = [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]
    if len(combinations) > 1 and not validated:
        raise InputError("A grid of several values needs validation pairs to choose by. Give them, or one value each.")
    for point in combinations:
        dataclasses.replace(method, **point).check_hyper()
    return combinations


def _held_out(
    train: PairBlocks, validation: PairBlocks, support: PairBlocks | None, described: Statistics
) -> training.HeldOut:
    """Validation pairs on the device, checked against the training pairs."""
    check(validation)
    if not validation.mask.any():
        raise InputError("There are no validation pairs. Leave validation out, or give some.")
    width = train.features.shape[1]
    for blocks, name in ((validation, "validation"), (support, "support")):
        if blocks is not None and blocks.features.shape[1] != width:
            raise InputError(f"{name} features have width {blocks.features.shape[1]}, training features {width}.")
    if support is not None:
        check(support)
        if tuple(support.users) != tuple(validation.users):
            raise InputError("support and validation must hold the same users in the same order.")
        return training.HeldOut(
            query=to_device(validation, described),
            support=to_device(support, described),
            rows=jnp.zeros(len(validation.users), jnp.int32),
        )
    row = {user: index for index, user in enumerate(train.users)}
    unknown = [user for user in validation.users if user not in row]
    if unknown:
        raise InputError(
            f"Validation user '{unknown[0]}' is not among the training users ({len(unknown)} are not). Give `support` "
            "pairs to adapt them on, or held-out pairs of training users."
        )
    rows = jnp.asarray([row[user] for user in validation.users], jnp.int32)
    return training.HeldOut(query=to_device(validation, described), support=None, rows=rows)


def _choose(
    method: Method,
    combinations: list[dict[str, float]],
    best_loss: np.ndarray,
    diverged: np.ndarray,
    validated: bool,
) -> int:
    """The combination with the lowest mean validation loss over seeds, among those that never diverged."""
    sound = (diverged < 0).all(axis=1)
    if validated:
        sound &= np.isfinite(best_loss).all(axis=1)
    if not sound.any():
        at = int(diverged[diverged >= 0].min()) if (diverged >= 0).any() else 0
        values = combinations[int(np.argmax((diverged == at).any(axis=1)))]
        told = ", ".join(f"{name} {value:g}" for name, value in values.items()) or "the given hyper-parameters"
        raise FitError(
            f"Training of '{method.name}' diverged at step {at} of {method.steps} (with {told}): the loss or the "
            f"parameters are not finite. Lower learning_rate ({method.learning_rate:g}), or look for extreme features."
        )
    if not validated:
        return int(np.argmax(sound))
    return int(np.argmin(np.where(sound, best_loss.mean(axis=1), np.inf)))


def _candidates(
    combinations: list[dict[str, float]], best_loss: np.ndarray, diverged: np.ndarray
) -> tuple[dict[str, Any], ...]:
    """See `FitReport.candidates`."""
    rows = []
    for point, loss, steps in zip(combinations, best_loss.mean(axis=1), diverged, strict=True):
        at = steps[steps >= 0]
        known = bool(np.isfinite(loss)) and not at.size
        rows.append(
            {**point, "validation_loss": float(loss) if known else None, "diverged": int(at.min()) if at.size else None}
        )
    return tuple(rows)


def _finish(
    method: Method, best: Tree, train: PairBlocks, pairs: Any, described: Statistics, backbone: Mapping[str, str]
) -> RewardModel:
    """A model whose rewards are standardised: margins of training pairs have unit deviation."""
    users = adapt_on_device(method, best["params"], pairs) if method.amortised else best["users"]
    if not finite((best["params"], users)):
        raise FitError(f"Fitting '{method.name}' gave user parameters that are not finite. Lower its rates.")
    shared = {
        "params": best["params"],
        "statistics": described,
        "margin_deviation": jnp.asarray(np.ones((), np.float32)),
    }
    model = RewardModel(
        method=method, shared=shared, user_params=users, users=tuple(train.users), backbone=dict(backbone)
    )
    rewards = pair_rewards(model, train)
    margin = (rewards.chosen - rewards.rejected)[train.mask].astype(np.float64)
    deviation = _deviation(margin)
    return dataclasses.replace(model, shared={**shared, "margin_deviation": jnp.asarray(np.float32(deviation))})


def _deviation(margin: np.ndarray) -> float:
    """Standard deviation of margins; their size where they do not vary (one pair); 1 where all are 0 (no reward)."""
    deviation, size = float(margin.std()), float(np.sqrt(np.square(margin).mean()))
    if deviation > 1e-6 * size:
        return deviation
    return size if size > 0.0 else 1.0
