"""QSGD: clients round the entries of their updates at random."""

from math import ceil

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_at_least


class QSGD(FederatedCallback):
    """Rounds each entry to one of some levels, at random so that the mean is the entry (Alistarh et al., 2017, QSGD).

    An entry v_i becomes ‖v‖ sgn(v_i) l/s for a level l from 0 to s. It counts as a sign and the bits of a level,
    without the paper's variable-length code; the norm counts, too. With several local steps this is FedPAQ (Reisizadeh
    et al., 2020).

    Args:
        levels: s, number of levels above zero.

    Raises:
        ConfigurationError: ``levels`` is less than 1.
    """

    post_processes = True

    def __init__(self, levels: int = 16) -> None:
        check_at_least(1, levels=levels)
        self.levels = levels

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        run.upload_bytes = ceil(run.num_shared * (1 + self.levels.bit_length()) / 8) + update.element_size()
        draw, norm = orchestrator.generator("qsgd", run.round, run.client), update.norm()
        scaled = update.abs() * torch.where(norm > 0, self.levels / norm, 0.0)
        level = (scaled + torch.rand(len(update), generator=draw).to(update)).floor()
        return torch.mul(update.sign() * level, norm / self.levels)
