"""LocalPart: layers that never leave a client, as in FedPer and LG-FedAvg."""

from collections.abc import Iterable, Sequence

from lightning.pytorch import LightningModule
from typing_extensions import override

from fl_lightning import FederatedCallback, check_names


class LocalPart(FederatedCallback):
    """Keeps named layers on each client (FedPer, Arivazhagan et al., 2019; LG-FedAvg, Liang et al., 2020).

    A client trains the whole model and sends the shared part alone; its own part waits for its next round. FedPer keeps
    the head, the last layers, and LG-FedAvg the body, the first ones. The global model's own values of the part are
    never trained: only clients that have not taken part yet are served by them. With adapters, ``*.lora_B.*`` is
    FedSA-LoRA (Guo et al., 2025): clients share A, and each keeps its own B.

    Args:
        parts: names of parameters, buffers or submodules of the client module, such as ``network.fc3``, or patterns of
            parameters and buffers, such as ``*.lora_B.*``.

    Raises:
        ConfigurationError: ``parts`` is empty, or the client module has nothing of a name or pattern.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        check_names(parts=parts)
        self.parts = parts

    @override
    def local_part(self, module: LightningModule) -> Iterable[str]:
        return self.parts
