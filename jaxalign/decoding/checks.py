"""Whether a guidance fits a language model and a batch: asked before any work."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign.decoding.guidance import AutoregressiveReward, Ensemble, Guidance, RewardHead, SeparateRewardModel, Sum
from jaxalign.decoding.guidance.value_head import VocabularyValue
from jaxalign.errors import InputError, ModelError
from jaxalign.models.language_model import LanguageModel


def terms_of(guidance: Guidance | None) -> Iterator[Guidance]:
    """The guidance and, for a sum or an ensemble, everything in it."""
    if guidance is None:
        return
    yield guidance
    inner = guidance.terms if isinstance(guidance, Sum) else guidance.members if isinstance(guidance, Ensemble) else ()
    for term in inner:
        yield from terms_of(term)


def context_of(lm: LanguageModel, guidance: Guidance | None) -> int:
    """Longest sequence in tokens that the language model and every model of the guidance can encode."""
    models = [t.config for t in terms_of(guidance) if isinstance(t, (SeparateRewardModel, AutoregressiveReward))]
    return min(config.max_position for config in [lm.config, *models])


def check_guidance(
    lm: LanguageModel, guidance: Guidance | None, user: np.ndarray, top_k: np.ndarray, least: int | None = None
) -> None:
    """Refuses what cannot work.

    Args:
      lm: the language model.
      guidance: or None.
      user: `[batch]` user indices.
      top_k: `[batch]` numbers of candidates.
      least: the smallest k; default 1 for a candidate guidance and 0 otherwise, which stands for the whole vocabulary.

    Raises:
      InputError: a weight that is negative or not finite, k out of range, an unknown user.
      ModelError: a model or head of another vocabulary or width.
    """
    if least is None:
        least = int(guidance is not None and guidance.scores_candidates)
    if (bad := np.flatnonzero((top_k < least) | (top_k > lm.config.vocab_size))).size:
        row = bad[0]
        raise InputError(f"top_k = {top_k[row]} in row {row}: between {least} and {lm.config.vocab_size} is needed")
    for term in terms_of(guidance):
        name = type(term).__name__
        weight = np.asarray(term.weight, np.float32)
        if not np.all(np.isfinite(weight) & (weight >= 0)):
            raise InputError(f"{name}: weight = {term.weight} must be finite and not negative")
        if weight.ndim > 1 or (weight.ndim == 1 and weight.size not in (1, len(user))):
            raise InputError(f"{name}: weight has shape {weight.shape}; a number or one per prompt is needed")
        if isinstance(term, (SeparateRewardModel, AutoregressiveReward)) and (
            term.config.vocab_size != lm.config.vocab_size
        ):
            raise ModelError(
                f"{name}: its vocabulary has {term.config.vocab_size} tokens and the language model's "
                f"{lm.config.vocab_size}: both must share one tokenizer"
            )
        if term.clip is not None and not np.all(np.asarray(term.clip) > 0):
            raise InputError(f"{name}: clip = {term.clip} must be above 0")
        if isinstance(term, VocabularyValue):
            _check_value_head(term, lm, user)
        if (users := getattr(term, "users", None)) is not None:
            _check_users(name, users, user)
        if isinstance(term, (RewardHead, SeparateRewardModel)):
            _check_width(name, term, lm.config.hidden_size if isinstance(term, RewardHead) else term.config.hidden_size)


def _check_value_head(term: VocabularyValue, lm: LanguageModel, user: np.ndarray) -> None:
    if term.up.shape[0] != lm.config.vocab_size:
        raise ModelError(
            f"VocabularyValue: it has values for {term.up.shape[0]} tokens, the model {lm.config.vocab_size}"
        )
    width = term.up.shape[1]
    if term.down is not None:
        _check_users("VocabularyValue", term.down, user)
        if term.down.shape[1] != width:
            raise ModelError(f"VocabularyValue: `down` has rank {term.down.shape[1]} and `up` has rank {width}")
        width = term.down.shape[2]
    if width != lm.config.hidden_size:
        raise ModelError(f"VocabularyValue: it reads hidden states of width {width}, not {lm.config.hidden_size}")


def _check_users(name: str, users, user: np.ndarray) -> None:
    counts = {leaf.shape[0] for leaf in jax.tree.leaves(users)}
    if len(counts) > 1:
        raise ModelError(f"{name}: per-user parameters disagree on the number of users: {sorted(counts)}")
    if counts and user.max() >= (count := counts.pop()):
        raise InputError(f"unknown user: index {user.max()}, and {name} has parameters for {count} users")


def _check_width(name: str, term, width: int) -> None:
    """Runs the reward function on shapes alone: a head of another width is found before anything is computed."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), term.users)
    leaves, tree = jax.tree.flatten((term.shared, one))
    kinds = tuple((tuple(getattr(leaf, "shape", ())), jnp.result_type(leaf)) for leaf in leaves)
    try:
        shape = _reward_shape(term.function, tree, kinds, width)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name}: its reward function does not take hidden states of width {width}: {error}") from None
    if shape != (2,):
        raise ModelError(f"{name}: its reward function gives shape {shape} for 2 hidden states; (2,) is needed")


@functools.lru_cache(maxsize=64)
def _reward_shape(function: Callable, tree: Any, kinds: tuple, width: int) -> tuple[int, ...]:
    """The shape of two hidden states' rewards. Kept, since JAX keeps what it traces here, each time anew."""
    shared, one = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*kind) for kind in kinds])
    hidden = jax.ShapeDtypeStruct((2, width), np.dtype("float32"))
    prompt = jax.ShapeDtypeStruct((width,), np.dtype("float32"))
    return jax.eval_shape(function, shared, one, hidden, prompt).shape
