"""What the decoder must give, by the slowest obvious way: every text is encoded from scratch, one row at a time.

No cache, no batch, no siblings: a candidate's reward comes from encoding prompt, prefix and candidate anew. Padding to
one length only spares compilations.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign.decoding import CandidateGuidance, VocabularyGuidance
from jaxalign.decoding.guidance import pytree
from jaxalign.models import DecoderConfig, bind, random
from jaxalign.models.transformer import prefill

CONFIG = DecoderConfig(
    family="llama",
    vocab_size=300,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position=32,
    rope_theta=10000.0,
    tie_embeddings=True,
)


@functools.cache
def tiny_lm(seed: int = 0):
    """A random language model of 300 tokens with a context of 32. Equal seeds give equal weights."""
    return random(CONFIG, seed=seed)


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    """One prompt of random ids per length."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, CONFIG.vocab_size, length).tolist() for length in lengths]


@functools.partial(jax.jit, static_argnums=0)
def _encode(config, params, tokens, length):
    model = bind(config, params)
    hidden, _ = prefill(model, tokens[None], length[None])
    return hidden[0], model.logits(hidden[0])


def encode(lm, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states `[length, width]` and log-probabilities `[length, vocab]` of a text, float64."""
    padded = np.zeros(2 * CONFIG.max_position, np.int32)
    padded[-len(ids) :] = ids
    hidden, logits = (np.asarray(x[-len(ids) :], np.float64) for x in _encode(lm.config, lm.params, padded, len(ids)))
    logits = logits - logits.max(axis=-1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def choose(lm, prompt, prefix, reward=None, bonus=None, k=None):
    """Candidates of the next token and their scores, most probable first.

    Args:
      lm: the language model.
      prompt: ids.
      prefix: ids chosen so far.
      reward: weighted, of (prompt, prefix with the candidate, number of the token); None for 0.
      bonus: weighted, of (prompt, prefix, number) for the whole vocabulary; None for 0.
      k: number of candidates, None for all tokens.
    """
    base = encode(lm, prompt + prefix)[1][-1]
    if bonus is not None:
        base = base + bonus(prompt, prefix, len(prefix))
    candidates = np.argsort(-base, kind="stable")[:k]
    scores = base[candidates]
    if reward is not None:
        scores = scores + np.array([reward(prompt, [*prefix, int(v)], len(prefix)) for v in candidates])
    return candidates, scores


def greedy(lm, prompt, count, **how) -> list[int]:
    """`count` tokens, each the best of `choose`; plain greedy decoding without a reward or a bonus."""
    prefix = []
    for _ in range(count):
        candidates, scores = choose(lm, prompt, prefix, **how)
        prefix.append(int(candidates[np.argmax(scores)]))
    return prefix


def linear(lm, vector, weight=1.0):
    """`weight` times the reward `vector . h(last token)`, h being the hidden state of `lm`."""
    return lambda prompt, prefix, t: weight * float(encode(lm, prompt + prefix)[0][-1] @ np.asarray(vector, np.float64))


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Script(VocabularyGuidance):
    """Forces user u's token number t to be `tokens[u, t]` where that is not negative: `[users, steps]` int32."""

    tokens: jax.Array

    def bonus(self, step, carry):
        wanted = self.tokens[step.rows.user[:, None], jnp.minimum(step.position, self.tokens.shape[1] - 1)]
        # The class of a negative number is all zeros.
        return 100 * jax.nn.one_hot(wanted, CONFIG.vocab_size)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault(CandidateGuidance):
    """Rewards of 0; `value[u]` at user u's token number `at[u]`, for the candidates from `first` to `candidates[u]`."""

    at: jax.Array
    value: jax.Array
    candidates: jax.Array
    first: jax.Array = 0  # type: ignore[assignment]

    def reward(self, step, carry):
        user = step.rows.user[:, None, None]
        index = jnp.arange(step.tokens.shape[-1], dtype=jnp.int32)[None, None]
        hit = (step.position[..., None] == self.at[user]) & (index < self.candidates[user])
        hit = hit & (index >= jnp.broadcast_to(self.first, self.at.shape)[user])
        return jnp.where(hit, self.value[user], 0.0)
