"""FedBN: batch normalisation that never leaves a client."""

from collections.abc import Iterable

from lightning.pytorch import LightningModule
from torch import nn
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedCallback

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FedBN(FederatedCallback):
    """Keeps the BatchNorm layers on each client, their weights and their statistics (Li et al., 2021).

    Meant for clients whose inputs differ, such as pictures of several cameras.

    Raises:
        ConfigurationError: the client module has no BatchNorm layer.
    """

    @override
    def local_part(self, module: LightningModule) -> Iterable[str]:
        names = [name for name, part in module.named_modules() if isinstance(part, KINDS)]
        if not names:
            raise ConfigurationError(
                f"FedBN keeps BatchNorm layers on the clients, but {type(module).__name__} has none: use a network "
                "with BatchNorm, or LocalPart with the names of other layers"
            )
        return names
