"""Messages of the commands: report a user's mistake in one line, and hide unhelpful messages of libraries."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from fl_lightning.errors import (
    ConfigurationError,
    RankError,
    causes,
    is_exhaustion,
    most_similar,
    nearest,
    of_user,
    system_error,
)
from fl_lightning.runs.config.earlier import GONE
from fl_lightning.runs.display.hidden_messages import hide_unhelpful

# What sets here that for which others have an option, by the words of such options; {} is the value as typed.
MEANT = {
    "rounds num_rounds": "the number of rounds is --trainer.max_epochs{}",
    "epochs num_epochs": "rounds are --trainer.max_epochs{}, a client's epochs in a round --model.local_epochs{}",
    "seed": "the seed is --seed_everything{}",
    "lr learning_rate": "the clients' learning rate is --model.client.optimizer.lr{}",
    "clients num_clients": "the number of clients is --data.num_clients{}, that of a round --data.participation",
    "batch_size": "the size of a client's batches is --data.batch_size{}",
    "alpha": "the concentration of the partition is --data.partition.alpha{}",
    "gpus num_gpus": "GPUs are --trainer.accelerator gpu --trainer.devices{}",
    "dataset": "the data set is --data{}",
    "algorithm method rule strategy aggregator": "a rule is --trainer.callbacks+=FedProx, or another class",
}

# Base classes of Lightning and PyTorch, of whose subclasses a config may name any.
NAMEABLE = {"Callback", "LightningDataModule", "LightningModule", "Logger", "Module", "Optimizer", "LRScheduler"}
OF_A_CLASS = ("class_path", "init_args")  # the keys of a class in YAML
NO_METRIC = "Early stopping conditioned on metric"  # how Lightning's RuntimeError about its monitor begins
FEW = 3  # largest number of classes that an answer proposes


class ParsingError(Exception):
    """Carries a message of the argument parser. Parsers nest, and only the outermost parser's message is for the user.

    Args:
        message: the parser's message.
        options: the parser's long options, without dashes.
        owner: the class whose arguments the parser parses, if it parses those of one class.

    Attributes:
        accepted: the options of the parser that take a value.
    """

    def __init__(self, message: str, options: Sequence[str], owner: str = "") -> None:
        super().__init__(message)
        self.message, self.options, self.owner = message, options, owner
        # Without options that only give help, append to a list or are parts of other options.
        self.accepted = [name for name in options if name.isidentifier() and name not in ("help", "print_shtab")]


def run_and_report(command: Callable[[Sequence[str]], int], args: Sequence[str]) -> int:
    """Run a command without unhelpful messages, and print a user's mistake as one line on standard error.

    Args:
        command: function that takes the arguments and returns the exit status.
        args: the arguments.

    Returns:
        The exit status; 2 for a mistake and for what the machine lacks, 143 after SIGTERM, 141 after a broken pipe.
    """
    _open_streams()
    hide_unhelpful()
    try:
        try:
            return command(args)
        finally:
            sys.stdout.flush()  # here, because Python reports an error at its own exit in several lines
    except SystemExit as leaving:
        if not _is_lightnings(leaving, "SIGTERMException"):  # Lightning raises this error with status 0
            raise
        return 128 + signal.SIGTERM
    except BrokenPipeError:  # the program that reads the output, such as head, has ended
        sys.stdout = _nowhere()  # takes the output that Python still flushes at exit
        return 128 + signal.SIGPIPE
    except Exception as error:
        if (mistake := plainly(error, at_site=args[:1] == ["join"])) is None:
            raise
        print(f"fl-lightning: error: {_printable(mistake)}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            sys.stdout = _nowhere()
        return 2


def _open_streams() -> None:
    """Open standard streams that are closed (``>&-``), and let all of them take any text, in any encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or _nowhere()
        setattr(sys, name, stream)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def _printable(text: str) -> str:
    letters = []
    for letter in text:
        if letter.isprintable():
            letters.append(letter)
        else:
            letters.append(ascii(letter)[1:-1])  # without its quotes
    return "".join(letters)


def plainly(error: BaseException, at_site: bool = False) -> str | None:
    """Describe a user's mistake, or what the machine lacks, in one line; None for all other errors.

    Args:
        error: the error.
        at_site: whether the machine is a site, which has no checkpoints.
    """
    return mistake_in(error) or _lack_in(error, at_site)


def mistake_in(error: BaseException) -> str | None:
    """Describe the user's mistake behind an exception in one line; None if no mistake, even a wrapped one, is found."""
    missing = _missing_extra(error)
    if missing is not None:
        return missing
    chain = list(causes(error))
    for cause in chain:
        if isinstance(cause, ParsingError):
            *_, innermost = (inner for inner in chain if isinstance(inner, ParsingError))
            return explain(cause, innermost)
        is_lightnings = _is_lightnings(cause, "MisconfigurationException") or str(cause).startswith(NO_METRIC)
        if isinstance(cause, ConfigurationError | RankError) or is_lightnings:
            return " ".join(str(cause).split())
    return None


EXTRAS = {  # by package
    "wandb": "wandb",
    "wandb_workspaces": "wandb",
    "tensorboard": "tensorboard",
    "plotly": "report",
    "jinja2": "report",
    "pycocotools": "detection",
    "dp_accounting": "privacy",
    "torchjd": "torchjd",
    "submitit": "slurm",
}


def _missing_extra(error: BaseException) -> str | None:
    """Say which extra of this package installs the missing package that an error names; None for other errors."""
    for cause in causes(error):
        if isinstance(cause, ModuleNotFoundError):
            words = [cause.name.partition(".")[0]] if cause.name else re.findall(r"\w+", str(cause))
            for word in words:
                if word in EXTRAS:
                    return f"{word} is not installed: pip install 'fl-lightning[{EXTRAS[word]}]'"
    return None


def _is_lightnings(error: BaseException, name: str) -> bool:
    """Tell whether an error is of a class of Lightning, without importing Lightning, which takes seconds."""
    return any(cls.__name__ == name and cls.__module__.startswith("lightning.") for cls in type(error).__mro__)


REMEDIES = {  # by the number of an OSError
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free disk space"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files (ulimit -n)"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
        "name another path (trainer.default_root_dir is the folder of all runs), or change this one",
    ),
}


def _lack_in(error: BaseException, at_site: bool) -> str | None:
    """Describe in one line a file, disk space or memory that the machine refused; None for all other errors.

    An error in the user's own code is not described: its traceback says where the code failed.
    """
    if of_user(error):
        return None
    for cause in causes(error):
        number = system_error(cause)
        if number is not None:
            file = getattr(cause, "filename", None)
            what = os.strerror(number) if file is None else f"{os.strerror(number)}: {file}"
            remedy = REMEDIES.get(number, "correct the cause")
            then = "join again" if at_site else "saved rounds are kept, and --ckpt_path last continues after them"
            return f"{what}: {remedy}; {then}"
        if is_exhaustion(cause):
            words = " ".join(str(cause).split())[:200]
            what = f"out of memory ({words})" if words else "out of memory"
            return f"{what}: use a smaller model, cohort or batch; saved rounds are kept"
    return None


@dataclass(frozen=True)
class Refusal:
    """Holds a refusal of the argument parser, with what an answer to the user may need.

    Attributes:
        text: the parser's message, on one line.
        options: the options of the command's parser, without leading ``--``.
        keys: the nested options that lead to the mistake, the outermost first.
        owner: the class whose arguments are refused; empty for those of no class.
        accepted: the options of that class that take a value; empty if the class is not known.
    """

    text: str
    options: Iterable[str]
    keys: Sequence[str] = ()
    owner: str = ""
    accepted: Sequence[str] = ()

    @property
    def place(self) -> str:
        """The dotted name of the option with the mistake."""
        return ".".join(self.keys)


def explain(error: ParsingError, innermost: ParsingError) -> str:
    """Shorten a message of the argument parser to one line.

    Args:
        error: the error of the command line's parser.
        innermost: the first error that led to ``error``, raised by the parser of the class whose arguments are refused;
            or ``error`` itself.
    """
    text = " ".join(error.message.split())
    keys = re.findall(r'Parser key "([^"]+)":', text)
    refusal = Refusal(text, error.options, keys, innermost.owner, innermost.accepted)
    if innermost is error and keys:  # no class's parser has refused it, and the command's own options are no class's
        refusal = replace(refusal, owner="", accepted=())
    if answer := first_answer(UNKNOWN_OPTIONS, refusal):
        return answer
    if answer := first_answer(REFUSED_VALUES, refusal):
        return f"{refusal.place}: {answer}" if keys else answer
    return text[:400]


def unknown_option(text: str, options: Iterable[str]) -> str | None:
    """Answer a message about an option that does not exist; None for other messages.

    Args:
        text: the message, as the argument parser writes it.
        options: the options that there are, without leading ``--``.
    """
    return first_answer(UNKNOWN_OPTIONS, Refusal(text, options))


def first_answer(answers: Answers, refusal: Refusal) -> str | None:
    """Return the answer of the first row that has one; None if no row has one."""
    for pattern, answer in answers:
        match = re.search(pattern, refusal.text)
        if match and (words := answer(match, refusal)):
            return words
    return None


# Answers, one for each kind of message. An answer that returns None leaves the message to the rows below its own.


def no_such_option(match: re.Match[str], refusal: Refusal) -> str:
    """Say what an option of the command line may be meant to be."""
    name, value = match.groups()
    if refusal.owner:  # what follows the option of a class, which has no such argument
        first, dot, rest = name.partition(".")
        near = nearest(first, refusal.accepted)
        hint = f"; did you mean {near}{dot}{rest}?" if near else f": {_arguments_of(refusal)}"
        return f"there is no option {name}{hint}"
    group, dot, last = name.rpartition(".")
    near_groups = most_similar(group, refusal.options, 1, cutoff=0.9)
    if near_groups and group not in refusal.options:
        return f"there is no option --{name}; did you mean --{near_groups[0]}{dot}{last}?"
    hint = option_meant_by(name, value) or _nearest(name, refusal.options, dashes="--")
    return f"there is no option --{name}; {hint}"


def no_option(match: re.Match[str], refusal: Refusal) -> str:
    """Say what stands where an option was expected."""
    how = f"a config is --config {match[1]}" if match[1].endswith(".yaml") else "--help lists the options"
    return f"expected an option, got {match[1]}: {how}"


def help_of_a_class(match: re.Match[str], refusal: Refusal) -> str:
    """Say how the help of a class is asked for."""
    return f"--help takes no value: a class is described by --trainer.callbacks.help {match[1]}, --data.help {match[1]}"


def no_such_option_of_a_config(match: re.Match[str], refusal: Refusal) -> str:
    """Say what an option of a config file may be meant to be."""
    group, name = match.groups()
    hint = _gone(f"{group}.{name}") or _nearest(name, refusal.options)
    return f"there is no option {name}; {hint}"


def no_such_option_of_the_class(match: re.Match[str], refusal: Refusal) -> str | None:
    """Name what a class has in place of an option that the class does not have; None if it has the option."""
    name = match[1]
    if name in refusal.accepted:
        return None
    missing = f"there is no option {name}"
    if hint := _gone(f"{refusal.owner}.{name}"):
        return f"{missing}; {hint}"
    initials = "".join(word[:1] for word in name.split("_"))  # as lr abbreviates learning_rate
    near = initials if initials in refusal.accepted else nearest(name, refusal.accepted)
    near = near or next(iter(most_similar(name, OF_A_CLASS, 1, cutoff=0.8)), None)
    if near:
        return f"{missing}; did you mean {near}?"
    hint = option_meant_by(name)
    if hint and f"--{refusal.place}.{name}" in hint:  # the option that was given: its class was not
        return f"{missing} without a class: name one, --{refusal.place} CLASS"
    if hint:
        return f"{missing}; {hint}"
    if not refusal.owner:
        lists = f"--{refusal.place}.help CLASS lists those of a class" if refusal.keys else "--help lists what there is"
        return f"{missing}; {lists}"
    answer = f"{missing}: {_arguments_of(refusal)}"
    if refusal.keys and refusal.keys[-1] == "trainer.callbacks":
        return f"{answer}; options act on the last of the callbacks"
    return answer


def _arguments_of(refusal: Refusal) -> str:
    """Say which arguments the class has that refuses one."""
    return f"{refusal.owner} has {', '.join(refusal.accepted) or 'none'}"


def no_import(match: re.Match[str], refusal: Refusal) -> str:
    """Repeat why Python finds no class under a path."""
    return f"{match[1]}:{match[2]}"


def arguments_in_brackets(match: re.Match[str], refusal: Refusal) -> str:
    """Say how the arguments of a class are written, which was given as in Python: ``FedProx(mu=0.1)``."""
    name, argument, value = match.groups()
    option = f"--{refusal.place}"
    add = "+" if option.endswith("callbacks") else ""
    how = f"{option}{add}={name} {option}.{argument or 'OPTION'}={value}"
    return f"write the arguments of {name} as options: {how}"


def no_such_class(match: re.Match[str], refusal: Refusal) -> str:
    """Name the classes that are most similar; or say that the class is none of those that the option takes."""
    name = match[1]
    known = _nameable_classes()
    if name in known:
        return f"{name} is not of the kind of classes that this option takes"
    return no_class(name, known)


def no_class(name: str, known: Iterable[str]) -> str:
    """Say that no class has a name, and which of the known names are most similar.

    >>> no_class("Median", ["CoordinateMedian", "FedAvg"])
    'there is no class Median; did you mean CoordinateMedian?'
    """
    longer = sorted(other for other in known if name in other)  # as Median abbreviates CoordinateMedian
    if 0 < len(longer) <= FEW:
        return f"there is no class {name}; did you mean {' or '.join(longer)}?"
    return f"there is no class {name}; {_nearest(name, known)}"


def no_function(match: re.Match[str], refusal: Refusal) -> str:
    """Say how a function is given."""
    return f"expected a function, as in my_module.my_function, got something else: {match[1]}"


def no_value(match: re.Match[str], refusal: Refusal) -> str:
    """Say how to give the value that is missing, if one alone is missing."""
    how = f": --{refusal.place}.{match[1]} VALUE" if refusal.keys and "," not in match[1] else ""
    return f"give a value for {match[1]}{how}"


def another_type(match: re.Match[str], refusal: Refusal) -> str:
    """Say which type was expected."""
    expected = _plain_type(match[1])
    hint = ""
    if expected == "a list" and re.fullmatch(r"[\w./-]+", match[2]):
        hint = f": write [{match[2]}]"
    elif match[2] == "None" and refusal.keys:  # of an option that must be given
        hint = f": give --{refusal.place} a value"
    return f"expected {expected}, got {match[2]}{hint}"


def none_of_several_types(match: re.Match[str], refusal: Refusal) -> str | None:
    """Say which types were expected; None if the message names none."""
    expected = dict.fromkeys(re.findall(r"- Expected an? (.+?) (?=- |Given)", refusal.text))
    if not expected:
        return None
    return f"expected {' or '.join(map(_plain_type, expected))}, got {match[1]}"


Answers = Sequence[tuple[str, Callable[[re.Match[str], Refusal], str | None]]]
# Patterns of the argument parser's messages, and the answer to each. The first answer counts.
UNKNOWN_OPTIONS: Answers = (
    (r"[Uu]nrecognized arguments: --([\w.-]+)(?:=| (?!-))?(\S*)", no_such_option),
    (r"[Uu]nrecognized arguments: (\S+)", no_option),
    (r"(?:Group '([\w.]+)' )?does not accept option '([\w.]+)'", no_such_option_of_a_config),
    (r"argument -h/--help: ignored explicit argument '(\w+)'", help_of_a_class),
)
REFUSED_VALUES: Answers = (
    (r"Option '(\w+)[\w.]*' is not accepted", no_such_option_of_the_class),
    (r"Problem with given class_path '([\w.]+)':(.{1,200}?)(?: - |$)", no_import),
    (r"import path (?:string|format): ([\w.]+)\((?:(\w+) *=)? *([^,)]*)", arguments_in_brackets),
    (r"[Ee]xpected a dot import path string: (?!None\b)([\w.]+)", no_such_class),
    (r"expects a function or a callable class: (.{1,120}?) - ", no_function),
    (r"arguments are required: ([\w., ]+?)(?: -|$)", no_value),
    (r"Expected an? (.+?)\. Got value: (.{1,80}?)(?: - |$)", another_type),
    (r"Given value: (.{1,80}?)(?= - | Given value|$)", none_of_several_types),
)


def _plain_type(expected: str) -> str:
    """Write a type of Python for readers.

    >>> _plain_type("<class 'int'> or NoneType"), _plain_type("Literal['full', 'lora'] or NoneType")
    ('int or null', 'full or lora or null')
    """
    plain = re.sub(r"<class '([\w.]+)'>", r"\1", expected).replace("NoneType", "null").replace("typing.", "")
    plain = re.sub(r"Literal\[([^]]*)\]", lambda words: words[1].replace("'", "").replace(", ", " or "), plain)
    return plain.replace("collections.abc.Sequence", "a list")


def option_meant_by(name: str, value: str = "") -> str | None:
    """Say which option sets what an unknown option is known for elsewhere; None if unknown.

    >>> option_meant_by("rounds", "10")
    'the number of rounds is --trainer.max_epochs 10'
    """
    word = name.rpartition(".")[2].replace("-", "_")
    for words, hint in MEANT.items():
        if word in words.split():
            return hint.replace("{}", f" {value}" if value else "")
    return None


def _gone(option: str) -> str | None:
    """Say why an option of earlier versions is gone; None for other options."""
    for gone in GONE:
        if option == gone.option:
            return f"leave it out: {gone.reason}"
    return None


def _nearest(name: str, known: Iterable[str], dashes: str = "") -> str:
    if hint := _gone(name):
        return hint
    near = nearest(name, [other for other in known if not other.endswith(".help")])
    return f"did you mean {dashes}{near}?" if near else "--help lists what there is"


def _nameable_classes() -> set[str]:
    """Return the names of the classes that a config may name: of this package, and of Lightning's and PyTorch's kinds.

    The kinds are told by their names: other messages need not wait seconds for the imports.
    """
    names = set()
    for cls in _all_classes():
        of_a_kind = any(base.__name__ in NAMEABLE for base in cls.__mro__)
        if of_a_kind or str(cls.__module__).startswith("fl_lightning."):
            names.add(cls.__name__)
    return names


def _all_classes() -> set[type]:
    """Return all classes of the process."""
    known = set[type]()
    new = {object}
    while new:
        known |= new
        subclasses = {subclass for cls in new for subclass in type.__subclasses__(cls)}
        new = subclasses - known
    return known
