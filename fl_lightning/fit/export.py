"""``fl-lightning export RUN --out FILE``: write the global model of a run to a file that needs no fl-lightning."""

from __future__ import annotations

from collections.abc import Sequence

from fl_lightning.fit.arguments import export_arguments
from fl_lightning.runs.export import export


def command(args: Sequence[str]) -> int:
    """Run ``export …`` and return the exit status, 0."""
    options = export_arguments(args)
    export(options.run, options.out, overwrite=options.overwrite)
    print(f"model: {options.out}")
    return 0
