"""The config of an experiment: every field is a flag of `jaxalign run`, with the same name and the same meaning."""

import dataclasses
import re
from pathlib import Path
from typing import Literal

from jaxalign import plugins, tracking
from jaxalign.data.sources.registry import SOURCES
from jaxalign.errors import InputError, shown
from jaxalign.metrics.measures import MEASURES
from jaxalign.rewards.features import Pooling
from jaxalign.rewards.registry import METHODS as REWARD_MODELS
from jaxalign.tracking import Tracker

FILES = ("preferences", "completions")
"""Values of `source` that stand for a file of rows."""
METHODS = ("bt", "per_user", "user_embedding", "lore", "pref", "pal", "vpl", "mrm", "gpo", "drm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is compared, on which data, and how much of it."""

    name: str = "quickstart"
    """Names the folder of results."""

    title: str = ""
    """Heads the report; the name where it is empty."""

    model: str = "smollm2-135m-instruct"
    """The frozen language model: a name, a hub id or a folder."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the language model's parameters and hidden states."""

    plugins: tuple[Path, ...] = ()
    """Python files that add reward models, data sources or measures; installed packages that do need no naming."""

    # Data.

    source: str = "simulated"
    """Where preferences come from: `simulated` users, a file of `preferences` or `completions`, a published set (ukp,
    acl_titles, tldr, prism, lamp4, lamp5, lamp7), or a data source of a plugin."""

    data: Path | None = None
    """The file or folder of `source`. With `simulated`: preferences, or a UKPConvArg1 folder, to use instead."""

    min_pairs: int = 50
    """Users with fewer pairs that have a preferred side (or fewer texts of their own) are left out."""

    users: int | None = None
    """At most so many users, chosen by hash; simulated: how many (16 where not given)."""

    limit: int | None = None
    """At most so many users, whatever `users` says: a smoke run."""

    rejected: tuple[str, ...] = ("lm_sample",)
    """With own texts, what they are preferred to: `lm_sample`, `other_user`, or both."""

    unseen_users: float = 0.2
    """Share of the users that training does not see."""

    validation_users: float = 0.1
    """Share of the users that hyper-parameters are chosen on, beside held-out pairs of seen users."""

    test: float = 0.2
    """Share of the groups of pairs that is kept for the test."""

    validation: float = 0.1
    """Share of the groups of pairs by which strengths and weights are chosen."""

    test_prompts: int | None = None
    """Accuracies are of test and validation pairs of at most so many prompts, chosen by hash: judging policies costs a
    pass over each of their texts."""

    shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Numbers of pairs that unseen users are adapted on, beside none and all."""

    common_taste: float = 1.0
    """Simulated: weight of a taste that all users share, beside 1 for their own."""

    pairs_per_user: int = 120
    """Simulated: pairs that each user judges."""

    prompts: int = 100
    """Simulated: prompts that users see responses to."""

    responses: int = 4
    """Simulated: responses that the language model writes to each prompt."""

    # Reward models.

    methods: tuple[str, ...] = METHODS
    """Reward models that are compared; `jaxalign methods` lists them."""

    pooling: Pooling = "last"
    """What stands for a response, in fitting and for every prefix of it: its last hidden state, or the mean."""

    # Policies.

    weights: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Weights w; for every reward model the best one on validation pairs is used."""

    top_ks: tuple[int, ...] = (10,)
    """Numbers of candidates k; the first one is used in generation and in the headline."""

    form: Literal["policy", "score", "sequence"] = "policy"
    """The form of policy accuracy that weights are chosen by, and that the headline shows."""

    length: Literal["sum", "mean"] = "mean"
    """Whether its scores are sums over tokens, which favour short responses, or means."""

    # Generation.

    writing_users: int = 10
    """Users of each group for whom texts are written."""

    prompts_per_user: int = 2
    """Prompts for each of them."""

    validation_prompts: int = 1
    """Prompts of validation groups for each of them, so that quality on validation can choose."""

    response_tokens: int = 32
    """Length limit of responses, in tokens."""

    in_context: tuple[str, ...] = ("in_context_random_4", "in_context_bm25_4")
    """Baselines without a reward model: KIND_SELECT_COUNT, KIND one of in_context, in_context_others and graded, SELECT
    one of random, recent and bm25."""

    in_context_budget: int = 1024
    """Most tokens that demonstrations may add to a prompt."""

    in_context_pairs: int = 4
    """Test pairs per user on which policy accuracy under demonstrations is measured; each costs two long passes."""

    guided_in_context: bool = True
    """Also guides the first of `in_context` with the reward model that validation picks."""

    measures: tuple[str, ...] = ()
    """Measures of texts that plugins add, beside those that are always there."""

    margin: float = 0.02
    """Differences of accuracy or ROUGE below it count as none."""

    # Running.

    batch_size: int = 32
    """Rows that are decoded together; a quarter of it is encoded together."""

    seed: int = 0
    """Of everything that is random."""

    mesh: str = ""
    """Devices, as users=4,model=2; all over `users` where it is empty."""

    track: tuple[Tracker, ...] = ()
    """Also write the config, final numbers and fits for TensorBoard (OUT/tensorboard) or Weights & Biases; each is an
    extra of jaxalign."""

    out: Path | None = None
    """Folder of results; default results/NAME."""

    @property
    def folder(self) -> Path:
        """Where results go."""
        return self.out or Path("results") / self.name

    def check(self) -> None:
        """Refuses a config that cannot work, before anything is loaded but its plugins.

        Raises:
          InputError: names the field and the mend.
        """
        from jaxalign.evaluation.config_types import check_types
        from jaxalign.rewards import make

        check_types(self)
        tracking.check(self.track)
        plugins.load(self.plugins)
        if wrong := _not_a_name(self.name):
            raise InputError(f"name = {shown(self.name)}: {wrong}; it names the folder of results")
        if not self.methods:
            raise InputError("methods is empty: name at least one reward model; `jaxalign methods` lists them")
        for field in ("weights", "top_ks"):
            if not getattr(self, field):
                raise InputError(f"{field} is empty: give at least one number")
        for field in ("methods", "weights", "top_ks", "in_context", "shots", "rejected", "plugins", "measures"):
            values = getattr(self, field)
            if len(set(values)) != len(values):
                raise InputError(f"{field} = {values}: a value is named twice")
        for name in self.methods:
            make(name)
        for name in self.in_context:
            parse_in_context(name, self)
        for name in self.measures:
            MEASURES.find(name)
        if self.source not in ("simulated", *FILES):
            SOURCES.find(self.source)
        if not self.rejected or set(self.rejected) - {"lm_sample", "other_user"}:
            raise InputError(f"rejected = {self.rejected}: name lm_sample, other_user, or both")
        for field, least in _LEAST.items():
            given = getattr(self, field)
            for value in given if isinstance(given, tuple) else (given,):
                if value is not None and value < least:
                    raise InputError(f"{field} = {value}: at least {least} is needed")
        if not self.margin > 0:
            raise InputError(f"margin = {self.margin}: it must be positive")
        for kept, other in (("unseen_users", "validation_users"), ("test", "validation")):
            shares = getattr(self, kept), getattr(self, other)
            if min(shares) < 0 or sum(shares) > 1:
                raise InputError(f"{kept} = {shares[0]}, {other} = {shares[1]}: shares from 0, together at most 1")
        if self.mesh:
            from jaxalign.evaluation.sharding import parse_mesh

            parse_mesh(self.mesh)
        if self.source != "simulated" and self.data is None:
            raise InputError(f"source = {self.source} needs data: give --data with its file or folder")

    def plugin_versions(self) -> dict[str, str]:
        """What results depend on beside jaxalign: every file in `plugins` with its SHA-256, and the installed packages
        that add a method, source or measure that is named here, with their versions."""
        used = [(REWARD_MODELS, name) for name in self.methods] + [(MEASURES, name) for name in self.measures]
        added = [registry.plugin(name) for registry, name in [*used, (SOURCES, self.source)]]
        return {plugin.name: plugin.version for plugin in [*plugins.load(self.plugins), *added] if plugin is not None}


# The least that each number may be; of tuples, each item.
_LEAST = dict.fromkeys(("min_pairs", "response_tokens", "batch_size", "prompts", "pairs_per_user", "users", "limit"), 1)
_LEAST |= dict.fromkeys(("writing_users", "prompts_per_user", "validation_prompts", "in_context_pairs", "seed"), 0)
_LEAST |= {
    "responses": 2,
    "test_prompts": 1,
    "shots": 1,
    "top_ks": 1,
    "weights": 0,
    "in_context_budget": 1,
    "common_taste": 0,
}

_IN_CONTEXT = re.compile(r"(in_context|in_context_others|graded)_(random|recent|bm25)_([1-9]\d{0,5})", re.ASCII)
# What one file system or another reads as a path, a device or a pattern.
_NO_NAME = re.compile(r'[\x00-\x1f\x7f-\x9f\ud800-\udfff/\\:*?"<>|]')


def _not_a_name(name: str) -> str | None:
    """Why `name` is no name of a folder on every file system, or None."""
    if not name or len(name.encode("utf-8", "replace")) > 100:
        return "from 1 to 100 bytes are needed"
    if found := _NO_NAME.search(name):
        return f"{found[0]!r} cannot be part of it"
    if name.startswith((".", " ")) or name.endswith((".", " ")):
        return "it cannot begin or end with a dot or a space"
    return None


def parse_in_context(name: str, experiment: Experiment):
    """The `InContext` that a name in `Experiment.in_context` stands for.

    Raises:
      InputError: the name has another form.
    """
    from jaxalign.evaluation.in_context import InContext

    match = _IN_CONTEXT.fullmatch(name)
    if match is None:
        raise InputError(
            f"in_context: '{name}' is not KIND_SELECT_COUNT with KIND one of in_context, in_context_others, graded and "
            "SELECT one of random, recent, bm25; write for instance in_context_bm25_4"
        )
    kind, select, count = match.groups()
    return InContext(
        select=select,  # pyright: ignore[reportArgumentType]
        count=int(count),
        budget=experiment.in_context_budget,
        graded=kind == "graded",
        of_others=kind == "in_context_others",
        seed=experiment.seed,
        name=name,
    )
