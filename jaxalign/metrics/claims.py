"""The claims of arXiv 2512.23067, each checked on results at hand: met, not met, or cannot be said.

Only its abstract's numbers are used. A claim is a statement about a quantity and a bound; it is met when the whole
interval of the quantity lies on the claimed side, not met when all of it lies on the other, and None (cannot be said)
when the interval has the bound inside or there is no interval. Nothing is rounded in favour of either. What counts as
"almost the same" is the caller's margin, fixed beforehand.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxalign.metrics.bootstrap import Difference
from jaxalign.metrics.equivalence import Equivalence
from jaxalign.metrics.rank_correlation import RankCorrelation, tau_deviation
from jaxalign.metrics.regret import Regret

# The numbers of the abstract (version 2).
HIGHEST_TAU = 0.31
ACCURACY_GAP = 0.20
IN_CONTEXT_FROM = 3_000_000_000
GAIN_FROM = 7_000_000_000
GAIN = (0.02, 0.05)  # "about 3" ROUGE-1 points in version 2, 3 to 5 in version 1

# A model of nominally 7 B has between 6.5 and 8 B parameters.
_NOMINAL = 0.9
# Full agreement of n methods has the p-value 2 / n!, which is below 0.05 from five on.
_FEWEST_METHODS = 5


class Claim(NamedTuple):
    """One claim and what the data say about it.

    Attributes:
      claim: the claim, in words.
      met: whether it holds here; None when that cannot be said.
      evidence: a sentence with the numbers.
    """

    claim: str
    met: bool | None
    evidence: str


class Decoupling(NamedTuple):
    """Two reward models, how much further the first one's RM accuracy is, and how their texts compare."""

    one: str
    two: str
    rm_gap: float
    measure: str
    test: Equivalence


def bracket(low: float | None, high: float | None) -> str:
    """An interval as text."""
    return "no interval" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"


def _below(low: float | None, high: float | None, bound: float) -> bool | None:
    if low is None or high is None:
        return None
    return True if high < bound else False if low > bound else None


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def weak_agreement(correlation: RankCorrelation, measure: str) -> Claim:
    """tau between RM accuracy and the accuracy of the guided policy is at most 0.31."""
    claim = f"RM accuracy hardly ranks methods as {measure} does: Kendall's tau is at most {HIGHEST_TAU}"
    if correlation.tau_b is None:
        return Claim(claim, None, correlation.note or "tau is undefined")
    by_chance, p = tau_deviation(correlation.n) or 0.0, correlation.tau_p or 0.0
    evidence = (
        f"tau is {correlation.tau_b:.2f} {bracket(correlation.tau_low, correlation.tau_high)} over {correlation.n} "
        f"methods (p = {p:.3f} against no relation, where its standard deviation would be "
        f"{by_chance:.2f})."
    )
    if correlation.n < _FEWEST_METHODS:
        return Claim(claim, None, f"{evidence} Over so few methods even full agreement could be chance.")
    met = _below(correlation.tau_low, correlation.tau_high, HIGHEST_TAU)
    # A strong agreement that may be chance refutes nothing.
    return Claim(claim, None if met is False and p >= 0.05 else met, evidence)


def accuracy_misleads(regret: Regret | None, measure: str, margin: float) -> Claim:
    """Choosing by RM accuracy loses more than the margin of the deployment measure."""
    claim = f"Choosing by RM accuracy costs {measure}: more than {margin:g} is lost"
    if regret is None:
        return Claim(claim, None, f"No method has both RM accuracy and {measure}.")
    evidence = (
        f"RM accuracy picks {regret.picked} ({regret.value_picked:.3f}), the best is {regret.best} "
        f"({regret.value_best:.3f}): {regret.regret:.3f} {bracket(regret.low, regret.high)} is lost."
    )
    return Claim(claim, _not(_below(regret.low, regret.high, margin)), evidence)


def decoupled(pairs: Sequence[Decoupling]) -> Claim:
    """Methods that are 20 points of RM accuracy apart write equally good text: judged on the widest such pair."""
    claim = f"Methods that are {100 * ACCURACY_GAP:.0f} points of RM accuracy apart write almost equally good text"
    if not pairs:
        return Claim(claim, None, "No two methods can be compared.")
    widest = max(pairs, key=lambda pair: pair.rm_gap)
    test = widest.test
    evidence = f"The widest gap is {100 * widest.rm_gap:.1f} points, {widest.one} over {widest.two}"
    if test.difference is None:
        return Claim(claim, None, f"{evidence}; no user has texts of both.")
    evidence += (
        f"; they differ by {test.difference:.3f} {bracket(test.low, test.high)} in {widest.measure}, where "
        f"{test.margin:g} counts as the same."
    )
    if widest.rm_gap < ACCURACY_GAP or test.low is None or test.high is None:
        return Claim(claim, None, evidence)
    apart = test.low > test.margin or test.high < -test.margin
    return Claim(claim, True if test.equivalent else False if apart else None, evidence)


def guidance_fails(gain: Difference, picked: str, plain: str, measure: str, margin: float) -> Claim:
    """The reward model that ranks best does not make the LM write like the user: its gain stays below the margin."""
    claim = f"High RM accuracy does not bring text like the user's: less than {margin:g} of {measure} is gained"
    if gain.value is None:
        return Claim(claim, None, f"No user has texts of both {picked} and {plain}.")
    evidence = (
        f"{picked}, first in RM accuracy, is {gain.value:+.3f} {bracket(gain.low, gain.high)} in {measure} from "
        f"{plain}, over {gain.users} users."
    )
    return Claim(claim, _below(gain.low, gain.high, margin), evidence)


def _size(parameters: float | None) -> str:
    return "a model of unknown size" if parameters is None else f"a model of {parameters / 1e9:.2g} B parameters"


def _large(parameters: float | None, bound: float) -> bool:
    return parameters is not None and parameters >= _NOMINAL * bound


def in_context_wins(
    advantage: Difference, in_context: str, guided: str, measure: str, parameters: float | None
) -> Claim:
    """In-context learning beats the best guided method, for models from 3 B on; of smaller ones nothing is claimed."""
    claim = f"From 3 B parameters on, in-context learning beats every reward-guided method in {measure}"
    if advantage.value is None:
        return Claim(claim, None, f"No user has {measure} of both {in_context} and {guided}.")
    evidence = (
        f"{in_context} is {advantage.value:+.3f} {bracket(advantage.low, advantage.high)} from {guided}, the best "
        f"guided method, over {advantage.users} users, with {_size(parameters)}."
    )
    if not _large(parameters, IN_CONTEXT_FROM):
        return Claim(claim, None, evidence + " The claim is about larger models.")
    return Claim(claim, _not(_below(advantage.low, advantage.high, 0.0)), evidence)


def in_context_gain(
    advantage: Difference, in_context: str, guided: str, measure: str, parameters: float | None
) -> Claim:
    """At 7 B in-context learning is 2 to 5 points of ROUGE-1 ahead of the best guided method."""
    claim = f"At 7 B parameters in-context learning gains about 3 points of {measure} on the best guided method"
    if advantage.value is None:
        return Claim(claim, None, f"No user has {measure} of both {in_context} and {guided}.")
    evidence = (
        f"{in_context} gains {advantage.value:+.3f} {bracket(advantage.low, advantage.high)} on {guided}, "
        f"with {_size(parameters)}; {GAIN[0]:.2f} to {GAIN[1]:.2f} would agree."
    )
    if not _large(parameters, GAIN_FROM):
        return Claim(claim, None, evidence + " The claim is about larger models.")
    if advantage.low is None or advantage.high is None:
        return Claim(claim, None, evidence)
    inside = advantage.low >= GAIN[0] and advantage.high <= GAIN[1]
    outside = advantage.high < GAIN[0] or advantage.low > GAIN[1]
    return Claim(claim, True if inside else False if outside else None, evidence)
