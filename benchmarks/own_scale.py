"""Train the runs of the papers that ask for a GPU, at the papers' own scale, in order of how much they decide.

    python -m benchmarks.own_scale --minutes 14 --jobs 4 --data.root DIR
    fl-lightning reproduce --ledger

All other options are those of ``fl-lightning reproduce``: --jobs, --seeds, --out, --dry-run, … The same command goes on
where an earlier one has stopped. DIR holds CIFAR-10, as an image folder ``cifar10`` or as torchvision keeps it; the
variable FL_LIGHTNING_DATA may name DIR, too. Small networks leave a GPU waiting, so that several runs share it well.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from fl_lightning.cli import main as fl_lightning

TIME_OVER = 124  # exit status of reproduce when its minutes are over; those of signals are above
# A table, and which of its cells: few that decide a claim by themselves. Steps are a round's, of all clients.
QUEUE = (
    ("fedgh-slides/table-4", "method=FedAvg,FedAvg+GH"),  # four claims; 400 steps of a small network, 500 rounds
    ("fedlaw/table-5", "model=ResNet20", "method=FedAvg,FedLAW"),  # one claim; 280 steps, 200 rounds
    ("fedlaw/table-1", "model=ResNet8", "gamma=1,0.95"),  # one claim, not run at any scale; 560 steps, 200 rounds
    ("fedgh-paper/table-1", "dataset=CIFAR-10", "participation=0.2", "method=FedAvg,FedAvg+GH"),  # 780 steps
    ("fedgh-paper/table-1", "dataset=CIFAR-10", "method=FedAvg,FedAvg+GH"),  # two claims; 3,900 steps, 100 rounds
    ("fedgam/table-3", "dataset=CIFAR-10", "partition=Dir(0.3),IID", "method=FedAvg,FedGAM-CV"),  # 12,000 of ResNet-18
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the lines of QUEUE one after the other; return the first exit status that is not 0.

    A line whose data are missing, or one of whose runs fails, does not stop the next one. The end of the minutes stops
    them all, and so does a signal.
    """
    about, _, more = str(__doc__).partition("\n\n")
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("own_scale", description=about, epilog=more, formatter_class=layout)
    parser.add_argument("--minutes", type=float, required=True, help="minutes after which the training stops")
    asked, options = parser.parse_known_args(arguments)
    until = time.monotonic() + 60 * asked.minutes
    status = 0
    for table, *cells in QUEUE:
        seconds = until - time.monotonic()
        if seconds < 1:
            return TIME_OVER
        own = ["--subset", *cells, f"--minutes={seconds / 60:.2f}"]
        ended = fl_lightning(["reproduce", table, *own, *options])
        if ended >= TIME_OVER:
            return ended
        status = status or ended
    return status


if __name__ == "__main__":
    sys.exit(main())
