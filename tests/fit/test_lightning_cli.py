"""What the command line changes in Lightning's own: each module saves hyper-parameters of its own."""

from lightning.pytorch import LightningDataModule

from fl_lightning.fit.parser import own_hyperparameters


class Made(LightningDataModule):
    def __init__(self, size: int = 1, width: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()


class Base(LightningDataModule):
    def __init__(self, size: int, depth: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()


class Making(Base):
    def __init__(self, size: int) -> None:
        self.made = Made(width=3)
        super().__init__(size)


def test_own_hyperparameters() -> None:
    """The outer module's size, 5, is none of the inner one's; its base class's depth is its own."""
    with own_hyperparameters():
        outer = Making(5)
    assert dict(outer.made.hparams) == {"size": 1, "width": 3}
    assert dict(outer.hparams) == {"size": 5, "depth": 4}
    assert Making(5).made.hparams["size"] == 5, "Lightning's own: else the function above has no use"
