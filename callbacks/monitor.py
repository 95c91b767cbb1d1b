"""ConflictMonitor: how much the clients' updates disagree."""

from pathlib import Path

import numpy as np
from torch import Tensor

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator
from fl_lightning.conflict import conflict_ratio, cosines, pairs


class ConflictMonitor(FederatedCallback):
    """Logs the conflict between the round's updates, under any rule and without changing it.

    ``conflict/ratio`` is the share of pairs with a negative inner product, ``conflict/min_cosine`` and
    ``conflict/mean_cosine`` are over all pairs; the same with ``_after`` at the end are of the corrected updates. A
    cohort of one client logs nothing.

    Args:
        every: so many rounds, and after the last that ``trainer.max_epochs`` allows, the cosines of all pairs go to
            ``arrays/cosines_<round>.npz`` in the run folder: ``clients`` (K,), and (K, K) ``before`` and ``after``, of
            the updates as they came and as corrected. 0 for never.

    Raises:
        ConfigurationError: ``every`` is negative.
    """

    def __init__(self, every: int = 0) -> None:
        if not every >= 0:  # also refuses nan
            raise ConfigurationError(f"ConflictMonitor: every must be a number of rounds, 0 for never, got {every}")
        self.every = every

    def on_round_end(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        """Log the measures: see :class:`FederatedCallback`."""
        if len(cohort.clients) > 1:
            self._log(orchestrator, cohort.gram, "")
            self._log(orchestrator, cohort.corrected_gram, "_after")
            if self.every and (cohort.round % self.every == 0 or cohort.round == orchestrator.trainer.max_epochs):
                self._save(orchestrator, cohort)

    def _log(self, orchestrator: FederatedOrchestrator, gram: Tensor, suffix: str) -> None:
        similarity = pairs(cosines(gram))
        orchestrator.log_round(f"conflict/ratio{suffix}", conflict_ratio(gram), prog_bar=not suffix)
        orchestrator.log_round(f"conflict/min_cosine{suffix}", float(similarity.min()))
        orchestrator.log_round(f"conflict/mean_cosine{suffix}", float(similarity.mean()))

    def _save(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        folder = Path(orchestrator.trainer.log_dir or "") / "arrays"  # known to all devices only when all ask
        if orchestrator.trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"cosines_{cohort.round}.npz"
            part = path.with_name(f"{path.name}.part")
            with part.open("wb") as file:
                before, after = cosines(cohort.gram).numpy(), cosines(cohort.corrected_gram).numpy()
                np.savez(file, clients=np.array(cohort.clients), before=before, after=after)
            part.replace(path)
