"""TorchJD: its weights are those of the library."""

import pytest
from lib.hand_made import apply
from lib.toy import close

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import TorchJD

UPDATES = [[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]


def test_upgrad() -> None:
    """The example in TorchJD's documentation."""
    moved, capture = apply(UPDATES, TorchJD())
    assert close(capture.cohort.weights, [1.1109, 0.7894], 1e-4)
    assert close(moved, [0.2929, 1.9004, 1.9004], 1e-4)


def test_divided_by_the_number_of_clients() -> None:
    assert close(2 * apply(UPDATES, TorchJD(divide=True))[0], apply(UPDATES, TorchJD())[0])


@pytest.mark.parametrize("weighting", ["Krum", "Mean", "PCGrad", "Random", "Sum"])
def test_what_rules_of_the_package_do_is_refused(weighting: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^TorchJD's {weighting} is left to a rule of the package: use \w+"):
        TorchJD(weighting)


def test_fairgrad_with_its_argument() -> None:
    """FairGrad solves G x = x^(-1/α): for orthogonal updates of norms 2 and 4 and α = 1, x = (1/2, 1/4)."""
    _, capture = apply([[2.0, 0.0], [0.0, 4.0]], TorchJD("FairGrad", init_args={"alpha": 1.0}))
    assert close(capture.cohort.weights, [0.5, 0.25], 1e-4)


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
    assert {"UPGrad", "MGDA", "IMTLG"} < set(offered)
    assert not {"Krum", "Mean", "PCGrad", "Random", "Sum"} & set(offered)
    for name in set(offered) - {"CAGrad", "FairGrad"}:  # which have an argument without a default
        assert apply(UPDATES, TorchJD(name))[1].cohort.weights.shape == (2,)


def test_the_arguments_are_checked_before_a_run() -> None:
    with pytest.raises(ConfigurationError, match=r"TorchJD cannot make FairGrad with init_args=None: .*'alpha'"):
        TorchJD("FairGrad")
    with pytest.raises(ConfigurationError, match=r"TorchJD cannot make FairGrad .*'beta'"):
        TorchJD("FairGrad", init_args={"beta": -1})
