"""Plot how FedLAW's γ and λ change within a round and over the rounds, and print the cost of the fit.

    python examples/fedlaw.py                  # the digits, in a minute: docs/figures/fedlaw_dynamics.png
    python examples/fedlaw.py --mnist DIR      # MNIST instead, in a few minutes: docs/figures/fedlaw_mnist.png

20 clients, all in every round, Dirichlet alpha 1 and 0.1, 100 proxy images. Compare FedLAW's Figures 3 and 14.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from fl_lightning import Cohort, FederatedOrchestrator
from fl_lightning.callbacks import FedLAW
from fl_lightning.callbacks.server.fedlaw import measures
from fl_lightning.datamodules import MNIST, Digits, Dirichlet
from fl_lightning.models import ImageClassifier, TwoNN

COLORS = {1.0: "#0072B2", 0.1: "#D55E00"}  # for each alpha; from Okabe and Ito's palette, safe for colour-blind readers
SGD = partial(torch.optim.SGD, lr=0.08, momentum=0.9, weight_decay=5e-4)  # the paper's setting for FashionMNIST


class WatchedFedLAW(FedLAW):
    """FedLAW that keeps every round's trajectory, measures and accuracy, and times the fit and the whole round."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.fits: list[torch.Tensor] = []
        self.rounds: list[dict[str, float]] = []
        self.seconds = {"fit": 0.0, "round": 0.0}

    def on_train_epoch_start(self, *_: Any) -> None:
        """Note the time at which a round begins."""
        self.started = time.perf_counter()

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        """Time the fit and keep its trajectory and measures."""
        started = time.perf_counter()
        cohort = super().aggregate(orchestrator, cohort)
        self.seconds["fit"] += time.perf_counter() - started
        self.fits.append(self.trajectory)
        self.rounds.append(measures(cohort))
        return cohort

    def on_round_end(self, *_: Any) -> None:
        """Add the round's time, which excludes the evaluation."""
        self.seconds["round"] += time.perf_counter() - self.started

    def on_validation_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Keep the accuracy of the round."""
        self.rounds[-1]["top1"] = float(trainer.callback_metrics["val/top1"])


def train(alpha: float, mnist: str | None) -> WatchedFedLAW:
    """Train FedLAW and print the share of the round's time that the fit takes, and the last accuracy."""
    settings = {"num_clients": 20, "partition": Dirichlet(alpha), "proxy_per_class": 10, "seed": 1}
    data = MNIST(root=mnist, batch_size=128, **settings) if mnist else Digits(clients_per_batch=20, **settings)
    torch.manual_seed(1)
    network = TwoNN() if mnist else TwoNN(in_features=64)
    orchestrator = FederatedOrchestrator(
        ImageClassifier(network, optimizer=SGD), local_epochs=1 if mnist else 2, seed=1
    )
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    rule = WatchedFedLAW(lr=0.005)
    trainer = lightning.Trainer(
        max_epochs=20 if mnist else 40, accelerator="cpu", callbacks=[rule], enable_progress_bar=False, **quiet
    )
    trainer.fit(orchestrator, datamodule=data)
    share, top1 = rule.seconds["fit"] / rule.seconds["round"], rule.rounds[-1]["top1"]
    print(f"alpha {alpha:g}: fitting takes {share:.0%} of a round's time; val/top1 {top1:.4f}")
    return rule


def draw(rules: dict[float, WatchedFedLAW], path: Path) -> None:
    """Draw six panels: γ and λ within a round for alpha 1; γ, norms, r and accuracy over the rounds for both alphas."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10})
    figure, ((gammas, weights, gamma), (norms, ratio, top1)) = plt.subplots(
        2, 3, figsize=(11, 6.6), layout="constrained"
    )
    fits = rules[1.0].fits
    shown = [1, 2, 5, 10, len(fits)]
    for round, shade in zip(shown, plt.get_cmap("viridis")(torch.linspace(0, 0.85, len(shown))), strict=True):
        gammas.plot(range(1, 101), fits[round - 1][:, 0], color=shade, label=f"round {round}")
    gammas.set(title="γ within a round, α = 1", xlabel="server epoch", ylabel="γ")
    weights.plot(range(1, 101), fits[9][:, 1:], color=COLORS[1.0], linewidth=0.9)
    weights.set(title="λ of the 20 clients in round 10, α = 1", xlabel="server epoch", ylabel="λ", ylim=(0, None))
    for alpha, rule in rules.items():
        style = {"color": COLORS[alpha], "label": f"α = {alpha:g}"}
        times = range(1, len(rule.rounds) + 1)
        for axes, name in ((gamma, "gamma"), (ratio, "ratio"), (top1, "top1")):
            axes.plot(times, [row.get(name, float("nan")) for row in rule.rounds], **style)
        norms.plot(
            times, [row["global_gradient"] for row in rule.rounds], **style | {"label": f"global, α = {alpha:g}"}
        )
        decay = [row["shrinking_gradient"] for row in rule.rounds]
        norms.plot(times, decay, linestyle="--", **style | {"label": f"shrinking, α = {alpha:g}"})
    gamma.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":")
    gamma.set(title="γ over the rounds", xlabel="round", ylabel="γ at the end of the fit")
    norms.set(title="The two pseudo-gradients", xlabel="round", ylabel="norm", yscale="log")
    ratio.set(title="r, global over shrinking", xlabel="round", ylabel="r", yscale="log")
    top1.set(title="Accuracy", xlabel="round", ylabel="val/top1")
    for axes in (gammas, gamma, norms, ratio, top1):
        columns = 3 if axes is gammas else 2
        axes.legend(frameon=False, fontsize=8, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", metavar="DIR", help="folder with MNIST/raw: train on MNIST")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/figures", help="for the picture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = "fedlaw_mnist.png" if arguments.mnist else "fedlaw_dynamics.png"
    draw({alpha: train(alpha, arguments.mnist) for alpha in COLORS}, arguments.out / name)
