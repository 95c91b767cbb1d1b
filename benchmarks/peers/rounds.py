"""Compare whole rounds with those of other frameworks: logistic regression, 10 clients × 6 steps of 10, FedAvg.

Every framework trains in a process of its own, on one thread; ours trains right before each, one client after another
as it does by default, all clients at once, and the same compiled. A figure is the median round of the peer ÷ that of
ours.
"""

import sys
from collections.abc import Iterator
from statistics import median

from benchmarks.environments import SCRIPTS, UnavailableError, last_line, python
from benchmarks.rows import Row, duration

CASE = "logistic regression, 10 clients × 6 steps of 10"
PEERS = {  # names in the table: the script, and its environment if that is not the project's
    "Flower": ("with_flower.py", "flower"),
    "pfl-research": ("with_pfl.py", "pfl"),
    "a Trainer per client": ("with_trainer.py", None),
    "fedjax": ("with_fedjax.py", "fedjax"),
}
OURS = {"ours": [], "ours at once": ["10"], "ours compiled": ["10", "compiled"]}
AIMS = {
    ("Flower", "ours compiled"): "≥ 50",
    ("pfl-research", "ours compiled"): "≥ 8",
    ("fedjax", "ours compiled"): "≥ 1",
}
LIMIT = 300.0  # seconds of one script


def rows(quick: bool, install: bool) -> Iterator[Row]:
    rounds, turns = (30, 2) if quick else (100, 3)
    for name, (script, environment) in PEERS.items():
        try:
            interpreter = python(environment, install) if environment else sys.executable
            pairs = [_turn(interpreter, script, rounds) for _ in range(turns)]
        except UnavailableError as error:
            yield Row("peers", CASE, f"{name} ÷ ours", note=str(error))
            continue
        for way in OURS:
            ratios = [theirs / ours[way] for ours, theirs in pairs]
            note = f"{duration(median(theirs for _, theirs in pairs))} ÷ {duration(median(o[way] for o, _ in pairs))}"
            yield Row.over(ratios, "peers", CASE, f"{name} ÷ {way}", AIMS.get((name, way)), note)


def _turn(interpreter: str, script: str, rounds: int) -> tuple[dict[str, float], float]:
    """Run our ways and then a peer, and return the median seconds of a round of each.

    Raises:
        UnavailableError: a script fails, or the peer's model has another loss than ours: it has trained something else.
    """
    here = [sys.executable, str(SCRIPTS / "ours.py"), str(rounds)]
    ours = {way: last_line([*here, *more], LIMIT) for way, more in OURS.items()}
    theirs = last_line([interpreter, str(SCRIPTS / script), str(rounds)], LIMIT)
    losses = [result["loss"] for result in (*ours.values(), theirs)]
    if max(losses) > 1.02 * min(losses):
        raise UnavailableError(f"trains something else: losses {', '.join(f'{loss:.3f}' for loss in losses)}")
    return {way: median(result["seconds"]) for way, result in ours.items()}, median(theirs["seconds"])
