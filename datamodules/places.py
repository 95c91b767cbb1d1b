"""The folders in which published data sets are looked for if no folder is named."""

import os
from pathlib import Path

from fl_lightning.datamodules.cache import CACHE, cache_folder

VARIABLE = "FL_LIGHTNING_DATA"


def data_folder() -> Path:
    """Return the folder that downloads go to: ``$FL_LIGHTNING_DATA``, else ``data`` beside the cached images.

    Downloads can be made again, like the cached images, so both lie in the user's cache, as PyTorch's and Hugging
    Face's downloads do.
    """
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser().absolute() if named else cache_folder(CACHE) / "data"


def data_folders() -> list[Path]:
    """Return the folders to look in, in this order: ``data`` in the working directory, and the data folder.

    If ``$FL_LIGHTNING_DATA`` is set, the data folder that the variable names comes first.
    """
    local = Path("data").absolute()
    return [data_folder(), local] if os.environ.get(VARIABLE) else [local, data_folder()]
