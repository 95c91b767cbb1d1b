"""Updates that are summed as they come: the bits of updates that are kept, for every rule that says so."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.rules import CLIENT_RULES, PERSONAL, SERVER_RULES, TinyClassifier, TinyData
from lib.toy import SEEN, Capture, trainer

from fl_lightning import (
    ClientFailure,
    Cohort,
    ConfigurationError,
    FederatedCallback,
    FederatedOrchestrator,
    LocalRun,
    Monitor,
    Server,
)
from fl_lightning.callbacks import ConflictMonitor, FaultInjection, FedAvg, FedNova, FedProx, NormClipping
from fl_lightning.engine.rules.callback import streams

RULES: dict[str, Any] = {
    **SERVER_RULES,
    **CLIENT_RULES,
    **PERSONAL,
    "clipping": lambda: NormClipping(0.05),
    "uniform": lambda: FedAvg("uniform"),
}
STREAM = [name for name, make in RULES.items() if streams(make())]


def test_the_rules_that_stream() -> None:
    kinds = {type(RULES[name]()).__name__ for name in STREAM}
    server = {"FedAvg", "FedNova", "NormClipping", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi", "ServerFT"}
    personal = {type(make()).__name__ for make in PERSONAL.values()}
    assert personal - kinds == {"FedAMP", "FedLAG"}, "these compare the clients' models"
    assert server | {"GlobalWeightShrinking", "FedProx", "FedSAM", "FedGAM", "FocalLoss", "FedDecorr"} <= kinds
    assert not kinds & {"GradientHarmonization", "FedLAW", "Scaffold", "FedGAMCV", "MOON", "FedDyn", "CoordinateMedian"}
    assert not streams(NormClipping())  # the median norm is known when all have come


class Fails(FederatedCallback):
    """Client 1 raises in round 2."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        if (run.client, run.round) == (1, 2):
            raise ClientFailure("lost")


class Looks(Monitor):
    """Looks at single updates."""

    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        assert cohort.deltas.shape == (len(cohort.clients), len(cohort.anchor))


def fit(*callbacks: Any, memory: str | None = None, **data: Any) -> FederatedOrchestrator:
    orchestrator = FederatedOrchestrator(TinyClassifier(), cohort_memory=memory)
    trainer(Fails(), *callbacks, rounds=3).fit(orchestrator, datamodule=TinyData(batch_size=4, **data))
    return orchestrator


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("name", STREAM)
def test_streaming_changes_no_bit(name: str) -> None:
    kept, streamed = fit(RULES[name]()), fit(RULES[name](), memory="1KiB", clients_per_batch=2)
    assert [SEEN[each].streams for each in (kept, streamed)] == [False, True]
    assert torch.equal(kept.params, streamed.params)


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("chain", [[FedAvg("uniform"), FedNova()], [FedProx(0.1), FedNova()], [NormClipping(0.1)]])
def test_chains_stream(chain: list[FederatedCallback]) -> None:
    streamed = fit(*chain, memory="1KiB")
    assert SEEN[streamed].streams
    assert torch.equal(streamed.params, fit(*chain, Capture()).params)


@pytest.mark.filterwarnings("ignore:.*left out")
def test_updates_that_are_not_finite_are_left_out_of_the_sum() -> None:
    faults = [FaultInjection("nan", clients=[0, 2], rounds=[1, 3])]
    streamed = fit(*faults, memory="1KiB")
    assert SEEN[streamed].streams
    assert streamed.params.isfinite().all()
    assert torch.equal(streamed.params, fit(*faults, Looks(), memory="1KiB").params)


def test_what_looks_at_single_updates_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for ConflictMonitor's files
    for callbacks in ([ConflictMonitor()], [Capture()], [NormClipping()]):
        assert not SEEN[fit(*callbacks, memory="1KiB")].streams
    whole = FederatedOrchestrator(TinyClassifier(), cohort_memory="1KiB", max_update_norm=1e9)
    trainer().fit(whole, datamodule=TinyData())
    assert not SEEN[whole].streams


class Own(FedAvg):
    """Says nothing of its own hook, so that the base class's word does not count."""

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.replace(weights=cohort.gram.diagonal())


class Forgets(FederatedCallback):
    """Weighs by the loss, and does not tell."""

    streams = True

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.replace(weights=cohort.losses / cohort.losses.sum())


class Lies(FederatedCallback):
    """Looks at single updates, and denies it."""

    streams = True

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.replace(weights=cohort.gram.diagonal())


def test_a_rule_that_does_not_stream_is_not_taken_for_one() -> None:
    assert not SEEN[fit(Own(), memory="1KiB")].streams


@pytest.mark.parametrize(("rule", "said"), [(Forgets(), "stream_weights gave others"), (Lies(), "single updates")])
def test_a_rule_that_does_not_keep_its_word_is_told(rule: FederatedCallback, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        fit(rule, memory="1KiB")


@pytest.mark.filterwarnings("ignore:.*left out")
def test_the_guides_rule_streams_as_printed() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "concepts" / "cohort.md").read_text()
    text = next(text for text in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "class ByLoss" in text)
    names: dict[str, Any] = {"FederatedCallback": FederatedCallback}
    exec(text, names)
    streamed = fit(names["ByLoss"](), memory="1KiB")
    assert SEEN[streamed].streams
    assert torch.equal(streamed.params, fit(names["ByLoss"](), Looks()).params)
