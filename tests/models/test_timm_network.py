"""TimmNetwork: sizes as known, resolution with each stride, and what it refuses."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fl_lightning import ConfigurationError
from fl_lightning.models import TimmNetwork


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def maps(network: TimmNetwork, side: int) -> Tensor:
    with torch.no_grad():
        features: Tensor = network.eval().network.forward_features(torch.zeros(1, 3, side, side, device="meta"))
    return features


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("mobilenetv2_100", 3_504_872 - 990 * 1_281),
        pytest.param("densenet121", 7_978_856 - 990 * 1_025 - 7_680, marks=pytest.mark.slow),
        ("resnet18", 11_173_962),
    ],
)
def test_small_images_end_in_4_by_4(name: str, total: int) -> None:
    """MobileNetV2 has 3,504,872 parameters for 1000 classes, 990·1281 less for 10. DenseNet-121 has 7,978,856, which is
    990·1025 more than for 10, and here 7,680 less in the first convolution.
    """
    with torch.device("meta"):
        at_8, at_16, at_32 = (TimmNetwork(name, stride=stride) for stride in (8, 16, 32))
    assert size(at_8) == total
    for network, side in ((at_8, 32), (at_16, 64), (at_32, 128)):
        assert maps(network, side).shape[2:] == (4, 4)


def halved(network: TimmNetwork) -> list[str]:
    """The layers that still have stride 2, shortcuts left out."""
    layers = [(n, m) for n, m in network.network.named_modules() if isinstance(m, nn.Conv2d | nn.MaxPool2d)]
    return [name for name, layer in layers if layer.stride in (2, (2, 2)) and "downsample" not in name]


def test_which_halvings_go() -> None:
    """In the order of the forward pass: convolution and pooling in ResNet-18, two convolutions in MobileNetV2."""
    with torch.device("meta"):
        resnets = [TimmNetwork("resnet18", stride=stride) for stride in (32, 16, 8)]
        mobiles = [TimmNetwork("mobilenetv2_100", stride=stride) for stride in (32, 16, 8)]
    stages = ["layer2.0.conv1", "layer3.0.conv1", "layer4.0.conv1"]
    assert [halved(network) for network in resnets] == [["conv1", "maxpool", *stages], ["maxpool", *stages], stages]
    blocks = [f"blocks.{i}.0.conv_dw" for i in (2, 3, 5)]
    stem = ["conv_stem", "blocks.1.0.conv_dw"]
    assert [halved(network) for network in mobiles] == [[*stem, *blocks], [*stem[1:], *blocks], blocks]


def test_parallel_shortcuts_lose_their_stride_too() -> None:
    """RegNet's second halving is a convolution beside its 1×1 shortcut."""
    with torch.device("meta"):
        network = TimmNetwork("regnetx_002")
    block = network.network.s1.b1
    assert (block.conv2.conv.stride, block.downsample.conv.stride) == ((1, 1), (1, 1))
    assert maps(network, 32).shape[2:] == (4, 4)


def test_narrowed_kernel_is_drawn_as_one_of_3_by_3() -> None:
    """ResNets of timm draw with deviation √(2 / (64·k²)): 0.0589 at k = 3, 0.0253 at 7."""
    torch.manual_seed(1)
    weight = TimmNetwork("resnet18").network.conv1.weight
    assert weight.shape == (64, 3, 3, 3)
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)


def test_stride_32_is_timms_network() -> None:
    torch.manual_seed(1)
    ours = TimmNetwork("resnet10t", stride=32).network
    torch.manual_seed(1)
    theirs = timm.create_model("resnet10t", num_classes=10)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours.eval()(images), theirs.eval()(images))


OTHERS = ("convnext_atto", "efficientformer_l1")
STEMS = ["vit_tiny_patch16_224", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


@pytest.mark.parametrize("name", STEMS)
def test_refuses_stems_that_it_cannot_change(name: str) -> None:
    """Patches of 16, a convolution of stride 4, and one whose last layers are made for 7×7 maps."""
    with torch.device("meta"), pytest.raises(ConfigurationError) as refusal:
        TimmNetwork(name)
    assert re.match(f"the stem of {name} cannot be changed to a stride of 8, .*: set stride to 32", str(refusal.value))
    assert "\n" not in str(refusal.value)


def test_refuses_other_strides() -> None:
    with pytest.raises(ConfigurationError, match="stride must be 8, 16 or 32, got 4"):
        TimmNetwork("resnet10t", stride=4)  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize("is_cached", [False, True])
def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cached: bool) -> None:
    """Weights that are in the cache are read; others are refused at once: the library would try for 46 s."""

    def unknown(*address: Any, **options: Any) -> Any:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    made = timm.create_model("resnet10t")
    if is_cached:
        cache, commit = tmp_path / "models--timm--resnet10t.c3_in1k", "0" * 40
        (cache / "snapshots" / commit).mkdir(parents=True)
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text(commit)
        save_file(made.state_dict(), cache / "snapshots" / commit / "model.safetensors")
    start = time.monotonic()
    if is_cached:
        network = TimmNetwork("resnet10t", pretrained=True, stride=32)
        assert torch.equal(network.network.layer1[0].conv1.weight, made.layer1[0].conv1.weight)
    else:
        with pytest.raises(ConfigurationError) as refusal:
            TimmNetwork("resnet10t", pretrained=True, stride=32)
        assert str(refusal.value) == (
            "timm makes no resnet10t with {'num_classes': 10, 'in_chans': 3}, pretrained True: the weights are not in "
            "the cache, and there is no answer from the hub"
        )
    assert time.monotonic() - start < 20


def test_misspelt_timm_model_is_named_with_the_nearest() -> None:
    with pytest.raises(
        ConfigurationError, match=r"timm has no model 'mobilenetv2_100x'; did you mean mobilenetv2_100\?"
    ):
        TimmNetwork("mobilenetv2_100x")


SMALL = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2, "drop_path_rate": 0.5}


def transformer(**arguments: Any) -> TimmNetwork:
    torch.manual_seed(0)
    return TimmNetwork("vit_tiny_patch16_224", stride=32, settings=SMALL, rank=2, **arguments)


@pytest.mark.parametrize("frozen", ["float32", "bfloat16"])
def test_checkpointing_changes_no_bit(frozen: Any) -> None:
    """Nor do blocks that are left out at random: the draws are repeated."""
    gradients = []
    for checkpointing in (False, True):
        network = transformer(adapt="lora", frozen_dtype=frozen, checkpointing=checkpointing)
        calls = list[int]()
        network.network.blocks[0].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(1)
        network(torch.randn(3, 3, 8, 8)).square().sum().backward()
        assert len(calls) == 1 + checkpointing, "the block is computed again"
        gradients.append([parameter.grad for parameter in network.parameters() if parameter.requires_grad])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_frozen_weights_in_half_of_the_memory() -> None:
    """All but the matrices of the blocks stays in float32, and so do the logits, which rounding alone changes."""
    network, whole = transformer(adapt="head", frozen_dtype="bfloat16").eval(), transformer(adapt="head").eval()
    assert {name for name, p in network.named_parameters() if p.requires_grad} == {
        "network.head.weight",
        "network.head.bias",
    }
    for name, parameter in network.named_parameters():
        is_half = "proj.weight" in name or "qkv.weight" in name or (".fc" in name and parameter.dim() > 1)
        assert parameter.dtype is (torch.bfloat16 if is_half else torch.float32), name
    images = torch.randn(3, 3, 8, 8)
    logits = network(images)
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits, whole(images), rtol=0.05, atol=0.01)


def test_refuses_what_saves_no_memory() -> None:
    with pytest.raises(ConfigurationError, match="frozen_dtype: bfloat16 needs frozen weights: set adapt to lora or h"):
        transformer(frozen_dtype="bfloat16")
    refusal = pytest.raises(ConfigurationError, match="timm has no checkpointing for vgg11: set checkpointing to false")
    with torch.device("meta"), refusal:
        TimmNetwork("vgg11", stride=32, checkpointing=True)
