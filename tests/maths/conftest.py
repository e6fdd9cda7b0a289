"""One verifier for all tables of answers, so that its workers start once."""

import pytest

from gradmass.rewards.maths import MathsVerifier


@pytest.fixture(scope="session")
def verifier():
    """Reads the last box, or the whole text where there is none."""
    with MathsVerifier(time_limit_s=20, extraction="last_box_or_all") as made:
        yield made


@pytest.fixture(scope="session")
def outcomes(verifier):
    """Judge pairs of gold and answer in one batch."""

    def judge(pairs):
        golds, answers = zip(*pairs, strict=True)
        return [str(verdict.outcome) for verdict in verifier.verify(golds, answers)]

    return judge
