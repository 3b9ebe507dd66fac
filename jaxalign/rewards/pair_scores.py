"""Rewards of preference rows under a fitted model of any kind, row by row and in their order."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxalign.data.schema import Preference
from jaxalign.decoding.texts import encode_texts
from jaxalign.errors import InputError
from jaxalign.metrics.accuracy import PairCounts, count, macro, micro
from jaxalign.models.language_model import LanguageModel
from jaxalign.rewards import tuning
from jaxalign.rewards.adapting import check_backbone
from jaxalign.rewards.features import Pooling, chat_prompt, extract
from jaxalign.rewards.protocol import RewardFunction, RewardModel, Tree
from jaxalign.rewards.tuning import TunedModel

# Rows whose texts are read before their rewards are given, and rows of one call of the reward function.
_CHUNK, _PIECE = 256, 128
# Stands for all users who are at the prior; no id is empty.
_PRIOR = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairScore:
    """What a reward model says of one row.

    Attributes:
      user: who judged.
      label: the row's own, probability that `chosen` is preferred.
      reward_chosen: of the whole response, as the model gives it: in deviations of the margin on training pairs for
        models on hidden states, in units of the loss's logit for tuned ones.
      reward_rejected: the same of the other response.
      tokens_chosen: length of the response.
      tokens_rejected: the same of the other response.
      at_prior: the model does not know the user, and the method's prior was taken.
    """

    user: str
    label: float
    reward_chosen: float
    reward_rejected: float
    tokens_chosen: int
    tokens_rejected: int
    at_prior: bool

    @property
    def margin(self) -> float:
        """How much the reward prefers `chosen`."""
        return self.reward_chosen - self.reward_rejected

    @property
    def agrees(self) -> bool | None:
        """Whether the reward ranks as the label does; None where one of them is a tie."""
        if self.label == 0.5 or self.reward_chosen == self.reward_rejected:
            return None
        return (self.reward_chosen > self.reward_rejected) == (self.label > 0.5)


def check_users(model: RewardModel | TunedModel, rows: Sequence[Preference], places: Sequence[str]) -> None:
    """Refuses rows of users whom the model does not know.

    Raises:
      InputError: names the first such row and its user.
    """
    if unknown := _unknown_users(model, rows):
        place, user = next((place, row.user) for place, row in zip(places, rows, strict=True) if row.user in unknown)
        others = f", nor {len(unknown) - 1} other users" if len(unknown) > 1 else ""
        by = "jaxalign.rewards.tuning.adapt" if isinstance(model, TunedModel) else "`jaxalign adapt`"
        raise InputError(
            f"{place}: the reward model '{model.method.name}' does not know user '{user}'{others}. Adapt it to their "
            f"pairs with {by}, or ask for the method's prior (--prior)."
        )


def _unknown_users(model: RewardModel | TunedModel, rows: Sequence[Preference]) -> set[str]:
    """Nobody is unknown to a tuned model that is the same for everybody."""
    if isinstance(model, TunedModel) and not model.method.personal:
        return set()
    return {row.user for row in rows} - set(model.users)


def score_pairs(
    model: RewardModel | TunedModel,
    lm: LanguageModel,
    rows: Sequence[Preference],
    *,
    prior: bool = False,
    pooling: Pooling = "last",
    batch_size: int = 8,
    cache: Path | None = None,
    places: Sequence[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[PairScore]:
    """Rewards of both texts of each row, in the order of the rows, given as they are known.

    A row's rewards do not depend on the other rows or on `batch_size`, but for the last digits.

    Args:
      model: fitted by `jaxalign.rewards.fit`, or by `jaxalign.rewards.tuning.tune`.
      lm: the language model that it was fitted for.
      rows: pairs.
      prior: give users whom the model does not know the method's prior, instead of refusing them.
      pooling: of a model on hidden states, as in fitting.
      batch_size: texts per batch of the language model.
      cache: folder of features; see `extract`.
      places: what errors call each row; "row N" where None.
      progress: told how many rows are done since the last call.

    Raises:
      InputError: another language model, users whom the model does not know, a text that does not fit the context, or a
        reward that is not finite; names the row.
    """
    if batch_size < 1:
        raise InputError(f"batch_size = {batch_size}: at least 1 is needed")
    places = [f"row {number}" for number in range(1, len(rows) + 1)] if places is None else places
    if not prior:
        check_users(model, rows, places)
    unknown = _unknown_users(model, rows)
    # All texts before any is read, so that a bad row is told at once.
    tokens = _tokens(model, lm, rows, places)
    if unknown:
        model = _with_prior(model)
    if isinstance(model, TunedModel):
        rewards = functools.partial(_tuned_rewards, model.on(lm), lm, batch_size)
    else:
        check_backbone(model, dict(lm.fingerprint))
        rewards = functools.partial(_head_rewards, model, lm, batch_size, pooling, cache)
    for first in range(0, len(rows), _CHUNK):
        part = rows[first : first + _CHUNK]
        found = rewards(part, [_PRIOR if row.user in unknown else row.user for row in part])
        for number, (row, both) in enumerate(zip(part, found, strict=True), first):
            if not np.isfinite(both).all():
                raise InputError(f"{places[number]}: the reward is not finite ({both[0]}, {both[1]}). Fit it again.")
            yield PairScore(
                user=row.user,
                label=row.label,
                reward_chosen=float(both[0]),
                reward_rejected=float(both[1]),
                tokens_chosen=tokens[number][0],
                tokens_rejected=tokens[number][1],
                at_prior=row.user in unknown,
            )
        if progress is not None:
            progress(len(part))


def _tokens(
    model: RewardModel | TunedModel, lm: LanguageModel, rows: Sequence[Preference], places: Sequence[str]
) -> list[tuple[int, int]]:
    """Tokens of both responses of each row, all of which fit."""
    context = lm.config.max_position - (model.method.prefix if isinstance(model, TunedModel) else 0)

    def length(place: str, row: Preference, side: str) -> int:
        (text,) = encode_texts(lm, [chat_prompt(row.prompt)], [getattr(row, side)], 1 << 60)
        if not 0 < text.response <= len(text.ids) <= context:
            raise InputError(
                f"{place}, field '{side}': prompt and response have {len(text.ids)} tokens, {text.response} of them "
                f"the response, and the context holds {context}. Shorten them, or leave the row out."
            )
        return text.response

    return [
        (length(place, row, "chosen"), length(place, row, "rejected")) for place, row in zip(places, rows, strict=True)
    ]


def _with_prior(model: RewardModel | TunedModel) -> Any:
    """The model with one more user, who is at the prior."""

    def grown(users: Tree, prior: Tree) -> Tree:
        return jax.tree.map(lambda one, two: np.concatenate([np.asarray(one), np.asarray(two)[None]]), users, prior)

    users = (*model.users, _PRIOR)
    if isinstance(model, RewardModel):
        return dataclasses.replace(model, user_params=grown(model.user_params, model.prior), users=users)
    head, personal = model.variables["head"], model.variables["users"]
    variables = {**model.variables, "users": grown(personal, model.method.prior(head))}
    return dataclasses.replace(model, variables=variables, users=users)


def _tuned_rewards(
    model: TunedModel, lm: LanguageModel, batch_size: int, rows: Sequence[Preference], users: Sequence[str]
) -> np.ndarray:
    """`[rows, 2]`."""
    texts = [(row.prompt, text) for row in rows for text in (row.chosen, row.rejected)]
    twice = [user for user in users for _ in range(2)]
    return tuning.rewards(model, lm, texts, twice, batch_size=batch_size).reshape(-1, 2)


def _head_rewards(
    model: RewardModel,
    lm: LanguageModel,
    batch_size: int,
    pooling: Pooling,
    cache: Path | None,
    rows: Sequence[Preference],
    users: Sequence[str],
) -> np.ndarray:
    """`[rows, 2]`."""
    texts = [(row.prompt, text) for row in rows for text in (row.chosen, row.rejected)]
    features = extract(lm, texts, cache=cache, batch_size=batch_size)
    table = features.last if pooling == "last" else features.mean
    sides = np.asarray([features.of(prompt, text) for prompt, text in texts]).reshape(-1, 2)
    user = np.asarray([model.index(name) for name in users], np.int32)
    found = np.zeros(sides.shape, np.float32)
    for first in range(0, len(rows), _PIECE):
        part = np.arange(first, min(first + _PIECE, len(rows)))
        filled = np.concatenate([part, np.repeat(part[-1:], _PIECE - len(part))])  # one shape: compiled once
        hidden, prompt = table[sides[filled]], features.prompt[sides[filled, 0]]
        scored = _function_rewards(model.reward, model.shared, model.user_params, user[filled], hidden, prompt)
        found[part] = np.asarray(scored)[: len(part)]
    return found


@functools.partial(jax.jit, static_argnames="function")
def _function_rewards(
    function: RewardFunction, shared: Tree, users: Tree, row: Array, hidden: Array, prompt: Array
) -> Array:
    """`[rows, 2]` from hidden states `[rows, 2, width]` and prompts `[rows, width]`; `row` `[rows]` is the user."""

    def one(row: Array, hidden: Array, prompt: Array) -> Array:
        return function(shared, jax.tree.map(lambda leaf: leaf[row], users), hidden, prompt)

    return jax.vmap(one)(row, hidden, prompt)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Accuracy over rows.

    Attributes:
      macro: mean over users; None where no row has a right answer, as `micro`.
      micro: over pairs.
      users: who have a pair with a right answer.
      pairs: with a right answer.
      ties: of them, pairs with two equal rewards; they count one half.
      undecided: rows whose label is 0.5.
      at_prior: users who are at the prior.
    """

    macro: float | None
    micro: float | None
    users: int
    pairs: int
    ties: int
    undecided: int
    at_prior: int


def summarise(scores: Sequence[PairScore]) -> Summary:
    """Macro and micro accuracy, ties apart."""
    names = {name: number for number, name in enumerate(dict.fromkeys(score.user for score in scores))}
    user = [names[score.user] for score in scores]
    chosen, rejected, label = (
        np.asarray([getattr(score, field) for score in scores])[:, None]
        for field in ("reward_chosen", "reward_rejected", "label")
    )
    each = count(chosen, rejected, np.ones(chosen.shape, bool), label)
    sums = {field.name: np.bincount(user, weights=getattr(each, field.name)) for field in dataclasses.fields(each)}
    counts = PairCounts(**sums)
    return Summary(
        macro=macro(counts),
        micro=micro(counts),
        users=int((counts.pairs > 0).sum()),
        pairs=int(counts.pairs.sum()),
        ties=int(counts.ties.sum()),
        undecided=sum(score.label == 0.5 for score in scores),
        at_prior=len({score.user for score in scores if score.at_prior}),
    )
