"""Masks: the sum is the plain one, what the server gets is noise, and no other set, key or name is taken."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from lib.identities import Authority
from torch import Tensor

from fl_lightning import TrainingError
from fl_lightning.engine.round import Outgoing
from fl_lightning.engine.sites.secure.fixed import FixedPoint
from fl_lightning.engine.sites.secure.masks import Answers, Bundle, Masks, _context, digest_of

AUTHORITY = Authority()
FIT = "a fit"
CERTAIN = 400.0  # chi-square of 255 degrees of freedom, which noise exceeds once in 10 million times


def sites(count: int, fit: str = FIT) -> dict[str, Masks]:
    """Sites with keys; their names are not in the order in which they are made."""
    names = [f"site-{(7 * number) % count:02}" if count % 7 else f"site-{number:02}" for number in range(count)]
    return {name: Masks(name, fit, identity) for name, identity in AUTHORITY.identities(names).items()}


def shown(masks: dict[str, Masks]) -> dict[str, Bundle]:
    """What all sites show, of which every site takes note."""
    bundles = {name: own.bundle for name, own in masks.items()}
    for own in masks.values():
        own.agree(bundles)
    return bundles


@pytest.mark.parametrize("count", range(3, 11))
def test_the_sum_is_the_plain_one(count: int) -> None:
    """Σ n_k Δ_k in float64, by torch: the decoded sum is off by K · step / 2 at most."""
    draw = torch.Generator().manual_seed(count)
    masks = sites(count)
    bundles = shown(masks)
    form = FixedPoint.of(count, 50)
    for number in (1, 2, 9):
        total = torch.zeros(70_001, dtype=torch.int64)  # more than two blocks of a stream
        plain = torch.zeros(70_001, dtype=torch.float64)
        for size, own in enumerate(masks.values(), 41):
            update = torch.randn(70_001, generator=draw)
            words = form.encode(update, size)
            own.hide(words, number, bundles)
            total += words
            plain += size * update.double()
        assert (form.decode(total) - plain).abs().max() <= count * form.step / 2


def test_a_part_of_the_sites_may_be_the_set() -> None:
    masks = sites(5)
    everyone = shown(masks)
    chosen = dict(list(everyone.items())[1:4])
    total = torch.zeros(5, dtype=torch.int64)
    for value, name in enumerate(chosen, 10):
        words = torch.full((5,), value)
        masks[name].hide(words, 1, chosen)
        total += words
    assert total.tolist() == [10 + 11 + 12] * 5


def chi_square(counts: Tensor) -> float:
    expected = float(counts.sum()) / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def test_what_the_server_gets_is_uniform() -> None:
    """Zeros, of three sites: every byte of a word takes each of 256 values equally often, from word to word.

    So do the differences of words that follow one another, of the same word in two rounds, and of two sites.
    """
    masks = sites(3)
    bundles = shown(masks)
    sent: dict[tuple[str, int], Tensor] = {}
    for name, own in masks.items():
        for number in (1, 2):
            words = torch.zeros(100_000, dtype=torch.int64)
            own.hide(words, number, bundles)
            sent[name, number] = words
    names = list(masks)
    looked_at = list(sent.values())
    looked_at += [words[1:] - words[:-1] for words in sent.values()]
    looked_at += [sent[name, 2] - sent[name, 1] for name in names]
    looked_at += [sent[names[0], 1] - sent[names[1], 1], sent[names[0], 1] + sent[names[1], 1]]
    for words in looked_at:
        for place in words.contiguous().view(torch.uint8).view(-1, 8).T:
            assert chi_square(torch.bincount(place.int(), minlength=256).double()) < CERTAIN
    assert not torch.stack([sent[name, 1] for name in names]).sum(0).any()


def test_the_test_of_uniformity_finds_small_numbers() -> None:
    """Numbers of fixed point without masks: most of their upper bytes are 0 or 255."""
    words = FixedPoint.of(3, 10).encode(torch.randn(100_000), 10)
    places = words.view(torch.uint8).view(-1, 8).T
    assert chi_square(torch.bincount(places[7].int(), minlength=256).double()) > 100 * CERTAIN


def test_one_site_less_leaves_noise() -> None:
    """All answers but one, of zeros: the server has the streams of the missing site, which it cannot make."""
    masks = sites(4)
    bundles = shown(masks)
    total = torch.zeros(100_000, dtype=torch.int64)
    for own in list(masks.values())[1:]:
        own.hide(total, 1, bundles)
    for place in total.view(torch.uint8).view(-1, 8).T:
        assert chi_square(torch.bincount(place.int(), minlength=256).double()) < CERTAIN


def test_masks_are_used_once() -> None:
    masks = sites(3)
    bundles = shown(masks)
    one = masks["site-00"]
    one.hide(torch.zeros(3, dtype=torch.int64), 4, bundles)
    for number in (4, 3):
        with pytest.raises(TrainingError, match=f"round {number}: the masks of round 4 are used"):
            one.hide(torch.zeros(3, dtype=torch.int64), number, bundles)


def asked(**changes: Any) -> Outgoing:
    given: dict[str, Any] = {"client": 0, "number": 1, "params": torch.arange(4.0), "buffers": [torch.ones(2), None]}
    given |= {"factors": None, "loss_scale": None, "states": {"Rule": {"m": torch.zeros(2), "own/0": torch.ones(1)}}}
    return Outgoing(**{**given, **changes})


def test_what_is_the_clients_own_may_differ() -> None:
    other = asked(client=1, states={"Rule": {"m": torch.zeros(2), "own/1": torch.zeros(9)}})
    assert digest_of(asked(), [1, 2]) == digest_of(other, [1, 2])


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"params": torch.tensor([0.0, 1.0, 2.0, 3.5])}, [1, 2]),  # a model from which a client does not move
        ({"params": torch.arange(4.0).double()}, [1, 2]),
        ({"buffers": [torch.zeros(2), None]}, [1, 2]),
        ({"factors": [[0.0]]}, [1, 2]),  # nor with a rate of 0
        ({"states": {"Rule": {"m": torch.ones(2)}}}, [1, 2]),
        ({"number": 2}, [1, 2]),
        ({}, [1, 2**60]),  # a step that rounds updates to 0
    ],
)
def test_a_server_that_sends_others_something_else_gets_noise(changes: dict[str, Any], sizes: list[int]) -> None:
    digests = [digest_of(asked(), [1, 2]), digest_of(asked(**changes), sizes)]
    assert digests[0] != digests[1]
    masks = sites(3)
    bundles = shown(masks)
    total = torch.zeros(100_000, dtype=torch.int64)
    for number, own in enumerate(masks.values()):
        own.hide(total, 1, bundles, digests[min(number, 1)])
    for place in total.view(torch.uint8).view(-1, 8).T:
        assert chi_square(torch.bincount(place.int(), minlength=256).double()) < CERTAIN


def test_another_fit_has_other_masks() -> None:
    """The same certificates and round: keys are drawn anew, so that the masks differ in every word."""
    sent = []
    for fit in ("one", "two"):
        masks = sites(3, fit)
        words = torch.zeros(1000, dtype=torch.int64)
        masks["site-00"].hide(words, 1, shown(masks))
        sent.append(words)
    assert not (sent[0] == sent[1]).any()


def refused(other: Bundle, name: str = "berlin") -> str:
    """What a site says when a server passes on another bundle as that of a site."""
    own = Masks("anna", FIT, AUTHORITY.identity("anna"))
    with pytest.raises(TrainingError) as raised:
        own.agree({"anna": own.bundle, name: other})
    return str(raised.value)


def test_a_server_cannot_stand_between() -> None:
    """A hostile server, with certificates, keys and signatures of any kind but those of berlin's key."""
    berlin = Masks("berlin", FIT, AUTHORITY.identity("berlin")).bundle
    cork = Masks("cork", FIT, AUTHORITY.identity("cork")).bundle
    between = Masks("berlin", FIT, Authority().identity("berlin")).bundle
    begin = "the public key of berlin is refused: "
    not_signed = f"{begin}berlin has not signed it for this fit"
    assert refused(replace(berlin, key=between.key)) == not_signed
    assert refused(replace(between, certificate=berlin.certificate)) == not_signed
    assert refused(between) == f"{begin}its certificate is not signed by this kit's authority"
    assert refused(cork) == f"{begin}its certificate is that of cork"
    assert refused(replace(cork, certificate=berlin.certificate)) == not_signed
    assert refused(berlin, "cork") == "the public key of cork is refused: its certificate is that of berlin"
    earlier = Masks("berlin", "an earlier fit", AUTHORITY.identity("berlin")).bundle
    assert refused(earlier) == not_signed
    assert refused(replace(berlin, certificate=b"no certificate")).startswith(f"{begin}expected a certificate, got ")


@pytest.mark.parametrize(("begins", "ends"), [(-10, -5), (2, 10)])
def test_a_certificate_out_of_its_time_is_refused(begins: float, ends: float) -> None:
    late = Masks("berlin", FIT, AUTHORITY.identity("berlin", begins, ends)).bundle
    assert refused(late).startswith("the public key of berlin is refused: its certificate is valid from 2")


def test_a_key_without_a_secret_is_refused() -> None:
    """A site signs the point of order 1, with which every secret is zero."""
    identity = AUTHORITY.identity("berlin")
    berlin = Masks("berlin", FIT, identity)
    signer = load_pem_private_key(identity.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    signature = signer.sign(_context(FIT, "berlin", bytes(32).hex()), ec.ECDSA(SHA256()))
    zero = replace(berlin.bundle, key=bytes(32), signature=signature)
    assert refused(zero).startswith("expected a public key of X25519 from berlin, got ")


def test_the_own_key_comes_back_as_it_is() -> None:
    own = Masks("anna", FIT, AUTHORITY.identity("anna"))
    other = Masks("anna", FIT, AUTHORITY.identity("anna"))
    with pytest.raises(TrainingError, match="expected the server to pass on the public key of anna as it is, got anot"):
        own.agree({"anna": other.bundle})


def test_a_bundle_travels_as_json() -> None:
    bundle = Masks("anna", FIT, AUTHORITY.identity("anna")).bundle
    assert Bundle.of(bundle.plain()) == bundle
    for wrong in (None, [], {}, {"key": 1}, {**bundle.plain(), "key": "no hex"}, {**bundle.plain(), "signature": "ä"}):
        with pytest.raises(TrainingError, match="expected the public key of a site"):
            Bundle.of(wrong)


NAMES = ("anna", "berlin", "cork", "dora")


def test_a_site_answers_once_a_round_for_one_set() -> None:
    """A server says that dora has dropped out of round 5, and asks for a second answer: it gets none."""
    anna = Answers("anna", NAMES)
    anna.begin(FIT, 5, NAMES)
    for number, names in [(5, NAMES[:3]), (5, NAMES), (4, NAMES), (0, NAMES)]:
        with pytest.raises(TrainingError, match=f"round {number}: anna has answered for round 5, and answers for a ro"):
            anna.begin(FIT, number, names)
    anna.begin(FIT, 6, NAMES[:3])
    with pytest.raises(TrainingError, match=r"expected the number of a round, got 1\.18e\+21"):
        anna.begin(FIT, 2**70, NAMES[:3])


def test_a_server_that_starts_again_gets_the_same_sets() -> None:
    """Another fit, from a checkpoint: rounds 5 and 6 again, but each with its set; round 7 with any."""
    anna = Answers("anna", NAMES)
    anna.begin(FIT, 5, NAMES)
    anna.begin(FIT, 6, NAMES[:3])
    with pytest.raises(TrainingError, match="round 5: anna has answered in a set of anna, berlin, cork, dora, and not"):
        anna.begin("again", 5, NAMES[:3])
    anna.begin("again", 5, list(reversed(NAMES)))
    with pytest.raises(TrainingError, match="round 6: anna has answered in a set of anna, berlin, cork, and not again"):
        anna.begin("again", 6, NAMES)
    with pytest.raises(TrainingError, match="round 5: anna has answered for round 5"):
        anna.begin("again", 5, NAMES)
    anna.begin("again", 7, NAMES[:3])


@pytest.mark.parametrize("names", [NAMES[:2], (), ("anna", "anna", "berlin"), ("anna", "anna", "anna")])
def test_a_set_has_three_sites(names: tuple[str, ...]) -> None:
    with pytest.raises(TrainingError, match="round 1: expected a set of at least 3 sites to sum"):
        Answers("anna", NAMES).begin(FIT, 1, names)


@pytest.mark.parametrize("names", [NAMES[1:], (*NAMES, "eve"), (*NAMES[:3], "berlin")])
def test_a_set_is_of_known_sites(names: tuple[str, ...]) -> None:
    with pytest.raises(TrainingError, match=r"round 1: expected a set of different sites of network\.sites with anna"):
        Answers("anna", NAMES).begin(FIT, 1, names)
