"""A fitted reward model with a tuned backbone: its rewards of texts, its accuracy on pairs, and its guidance."""

import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxalign.data.prompts import Prompt
from jaxalign.data.schema import Preference
from jaxalign.decoding.guidance import Guidance
from jaxalign.decoding.texts import Text, batches, encode_texts
from jaxalign.errors import InputError
from jaxalign.metrics.accuracy import count, macro, micro, worst_tenth
from jaxalign.metrics.calibration import expected_calibration_error
from jaxalign.models.config import DecoderConfig
from jaxalign.models.language_model import LanguageModel
from jaxalign.models.transformer import Params, layers_of
from jaxalign.rewards.features import chat_prompt
from jaxalign.rewards.losses import Loss
from jaxalign.rewards.scoring import Evaluation, warn_of_ties
from jaxalign.rewards.tuning.arm import Arm
from jaxalign.rewards.tuning.backbone import Backbone, Frozen, for_layers
from jaxalign.rewards.tuning.forward import TextBatch
from jaxalign.rewards.tuning.method import Tree, TunedMethod, rows_of
from jaxalign.rewards.tuning.pairs import TokenPairs, encode_pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedModel:
    """A fitted model. It needs the language model that it was fitted on, of which it holds what was changed.

    Attributes:
      method: the hyper-parameters.
      backbone: what of the language model was trained.
      config: the language model's sizes.
      variables: `{"backbone", "head", "users"}`, pytrees of float32 arrays; leaves of `users` are `[users, ...]`.
      users: the user ids, in the order of the rows; empty where nothing is personal.
      fitted_for: name and hashes of the language model.
    """

    method: TunedMethod
    backbone: Backbone
    config: DecoderConfig
    variables: Mapping[str, Tree]
    users: tuple[str, ...]
    fitted_for: Mapping[str, str]

    def index(self, user: str) -> int:
        """The row of a user; 0 for anyone where nothing is personal.

        Raises:
          InputError: the model does not know the user; names near ones.
        """
        if not self.method.personal:
            return 0
        if user in self.users:
            return self.users.index(user)
        near = difflib.get_close_matches(user, self.users, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise InputError(
            f"The reward model '{self.method.name}' does not know user '{user}'.{hint} "
            "Adapt it to the pairs of that user (none are needed for the prior)."
        )

    def only(self, user: str) -> "TunedModel":
        """The model of one user, who is row 0; raises as `index`."""
        row = self.index(user)
        users = jax.tree.map(lambda leaf: leaf[row : row + 1], self.variables["users"])
        kept = (user,) if self.method.personal else ()
        return dataclasses.replace(self, variables={**self.variables, "users": users}, users=kept)

    def on(self, lm: LanguageModel) -> "TunedModel":
        """The model with what was trained laid out as the layers of `lm` are, scanned or unrolled.

        Raises:
          InputError: it was not fitted on this language model; says in what they differ.
        """
        wrong = [name for name, value in self.fitted_for.items() if lm.fingerprint.get(name) != value]
        if wrong:
            raise InputError(
                f"The reward model '{self.method.name}' was fitted on {self.fitted_for.get('name')}, and this is "
                f"{lm.fingerprint['name']}: {', '.join(wrong)} differ. Load the language model it was fitted on."
            )
        backbone = for_layers(self.variables["backbone"], layers_of(lm.params))
        return dataclasses.replace(self, variables={**self.variables, "backbone": backbone})

    def params(self, lm: LanguageModel) -> Params:
        """The tuned language model's parameters, as plain arrays of the dtype of `lm`; raises as `on`."""
        return self.backbone.merged(lm.params, self.on(lm).variables["backbone"])

    def guidance(self, lm: LanguageModel, *, weight: Any = 1.0) -> Guidance:
        """What steers `lm` with this reward; `user` of `generate` and `score` is `index` of the user's id.

        Args:
          lm: the language model that is decoded, the one that this model was fitted on.
          weight: alpha for token-level rewards, w for rewards of prefixes.
        """
        tuned = not isinstance(self.backbone, Frozen)
        head, users = self.variables["head"], self.variables["users"]
        return self.method.guidance(self.config, self.params(lm), tuned, head, users, weight)


@functools.partial(jax.jit, static_argnames=("config", "method", "backbone", "width"))
def _rewards(
    config: DecoderConfig,
    method: TunedMethod,
    backbone: Backbone,
    width: int,
    params: Params,
    variables: Tree,
    user: Array,
    texts: TextBatch,
) -> Array:
    """Rewards `[rows]` of texts, each for its own user."""
    tuned = backbone.apply(params, variables["backbone"])
    return method.rewards(config, tuned, variables["head"], rows_of(variables["users"], user), texts, width, False)


def _score(
    lm: LanguageModel,
    method: TunedMethod,
    backbone: Backbone,
    variables: Tree,
    texts: Sequence[Text],
    user: np.ndarray,
    batch_size: int,
) -> np.ndarray:
    """`[texts]` float32 rewards; what occurs twice is computed once."""
    first: dict[tuple[tuple[int, ...], int, int], int] = {}
    place = np.zeros(len(texts), np.int64)
    for number, text in enumerate(texts):
        key = (tuple(text.ids), text.response, int(user[number]) if method.personal else 0)
        place[number] = first.setdefault(key, len(first))
    # Sorted, so that the batches do not depend on the order of the texts.
    keys = sorted(first)
    distinct = [Text(list(ids), response, 0) for ids, response, _ in keys]
    user_of = np.asarray([row for *_, row in keys], np.int32)
    reference = np.zeros(len(keys), np.float32)
    if method.needs_reference:
        reference = _score(lm, Arm(beta=1.0), Frozen(), _NOTHING, distinct, user_of, batch_size)
    found = np.zeros(len(keys), np.float32)
    for batch in batches(distinct, batch_size, lm.pad_id, lm.config.max_position):
        arrays = TextBatch(batch.tokens, batch.lengths, batch.responses, reference[batch.rows])
        users = user_of[batch.rows]
        rewards = _rewards(lm.config, method, backbone, batch.width, lm.params, variables, users, arrays)
        found[batch.places] = np.asarray(rewards)[: len(batch.places)]
    order = {key: number for number, key in enumerate(keys)}
    return found[np.asarray([order[key] for key in first], np.int64)][place]


_NOTHING: Tree = {"backbone": {}, "head": {}, "users": {}}


def log_probs(lm: LanguageModel, pairs: TokenPairs, batch_size: int = 8) -> np.ndarray:
    """`[2, pairs]` float32, log-probabilities of the chosen and rejected responses under the language model, nats."""
    texts = [*pairs.chosen, *pairs.rejected]
    user = np.zeros(len(texts), np.int32)
    return _score(lm, Arm(beta=1.0), Frozen(), _NOTHING, texts, user, batch_size).reshape(2, -1)


def rewards(
    model: TunedModel,
    lm: LanguageModel,
    texts: Sequence[tuple[Prompt, str]],
    users: Sequence[str] | None = None,
    *,
    batch_size: int = 8,
) -> np.ndarray:
    """`[texts]` float32 rewards of whole responses, in units of the pair loss's logit.

    Args:
      model: the reward model.
      lm: the language model it was fitted on.
      texts: prompts and responses.
      users: whose reward, one per text; may be None where nothing is personal.
      batch_size: texts per batch.

    Raises:
      InputError: another language model, an unknown user, an empty response or a text that does not fit.
    """
    model = model.on(lm)
    if users is None and model.method.personal:
        raise InputError(f"'{model.method.name}' is personal: say whose reward is asked for.")
    if users is not None and len(users) != len(texts):
        raise InputError(f"{len(texts)} texts and {len(users)} users: one user per text is needed.")
    rows = np.asarray([0] * len(texts) if users is None else [model.index(user) for user in users], np.int32)
    context = _context(model)
    encoded = encode_texts(lm, [chat_prompt(p) for p, _ in texts], [r for _, r in texts], context)
    return _score(lm, model.method, model.backbone, model.variables, encoded, rows, batch_size)


def evaluate(model: TunedModel, lm: LanguageModel, rows: Sequence[Preference], *, batch_size: int = 8) -> Evaluation:
    """Loss, accuracy, calibration and spread on pairs; for personal methods, of users whom the model knows.

    The loss is the method's own on the users' rewards; pairs whose response does not fit the context are left out.
    """
    model = model.on(lm)
    for row in rows:
        model.index(row.user)
    pairs = encode_pairs(lm, rows, _context(model), model.users if model.method.personal else None)
    user = np.concatenate([pairs.user, pairs.user])
    both = _score(lm, model.method, model.backbone, model.variables, [*pairs.chosen, *pairs.rejected], user, batch_size)
    chosen, rejected = both.reshape(2, -1)
    ones = np.ones(len(pairs), np.float32)
    losses = np.asarray(_losses(model.method.loss, chosen, rejected, pairs.label, pairs.margin, ones))
    # One row of pairs per user.
    column = np.zeros(len(pairs), np.int64)
    for number in range(len(pairs.users)):
        own = pairs.user == number
        column[own] = np.arange(own.sum())
    shape = (len(pairs.users), int(column.max()) + 1)
    blocks = np.zeros((3, *shape), np.float32)
    blocks[:, pairs.user, column] = chosen, rejected, pairs.label
    mask = np.zeros(shape, bool)
    mask[pairs.user, column] = True
    counts = count(blocks[0], blocks[1], mask, blocks[2])
    answered, ties = int(np.asarray(counts.pairs).sum()), int(np.asarray(counts.ties).sum())
    warn_of_ties(model.method.name, answered, ties)
    return Evaluation(
        loss=float(losses.mean(dtype=np.float64)),
        macro=macro(counts),
        micro=micro(counts),
        worst_tenth=worst_tenth(counts),
        ece=expected_calibration_error(chosen - rejected, pairs.label),
        reward_mean=float(both.mean(dtype=np.float64)),
        reward_spread=float(both.std(dtype=np.float64)),
        pairs=answered,
        ties=ties,
        users=int((np.asarray(counts.pairs) > 0).sum()),
    )


@functools.partial(jax.jit, static_argnames="loss")
def _losses(loss: Loss, *columns: Any) -> Array:
    """`[pairs]` losses of a method's loss."""
    return loss(*columns)


def _context(model: TunedModel) -> int:
    """Longest text in tokens that the model can read."""
    return model.config.max_position - model.method.prefix
