"""WithGroupNorm: replaces BatchNorm with GroupNorm."""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fl_lightning.errors import ConfigurationError, check_at_least


class WithGroupNorm(nn.Module):
    """Replaces every BatchNorm of a network with GroupNorm (Wu & He, 2018): no statistics of other images, no buffers.

    With label skew, BatchNorm loses accuracy, since each client normalises by the statistics of its own batches (Hsieh
    et al., 2020). The affine parameters are kept, so that the network has as many parameters as before; the activation
    inside timm's BatchNorm layers is kept, too.

    Args:
        network: network with BatchNorm layers, which are replaced in place.
        groups: largest number of groups, at least 1; each layer gets the largest divisor of its number of channels up
            to ``groups``. A layer with at most ``groups`` channels thus normalises each channel separately, which needs
            inputs of more than one pixel.

    Raises:
        ConfigurationError: ``groups`` is less than 1, or the network has no BatchNorm.
    """

    def __init__(self, network: nn.Module, groups: int = 32) -> None:
        super().__init__()
        check_at_least(1, groups=groups)
        self.network = network
        parts = list(self.named_modules(remove_duplicate=False))
        norms = [(name, part) for name, part in parts if isinstance(part, _BatchNorm)]
        if not norms:
            raise ConfigurationError(
                f"network must have BatchNorm layers, got {type(network).__name__}, which has none"
            )
        for name, norm in norms:
            self.set_submodule(name, _group_norm(norm, groups))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, num_classes) of images (B, C, H, W)."""
        logits: Tensor = self.network(images)
        return logits


def _group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    from timm.layers.norm_act import GroupNormAct  # here, because the import takes a second

    channels = norm.num_features
    groups = max(divisor for divisor in range(1, min(groups, channels) + 1) if channels % divisor == 0)
    made = GroupNormAct(channels, groups, eps=norm.eps, affine=norm.affine, apply_act=False)
    made.weight, made.bias = norm.weight, norm.bias
    for name, part in norm.named_children():  # dropout and activation of timm's BatchNormAct2d
        setattr(made, name, part)
    return made.train(norm.training)
