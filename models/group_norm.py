"""WithGroupNorm: GroupNorm in the place of BatchNorm."""

from timm.layers.norm_act import GroupNormAct
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fl_lightning import ConfigurationError


class WithGroupNorm(nn.Module):
    """A network with GroupNorm (Wu & He, 2018) for every BatchNorm: no statistics of other images, no buffers.

    Under label skew BatchNorm suffers from clients that each normalise by their own batches (Hsieh et al., 2020). The
    affine parameters stay, and with them the network's size; so does the activation that timm's BatchNorm carries.

    Args:
        network: with BatchNorm.
        groups: at least 1; a layer gets the largest number of groups up to this that divides its channels. One with at
            most this many channels thus normalises each on its own, and needs more than one pixel to do so.

    Raises:
        ConfigurationError: groups is less than 1, or the network has no BatchNorm.
    """

    def __init__(self, network: nn.Module, groups: int = 32) -> None:
        super().__init__()
        if not groups >= 1:
            raise ConfigurationError(f"groups must be at least 1, got {groups}")
        self.network = network
        found = [
            (name, part) for name, part in self.named_modules(remove_duplicate=False) if isinstance(part, _BatchNorm)
        ]
        if not found:
            raise ConfigurationError(
                f"network must have BatchNorm layers, got {type(network).__name__}, which has none"
            )
        for name, norm in found:
            self.set_submodule(name, _group_norm(norm, groups))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        logits: Tensor = self.network(images)
        return logits


def _group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    groups = max(divisor for divisor in range(1, min(groups, channels) + 1) if channels % divisor == 0)
    made = GroupNormAct(channels, groups, eps=norm.eps, affine=norm.affine, apply_act=False)
    made.weight, made.bias = norm.weight, norm.bias
    for name, part in norm.named_children():  # timm's BatchNormAct2d: dropout and activation
        setattr(made, name, part)
    return made.train(norm.training)
