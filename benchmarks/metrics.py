"""Compare the cost of a round's metrics late in a run with the cost early in it."""

from collections.abc import Iterator
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.rows import Row, duration
from fl_lightning.runs.folder.run_folder import RunFolder

EARLY, LATE, AROUND = 100, 10_000, 100


def rows(quick: bool, install: bool) -> Iterator[Row]:
    turns = [_turn() for _ in range(2 if quick else 5)]
    ratios = [late / early for early, late in turns]
    early, late = (duration(median(column)) for column in zip(*turns, strict=True))
    case = f"20 metrics a round, round {LATE} ÷ round {EARLY}"
    yield Row.over(ratios, "metrics", case, "late ÷ early", "≤ 1.2", f"{late} ÷ {early}")


def _turn() -> tuple[float, float]:
    """Median seconds that the logger takes for a round early and late in a run."""
    with TemporaryDirectory() as folder:
        logger, taken = RunFolder(folder), []
        for round in range(1, LATE + 1):
            values = {f"metric/{number}": round / (1 + number) for number in range(20)}
            start = perf_counter()
            logger.log_metrics(values | {"round": float(round)}, round)
            logger.save()
            taken.append(perf_counter() - start)
    return median(taken[EARLY - AROUND // 2 : EARLY + AROUND // 2]), median(taken[LATE - AROUND :])
