"""FedBABU: a head that is not trained, and clients that train it for themselves, by hand."""

from two_numbers import served

from fl_lightning.callbacks import FedBABU


def test_the_head_stays_and_clients_train_all() -> None:
    """The shared number grows by (1 + 3) / 2 a round. Fine-tuned from 2: 2 + 1 and 2 + 3; own: 0 + 1 and 0 - 2."""
    assert served(FedBABU(["own"]), rounds=2) == ([4.0, 0.0], [[3.0, 1.0], [5.0, -2.0]])


def test_momentum_and_weight_decay_do_not_move_the_head() -> None:
    model, _ = served(FedBABU(["own"]), rounds=2, steps=2, sgd={"momentum": 0.9, "weight_decay": 0.1})
    assert model[1] == 0.0
