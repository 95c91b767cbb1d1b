"""Messages of the commands: report a user's mistake in one line, and hide unhelpful messages of libraries."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from fl_lightning.errors import ConfigurationError, RankError, causes, is_exhaustion, nearest, of_user, system_error
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

# Options of the last release that are gone, and what to do in their place.
GONE = {"local_graph": "leave it out: local steps are no longer captured as CUDA graphs, which keep what a step reads"}


# Base classes of Lightning and PyTorch, of whose subclasses a config may name any.
NAMEABLE = {"Callback", "LightningDataModule", "LightningModule", "Logger", "Module", "Optimizer", "LRScheduler"}


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
        self.accepted = [name for name in options if name.isidentifier() and name != "help"]


def reported(command: Callable[[Sequence[str]], int], args: Sequence[str]) -> int:
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
        if (mistake := mistake_in(error) or _lack_in(error)) is None:
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
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def mistake_in(error: BaseException) -> str | None:
    """Describe the user's mistake behind an exception in one line; None if no mistake, even a wrapped one, is found."""
    if (missing := _extra_for(error)) is not None:
        return missing
    for cause in causes(error):
        if isinstance(cause, ParsingError):
            return explain(cause, next(each for each in [*causes(error)][::-1] if isinstance(each, ParsingError)))
        if isinstance(cause, ConfigurationError | RankError) or _is_lightnings(cause, "MisconfigurationException"):
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
}


def _extra_for(error: BaseException) -> str | None:
    """Say which extra of this package installs the missing package that an error names; None for other errors."""
    for cause in causes(error):
        if isinstance(cause, ModuleNotFoundError):
            missing = [cause.name.partition(".")[0]] if cause.name else re.findall(r"\w+", str(cause))
            if (known := next((each for each in missing if each in EXTRAS), None)) is not None:
                return f"{known} is not installed: pip install 'fl-lightning[{EXTRAS[known]}]'"
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


def _lack_in(error: BaseException) -> str | None:
    """Describe in one line a file, disk space or memory that the machine refused; None for all other errors.

    An error in the user's own code is not described: its traceback says where the code failed.
    """
    if of_user(error):
        return None
    for cause in causes(error):
        if (number := system_error(cause)) is not None:
            file = getattr(cause, "filename", None)
            what = os.strerror(number) if file is None else f"{os.strerror(number)}: {file}"
            remedy = REMEDIES.get(number, "correct the cause")
            return f"{what}: {remedy}; saved rounds are kept, and --ckpt_path last continues after them"
        if is_exhaustion(cause):
            what = " ".join(str(cause).split())[:200]
            return f"out of memory{what and f' ({what})'}: use a smaller model, cohort or batch; saved rounds are kept"
    return None


def explain(error: ParsingError, innermost: ParsingError) -> str:
    """Shorten a message of the argument parser to one line.

    Args:
        error: the error of the command line's parser.
        innermost: the first error that led to ``error``, raised by the parser of the class whose arguments are refused;
            or ``error`` itself.
    """
    text = " ".join(error.message.split())
    keys = re.findall(r'Parser key "([^"]+)":', text)  # the nested options that lead to the mistake
    where = f"{'.'.join(keys)}: " if keys else ""
    if unknown := unknown_option(text, error.options):
        return unknown
    said = _option_of_another(text, keys, innermost) or _refused_class(text, keys) or _refused_value(text, keys)
    return f"{where}{said}" if said else text[:400]


def unknown_option(text: str, options: Iterable[str]) -> str | None:
    """Name the option that an unknown one may mean."""
    if found := re.search(r"[Uu]nrecognized arguments: --([\w.-]+)(?:=| (?!-))?(\S*)", text):
        return f"there is no option --{found[1]}; {meant(found[1], found[2]) or _like(found[1], options)}"
    if found := re.search(r"[Uu]nrecognized arguments: (\S+)", text):
        how = f"a config is --config {found[1]}" if found[1].endswith(".yaml") else "--help lists the options"
        return f"expected an option, got {found[1]}: {how}"
    if found := re.search(r"does not accept option '([\w.]+)'", text):
        return f"there is no option {found[1]}; {_like(found[1], options, '')}"
    return None


def _option_of_another(text: str, keys: Sequence[str], innermost: ParsingError) -> str | None:
    """Name what the class has in place of an option that it does not have."""
    found = re.search(r"Option '(\w+)[\w.]*' is not accepted", text)
    if found is None or found[1] in innermost.accepted:
        return None
    missing = f"there is no option {found[1]}"
    if found[1] in GONE:
        return f"{missing}; {GONE[found[1]]}"
    initials = "".join(word[:1] for word in found[1].split("_"))  # as lr abbreviates learning_rate
    if near := initials if initials in innermost.accepted else nearest(found[1], innermost.accepted):
        return f"{missing}; did you mean {near}?"
    if hint := meant(found[1]):
        return f"{missing}; {hint}"
    last = "; options act on the last of the callbacks" if keys[-1:] == ["trainer.callbacks"] else ""
    return f"{missing}: {innermost.owner or 'it'} has {', '.join(innermost.accepted) or 'none'}{last}"


def _refused_class(text: str, keys: Sequence[str]) -> str | None:
    """Say what is wrong with the name of a class or a function."""
    if found := re.search(r"Problem with given class_path '([\w.]+)':(.{1,200}?)(?: - |$)", text):
        return f"{found[1]}:{found[2]}"
    if found := re.search(r"import path (?:string|format): ([\w.]+)\((?:(\w+) *=)? *([^,)]*)", text):
        option = f"--{'.'.join(keys)}"
        how = f"{option}{'+' * option.endswith('callbacks')}={found[1]} {option}.{found[2] or 'OPTION'}={found[3]}"
        return f"write the arguments of {found[1]} as options: {how}"
    if found := re.search(r"[Ee]xpected a dot import path string: (?!None\b)([\w.]+)", text):
        known = _classes()
        if found[1] in known:
            return f"{found[1]} is not of the kind of classes that this option takes"
        return f"there is no class {found[1]}; {_like(found[1], known, '')}"
    if found := re.search(r"expects a function or a callable class: (.{1,120}?) - ", text):
        return f"expected a function, as in my_module.my_function, got something else: {found[1]}"
    return None


def _refused_value(text: str, keys: Sequence[str]) -> str | None:
    """Say what was expected in place of a value, or that a value is missing."""
    if found := re.search(r"arguments are required: ([\w., ]+?)(?: -|$)", text):
        how = f": --{'.'.join(keys)}.{found[1]} VALUE" if keys and "," not in found[1] else ""
        return f"give a value for {found[1]}{how}"
    if found := re.search(r"Expected an? (.+?)\. Got value: (.{1,80}?)(?: - |$)", text):
        return f"expected {_plain(found[1])}, got {found[2]}"
    expected = dict.fromkeys(re.findall(r"- Expected an? (.+?) (?=- |Given)", text))
    if (found := re.search(r"Given value: (.{1,80}?)(?= - | Given value|$)", text)) and expected:
        return f"expected {' or '.join(map(_plain, expected))}, got {found[1]}"
    return None


def _plain(expected: str) -> str:
    plain = re.sub(r"<class '([\w.]+)'>", r"\1", expected).replace("NoneType", "null").replace("typing.", "")
    return plain.replace("collections.abc.Sequence", "a list")


def meant(name: str, value: str = "") -> str | None:
    """Say which option sets what an unknown option is known for elsewhere; None if unknown.

    >>> meant("rounds", "10")
    'the number of rounds is --trainer.max_epochs 10'
    """
    word = name.rpartition(".")[2].replace("-", "_")
    found = next((option for words, option in MEANT.items() if word in words.split()), None)
    return found and found.replace("{}", value and f" {value}")


def _like(name: str, known: Iterable[str], dashes: str = "--") -> str:
    if (last := name.rpartition(".")[2]) in GONE:
        return GONE[last]
    near = nearest(name, [each for each in known if not each.endswith(".help")])
    return f"did you mean {dashes}{near}?" if near else "--help lists what there is"


def _classes() -> set[str]:
    """Return the names of the classes that a config may name: of this package, and of Lightning's and PyTorch's kinds.

    The kinds are told by their names: other messages need not wait seconds for the imports.
    """
    found = _imported()
    kinds = {cls for cls in found if any(base.__name__ in NAMEABLE for base in cls.__mro__)}
    ours = {cls for cls in found if str(cls.__module__).startswith("fl_lightning.")}
    return {cls.__name__ for cls in kinds | ours}


def _imported() -> set[type]:
    """Return all classes of the process."""
    found, new = set[type](), {object}
    while new:
        found |= new
        new = {each for cls in new for each in type.__subclasses__(cls)} - found
    return found
