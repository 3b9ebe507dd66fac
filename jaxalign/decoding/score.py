"""How a plain and a guided policy judge given responses: log-probabilities and rewards, text in, numbers out."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign.decoding.checks import check_guidance, context_of
from jaxalign.decoding.forced import ForcedProgram, Judged, forced, piece_size
from jaxalign.decoding.guidance.base import Guidance, for_rows
from jaxalign.decoding.prompts import Prompt
from jaxalign.decoding.rows import make_rows, per_row
from jaxalign.decoding.texts import Batch, batches, encode_texts
from jaxalign.errors import InputError
from jaxalign.models.language_model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Score:
    """What the policies make of one response. Sums are over its tokens, in nats.

    Attributes:
      log_prob: sum of log p(y_t), the language model's.
      num_tokens: tokens of the response.
      token_log_prob: log p(y_t) per token.
      policy_log_prob: sum of log pi_u(y_t), the guided policy's, normalised over its candidates joined with y_t (over
        the vocabulary for a vocabulary guidance). These four are None without guidance.
      score: sum of log p(y_t) plus the weighted reward at each token: what the search maximises.
      sequence: log_prob plus the weighted reward of the whole response: the best-of-n view.
      reward: of the whole response, before the weight: read at its last token; for a vocabulary guidance, which
        rewards each token, summed over them.
      token_policy_log_prob: log pi_u(y_t) per token.
      token_reward: the reward at each token, before the weight.
      prompt_cut: tokens cut from the left of the prompt.
    """

    log_prob: float
    num_tokens: int
    token_log_prob: list[float]
    policy_log_prob: float | None = None
    score: float | None = None
    sequence: float | None = None
    reward: float | None = None
    token_policy_log_prob: list[float] | None = None
    token_reward: list[float] | None = None
    prompt_cut: int = 0


def score(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    responses: Sequence[str | Sequence[int]],
    *,
    guidance: Guidance | None = None,
    user: "int | Sequence[int]" = 0,
    top_k: "int | Sequence[int]" = 10,
    on_long_prompt: str = "error",
    batch_size: int = 8,
    progress: Callable[[int], None] | None = None,
) -> list[Score]:
    """Judges each response under the language model and, with a guidance, under the guided policy.

    One teacher-forced pass per response; equal to stepping the decoder token by token.

    Args:
      lm: the language model.
      prompts: texts (one user message of the chat template), chat messages, or ids.
      responses: texts or ids, one per prompt, encoded on their own; no end token is added.
      guidance: or None for log-probabilities alone.
      user: index into the users of the guidance's parameters, per response.
      top_k: candidates per position, for a candidate guidance.
      on_long_prompt: `error`, or `truncate_left`.
      batch_size: texts per batch.
      progress: called with the number of responses finished since the last call.

    Raises:
      InputError: an empty list, prompt or response, a text that does not fit; or a reward that is not finite, named.
      ModelError: a guidance that does not fit the model.
    """
    results: list[Score | None] = [None] * len(prompts)
    for index, result in stream_scores(
        lm,
        prompts,
        responses,
        guidance=guidance,
        user=user,
        top_k=top_k,
        on_long_prompt=on_long_prompt,
        batch_size=batch_size,
    ):
        results[index] = result
        if progress is not None:
            progress(1)
    return results  # type: ignore[return-value]


def stream_scores(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    responses: Sequence[str | Sequence[int]],
    *,
    guidance: Guidance | None = None,
    user: "int | Sequence[int]" = 0,
    top_k: "int | Sequence[int]" = 10,
    on_long_prompt: str = "error",
    batch_size: int = 8,
) -> Iterator[tuple[int, Score]]:
    """As `score`, giving (place in the list, result) as each batch finishes."""
    if batch_size < 1:
        raise InputError(f"batch_size = {batch_size}: at least 1 is needed")
    count = len(prompts)
    context = context_of(lm, guidance)
    texts = encode_texts(lm, prompts, responses, context, on_long_prompt)
    users, ks = per_row("user", user, np.int32, count), per_row("top_k", top_k, np.int32, count)
    make_rows(count, max_new_tokens=1, user=users, top_k=ks)  # checks the values of all rows before any work
    candidates = guidance is not None and guidance.scores_candidates
    if guidance is not None:
        check_guidance(lm, guidance, users, ks)
    pad_id = 0 if lm.tokenizer is None else lm.tokenizer.pad_id
    for batch in batches(texts, batch_size, pad_id, context):
        max_top_k = int(ks[batch.places].max()) if candidates else 0
        program = ForcedProgram(
            config=lm.config,
            max_top_k=max_top_k,
            reads_hidden=guidance is not None and guidance.reads_hidden,
            width=batch.width,
            piece=piece_size(lm.config, len(batch.rows), batch.width, max_top_k),
        )
        rows = make_rows(len(batch.rows), max_new_tokens=1, user=users[batch.rows], top_k=ks[batch.rows])
        guidances = () if guidance is None else (for_rows(guidance, batch.rows),)
        out = forced(
            program, _judge, False, lm.params, guidances, None, rows, batch.tokens, batch.lengths, batch.responses
        )
        yield from _scores(batch, jax.tree.map(np.asarray, out), [text.cut for text in texts])


def _judge(arguments: None, guidances: tuple[Guidance, ...], carries: tuple, judged: Judged) -> dict[str, jax.Array]:
    """Per token: log p, log pi, reward and bonus of the response's own token, each unweighted and weighted."""
    target = judged.target_log_prob
    if not guidances:
        return {"log_prob": target}
    (guidance,), (carry,) = guidances, carries
    step, none = judged.step, jnp.zeros_like(target)
    bonus = weighted_bonus = reward = weighted_reward = none
    scores, own = judged.base, target
    if judged.target_bonus is not None:
        bonus, weighted_bonus = judged.target_bonus, guidance.weighted(judged.target_bonus, step)
        own = target + weighted_bonus
    if guidance.scores_candidates:
        rewards, _ = guidance.reward_and_pending(step, carry)
        weighted = guidance.weighted(rewards, step)
        reward, weighted_reward = rewards[..., -1], weighted[..., -1]
        # A candidate beyond k, or one that is the response's token again, is not there: its reward may be anything.
        scores = jnp.where(judged.duplicate, -jnp.inf, scores + weighted)
        own = scores[..., -1]
    return {
        "log_prob": target,
        "policy_log_prob": own - jax.nn.logsumexp(scores, axis=-1),
        "bonus": bonus,
        "weighted_bonus": weighted_bonus,
        "reward": reward,
        "weighted_reward": weighted_reward,
    }


def _scores(batch: Batch, out: dict[str, np.ndarray], cuts: Sequence[int]) -> Iterator[tuple[int, Score]]:
    for row, i in enumerate(batch.places):
        # Responses end in the last column. Sums are taken in float64: a long text loses nothing.
        tokens = {name: value[row, -batch.responses[row] :].astype(np.float64) for name, value in out.items()}
        for name, values in tokens.items():
            if not np.isfinite(values).all():
                place = int(np.flatnonzero(~np.isfinite(values))[0])
                raise InputError(f"response {i}: {name} is {values[place]} at its token {place}")
        log_prob = float(tokens["log_prob"].sum())
        score = Score(
            log_prob=log_prob,
            num_tokens=int(batch.responses[row]),
            token_log_prob=tokens["log_prob"].tolist(),
            prompt_cut=cuts[i],
        )
        if "reward" in tokens:
            # A bonus is a reward per token; a candidate's reward is that of the text up to it.
            additions = tokens["weighted_bonus"] + tokens["weighted_reward"]
            score = dataclasses.replace(
                score,
                policy_log_prob=float(tokens["policy_log_prob"].sum()),
                score=float(log_prob + additions.sum()),
                sequence=float(log_prob + tokens["weighted_bonus"].sum() + tokens["weighted_reward"][-1]),
                reward=float(tokens["bonus"].sum() + tokens["reward"][-1]),
                token_policy_log_prob=tokens["policy_log_prob"].tolist(),
                token_reward=(tokens["bonus"] + tokens["reward"]).tolist(),
            )
        yield i, score
