"""The arguments of commands, read before torch and Lightning are imported, which takes seconds."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from fl_lightning.commands import CommandParser
from fl_lightning.errors import ConfigurationError

EXPORT = (
    "Write the global model of a run to a file. The file's suffix decides the format. .ckpt: a Lightning checkpoint of "
    "the client module, for MyModule.load_from_checkpoint; .safetensors or .pt: the module's state_dict; .pt2: the "
    "program of the module's forward, which torch.export traces on the module's example_input_array or on a validation "
    "batch of the run."
)


def whole_number(name: str, text: str) -> int:
    """Read a whole number of at least 1; ``name`` is what gave the text, for the message."""
    if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        raise ConfigurationError(f"{name}: expected a whole number of at least 1, got {text}: give up to 9 digits")
    return int(text)


def export_arguments(args: Sequence[str]) -> argparse.Namespace:
    """Parse ``export …``."""
    parser = CommandParser("fl-lightning export", description=EXPORT, allow_abbrev=False)
    parser.add_argument("run", help="a checkpoint of a run, or a run folder: its best.ckpt, else its last.ckpt")
    parser.add_argument("--out", required=True, help="file to write: model.ckpt, .safetensors, .pt or .pt2")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    return parser.parse_args(args[1:])
