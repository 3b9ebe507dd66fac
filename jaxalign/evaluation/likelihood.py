"""Policy accuracy of in-context learning: does a language model that has read the user's texts prefer the right one?"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxalign.data.schema import Preference
from jaxalign.data.splits import in_fixed_order
from jaxalign.decoding import score
from jaxalign.evaluation.in_context import Context
from jaxalign.evaluation.task import Task
from jaxalign.models.language_model import LanguageModel


def judged_rows(task: Task, per_user: int, seed: int) -> list[tuple[str, Preference]]:
    """Test pairs on which it is measured: at most `per_user` of each user, chosen by hash; group and pair."""
    found = []
    for group, rows in (("seen", task.split.seen_test), ("unseen", task.split.unseen.query)):
        taken: dict[str, int] = {}
        for row in in_fixed_order(rows, seed):
            taken[row.user] = taken.get(row.user, 0) + 1
            if taken[row.user] <= per_user:
                found.append((group, row))
    return found


def score_pairs(
    lm: LanguageModel,
    rows: Sequence[tuple[str, tuple[str, Preference], Context]],
    batch_size: int,
    progress: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Log-probabilities (nats) and lengths of both texts of each pair.

    Args:
      rows: the name of the baseline, (group, pair), and the prompt that it makes for the pair.
    """
    prompts = [context.messages for _, _, context in rows for _ in range(2)]
    responses = [text for _, (_, row), _ in rows for text in (row.chosen, row.rejected)]
    results = score(
        lm,
        prompts,  # type: ignore[arg-type]
        responses,
        on_long_prompt="truncate_left",
        batch_size=batch_size,
        progress=progress,
    )
    return [
        {
            "method": method,
            "group": group,
            "user": row.user,
            "label": row.label,
            "log_prob_chosen": one.log_prob,
            "log_prob_rejected": two.log_prob,
            "tokens_chosen": one.num_tokens,
            "tokens_rejected": two.num_tokens,
        }
        for (method, (group, row), _), one, two in zip(rows, results[::2], results[1::2], strict=True)
    ]
