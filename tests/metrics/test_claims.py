import pytest

from jaxalign.metrics import claims
from jaxalign.metrics.bootstrap import Difference
from jaxalign.metrics.equivalence import Equivalence
from jaxalign.metrics.rank_correlation import RankCorrelation
from jaxalign.metrics.regret import Regret


def correlation(n, low, high, p=0.001):
    return RankCorrelation(n, (low + high) / 2, low, high, p)


@pytest.mark.parametrize(
    ("found", "met"),
    [
        (correlation(8, -0.1, 0.3, p=0.5), True),
        (correlation(8, 0.1, 0.5), None),
        (correlation(8, 0.4, 0.9), False),
        (correlation(8, 0.4, 0.5, p=0.2), None),  # strong, but may be chance
        (correlation(4, 1.0, 1.0, p=1 / 12), None),  # cannot be anything but chance
        (correlation(4, -0.2, 0.1), None),
        (RankCorrelation(5, tau_b=0.2, tau_p=0.8), None),  # one user
    ],
)
def test_weak_agreement(found, met):
    claim = claims.weak_agreement(found, "policy_accuracy")
    assert claim.met is met
    assert f"over {found.n} methods" in claim.evidence


def test_without_tau_its_note_is_the_evidence():
    claim = claims.weak_agreement(RankCorrelation(1, note="one method only"), "policy_accuracy")
    assert (claim.met, claim.evidence) == (None, "one method only")


@pytest.mark.parametrize(
    ("low", "high", "met"),
    [(0.03, 0.1, True), (0.0, 0.1, None), (0.0, 0.01, False), (None, None, None)],
)
def test_accuracy_misleads(low, high, met):
    claim = claims.accuracy_misleads(Regret("bt", "lore", 0.6, 0.65, 0.05, low, high), "policy_accuracy", 0.02)
    assert claim.met is met
    assert "picks bt (0.600), the best is lore (0.650): 0.050" in claim.evidence
    assert claims.accuracy_misleads(None, "policy_accuracy", 0.02).met is None


def pair(gap, low, high, p, margin=0.02):
    difference = None if low is None else (low + high) / 2
    test = Equivalence(difference, low, high, margin, p, None if p is None else p < 0.05, 9)
    return claims.Decoupling("bt", "vpl", gap, "rouge1", test)


@pytest.mark.parametrize(
    ("pairs", "met"),
    [
        ([pair(0.25, -0.01, 0.01, 0.01), pair(0.2, 0.05, 0.06, 0.9)], True),  # the widest is judged
        ([pair(0.25, -0.01, 0.03, 0.3)], None),
        ([pair(0.25, 0.03, 0.05, 0.9)], False),
        ([pair(0.25, -0.05, -0.03, 0.9)], False),
        ([pair(0.15, -0.01, 0.01, 0.01)], None),  # not 20 points apart
        ([pair(0.25, None, None, None)], None),
        ([], None),
    ],
)
def test_decoupled(pairs, met):
    assert claims.decoupled(pairs).met is met


@pytest.mark.parametrize(
    ("low", "high", "met"), [(-0.03, 0.01, True), (-0.03, 0.03, None), (0.03, 0.1, False), (None, None, None)]
)
def test_guidance_fails(low, high, met):
    claim = claims.guidance_fails(Difference(0.01, low, high, 0.5, 9), "bt", "plain", "rouge1", 0.02)
    assert claim.met is met
    assert "bt, first in RM accuracy, is +0.010" in claim.evidence


@pytest.mark.parametrize(
    ("low", "high", "parameters", "wins", "gains"),
    [
        (0.021, 0.045, 7.6e9, True, True),
        (0.01, 0.04, 7.6e9, True, None),
        (0.001, 0.01, 7.6e9, True, False),
        (0.06, 0.09, 6.7e9, True, False),
        (-0.01, 0.03, 7.6e9, None, None),
        (-0.04, -0.01, 7.6e9, False, False),
        (0.021, 0.045, 3.1e9, True, None),  # the gain is claimed of 7 B
        (0.021, 0.045, 1.35e8, None, None),  # nothing is claimed of small models
        (0.021, 0.045, None, None, None),
        (None, None, 7.6e9, None, None),
    ],
)
def test_in_context(low, high, parameters, wins, gains):
    advantage = Difference(0.03, low, high, 0.01, 9)
    rows = ("in_context", "lore", "rouge1", parameters)
    assert claims.in_context_wins(advantage, *rows).met is wins
    assert claims.in_context_gain(advantage, *rows).met is gains
    assert "in_context is +0.030" in claims.in_context_wins(advantage, *rows).evidence
    nobody = Difference(None, None, None, None, 0)
    assert claims.in_context_wins(nobody, *rows).met is claims.in_context_gain(nobody, *rows).met is None
