"""TimmNetwork: any network of timm, also for small images."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.datamodules.base.settings import Unpack
from fl_lightning.datamodules.files.hub import hub_or_cache
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.later import later
from fl_lightning.models.adapters import Adapting, FrozenDtype, adapt_network, computing, keep_frozen


class TimmNetwork(nn.Module):
    """Any network of timm by name, with a stem for small images, or with adapters.

    timm's networks are made for images of 224×224 and halve the resolution five times. A ``stride`` of 16 removes the
    first halving in the order of the forward pass, a ``stride`` of 8 the first two. A convolution that halves the
    resolution gets stride 1, and the network's first convolution also gets a 3×3 kernel in place of a wider one; a
    pooling that halves the resolution is removed. A ``stride`` of 8 gives the usual networks for CIFAR: ResNet-18 and
    DenseNet begin with a 3×3 convolution and no pooling, MobileNetV2 has stride 1 in the first two convolutions that
    had stride 2.

    Args:
        name: timm's name of the network, for example "mobilenetv2_100".
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        stride: ratio of the image's side to the side of the last feature maps: 8, 16 or 32. 8 suits 32×32 images and 16
            suits 64×64 images: both end in 4×4. 32 leaves the network unchanged.
        pretrained: whether to download timm's weights.
        targets: names or patterns of the linear layers that get matrices; ``all-linear`` for all but the head.
        settings: further arguments of the network in timm, such as ``img_size: 32``.
        frozen_dtype: dtype of the frozen weights of linear layers and convolutions, in which the layers then compute;
            "bfloat16" takes half the memory of "float32".
        checkpointing: whether the forward pass keeps the inputs of the blocks alone, and the backward pass computes the
            rest again (Chen et al., 2016).
        adapting: ``adapt``, which says what of the network trains, and the other arguments of
            :func:`~fl_lightning.models.adapters.adapt_network`.

    Raises:
        ConfigurationError: timm has no such network or no weights of it, ``stride`` is none of the three, the network's
            stem cannot be changed (patches, vision transformers), a name or pattern has no layer, no weight is frozen
            for a ``frozen_dtype`` of "bfloat16", or timm has no ``checkpointing`` for the network.
    """

    @later(pretrained=False, adapt="full", rank=8, targets=("qkv", "proj"), freeze=(), settings=None)
    @later(frozen_dtype="float32", checkpointing=False)
    @later(alpha=None, dropout=0.0, rslora=False, dora=False, modules_to_save=())
    def __init__(
        self,
        name: str,
        num_classes: int = 10,
        in_channels: int = 3,
        stride: Literal[8, 16, 32] = 8,
        pretrained: bool = False,
        targets: Sequence[str] | str = ("qkv", "proj"),
        settings: Mapping[str, Any] | None = None,
        frozen_dtype: FrozenDtype = "float32",
        checkpointing: bool = False,
        **adapting: Unpack[Adapting],
    ) -> None:
        import timm  # here, because the import takes a second

        super().__init__()
        if not timm.is_model(name):
            near = nearest(name, timm.list_models())
            hint = f"; did you mean {near}?" if near else ": timm.list_models() lists the names"
            raise ConfigurationError(f"timm has no model {name!r}{hint}")
        if stride not in (8, 16, 32):
            raise ConfigurationError(f"stride must be 8, 16 or 32, got {stride!r}")
        made = {"num_classes": num_classes, "in_chans": in_channels, **(settings or {})}
        self.network = _make(name, pretrained, made)
        self.network.made_with = made
        if stride != 32:
            _take_out_halvings(self.network, name, in_channels, stride)
        downloaded = set(self.network.parameters()) if pretrained else set()
        facts: dict[str, Any] = self.network.default_cfg
        adapt_network(self.network, facts["classifier"], lora_trains_head=True, usual=(), targets=targets, **adapting)
        keep_frozen(self.network, frozen_dtype)
        self.frozen_dtype = frozen_dtype
        self.from_elsewhere = [name for name, own in self.named_parameters() if own in downloaded]
        if checkpointing:
            self._compute_again(name)

    def _compute_again(self, name: str) -> None:
        network: Any = self.network
        try:
            network.set_grad_checkpointing()
        except (AttributeError, AssertionError):
            raise ConfigurationError(f"timm has no checkpointing for {name}: set checkpointing to false") from None

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, num_classes) of images (B, in_channels, H, W)."""
        with computing(self.frozen_dtype, images):
            logits: Tensor = self.network(images)
        return logits if self.frozen_dtype == "float32" else logits.float()


def _make(name: str, pretrained: bool, made: Mapping[str, Any]) -> Any:
    """Make a network of timm, with weights of the hub or of its cache if it is pretrained."""
    import timm

    hub = import_module("huggingface_hub").constants
    with hub_or_cache(hub, hub.ENDPOINT) if pretrained else nullcontext(True) as reached:
        try:
            return timm.create_model(name, pretrained=pretrained, **made)
        except (TypeError, RuntimeError, OSError) as error:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            if isinstance(error, OSError) and not reached:
                told = "the weights are not in the cache, and there is no answer from the hub"
            raise ConfigurationError(f"timm makes no {name} with {made}, pretrained {pretrained}: {told}") from None


def _take_out_halvings(network: Any, name: str, in_channels: int, stride: int) -> None:
    """Change the first layers of a network in place, so that its stride falls from 32 to ``stride``."""
    side: int = network.pretrained_cfg["input_size"][-1]
    image = torch.zeros(1, in_channels, side, side, device="meta")
    for layer, entering in _trace(network, image)[0]:
        if entering > side * stride / 32:
            _take_out(network, layer, first=entering == side)
    expected = -(-side // stride)
    try:
        fits = _trace(network, image)[1].shape[2:] == (expected, expected)
    except Exception:  # some networks take one size of feature maps alone, and raise various errors
        fits = False
    if not fits:
        raise ConfigurationError(
            f"the stem of {name} cannot be changed to a stride of {stride}, since {name} does not begin with "
            "convolutions or poolings of stride 2: set stride to 32, or take another network"
        )


def _trace(network: nn.Module, image: Tensor) -> tuple[list[tuple[str, int]], Any]:
    """Run an image through a copy of the network, on shapes alone.

    Returns:
        The layers that halve the resolution, in the order of the forward pass, each with the side of its input; and the
        last feature maps.
    """
    halvings: list[tuple[str, int]] = []
    shapes_only: Any = copy.deepcopy(network).to("meta").eval()
    for name, layer in shapes_only.named_modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d) and layer.stride in (2, (2, 2)):

            def note(_: nn.Module, inputs: tuple[Tensor], name: str = name) -> None:
                halvings.append((name, inputs[0].shape[-1]))

            layer.register_forward_pre_hook(note)
    with torch.no_grad():
        return halvings, shapes_only.forward_features(image)


def _take_out(network: nn.Module, name: str, first: bool) -> None:
    """Change the convolution or pooling ``name`` in place, so that it keeps the resolution."""
    layer = network.get_submodule(name)
    if not isinstance(layer, nn.Conv2d):
        network.set_submodule(name, nn.Identity())
        return
    layer.stride = (1, 1)
    kernel = layer.kernel_size[0]
    if first and kernel > 3:
        # Initial weights have a standard deviation ~ 1/√fan: scaling the middle gives it that of a 3×3 kernel.
        edge = (kernel - 3) // 2
        middle = layer.weight.detach()[..., edge : edge + 3, edge : edge + 3] * (kernel / 3)
        layer.weight, layer.kernel_size, layer.padding = nn.Parameter(middle.contiguous()), (3, 3), (1, 1)
