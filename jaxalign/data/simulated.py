"""Users whose taste is known: weights over attributes of a text, and Bradley-Terry choices between responses.

The utility of a text to user u is w_u . z(text), z the standardised attributes. A user prefers a to b with probability
sigmoid((utility of a - utility of b) / temperature). Since the utility is known, so are the best reward model, the best
possible accuracy, and how good a generated text really is for the user. The responses are given: sample them from a
language model for `load_prompts()`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jaxalign.data.attributes import NAMES, Standardiser, attribute_table
from jaxalign.data.schema import Preference
from jaxalign.data.splits import digest
from jaxalign.errors import InputError
from jaxalign.files import read_json, write_json

STYLES = (
    "",
    "Answer in one short, plain sentence.",
    "Answer with a list of numbered points.",
    "Answer in the first person, with questions to me, and say what you are unsure of.",
)
"""Ways in which a response may be asked for beside its prompt, so that responses differ in what tastes are about."""


def load_prompts(count: int | None = None) -> list[str]:
    """The prompts that ship with jaxalign, or the first `count`: everyday requests of many kinds, in mixed order.

    Raises:
      InputError: there are fewer than `count`.
    """
    import importlib.resources

    text = importlib.resources.files("jaxalign.data").joinpath("prompts.txt").read_text(encoding="utf-8")
    prompts = text.split("\n")[:-1]
    if count is not None and not 1 <= count <= len(prompts):
        raise InputError(f"{count} prompts were asked for; from 1 to {len(prompts)} ship with jaxalign.")
    return prompts[:count]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedUsers:
    """Users with known tastes.

    Attributes:
      names: the user ids.
      weights: `[users, attributes]` float32, of length 1 each; columns as in `attributes.NAMES`.
      standardiser: from raw to standardised attributes, fixed on the responses that the users were made for.
      temperature: of the choices; 0: the better response always wins.
      clusters: `[users]` int32, the cluster of each user; all 0 without clusters.
    """

    names: tuple[str, ...]
    weights: np.ndarray
    standardiser: Standardiser
    temperature: float
    clusters: np.ndarray

    @classmethod
    def create(
        cls,
        count: int,
        responses: Sequence[str],
        *,
        temperature: float = 0.1,
        clusters: int = 0,
        spread: float = 0.5,
        active: int = 2,
        shared: float = 0.5,
        seed: int = 0,
    ) -> "SimulatedUsers":
        """Draws users for texts like `responses`.

        Args:
          count: how many users.
          responses: reference texts. Tastes are about attributes for which no single value makes up more than half
            of them, or else about those that vary at all: a taste for what most texts lack decides few choices.
          temperature: at least 0; a utility has a deviation of about 1 over the reference texts.
          clusters: 0: every user's own taste is independent; else a user's taste is near that of a cluster's centre.
          spread: how far users are from their cluster's centre: 0 at it, 1 as far as the centre is long.
          active: how many attributes a taste (or a centre) is about.
          shared: weight of a taste that all users have in common, beside 1 for their own: makes a global model useful.
          seed: of the tastes. The same seed and count give the same users for the same responses.

        Raises:
          InputError: a number is out of range, or the responses do not vary.
        """
        if count < 1 or temperature < 0 or clusters < 0 or spread < 0 or shared < 0 or active < 1:
            raise InputError(
                f"count {count} and active {active} must be at least 1; temperature {temperature}, clusters "
                f"{clusters}, spread {spread} and shared {shared} at least 0."
            )
        table = attribute_table(list(responses))
        varies = np.flatnonzero(table.std(axis=0) > 1e-6) if len(table) else np.zeros(0, int)
        commonest = [np.unique(column, return_counts=True)[1].max() for column in table.T[varies]]
        spread_out = varies[2 * np.asarray(commonest, int) <= len(table)]
        varies = spread_out if len(spread_out) else varies
        if not len(varies):
            raise InputError(f"The {len(table)} responses do not differ in any attribute. Sample more, or warmer ones.")
        rng = np.random.default_rng(seed)

        def taste() -> np.ndarray:
            weights = np.zeros(len(NAMES))
            about = rng.choice(varies, size=min(active, len(varies)), replace=False)
            weights[about] = rng.normal(size=len(about))
            return weights / np.linalg.norm(weights)

        common = shared * taste()
        cluster = np.zeros(count, np.int32)
        if clusters:
            centres = np.stack([taste() for _ in range(clusters)])
            cluster = rng.integers(clusters, size=count).astype(np.int32)
            own = np.stack([centres[c] + spread * taste() for c in cluster])
        else:
            own = np.stack([taste() for _ in range(count)])
        weights = own + common
        weights /= np.linalg.norm(weights, axis=1, keepdims=True)
        digits = len(str(count - 1))
        return cls(
            names=tuple(f"sim{number:0{digits}d}" for number in range(count)),
            weights=weights.astype(np.float32),
            standardiser=Standardiser.of(table),
            temperature=temperature,
            clusters=cluster,
        )

    @cached_property
    def _row(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}

    def utility(self, texts: Sequence[str]) -> np.ndarray:
        """The true utility of each text to each user, `[users, texts]` float32: the oracle reward model."""
        return self._utility(self.weights, texts)

    def reward(self, user: str, texts: Sequence[str]) -> np.ndarray:
        """The true utility of texts to one user, `[texts]` float32."""
        if user not in self._row:
            raise InputError(f"There is no simulated user '{user}'; they are {self.names[0]} to {self.names[-1]}.")
        row = self._row[user]
        return self._utility(self.weights[row : row + 1], texts)[0]

    def _utility(self, weights: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        table = self.standardiser(attribute_table(list(texts))).astype(np.float64)
        # Rounded, so that a tie is a tie whichever other users and texts are in the same product.
        return np.round(weights.astype(np.float64) @ table.T, 6).astype(np.float32)

    def preferences(
        self, responses: Mapping[str, Sequence[str]], pairs_per_user: int, *, seed: int = 0
    ) -> list[Preference]:
        """What the users choose between responses to the same prompt.

        Args:
          responses: texts per prompt. Empty and repeated texts are left out; a prompt needs two that remain.
          pairs_per_user: how many different pairs each user judges, or all that there are where there are fewer.
          seed: of the pairs and the choices; each user's are independent of the other users.

        Returns:
          Rows whose group is the prompt, so that a split by group tests on prompts not trained on.

        Raises:
          InputError: no prompt has two different responses.
        """
        texts: list[str] = []
        candidates: list[tuple[str, int, int]] = []
        for prompt in sorted(responses):
            different = sorted({text for text in responses[prompt] if text.strip()})
            first = len(texts)
            texts += different
            candidates += [(prompt, a, b) for a in range(first, len(texts)) for b in range(a + 1, len(texts))]
        if not candidates:
            raise InputError("No prompt has two different responses. Sample at least two for each, at temperature 1.")
        utility = self.utility(texts)
        rows = []
        for user, name in enumerate(self.names):
            rng = np.random.default_rng(np.frombuffer(digest(seed, "simulated", name), np.uint32))
            judged = rng.choice(len(candidates), size=min(pairs_per_user, len(candidates)), replace=False)
            luck = rng.random(len(judged))
            for number, chance in zip(judged, luck, strict=True):
                prompt, a, b = candidates[number]
                if chance >= _preferred(utility[user, a] - utility[user, b], self.temperature):
                    a, b = b, a
                rows.append(Preference(user=name, prompt=prompt, chosen=texts[a], rejected=texts[b], group=prompt))
        return rows

    def best_accuracy(self, rows: Sequence[Preference]) -> float:
        """The expected accuracy of the oracle on these pairs: mean of max(p, 1 - p). No model does better on average.

        Raises:
          InputError: there are no rows.
        """
        gap = self._margins(rows)
        chance = _preferred(np.abs(gap), self.temperature)
        return float(np.mean(chance))

    def oracle_accuracy(self, rows: Sequence[Preference]) -> float:
        """The share of these very choices that the oracle ranks correctly; a tie counts one half."""
        gap = self._margins(rows)
        return float(np.mean((gap > 0) + 0.5 * (gap == 0)))

    def _margins(self, rows: Sequence[Preference]) -> np.ndarray:
        if not rows:
            raise InputError("There are no rows to judge.")
        texts = sorted({text for row in rows for text in (row.chosen, row.rejected)})
        place = {text: column for column, text in enumerate(texts)}
        utility = self.utility(texts)
        users = [self._row[row.user] for row in rows]
        chosen = utility[users, [place[row.chosen] for row in rows]]
        return chosen - utility[users, [place[row.rejected] for row in rows]]

    def save(self, path: str | Path) -> None:
        """Writes the users as JSON."""
        value = {
            "names": list(self.names),
            "attributes": list(NAMES),
            "weights": self.weights.tolist(),
            "mean": self.standardiser.mean.tolist(),
            "scale": self.standardiser.scale.tolist(),
            "temperature": self.temperature,
            "clusters": self.clusters.tolist(),
        }
        write_json(Path(path), value)

    @classmethod
    def load(cls, path: str | Path) -> "SimulatedUsers":
        """Reads what `save` wrote.

        Raises:
          InputError: the file has other attributes than this version of jaxalign measures, or is damaged.
        """
        value: dict[str, Any] = read_json(Path(path), InputError)
        try:
            if value["attributes"] != list(NAMES):
                raise InputError(f"{path} is about other attributes than this version measures: make the users again.")
            as_floats = {key: np.array(value[key], np.float32) for key in ("weights", "mean", "scale")}
            return cls(
                names=tuple(value["names"]),
                weights=as_floats["weights"],
                standardiser=Standardiser(as_floats["mean"], as_floats["scale"]),
                temperature=float(value["temperature"]),
                clusters=np.array(value["clusters"], np.int32),
            )
        except InputError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged ({error}): make the users again.") from error


def _preferred(gap: Any, temperature: float) -> Any:
    """sigmoid(gap / temperature), and its limit at temperature 0, where a tie is one half."""
    if temperature == 0:
        return 0.5 + 0.5 * np.sign(gap)
    return 1.0 / (1.0 + np.exp(-np.clip(gap / temperature, -500, 500)))
