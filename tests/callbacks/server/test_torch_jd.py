"""TorchJD: its weights are those of the library, and our PCGrad's where the order of projections is nothing."""

import pytest
from lib.hand_made import apply
from lib.toy import close

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import PCGrad, TorchJD

UPDATES = [[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]


def test_upgrad() -> None:
    """The example in TorchJD's documentation."""
    moved, capture = apply(UPDATES, TorchJD())
    assert close(capture.cohort.weights, [1.1109, 0.7894], 1e-4)
    assert close(moved, [0.2929, 1.9004, 1.9004], 1e-4)


def test_a_sum_divided_by_the_number_of_clients() -> None:
    """Two clients project each other in one order alone; ours averages."""
    ours = apply(UPDATES, PCGrad())[0]
    assert close(apply(UPDATES, TorchJD("PCGrad", divide=True))[0], ours, 1e-6)
    assert close(apply(UPDATES, TorchJD("PCGrad"))[0], 2 * ours, 1e-6)


def test_draws_are_those_of_the_seed() -> None:
    three = [*UPDATES, [0.0, -3.0, 1.0]]
    first, again, other = (apply(three, TorchJD("Random"), seed=seed)[0] for seed in (0, 0, 1))
    assert close(first, again, 0.0)
    assert not close(first, other)


def test_fairgrad_with_its_argument() -> None:
    """FairGrad solves G x = x^(-1/α): for orthogonal updates of norms 2 and 4 and α = 1, x = (1/2, 1/4)."""
    _, capture = apply([[2.0, 0.0], [0.0, 4.0]], TorchJD("FairGrad", init_args={"alpha": 1.0}))
    assert close(capture.cohort.weights, [0.5, 0.25], 1e-4)


def test_krum_with_its_arguments() -> None:
    """One of four may attack: the nearest other of 0, 1, 3, 100 is 1, 1, 2, 97 away; the best two are chosen."""
    rule = TorchJD("Krum", init_args={"n_byzantine": 1, "n_selected": 2})
    assert close(apply([[0.0], [1.0], [3.0], [100.0]], rule)[1].cohort.weights, [0.5, 0.5, 0.0, 0.0])
    with pytest.raises(ConfigurationError, match=r"TorchJD: .*should have at least 4 rows"):
        apply([[0.0], [1.0]], rule)


@pytest.mark.parametrize(
    "weighting", ["UPgrad", "Constant", "CRMOGM", "ExcessMTL", "GradVac", "MoDo", "PCD", "SDMGrad"]
)
def test_weightings_with_a_memory_are_refused_as_unknown_ones_are(weighting: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"TorchJD has no weighting '{weighting}' without a memory: did you me"
    ):
        TorchJD(weighting)


def test_what_is_offered_works_or_names_its_argument() -> None:
    with pytest.raises(ConfigurationError) as refused:
        TorchJD("?")
    offered = str(refused.value).removesuffix("?").partition("did you mean ")[2].split(", ")
    assert {"UPGrad", "MGDA", "Krum"} < set(offered)
    for name in set(offered) - {"CAGrad", "FairGrad", "Krum"}:  # which have an argument without a default
        assert apply(UPDATES, TorchJD(name))[1].cohort.weights.shape == (2,)


def test_the_arguments_are_checked_before_a_run() -> None:
    with pytest.raises(ConfigurationError, match=r"TorchJD cannot make FairGrad with init_args=None: .*'alpha'"):
        TorchJD("FairGrad")
    with pytest.raises(ConfigurationError, match=r"TorchJD cannot make Krum .*n_byzantine must be non-negative"):
        TorchJD("Krum", init_args={"n_byzantine": -1})
