"""Augmentations: hand-made crops and mirror images, torchvision's own AutoAugment bit for bit, published odds."""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.datamodules import Augmentation, AutoAugment, RandomCrop, RandomFlip
from fl_lightning.errors import ConfigurationError

Operation = tuple[str, int | None, bool]  # name, level, negative
Outcome = tuple[Operation | None, Operation | None]  # what becomes of an image

ALL = [RandomFlip(), RandomCrop(), RandomCrop(padding=1), AutoAugment(), AutoAugment("imagenet"), AutoAugment("svhn")]

# Cubuk et al. (2019), table 7, row by row: operation, probability, magnitude (- where the operation has none).
PUBLISHED = """
Invert 0.1 - Contrast 0.2 6
Rotate 0.7 2 TranslateX 0.3 9
Sharpness 0.8 1 Sharpness 0.9 3
ShearY 0.5 8 TranslateY 0.7 9
AutoContrast 0.5 - Equalize 0.9 -
ShearY 0.2 7 Posterize 0.3 7
Color 0.4 3 Brightness 0.6 7
Sharpness 0.3 9 Brightness 0.7 9
Equalize 0.6 - Equalize 0.5 -
Contrast 0.6 7 Sharpness 0.6 5
Color 0.7 7 TranslateX 0.5 8
Equalize 0.3 - AutoContrast 0.4 -
TranslateY 0.4 3 Sharpness 0.2 6
Brightness 0.9 6 Color 0.2 8
Solarize 0.5 2 Invert 0.0 -
Equalize 0.2 - AutoContrast 0.6 -
Equalize 0.2 - Equalize 0.6 -
Color 0.9 9 Equalize 0.6 -
AutoContrast 0.8 - Solarize 0.2 8
Brightness 0.1 3 Color 0.7 0
Solarize 0.4 5 AutoContrast 0.9 -
TranslateY 0.9 9 TranslateY 0.7 9
AutoContrast 0.9 - Solarize 0.8 3
Equalize 0.8 - Invert 0.1 -
TranslateY 0.7 9 AutoContrast 0.9 -
"""
UNSIGNED = {"AutoContrast", "Equalize", "Invert", "Posterize", "Solarize"}


def random_images(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(7))


def seeded(seed: int, augmentation: Callable[[Any], Tensor], argument: Any) -> Tensor:
    torch.manual_seed(seed)
    return augmentation(argument)


def outcomes(augmentation: AutoAugment, drawn: Tensor) -> list[Outcome]:
    operations = [*augmentation.operations, None]
    return [(operations[first], operations[second]) for first, second in drawn.T.tolist()]


def assert_within_five_standard_errors(count: int, total: int, p: float) -> None:
    assert abs(count / total - p) <= 5 * math.sqrt(p * (1 - p) / total)


@pytest.mark.parametrize("augmentation", ALL, ids=lambda a: type(a).__name__)
def test_every_sample_changes_on_its_own(augmentation: Augmentation) -> None:
    """64 copies of one image do not stay copies, the input stays what it was, and the seed alone decides."""
    images = random_images(1, 3, 20, 16).repeat(64, 1, 1, 1)
    before = images.clone()
    first, again, other = (seeded(seed, augmentation, images) for seed in (3, 3, 4))
    assert torch.equal(images, before)
    assert first.dtype == torch.uint8
    assert first.shape == images.shape
    assert first.data_ptr() != images.data_ptr()
    assert not torch.equal(first, first[:1].expand_as(first))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(seeded(3, augmentation, images.to(memory_format=torch.channels_last)), first)
    assert augmentation(images[:0]).shape == (0, 3, 20, 16)


@pytest.mark.parametrize("p", [0.0, 0.5, 0.9, 1.0])
def test_flips_as_often_as_asked(p: float) -> None:
    """[1 2 3] over [4 5 6] in a mirror is [3 2 1] over [6 5 4]."""
    images = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8).repeat(10_000, 1, 1, 1)
    counts = Counter(tuple(image.flatten().tolist()) for image in seeded(0, RandomFlip(p), images))
    mirrored = counts.pop((3, 2, 1, 6, 5, 4), 0)
    assert_within_five_standard_errors(mirrored, 10_000, p)
    assert counts == ({(1, 2, 3, 4, 5, 6): 10_000 - mirrored} if p < 1 else {})


def test_crops_by_hand() -> None:
    """[1 2] over [3 4] with a black pixel around it has nine crops of 2 x 2; a second channel shifts with the first."""
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)
    crops = seeded(0, RandomCrop(1), torch.stack([image, 10 * image]).repeat(500, 1, 1, 1))
    assert torch.equal(crops[:, 1], 10 * crops[:, 0])
    assert {tuple(crop.flatten().tolist()) for crop in crops[:, 0]} == {
        *((0, 0, 0, 1), (0, 0, 1, 2), (0, 0, 2, 0)),
        *((0, 1, 0, 3), (1, 2, 3, 4), (2, 0, 4, 0)),
        *((0, 3, 0, 0), (3, 4, 0, 0), (4, 0, 0, 0)),
    }
    wide = seeded(0, RandomCrop(1), image[:1].repeat(500, 1, 1, 1))  # only the middle row of its crops holds something
    assert {tuple(crop.flatten().tolist()) for crop in wide} == {(0, 0), (0, 1), (1, 2), (2, 0)}


def test_crop_offsets_are_uniform() -> None:
    """The middle of 9 x 9 pixels, shifted by up to 4 either way, is equally often at each of the 81."""
    images = torch.zeros(81_000, 1, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = 1
    crops = seeded(0, RandomCrop(padding=4), images)
    assert crops.flatten(1).sum(1).eq(1).all()
    for count in crops.sum(0).flatten().tolist():
        assert_within_five_standard_errors(count, 81_000, 1 / 81)


def test_auto_augment_draws_with_the_published_odds() -> None:
    """Each row of the table 1/25; each operation with its probability p, else none; if it has a sign, p / 2 for each.

    The first row: nothing 0.9 · 0.8, an inversion alone 0.1 · 0.8, more contrast alone 0.9 · 0.2 / 2, and so on, all
    over 25. Rows add up where they agree.
    """
    expected: Counter[Outcome] = Counter()
    for row in PUBLISHED.split("\n")[1:-1]:
        words = row.split()
        odds: list[list[tuple[Operation | None, float]]] = []
        for name, p, level in (words[:3], words[3:]):
            signs = [False] if name in UNSIGNED else [False, True]
            operations = [(name, None if level == "-" else int(level), negative) for negative in signs]
            odds.append([(None, 1 - float(p)), *((operation, float(p) / len(signs)) for operation in operations)])
        for (first, p_first), (second, p_second) in product(*odds):
            expected[first, second] += p_first * p_second / 25  # type: ignore[assignment]  # typed as counts
    augmentation = AutoAugment("cifar10")
    counts = Counter(outcomes(augmentation, seeded(0, augmentation.draw, 500_000)))
    assert counts.keys() == {outcome for outcome, probability in expected.items() if probability > 0}
    for outcome, probability in expected.items():
        assert_within_five_standard_errors(counts[outcome], 500_000, probability)


@cache
def torchvision_seeds(policy: str) -> dict[Outcome, int]:
    """A seed for each of the outcomes that torchvision's AutoAugment can have: its stream, replayed draw by draw."""
    reference = v2.AutoAugment(v2.AutoAugmentPolicy(policy))
    seeds: dict[Outcome, int] = {}
    for seed in range(25_000):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed is 20 times slower
        operations: list[Operation | None] = []
        for name, p, level in reference._policies[int(torch.randint(25, ()))]:
            applied = bool(torch.rand(()) <= p)
            negative = applied and name not in UNSIGNED and bool(torch.rand(()) <= 0.5)
            operations.append((name, level, negative) if applied else None)
        seeds.setdefault((operations[0], operations[1]), seed)
    return seeds


@pytest.mark.parametrize(("policy", "channels"), [("cifar10", 3), ("imagenet", 1), ("svhn", 3)])
def test_auto_augment_is_torchvisions_bit_for_bit(policy: str, channels: int) -> None:
    """Whatever torchvision can do to an image, in either sign, the batch does to its rows: two rows of each outcome."""
    seeds = torchvision_seeds(policy)
    augmentation, images = AutoAugment(policy), random_images(25_000, channels, 12, 9)  # type: ignore[arg-type]
    images //= 2  # dark, for AutoContrast to stretch
    drawn = outcomes(augmentation, seeded(1, augmentation.draw, len(images)))
    augmented = seeded(1, augmentation, images)
    assert set(drawn) == seeds.keys()
    first_rows = {outcome: row for row, outcome in reversed([*enumerate(drawn)])}
    last_rows = {outcome: row for row, outcome in enumerate(drawn)}
    for outcome, row in [*first_rows.items(), *last_rows.items()]:
        reference = seeded(seeds[outcome], v2.AutoAugment(v2.AutoAugmentPolicy(policy)), images[row])
        assert torch.equal(augmented[row], reference), outcome


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomFlip(-0.1), r"RandomFlip.p must be in \[0, 1\].*got -0.1"),
        (lambda: RandomFlip(math.nan), r"RandomFlip.p must be in \[0, 1\].*got nan"),
        (lambda: RandomCrop(0), "RandomCrop.padding must be at least 1, got 0"),
        (lambda: RandomCrop(1.5), "RandomCrop.padding must be a whole number, got 1.5"),  # type: ignore[arg-type]
        (lambda: AutoAugment("cifar100"), "AutoAugment.policy must be 'cifar10', .* got 'cifar100'"),  # type: ignore[arg-type]
        (lambda: Augmentation()(torch.zeros(1)), "Augmentation must define __call__"),
    ],
)
def test_refuses(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
