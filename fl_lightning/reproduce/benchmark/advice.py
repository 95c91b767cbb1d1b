"""Advice: which rule to take on a problem, in words, and the command that tries it."""

from __future__ import annotations

import re
import shlex

from fl_lightning.fit.helps.class_lists import first_sentence
from fl_lightning.report.numbers import fixed
from fl_lightning.reproduce.benchmark.answers import Answer
from fl_lightning.reproduce.benchmark.gains import BASELINE
from fl_lightning.reproduce.benchmark.problems import Problem
from fl_lightning.reproduce.benchmark.space import COSINE, DECAY, typical

PERSONAL = "personal"  # how PersonalEvaluation's measures begin


def advice_of(answer: Answer) -> str:
    """Answer a problem's question by the cheapest winner, or else the cheapest tested; its command beside FedAvg's."""
    words, shown = _clear(answer) if answer.winners else _not_clear(answer)
    lines = []
    for method in [*shown, BASELINE]:
        lines += [f"# {method}", command_of(answer.problem, method)]
    text = f"{answer.problem.experiment.claim} {words}"
    return "\n".join([text, "", "<!-- not run: on a config of yours -->", "```bash", *lines, "```"])


def _clear(answer: Answer) -> tuple[str, list[str]]:
    """Name the winners and what is close to the cheapest of them, which is advised."""
    first, *others = answer.winners
    text = f"**{first}**{_what_it_does(answer.problem, first)}."
    if others:
        text += f" {' and '.join(others)} cannot be told from it."
    if close := answer.close(first):
        text += f" Close to it, and not tested: {', '.join(close)}."
    return text, [first]


def _not_clear(answer: Answer) -> tuple[str, list[str]]:
    """Name the cheapest method whose interval is above FedAvg, which is advised; or else that of the largest gain."""
    text = f"None is proved to, over {answer.searches} searches."
    above = [method for method in answer.p if answer.once["gain"][method] > answer.once["half"][method]]
    if not above:
        best = max(answer.p, key=lambda method: answer.once["gain"][method])
        text += f" FedAvg, its rate tuned, is the plain choice. The largest gain, that of {best}, may be chance:"
        return f"{text} {answer.gain(best)}, at twice the rounds {answer.gain_at_twice(best)}.", [best]
    cheapest = min(above, key=answer.cost)
    price = answer.price(cheapest)
    costs = f"needs {' and '.join(price)}" if price else "costs no more"
    text += f" Worth a try, as the cheapest of those that seem to: {cheapest}{_what_it_does(answer.problem, cheapest)}."
    gain, p = answer.gain(cheapest), fixed(answer.p[cheapest], 2)
    text += f" It {costs}. Its gain over FedAvg was {gain} (p {p}),"
    return f"{text} at twice the rounds {answer.gain_at_twice(cheapest)}.", [cheapest]


def _what_it_does(problem: Problem, method: str) -> str:
    """Return what the docstrings of a method's classes say that it does, after a comma; empty for no class."""
    from fl_lightning import callbacks  # here, because the import takes seconds

    words = re.findall(r"\w+", " ".join(problem.cell(method).options))
    deeds = []
    for word in words:
        if hasattr(callbacks, word):
            sentence = first_sentence(getattr(callbacks, word)).partition(" (")[0]
            deeds.append(f"{sentence[:1].lower()}{sentence[1:]}")
    return f", which {', then '.join(deeds)}" if deeds else ""


def command_of(problem: Problem, method: str) -> str:
    """Write the command that trains a method on a user's config, with the means of what its searches chose."""
    parts = ["fl-lightning fit --config YOURS.yaml"]
    if problem.measure.startswith(PERSONAL):
        parts.append("--trainer.callbacks+=PersonalEvaluation")  # a rule's arguments go to the last of the callbacks
    parts += [shlex.quote(argument) for argument in problem.cell(method).options]
    for name, value in typical(problem.chosen(method), problem.space(method)).items():
        if name != DECAY:
            parts.append(f"--{name}={value}")
        elif value == COSINE:
            parts += [f"--{DECAY}=CosineAnnealingLR", f"--{DECAY}.T_max=ROUNDS"]
    return " ".join(parts)
