"""WithProjection: MOON's projection head."""

from collections import OrderedDict

from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models.layers import find_classifier


class WithProjection(nn.Sequential):
    """Puts a projection head before the classifier of a network (MOON: Li et al., 2021, Section 3.3).

    Three parts run in turn: the network without its classifier; ``projection``, two linear layers with a ReLU between
    them; a new ``classifier``. When this is the ``network`` of an ImageClassifier, the layer "network.projection" gives
    the projected features.

    Args:
        network: network whose class scores come from its last nn.Linear (in a timm network, from timm's classifier).
            This layer is replaced by nn.Identity, in place.
        hidden: width of the projection's hidden layer. MOON's released code takes the width of the network's features.
        out: width of the projection's output.

    Raises:
        ConfigurationError: the network does not end in an nn.Linear, or a width is less than 1.
    """

    def __init__(self, network: nn.Module, hidden: int = 256, out: int = 256) -> None:
        if hidden < 1 or out < 1:
            raise ConfigurationError(f"hidden and out must be at least 1, got {hidden} and {out}")
        classifier = find_classifier(network)
        if not isinstance(classifier, nn.Linear) or classifier is network:
            raise ConfigurationError(
                f"network must end in an nn.Linear that makes its class scores, got {type(network).__name__}, which "
                "does not: add the projection in the network's own code"
            )
        name = next(name for name, part in network.named_modules() if part is classifier)
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, nn.Identity())
        projection = nn.Sequential(nn.Linear(classifier.in_features, hidden), nn.ReLU(), nn.Linear(hidden, out))
        last = nn.Linear(out, classifier.out_features)
        super().__init__(OrderedDict(network=network, projection=projection, classifier=last))
