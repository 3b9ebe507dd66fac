"""Features of texts from the frozen language model, one pass per text: what reward models on cached features read.

The same pass gives the text's log-probability under the model, which every policy accuracy needs.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign.data.blocks import PairBlocks
from jaxalign.data.feature_cache import FeatureCache, Origin, text_key
from jaxalign.data.prompts import Message, Prompt, identity
from jaxalign.data.schema import Preference
from jaxalign.decoding.forced import target_log_prob
from jaxalign.decoding.texts import batches, encode_texts
from jaxalign.models.config import DecoderConfig
from jaxalign.models.language_model import LanguageModel
from jaxalign.models.transformer import Params, bind, prefill

Pooling = Literal["last", "mean"]
Key = tuple[str, str]

# Each time features are kept a file is written; this many texts are lost at most when a process is killed.
_KEPT_AT_ONCE = 64


@dataclasses.dataclass(frozen=True)
class TextFeatures:
    """What the frozen language model makes of each (prompt, response).

    Attributes:
      row: place of each text, by the prompt's identity and the response.
      last: `[texts, width]` float32, hidden state at the last token of the response.
      mean: `[texts, width]` float32, mean of the hidden states over the response.
      prompt: `[texts, width]` float32, hidden state at the last token of the prompt.
      log_prob: `[texts]` float64, log-probability of the response, nats.
      tokens: `[texts]` int64, tokens of the response.
    """

    row: Mapping[Key, int]
    last: np.ndarray
    mean: np.ndarray
    prompt: np.ndarray
    log_prob: np.ndarray
    tokens: np.ndarray

    def of(self, prompt: Prompt, response: str) -> int:
        """The row of a text."""
        return self.row[identity(prompt), response]


def chat_prompt(prompt: Any) -> Any:
    """A schema prompt as the tokenizer takes it: messages as dictionaries, texts and ids as they are."""
    if isinstance(prompt, str) or not all(isinstance(message, Message) for message in prompt):
        return prompt
    return [{"role": message.role, "content": message.content} for message in prompt]


@functools.partial(jax.jit, static_argnames=("config", "width"))
def _read(config: DecoderConfig, width: int, params: Params, tokens, lengths, responses) -> tuple[jax.Array, ...]:
    """Last, mean and prompt hidden states `[batch, model width]`, and log-probabilities `[batch, width]`."""
    model = bind(config, params)
    hidden, _ = prefill(model, tokens, lengths)
    length = tokens.shape[1]
    first = jnp.asarray(length - responses, jnp.int32)
    inside = (jnp.arange(length, dtype=jnp.int32)[None] >= first[:, None])[..., None]
    mean = jnp.sum(jnp.where(inside, hidden, 0.0), axis=1) / responses.astype(jnp.float32)[:, None]
    prompt = jnp.take_along_axis(hidden, (first - 1)[:, None, None], axis=1)[:, 0]
    return hidden[:, -1], mean, prompt, target_log_prob(model, hidden, tokens, width)


def extract(
    lm: LanguageModel,
    pairs: Sequence[tuple[Prompt, str]],
    *,
    cache: Path | None = None,
    batch_size: int = 8,
    share: tuple[int, int] = (0, 1),
    progress: Callable[[int], None] | None = None,
) -> TextFeatures:
    """Features of all different (prompt, response) among `pairs`.

    Args:
      lm: the frozen language model.
      pairs: prompts and responses; repeated ones are computed once.
      cache: a folder of `FeatureCache`s, shared by models and runs: a text that the same weights have read is not read
        again, and an interrupted call continues.
      batch_size: texts per batch.
      share: `(i, n)`: computes every n-th batch only, beginning with number i. The batches are those of all texts, so
        that n processes over one cache give to the bit what one gives; what nobody has computed yet is 0.
      progress: told how many texts are done since the last call.

    Raises:
      InputError: a text does not fit into the model's context, or is empty.
    """
    texts: dict[Key, tuple[Prompt, str]] = {}
    for prompt, response in pairs:
        texts.setdefault((identity(prompt), response), (prompt, response))
    order = sorted(texts)
    row = {key: number for number, key in enumerate(order)}
    chosen = [texts[key] for key in order]
    encoded = encode_texts(lm, [chat_prompt(p) for p, _ in chosen], [r for _, r in chosen], lm.config.max_position)
    store = None if cache is None else FeatureCache(cache, _origin(lm))
    keys = [text_key(prompt, response) for prompt, response in chosen]
    width, count = lm.config.hidden_size, len(order)
    arrays = {name: np.zeros((count, width), np.float32) for name in ("last", "mean", "prompt")}
    arrays |= {"log_prob": np.zeros(count), "tokens": np.asarray([text.response for text in encoded])}
    known = np.zeros(count, bool)
    if store is not None:
        known[:] = True
        known[store.missing(keys)] = False
        held = np.flatnonzero(known)
        for name, values in store.get([keys[place] for place in held]).items():
            arrays[name][held] = values
        if progress is not None and held.size:
            progress(int(held.size))
    fresh: list[int] = []

    def keep() -> None:
        if store is not None and fresh:
            store.put([keys[place] for place in fresh], {name: values[fresh] for name, values in arrays.items()})
        fresh.clear()

    try:
        # Batches are those of all texts, whatever is known, so that a run that was interrupted computes its remaining
        # texts in the shapes that an undisturbed one would.
        for number, batch in enumerate(batches(encoded, batch_size, lm.pad_id, lm.config.max_position)):
            places = np.asarray(batch.places)
            new = ~known[places]
            if not new.any() or number % share[1] != share[0]:
                continue
            *pooled, scored = _read(lm.config, batch.width, lm.params, batch.tokens, batch.lengths, batch.responses)
            scored = np.asarray(scored, np.float64)
            real = len(places)
            for name, values in zip(("last", "mean", "prompt"), pooled, strict=True):
                arrays[name][places[new]] = np.asarray(values)[:real][new]
            for text in np.flatnonzero(new):
                arrays["log_prob"][places[text]] = scored[text, -batch.responses[text] :].sum()
            fresh += places[new].tolist()
            if len(fresh) >= _KEPT_AT_ONCE:
                keep()
            if progress is not None:
                progress(int(new.sum()))
    finally:
        keep()
    return TextFeatures(row, **arrays)


def _origin(lm: LanguageModel) -> Origin:
    return Origin(
        model=f"{lm.weights_digest} {lm.dtype}",
        tokenizer=lm.fingerprint["tokenizer"],
        template="prompt by the chat template, response on its own; last, mean, prompt, log_prob, tokens",
    )


def pair_blocks(
    rows: Sequence[Preference],
    features: TextFeatures,
    pooling: Pooling = "last",
    users: Sequence[str] | None = None,
) -> PairBlocks:
    """Padded per-user blocks over the table of texts.

    Args:
      rows: pairs whose texts are all in `features`. Users are sorted by id, a user's pairs by their texts, so that the
        order of the rows changes nothing.
      features: of `extract`.
      pooling: which hidden state stands for a text.
      users: in this order, also those without rows; default those of the rows.
    """
    users = sorted({row.user for row in rows}) if users is None else users
    own: dict[str, list[tuple[int, int, float, float]]] = {user: [] for user in users}
    for row in rows:
        pair = (features.of(row.prompt, row.chosen), features.of(row.prompt, row.rejected))
        own[row.user].append((*pair, row.label, row.margin))
    longest = max(map(len, own.values()), default=0)
    chosen, rejected = (np.zeros((len(users), longest), np.int32) for _ in range(2))
    label, margin = (np.zeros((len(users), longest), np.float32) for _ in range(2))
    mask = np.zeros((len(users), longest), bool)
    for number, user in enumerate(users):
        for place, (a, b, sure, by) in enumerate(sorted(own[user])):
            chosen[number, place], rejected[number, place] = a, b
            label[number, place], margin[number, place], mask[number, place] = sure, by, True
    return PairBlocks(
        features=features.last if pooling == "last" else features.mean,
        prompts=features.prompt,
        chosen=chosen,
        rejected=rejected,
        mask=mask,
        label=label,
        margin=margin,
        users=tuple(users),
    )
