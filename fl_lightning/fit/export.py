"""``fl-lightning export RUN --out FILE``: write the global model of a run to a file that needs no fl-lightning."""

from __future__ import annotations

from collections.abc import Sequence

from fl_lightning.fit.messages import CommandParser
from fl_lightning.runs.export import export

ABOUT = (
    "Write the global model of a run to a file. The suffix decides what: .ckpt a Lightning checkpoint of the client "
    "module, for MyModule.load_from_checkpoint; .safetensors or .pt its state_dict; .pt2 the program of its forward, "
    "by torch.export, with the module's example_input_array or a validation batch of the run as example."
)


def command(args: Sequence[str]) -> int:
    """Run ``export …`` and return the exit status, 0."""
    options = _parser().parse_args(args[1:])
    export(options.run, options.out, overwrite=options.overwrite)
    print(f"model: {options.out}")
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("fl-lightning export", description=ABOUT, allow_abbrev=False)
    parser.add_argument("run", help="a checkpoint of a run, or a run folder: its best.ckpt, else its last.ckpt")
    parser.add_argument("--out", required=True, help="the file: model.ckpt, .safetensors, .pt or .pt2")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    return parser
