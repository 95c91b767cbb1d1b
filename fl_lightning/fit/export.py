"""``fl-lightning export RUN --out FILE``: write the global model of a run so that it needs no fl-lightning."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fl_lightning.commands import CommandParser

EXPORT = (
    "Write the global model of a run to a file. The file's suffix decides the format. .ckpt: a Lightning checkpoint of "
    "the client module, for MyModule.load_from_checkpoint; .safetensors or .pt: the module's state_dict; .pt2: the "
    "program of the module's forward, which torch.export traces on the module's example_input_array or on a validation "
    "batch of the run. --adapter and --merge write folders in place of a file, of models with adapters."
)


def arguments(args: Sequence[str]) -> Namespace:
    """Parse ``export …``."""
    parser = CommandParser("export", EXPORT)
    parser.add_argument("run", help="a checkpoint of a run, or a run folder: its best.ckpt, else its last.ckpt")
    forms = parser.add_mutually_exclusive_group(required=True)
    forms.add_argument("--out", metavar="FILE", help="file to write: model.ckpt, .safetensors, .pt or .pt2")
    forms.add_argument("--adapter", metavar="DIR", help="folder to write: the adapter, for PeftModel.from_pretrained")
    forms.add_argument(
        "--merge", metavar="DIR", help="folder to write: the whole model, for transformers' from_pretrained or timm"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file or the folder if it exists")
    return parser.parse_args(args[1:])


def command(args: Sequence[str]) -> int:
    """Run ``export …`` and return the exit status, 0."""
    # Imports torch, which takes seconds: after the arguments are checked.
    from fl_lightning.runs.export import export
    from fl_lightning.runs.folder.checkpoints import checkpoint_of

    options = arguments(args)
    form: Literal["model", "adapter", "merged"] = "model"
    if options.adapter:
        form = "adapter"
    elif options.merge:
        form = "merged"
    out = options.out or options.adapter or options.merge
    export(options.run, out, overwrite=options.overwrite, form=form)
    print(f"{form}: {out}, from {checkpoint_of(Path(options.run))}")
    return 0
