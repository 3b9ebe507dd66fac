"""Text in, text out: prompts of any length and number through the decode loop, batch by batch."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxalign.decoding import loop
from jaxalign.decoding.best_of import BestOf
from jaxalign.decoding.best_of import best_of as best_samples
from jaxalign.decoding.buckets import bucket, few_shapes, power_of_two
from jaxalign.decoding.checks import check_guidance, context_of
from jaxalign.decoding.guidance.base import Guidance, for_rows
from jaxalign.decoding.placement import spread_rows
from jaxalign.decoding.prompts import Prompt, encode_prompts
from jaxalign.decoding.rows import StopReason, make_rows, per_row
from jaxalign.decoding.selection import Greedy, Sample, Selection
from jaxalign.errors import InputError
from jaxalign.models.language_model import LanguageModel
from jaxalign.models.tokenizer import left_pad


@dataclasses.dataclass(frozen=True)
class Generation:
    """What came of one prompt.

    Attributes:
      tokens: the chosen token ids; the last one is the end token where `stop_reason` is `end_token`.
      text: the tokens as text, without special tokens; None for a model without a tokenizer.
      stop_reason: `end_token`, `length`, `cache_full` or `non_finite`.
      prompt_tokens: length of the prompt in tokens, after any cut.
      prompt_cut: tokens that were cut from the left of a prompt that was too long.
      records: per-token lists (see `loop.Records`) where they were asked for.
    """

    tokens: list[int]
    text: str | None
    stop_reason: str
    prompt_tokens: int
    prompt_cut: int = 0
    records: dict[str, list] | None = None


def generate(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    guidance: Guidance | None = None,
    selection: Selection | None = None,
    max_new_tokens: "int | Sequence[int]" = 128,
    user: "int | Sequence[int]" = 0,
    top_k: "int | Sequence[int] | None" = None,
    top_p: "float | Sequence[float]" = 1.0,
    temperature: "float | Sequence[float]" = 0.0,
    seed: "int | Sequence[int]" = 0,
    request: Sequence[int] | None = None,
    ignore_eos: bool = False,
    on_long_prompt: str = "error",
    batch_size: int = 32,
    record: bool = False,
    best_of: BestOf | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Generation]:
    """Generates one response per prompt.

    Args:
      lm: the language model.
      prompts: each a text (made one user message of the chat template), a list of chat messages, or a list of ids
        (taken as they are).
      guidance: added to the model's log-probabilities; None for plain decoding.
      selection: default `Greedy`, or `Sample` when any temperature is above 0.
      max_new_tokens: limit per prompt, in tokens.
      user: index into the users of the guidance's parameters, per prompt.
      top_k: with a candidate guidance, how many candidates (default 10); else how many of the most probable tokens may
        be sampled (default 0, all).
      top_p: nucleus of plain sampling.
      temperature: 0 is greedy.
      seed: of the random draws, with the request's number.
      request: a number per prompt, default its place in the list; the draws of a request depend on its seed and number
        and not on its neighbours.
      ignore_eos: run to the limit whatever is produced.
      on_long_prompt: `error`, or `truncate_left` to cut prompts that leave no room, with a count in the result.
      batch_size: rows that are decoded together; prompts are sorted by length into batches.
      record: keep per-token records.
      best_of: sample several responses per prompt from the language model itself and keep the best by the guidance's
        reward; the guidance then does not steer, `top_k` is the filter of plain sampling, `temperature` must be above
        0, and a batch has `batch_size` times `samples` rows.
      progress: called with the number of prompts finished since the last call.

    Raises:
      InputError: no prompts, an empty prompt, a prompt that does not fit, or a setting out of range; before any work.
      ModelError: a guidance that does not fit the model.
    """
    results: list[Generation | None] = [None] * len(prompts)
    for index, result in stream(
        lm,
        prompts,
        guidance=guidance,
        selection=selection,
        max_new_tokens=max_new_tokens,
        user=user,
        top_k=top_k,
        top_p=top_p,
        temperature=temperature,
        seed=seed,
        request=request,
        ignore_eos=ignore_eos,
        on_long_prompt=on_long_prompt,
        batch_size=batch_size,
        record=record,
        best_of=best_of,
    ):
        results[index] = result
        if progress is not None:
            progress(1)
    return results  # type: ignore[return-value]


def stream(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    guidance: Guidance | None = None,
    selection: Selection | None = None,
    max_new_tokens: "int | Sequence[int]" = 128,
    user: "int | Sequence[int]" = 0,
    top_k: "int | Sequence[int] | None" = None,
    top_p: "float | Sequence[float]" = 1.0,
    temperature: "float | Sequence[float]" = 0.0,
    seed: "int | Sequence[int]" = 0,
    request: Sequence[int] | None = None,
    ignore_eos: bool = False,
    on_long_prompt: str = "error",
    batch_size: int = 32,
    record: bool = False,
    best_of: BestOf | None = None,
) -> Iterator[tuple[int, Generation]]:
    """As `generate`, giving (place in the list, result) as each batch finishes. Input is checked at the first step."""
    if batch_size < 1:
        raise InputError(f"batch_size = {batch_size}: at least 1 is needed")
    judged = guidance is not None and guidance.scores_candidates
    candidates = judged and best_of is None
    count = len(prompts)
    wanted = per_row("max_new_tokens", max_new_tokens, np.int32, count)
    settings: dict[str, np.ndarray] = {
        "user": per_row("user", user, np.int32, count),
        "top_k": per_row("top_k", (10 if candidates else 0) if top_k is None else top_k, np.int32, count),
        "top_p": per_row("top_p", top_p, np.float32, count),
        "temperature": per_row("temperature", temperature, np.float32, count),
        "seed": per_row("seed", seed, np.uint32, count),
        "request": per_row("request", range(count) if request is None else request, np.uint32, count),
        "max_new_tokens": wanted,
    }
    make_rows(count, **settings)  # checks the values of all rows before any work
    context = context_of(lm, guidance)
    # A reward is that of the prompt with a candidate, which must fit too.
    encoded = encode_prompts(lm.tokenizer, prompts, context, on_long_prompt, lm.config.vocab_size, beside=int(judged))
    check_guidance(lm, guidance, settings["user"], settings["top_k"], least=int(candidates))
    if best_of is not None:
        _check_best_of(guidance, settings["temperature"])
    if selection is None:
        selection = _selection(candidates, settings)
    end_ids = () if ignore_eos or lm.tokenizer is None else lm.tokenizer.end_ids
    pad_id = 0 if lm.tokenizer is None else lm.tokenizer.pad_id
    # Longest first: when memory does not suffice, that shows at once.
    order = sorted(range(count), key=lambda i: -len(encoded[i].ids))
    parts = [order[first : first + batch_size] for first in range(0, count, batch_size)]
    wanted_shapes = []
    for index in parts:
        size = min(power_of_two(len(index)), batch_size)
        length = min(bucket(max(len(encoded[i].ids) for i in index)), context)
        # A prompt of one token leaves room for `context` tokens; no row can have more, whatever was asked for.
        limit = min(bucket(int(wanted[index].max())), context)
        wanted_shapes.append((size, length, limit))
    for index, (size, length, limit) in zip(parts, few_shapes(wanted_shapes), strict=True):
        padded = np.asarray(index + [index[-1]] * (size - len(index)))
        program = loop.Program(
            config=lm.config,
            context=context,
            max_tokens=limit,
            max_top_k=int(settings["top_k"][index].max()) if candidates else 0,
            end_ids=end_ids,
            pad_id=pad_id,
            record=record or best_of is not None,
            sample_first=best_of is not None,
            budgets=_budgets(guidance, selection, size * int(settings["top_k"][index].max())) if candidates else (),
        )
        tokens, lengths = left_pad([encoded[i].ids for i in padded], length, pad_id)
        rows = make_rows(size, **{name: value[padded] for name, value in settings.items()})
        real = np.arange(size) < len(index)
        rows, tokens, lengths, real = spread_rows(lm.params, (rows, tokens, lengths, real))
        samples = padded if best_of is None else np.repeat(padded, best_of.samples)
        steering = None if guidance is None else for_rows(guidance, samples)
        if best_of is not None:
            assert steering is not None
            state = best_samples(program, best_of, lm.params, steering, selection, rows, tokens, lengths, real)
        else:
            state = loop.start(program, lm.params, steering, selection, rows, tokens, lengths, real)
            state = loop.decode(program, lm.params, steering, selection, rows, state)
        yield from _results(lm, encoded, index, state, record)


def _selection(candidates: bool, settings: dict[str, np.ndarray]) -> Selection:
    if not settings["temperature"].any():
        return Greedy()
    if candidates:
        return Sample()
    return Sample(max_top_k=int(settings["top_k"].max()), use_top_p=bool((settings["top_p"] < 1).any()))


def _check_best_of(guidance: Guidance | None, temperature: np.ndarray) -> None:
    if guidance is None or not guidance.scores_candidates or guidance.scores_vocabulary:
        raise InputError("best of: a guidance that gives a response one reward is needed, such as RewardHead")
    if (cold := np.flatnonzero(temperature == 0)).size:
        raise InputError(f"best of: temperature = 0 in row {cold[0]}: all samples would be equal; use 1")


def _results(
    lm: LanguageModel, encoded, index: Sequence[int], state: loop.State, record: bool
) -> Iterator[tuple[int, Generation]]:
    tokens, counts, reasons = (np.asarray(x) for x in (state.tokens, state.chosen, state.reason))
    records: dict[str, Any] = {}
    if record and state.records is not None:
        records = {name: np.asarray(value) for name, value in state.records._asdict().items()}
    for row, i in enumerate(index):
        ids = tokens[row, : counts[row]].tolist()
        yield (
            i,
            Generation(
                tokens=ids,
                text=None if lm.tokenizer is None else lm.tokenizer.decode(ids),
                stop_reason=StopReason(int(reasons[row])).label,
                prompt_tokens=len(encoded[i].ids),
                prompt_cut=encoded[i].cut,
                records={name: value[row, : counts[row]].tolist() for name, value in records.items()} or None,
            ),
        )


def _budgets(guidance: Guidance | None, selection: Selection, candidates: int) -> tuple[int, ...]:
    """To how many candidates of the whole batch a step may be packed; see `skipping`.

    Only where rewards are clipped, which gives the bound, and where a step has enough candidates to be bound by
    arithmetic. Each budget is one more body to compile.
    """
    possible = isinstance(selection, Greedy) and guidance is not None and guidance.reads_hidden and guidance.bounded
    return (candidates // 4, candidates // 2) if possible and candidates >= 64 else ()
