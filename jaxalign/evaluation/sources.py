"""From the config to the task: reads the data, or makes simulated users over what the language model really wrote."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxalign.data.prompts import Prompt, identity
from jaxalign.data.reader import load_completions, load_preferences
from jaxalign.data.sample_cache import SampleCache
from jaxalign.data.simulated import STYLES, SimulatedUsers, load_prompts
from jaxalign.data.sources.registry import SOURCES, rows
from jaxalign.data.splits import digest
from jaxalign.decoding import generate
from jaxalign.errors import DataError
from jaxalign.evaluation.experiment import FILES, Experiment
from jaxalign.evaluation.task import Task, from_completions, from_preferences
from jaxalign.models.language_model import LanguageModel
from jaxalign.progress import Progress
from jaxalign.rewards.features import chat_prompt


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the data is from, as the data card says it."""

    source: str
    licence: str | None


def load(
    experiment: Experiment, lm: LanguageModel, progress: Progress, cache: Path, stand_in: bool = False
) -> tuple[Task, Origin]:
    """Reads or makes the data of an experiment.

    Args:
      cache: folder of sampled texts, shared by runs.
      stand_in: for planning: samples of the language model are a word instead.

    Raises:
      DataError: it is missing, breaks its schema, or is too little.
    """
    if experiment.source == "simulated" and experiment.data is None:
        return _simulated(experiment, lm, progress, cache)
    path = experiment.data
    assert path is not None, "Experiment.check refuses this"
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    kind = experiment.source
    if kind == "simulated":
        kind = "ukp" if path.is_dir() else "preferences"
    notes: Sequence[str] = ()
    if kind in FILES:
        own_texts = kind == "completions"
        read: list[Any] = load_completions(path) if own_texts else load_preferences(path)
        origin = Origin(path.name, None)
    else:
        found = SOURCES.find(kind)
        own_texts, read = found.own_texts, rows(kind, path)
        origin, notes = Origin(found.source.title, found.source.licence), (found.source.description,)
    if not own_texts:
        return from_preferences(read, experiment, notes=notes), origin

    def sample(prompts: list[Prompt]) -> list[str]:
        return ["word"] * len(prompts) if stand_in else write(experiment, lm, prompts)

    task = from_completions(read, experiment, sample, sampler(experiment, lm), cache, notes, progress)
    return task, origin


def sampler(experiment: Experiment, lm: LanguageModel, draws: int = 1) -> str:
    """Names what sampled texts depend on besides the prompt."""
    return (
        f"{lm.weights_digest} {lm.dtype} temperature 1, at most {experiment.response_tokens} tokens, seed "
        f"{experiment.seed}, {draws} draws"
    )


def write(experiment: Experiment, lm: LanguageModel, prompts: Sequence[Prompt]) -> list[str]:
    """Samples of the unpersonalised language model at temperature 1, one for each time that a prompt is named; a
    prompt's samples depend on no other prompt."""
    requests, seen = [], Counter()
    for prompt in prompts:
        name = identity(prompt)
        requests.append(int.from_bytes(digest(seen[name], "sample", name)[:4], "big"))
        seen[name] += 1
    written = generate(
        lm,
        [chat_prompt(prompt) for prompt in prompts],
        max_new_tokens=experiment.response_tokens,
        temperature=1.0,
        seed=experiment.seed,
        request=requests,
        batch_size=experiment.batch_size,
    )
    return [result.text or "" for result in written]


def _simulated(experiment: Experiment, lm: LanguageModel, progress: Progress, cache: Path) -> tuple[Task, Origin]:
    prompts = load_prompts(experiment.prompts)
    # Users see responses to the prompt alone; that each was asked for in a way of its own makes them differ.
    asked = {prompt: [f"{prompt} {style}".strip() for style in STYLES[: experiment.responses]] for prompt in prompts}
    draws = -(-experiment.responses // len(STYLES))
    store = SampleCache(cache, sampler(experiment, lm, draws))
    # In pieces, so that a run that is stopped goes on where it was; the draws of a prompt are in one piece.
    chunk = draws * max(1, 2 * experiment.batch_size // draws)
    every = [variant for own in asked.values() for variant in own]
    written = store.all(every, lambda some: write(experiment, lm, some), draws, chunk, progress)
    texts = dict(zip(every, written, strict=True))
    responses = {
        prompt: [text for drawn in zip(*(texts[variant] for variant in own), strict=True) for text in drawn]
        for prompt, own in asked.items()
    }
    responses = {prompt: own[: experiment.responses] for prompt, own in responses.items()}
    everything = [text for own in responses.values() for text in own]
    counts = [count for count in (experiment.users or 16, experiment.limit) if count is not None]
    simulated = SimulatedUsers.create(min(counts), everything, shared=experiment.common_taste, seed=experiment.seed)
    rows = simulated.preferences(
        {str(p): own for p, own in responses.items()}, experiment.pairs_per_user, seed=experiment.seed
    )
    experiment = dataclasses.replace(experiment, users=None, limit=None, min_pairs=1)
    notes = (
        f"users are simulated: each has a known taste in measurable attributes of a text, and chose between "
        f"{experiment.responses} responses that the language model wrote to each of {experiment.prompts} prompts",
    )
    task = from_preferences(rows, experiment, simulated, notes)
    return task, Origin("simulated users", None)
