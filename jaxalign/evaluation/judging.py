"""One teacher-forced pass over the texts that judges every user, every reward model, every weight and every k.

What the candidates of a position are, and their hidden states, depends on neither user nor reward. So each text is
encoded once, its candidates are scored as siblings once, and every head of every user is then a small product. Policy
accuracy of M reward models for U users costs about one pass over the texts, not M times U.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxalign.data.schema import Prompt
from jaxalign.decoding.buckets import power_of_two
from jaxalign.decoding.forced import ForcedProgram, Judged, forced, piece_size
from jaxalign.decoding.guidance.head import mean_over_response
from jaxalign.decoding.rows import make_rows
from jaxalign.decoding.texts import Batch, Text, batches, encode_texts
from jaxalign.errors import InputError
from jaxalign.evaluation.sharding import replicate, shard_users
from jaxalign.models.language_model import LanguageModel
from jaxalign.rewards.features import Pooling, chat_prompt
from jaxalign.rewards.pairs import standardise
from jaxalign.rewards.protocol import Method, RewardModel, Tree

# Users of a text up to which all batches have room for as many: heads of so many cost little beside the pass.
_SLOTS = 32


class Entry(NamedTuple):
    """One text that is judged as one user would."""

    text: int
    user: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgements:
    """What the guided policies make of each entry; sums are over the tokens of the response, in nats.

    Attributes:
      entries: (text, user), in the order of the rows below.
      weights: the weights w that were tried, `[W]`.
      top_ks: the numbers of candidates k that were tried, `[K]`.
      log_prob: `[entries]` float64, the language model's own.
      tokens: `[entries]` int64, tokens of the response.
      reward: by method, `[entries]` float64: r_u of the whole response, read at its last token.
      reward_sum: by method, `[entries]` float64: sum over t of r_u(x, y_1..t).
      policy: by method, `[entries, W, K]` float64: sum over t of log pi_u(y_t), normalised over the k most probable
        tokens joined with y_t.
    """

    entries: Sequence[Entry]
    weights: tuple[float, ...]
    top_ks: tuple[int, ...]
    log_prob: np.ndarray
    tokens: np.ndarray
    reward: Mapping[str, np.ndarray]
    reward_sum: Mapping[str, np.ndarray]
    policy: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Judge:
    """The judge that is compiled into the pass; equal for equal methods, so that it is compiled once."""

    methods: tuple[Method, ...]
    pooling: Pooling

    def __call__(self, arguments: Tree, guidances: tuple, carries: tuple, judged: Judged) -> dict[str, Any]:
        del guidances, carries
        step, own = judged.step, judged.target_log_prob
        hidden = step.candidate_hidden
        assert hidden is not None, "the program reads hidden states"
        if self.pooling == "mean":
            hidden = mean_over_response(step)
        last = step.position == arguments["last"][:, None]
        candidates = judged.base.shape[-1]
        # Among the k most probable, or the response's own token, which has the last place and is not in them again.
        index = jnp.arange(candidates, dtype=jnp.int32)
        base = jnp.where(judged.duplicate, -jnp.inf, judged.base)[:, :, None]

        def per_method(method: Method, shared: Tree, users: Tree) -> dict[str, jax.Array]:
            rewards = _rewards(method, shared, users, hidden, step.prompt_hidden)

            def policy(weight_and_k: tuple[jax.Array, jax.Array]) -> jax.Array:
                weight, k = weight_and_k
                scores = base + weight * rewards
                inside = (index < k) | (index == candidates - 1)
                return scores[..., -1] - jax.nn.logsumexp(jnp.where(inside, scores, -jnp.inf), axis=-1)

            policies = jax.lax.map(policy, (arguments["weight"], arguments["top_k"]))
            reward = rewards[..., -1]
            return {
                "policy": jnp.moveaxis(policies, 0, -1),
                "reward_sum": reward,
                "reward": jnp.where(last[..., None], reward, 0.0),
            }

        slots = arguments["users"]
        scored = [
            per_method(method, shared, jax.tree.map(lambda leaf: leaf[slots], users))
            for method, shared, users in zip(self.methods, arguments["shared"], arguments["encoded"], strict=True)
        ]
        return {"log_prob": own, "methods": tuple(scored)}


def _rewards(method: Method, shared: Tree, users: Tree, hidden: jax.Array, prompt: jax.Array) -> jax.Array:
    """`[batch, positions, slots, candidates]` rewards; the text is encoded once for all users."""
    statistics, params = shared["statistics"], shared["params"]
    with jax.default_matmul_precision("float32"):
        texts = method.encode_text(params, standardise(hidden, statistics["features"]))
        prompts = method.encode_prompt(params, standardise(prompt, statistics["prompts"]))
        one = functools.partial(method.combine, params)
        # Over the slots of a row, and over the rows.
        rewards = jax.vmap(jax.vmap(one, in_axes=(None, None, 0), out_axes=1))(texts, prompts, users)
    return rewards / shared["margin_deviation"]


@functools.partial(jax.jit, static_argnames="method")
def _encode_users(method: Method, params: Tree, users: Tree) -> Tree:
    with jax.default_matmul_precision("float32"):
        return jax.vmap(lambda user: method.encode_user(params, user))(users)


class Judging:
    """Judges texts under several reward models at once.

    Args:
      lm: the frozen language model.
      models: reward models by name; each must know every user that is asked for.
      users: all users, in the order that decides nothing but places in memory.
      weights: weights w.
      top_ks: numbers of candidates k.
      batch_size: texts per batch.
      pooling: what the models read of a prefix, as in fitting.
      mesh: devices that the rows of a batch are spread over, with the model's parameters on it already; None: one.

    Raises:
      InputError: a weight is negative or not finite, a k is out of range, or a model does not know a user.
    """

    def __init__(
        self,
        lm: LanguageModel,
        models: Mapping[str, RewardModel],
        users: Sequence[str],
        *,
        weights: Sequence[float],
        top_ks: Sequence[int],
        batch_size: int = 8,
        pooling: Pooling = "last",
        mesh: Mesh | None = None,
    ):
        for weight in weights:
            if not (np.isfinite(weight) and weight >= 0):
                raise InputError(f"weights: {weight} is not a weight; it is finite and at least 0.")
        for k in top_ks:
            if not 1 <= k <= lm.config.vocab_size:
                raise InputError(f"top_ks: {k} is not from 1 to {lm.config.vocab_size}, the size of the vocabulary.")
        if not weights or not top_ks or batch_size < 1:
            raise InputError("Give at least one weight, one k, and a batch_size of at least 1.")
        self._lm, self._names, self._batch_size = lm, tuple(models), batch_size
        self._weights, self._ks = tuple(map(float, weights)), tuple(map(int, top_ks))
        self._row = {user: row for row, user in enumerate(users)}
        self._judge = _Judge(tuple(model.method for model in models.values()), pooling)
        grid = [(weight, k) for weight in self._weights for k in self._ks]
        encoded = []
        for model in models.values():
            rows = np.asarray([model.index(user) for user in users], np.int32)
            own = jax.tree.map(lambda leaf, rows=rows: jnp.asarray(np.asarray(leaf)[rows]), model.user_params)
            # Where nothing is personal all users are one.
            own = own if jax.tree.leaves(own) else {}
            encoded.append(_encode_rows(model, own, len(users)))
        shared = {
            "shared": tuple(dict(model.shared) for model in models.values()),
            "encoded": tuple(encoded),
            "weight": jnp.asarray([weight for weight, _ in grid], jnp.float32),
            "top_k": jnp.asarray([k for _, k in grid], jnp.int32),
        }
        self._params, self._shared = lm.params, replicate(shared, mesh)
        # programs and judges are compiled in; parameters and heads are the same for all rows.
        self._forced = shard_users(_pass, mesh, in_axes=(None, None, None, None, 0, 0, 0, 0, 0), static_argnums=(0, 1))

    def run(
        self,
        texts: Sequence[tuple[Prompt, str]],
        users: Sequence[Sequence[str]],
        slots: int,
        progress: Callable[[int], None] | None = None,
    ) -> dict[str, np.ndarray]:
        """Judges each text as each of its users.

        Args:
          texts: prompts and responses.
          users: of each text.
          slots: bound of the number of users of a text, of any call: the width of the result.
          progress: told how many texts are done since the last call.

        Returns:
          `log_prob` `[texts]` and `tokens` `[texts]`; for every model NAME `reward/NAME` and `reward_sum/NAME`
          `[texts, slots]`, and `policy/NAME` `[texts, slots, W, K]`; all float64, users in the order given, zeros after
          them. See `Judgements` for what they mean.

        Raises:
          InputError: a text that is empty or does not fit, or a reward that is not finite: names the text, the user and
            the reward model.
        """
        encoded = encode_texts(
            self._lm,
            [chat_prompt(prompt) for prompt, _ in texts],
            [response for _, response in texts],
            self._lm.config.max_position,
        )
        shape = {"policy": (len(self._weights), len(self._ks)), "reward": (), "reward_sum": ()}
        found: dict[str, np.ndarray] = {
            f"{kind}/{name}": np.zeros((len(texts), slots, *rest))
            for kind, rest in shape.items()
            for name in self._names
        }
        found["log_prob"] = np.zeros(len(texts))
        found["tokens"] = np.asarray([text.response for text in encoded], np.float64)
        for batch, out in self._passes(encoded, users, slots):
            for row, place in enumerate(batch.places):
                found["log_prob"][place] = out["log_prob"][row]
                count = len(users[place])
                for name, scored in zip(self._names, out["methods"], strict=True):
                    for kind, values in scored.items():
                        own = values[row, :count].astype(np.float64).reshape(count, *shape[kind])
                        if not np.isfinite(own).all():
                            bad = users[place][int(np.argwhere(~np.isfinite(own))[0][0])]
                            raise InputError(
                                f"response {texts[place][1][:60]!r}, user '{bad}', reward model '{name}': {kind} is "
                                "not finite. Fit it again with a smaller learning rate, or leave it out."
                            )
                        found[f"{kind}/{name}"][place, :count] = own
            if progress is not None:
                progress(len(batch.places))
        return found

    def _passes(self, texts: Sequence[Text], users: Sequence[Sequence[str]], slots: int) -> Iterator[tuple[Batch, Any]]:
        config = self._lm.config
        most = max(self._ks)
        for batch in batches(texts, self._batch_size, self._lm.pad_id, config.max_position):
            # Few different numbers of slots, since each compiles again.
            used = max(1, *(len(users[row]) for row in batch.rows))
            width = power_of_two(max(used, min(slots, _SLOTS)))
            index = np.zeros((len(batch.rows), width), np.int32)
            for row, text in enumerate(batch.rows):
                own = users[int(text)]
                index[row, : len(own)] = [self._row[user] for user in own]
            # The judge's arrays count as well as the candidates' own.
            per_position = piece_size(config, len(batch.rows), batch.width, most)
            heads = max(1, (1 << 24) // (len(batch.rows) * width * (most + 1) * 8))
            program = ForcedProgram(config, most, True, batch.width, min(per_position, heads))
            out = self._forced(
                program,
                self._judge,
                self._params,
                self._shared,
                {"users": index, "last": batch.responses - 1},
                make_rows(len(batch.rows), max_new_tokens=1, top_k=most),
                batch.tokens,
                batch.lengths,
                batch.responses,
            )
            yield batch, jax.tree.map(np.asarray, out)


def collect(
    arrays: Mapping[str, np.ndarray],
    texts: Sequence[int],
    users: Sequence[Sequence[str]],
    weights: Sequence[float],
    top_ks: Sequence[int],
) -> Judgements:
    """What `Judging.run` gave, one row per (text, user).

    Args:
      arrays: as `Judging.run` returns them.
      texts: `[texts]` the number of each text.
      users: of each text, as they were given.
      weights: weights w.
      top_ks: numbers of candidates.
    """
    places = [(row, slot) for row, own in enumerate(users) for slot in range(len(own))]
    row, slot = (np.asarray(column, np.int64) for column in zip(*places, strict=True)) if places else ([], [])

    def of(kind: str) -> dict[str, np.ndarray]:
        return {name.split("/", 1)[1]: a[row, slot] for name, a in arrays.items() if name.startswith(f"{kind}/")}

    return Judgements(
        entries=tuple(Entry(texts[r], users[r][s]) for r, s in places),
        weights=tuple(map(float, weights)),
        top_ks=tuple(map(int, top_ks)),
        log_prob=arrays["log_prob"][row],
        tokens=arrays["tokens"][row].astype(np.int64),
        reward=of("reward"),
        reward_sum=of("reward_sum"),
        policy=of("policy"),
    )


def _pass(program, judge, params, shared, of_rows, rows, tokens, lengths, responses):
    """The teacher-forced pass, its arguments divided into those of all rows and those that each row has."""
    return forced(program, judge, True, params, (), {**shared, **of_rows}, rows, tokens, lengths, responses)


def _encode_rows(model: RewardModel, users: Tree, count: int) -> Tree:
    """Encoded users, every leaf `[users, ...]`."""
    if jax.tree.leaves(users):
        return _encode_users(model.method, model.shared["params"], users)
    one = model.method.encode_user(model.shared["params"], users)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), one)
