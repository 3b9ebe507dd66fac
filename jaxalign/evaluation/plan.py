"""What a run would do: its data, the passes of every stage, and about how long they take on this machine."""

import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxalign.data.prompts import identity
from jaxalign.data.simulated import load_prompts
from jaxalign.decoding.prompts import encode_prompts
from jaxalign.decoding.texts import encode_texts
from jaxalign.evaluation import sources
from jaxalign.evaluation.experiment import Experiment
from jaxalign.evaluation.likelihood import judged_rows
from jaxalign.evaluation.task import judged_pairs
from jaxalign.models.language_model import LanguageModel
from jaxalign.progress import silent
from jaxalign.rewards.features import chat_prompt


def _matmul_rate(width: int = 1024) -> float:
    """FLOP/s of a matrix product in float32, measured in a blink."""
    one = jnp.ones((width, width), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(one).block_until_ready()
    began = time.perf_counter()
    for _ in range(3):
        product(one).block_until_ready()
    return 3 * 2 * width**3 / (time.perf_counter() - began)


def estimate(experiment: Experiment, lm: LanguageModel, counts: dict[str, int]) -> list[dict[str, Any]]:
    """Tokens through the model and seconds for each stage, from sizes alone.

    The seconds take every token to cost 2 FLOP per parameter at the rate of a plain matrix product; compiling is not
    in them. A decode step of a few rows is bound by memory instead, which is why generation may take several times
    as long.

    Args:
      experiment: the config.
      lm: the language model.
      counts: `texts`, `judged_texts`, `prompt_tokens` and `response_tokens` of a text, `targets`, `in_context_pairs`.
    """
    parameters = float(sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(lm.params)))
    rate = _matmul_rate()
    whole = counts["prompt_tokens"] + counts["response_tokens"]
    k = max(experiment.top_ks)
    context = experiment.in_context_budget + whole
    guided = counts["targets"] * (len(experiment.methods) + int(experiment.guided_in_context))
    shown = counts["targets"] * len(experiment.in_context)
    stages = {
        "features": counts["texts"] * whole,
        "policies judged": counts["judged_texts"] * (whole + (k + 1) * counts["response_tokens"]),
        "in-context policies judged": counts["in_context_pairs"] * 2 * len(experiment.in_context) * context,
        "texts, plain and in context": counts["targets"] * (whole + experiment.response_tokens) + shown * context,
        "texts, guided": guided * (whole + experiment.response_tokens * k),
    }
    return [
        {"stage": name, "tokens": int(tokens), "seconds": tokens * 2 * parameters / rate}
        for name, tokens in stages.items()
    ]


def show(experiment: Experiment, lm: LanguageModel) -> None:
    """Prints the plan of `jaxalign run --dry-run`: what is there, and what each stage would cost."""
    from rich.console import Console
    from rich.table import Table

    with tempfile.TemporaryDirectory() as folder:
        counts, notes = _counts(experiment, lm, Path(folder))
    console = Console()
    console.print(f"{experiment.folder}: {'; '.join(notes)}", highlight=False)
    table = Table("stage", "tokens through the model", "about", title=f"plan of {experiment.name}")
    for row in estimate(experiment, lm, counts):
        table.add_row(row["stage"], f"{row['tokens']:,}", f"{row['seconds'] / 60:.1f} min")
    console.print(table)
    console.print(
        f"reward models: {', '.join(experiment.methods)}; weights {experiment.weights}; k {experiment.top_ks}"
    )


def _counts(experiment: Experiment, lm: LanguageModel, cache: Path) -> tuple[dict[str, int], list[str]]:
    """Sizes of the task; what the language model would write first is stood in for by a text of the longest length."""
    if experiment.source == "simulated" and experiment.data is None:
        users = min(n for n in (experiment.users or 16, experiment.limit) if n is not None)
        texts = experiment.prompts * experiment.responses
        judged = int(users * experiment.pairs_per_user * experiment.test)
        prompts = encode_prompts(
            lm.tokenizer, load_prompts(experiment.prompts), lm.config.max_position, "error", lm.config.vocab_size
        )
        counts = {
            "texts": texts,
            "judged_texts": int(texts * (experiment.test + experiment.validation)),
            "prompt_tokens": int(np.mean([len(prompt.ids) for prompt in prompts])),
            "response_tokens": experiment.response_tokens,
            "targets": min(users, experiment.writing_users)
            * (experiment.prompts_per_user + experiment.validation_prompts),
            "in_context_pairs": min(users * experiment.in_context_pairs, judged),
        }
        return counts, [f"{users} simulated users over {texts} responses that the language model writes first"]
    task, _ = sources.load(experiment, lm, silent, cache, stand_in=True)
    texts = {(identity(row.prompt), text): row for row in task.preferences for text in (row.chosen, row.rejected)}
    pairs = [row for part in judged_pairs(task, experiment).values() for row in part]
    judged = {(identity(row.prompt), text) for row in pairs for text in (row.chosen, row.rejected)}
    some = [texts[key] for key in sorted(texts)[:: max(1, len(texts) // 50)]]
    encoded = encode_texts(
        lm,
        [chat_prompt(row.prompt) for row in some],
        [row.chosen for row in some],
        lm.config.max_position,
        "truncate_left",
    )
    counts = {
        "texts": len(texts),
        "judged_texts": len(judged),
        "prompt_tokens": int(np.mean([len(text.ids) - text.response for text in encoded])),
        "response_tokens": int(np.mean([text.response for text in encoded])),
        "targets": len(task.targets),
        "in_context_pairs": len(judged_rows(task, experiment.in_context_pairs, experiment.seed)),
    }
    users = {row.user for row in task.preferences}
    return counts, [
        f"{len(users)} users, {len(task.preferences)} pairs, {len(texts)} texts, {len(task.targets)} targets"
    ]
