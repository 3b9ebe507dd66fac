"""One combination of settings: its decode program compiled ahead of time, run, and counted."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import kinds
from benchmarks.harness import Compiled, compile_ahead, program_bytes
from jaxalign.decoding import Greedy, loop
from jaxalign.decoding.buckets import power_of_two
from jaxalign.decoding.guidance.base import Guidance
from jaxalign.decoding.rows import Rows, make_rows
from jaxalign.errors import InputError
from jaxalign.models import LanguageModel
from jaxalign.models.sharding import param_shardings
from jaxalign.models.transformer import layers_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is swept.

    Attributes:
      kind: guidance, a name in `kinds.KINDS`.
      batch: requests that are decoded together; the batch is filled up to a power of two, as `generate` does.
      prompt: tokens of every prompt.
      new_tokens: tokens that every row produces; end tokens are ignored.
      top_k: candidates, for kinds that have any.
      users: users whose heads are stacked; rows take turns.
      dtype: of weights and cache.
      mesh: devices, such as `users=4,model=2`; empty for one device.
    """

    kind: str = "none"
    batch: int = 1
    prompt: int = 128
    new_tokens: int = 32
    top_k: int = 10
    users: int = 1
    dtype: str = "float32"
    mesh: str = ""

    @property
    def name(self) -> str:
        """All settings in one line: the key under which ratios are stored."""
        settings = f"{self.kind} b{self.batch} p{self.prompt} n{self.new_tokens} k{self.top_k} u{self.users}"
        return " ".join(filter(None, [settings, self.dtype, self.mesh]))


def parse_mesh(text: str) -> jax.sharding.Mesh | None:
    """A mesh from `users=4,model=2`; None for an empty text.

    Raises:
      InputError: another form, or more devices than there are.
    """
    if not text:
        return None
    try:
        sizes = {name: int(size) for name, size in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise InputError(f"mesh {text!r}: use the form users=4,model=2") from None
    if unknown := sizes.keys() - {"users", "model"}:
        raise InputError(f"mesh {text!r}: unknown axis {sorted(unknown)[0]!r}; axes are users and model")
    need, have = int(np.prod(list(sizes.values()))), jax.devices()
    if min(sizes.values()) < 1 or need > len(have):
        raise InputError(f"mesh {text!r} needs {need} devices and there are {len(have)}")
    auto = (jax.sharding.AxisType.Auto,) * len(sizes)
    devices = np.asarray(have[:need]).reshape(tuple(sizes.values()))
    return jax.sharding.Mesh(devices, tuple(sizes), axis_types=auto)


def random_prompts(vocab_size: int, batch: int, length: int, seed: int = 0) -> np.ndarray:
    """`[batch, length]` int32 of random ids, row i the same whatever the batch."""
    rows = [np.random.default_rng([seed, row]).integers(0, vocab_size, length) for row in range(batch)]
    return np.stack(rows).astype(np.int32)


class Prepared:
    """A case with its two programs compiled: `start` (prompt and first token) and `decode` (the others)."""

    def __init__(self, case: Case, lm: LanguageModel, guidance: Guidance | None):
        self.case, self.lm = case, lm
        self.mesh = parse_mesh(case.mesh)
        if case.prompt + case.new_tokens > lm.config.max_position:
            total = case.prompt + case.new_tokens
            raise InputError(f"{total} tokens exceed the model's context of {lm.config.max_position}")
        candidates = guidance is not None and guidance.scores_candidates
        self.rows_total = power_of_two(case.batch)
        self.program = loop.Program(
            config=lm.config,
            context=lm.config.max_position,
            max_tokens=case.new_tokens,
            max_top_k=case.top_k if candidates else 0,
            end_ids=(),
            pad_id=0,
        )
        tokens = random_prompts(lm.config.vocab_size, self.rows_total, case.prompt)
        lengths = np.full(self.rows_total, case.prompt, np.int32)
        real = np.arange(self.rows_total) < case.batch
        params, self.guidance = lm.params, guidance
        self.tokens, self.lengths, self.real = (self._by_row(x) for x in (tokens, lengths, real))
        if self.mesh is not None:
            whole = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
            split = param_shardings(lm.config, self.mesh, layers=layers_of(lm.params))
            params = jax.device_put(lm.params, split)
            self.guidance = _place(guidance, whole, split)
        self.params = params
        rows = self._rows(case.new_tokens)
        first = (self.program, params, self.guidance, Greedy(), rows, self.tokens, self.lengths, self.real)
        self.start: Compiled[Any] = compile_ahead(loop.start, *first)
        state = jax.eval_shape(loop.start, *first) if self.mesh is None else self._start(rows)
        self.decode: Compiled[Any] = compile_ahead(
            loop.decode, self.program, params, self.guidance, Greedy(), rows, state
        )
        self.output: np.ndarray | None = None

    def _by_row(self, x: np.ndarray) -> jax.Array:
        if self.mesh is None:
            return jnp.asarray(x)
        axis = "users" if "users" in self.mesh.axis_names else None
        return jax.device_put(x, jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(axis)))

    def _rows(self, new_tokens: int) -> Rows:
        user = np.arange(self.rows_total) % self.case.users
        rows = make_rows(self.rows_total, max_new_tokens=new_tokens, top_k=self.case.top_k, user=user)
        return rows if self.mesh is None else jax.tree.map(self._by_row, rows)

    def _start(self, rows: Rows) -> loop.State:
        return self.start.program(self.params, self.guidance, Greedy(), rows, self.tokens, self.lengths, self.real)

    def warm(self) -> None:
        """Runs both programs for two tokens: the limit is a traced value, so they are the programs that are timed."""
        self._run(self._rows(min(2, self.case.new_tokens)))

    def run(self) -> Mapping[str, float]:
        """Decodes everything; seconds until the first token (`first`), for the others (`rest`), and in all.

        Raises:
          RuntimeError: rows that fill the batch produced tokens, or real ones not all of theirs.
        """
        seconds, state = self._run(self._rows(self.case.new_tokens))
        chosen = np.asarray(state.chosen)
        # Only tokens of real rows are counted, and each must be there: a rate of tokens that never came is worthless.
        if not (chosen == np.where(np.asarray(self.real), self.case.new_tokens, 0)).all():
            raise RuntimeError(f"{self.case.name}: rows produced {chosen.tolist()} tokens")
        self.output = np.asarray(state.tokens)[: self.case.batch]
        return seconds

    def _run(self, rows: Rows) -> tuple[dict[str, float], loop.State]:
        jax.block_until_ready(rows)
        begin = time.perf_counter()
        state = jax.block_until_ready(self._start(rows))
        middle = time.perf_counter()
        state = self.decode.program(self.params, self.guidance, Greedy(), rows, state)
        state = jax.block_until_ready(state)
        end = time.perf_counter()
        return {"first": middle - begin, "rest": end - middle, "total": end - begin}, state

    @property
    def compile_seconds(self) -> float:
        """Tracing and compiling both programs."""
        return self.start.seconds + self.decode.seconds

    @property
    def memory(self) -> int | None:
        """Bytes that the larger of the two programs holds, by the compiler's account."""
        held = [program_bytes(compiled.program) for compiled in (self.start, self.decode)]
        known = [size for size in held if size is not None]
        return max(known) if known else None


def prepare(case: Case, lm: LanguageModel) -> Prepared:
    """Builds the case's guidance and compiles it."""
    return Prepared(case, lm, kinds.make(case.kind, lm, users=case.users))


def _place(guidance: Guidance | None, whole, split) -> Guidance | None:
    """A second model is split as the language model is; heads are kept whole on every device."""
    if guidance is None:
        return None
    model = getattr(guidance, "params", None)
    if model is None:
        return jax.device_put(guidance, whole)
    rest = dataclasses.replace(guidance, params=())  # pyright: ignore[reportCallIssue]
    return dataclasses.replace(  # pyright: ignore[reportCallIssue]
        jax.device_put(rest, whole), params=jax.device_put(model, split)
    )
