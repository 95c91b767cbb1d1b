"""ConflictMonitor: how much the clients' updates disagree."""

from torch import Tensor

from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator
from fl_lightning.conflict import conflict_ratio, cosines, pairs


class ConflictMonitor(FederatedCallback):
    """Logs the conflict between the round's updates, under any rule and without changing it.

    ``conflict/ratio`` is the share of pairs with a negative inner product, ``conflict/min_cosine`` and
    ``conflict/mean_cosine`` are over all pairs; the same with ``_after`` at the end are of the corrected updates. A
    cohort of one client logs nothing.
    """

    def on_round_end(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        """Log the measures: see :class:`FederatedCallback`."""
        if len(cohort.clients) > 1:
            self._log(orchestrator, cohort.gram, "")
            self._log(orchestrator, cohort.corrected_gram, "_after")

    def _log(self, orchestrator: FederatedOrchestrator, gram: Tensor, suffix: str) -> None:
        similarity = pairs(cosines(gram))
        orchestrator.log_round(f"conflict/ratio{suffix}", conflict_ratio(gram), prog_bar=not suffix)
        orchestrator.log_round(f"conflict/min_cosine{suffix}", float(similarity.min()))
        orchestrator.log_round(f"conflict/mean_cosine{suffix}", float(similarity.mean()))
