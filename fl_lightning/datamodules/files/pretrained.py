"""Functions that read pretrained language models: from folders, from the cache of transformers, from the hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.datamodules.files.hub import cache_alone, is_reached
from fl_lightning.errors import ConfigurationError


def import_transformers() -> Any:
    """Import transformers, which takes a second.

    Raises:
        ConfigurationError: transformers is not installed.
    """
    try:
        return import_module("transformers")
    except ImportError:
        raise ConfigurationError("language models need transformers: pip install 'fl-lightning[text]'") from None


def read_pretrained(reader: str, name: str, **settings: Any) -> Any:
    """Read a part of a pretrained model. What is in a folder or in the cache needs no network.

    Args:
        reader: class of transformers that reads the part, such as ``AutoTokenizer``.
        name: folder that ``save_pretrained`` wrote, or the model's name on the hub.
        settings: further arguments of the reader.

    Raises:
        ConfigurationError: transformers is not installed, or there is no such model here, and the hub has none or has
            not answered within 10 s.
    """
    transformers = import_transformers()
    hub = import_module("huggingface_hub").constants
    place = Path(name).expanduser()
    source = str(place) if place.exists() else name
    read = partial(getattr(transformers, reader).from_pretrained, source, **settings)
    reason = ""
    try:
        with silent(transformers):
            try:
                with cache_alone(hub):  # some of the readers ask the hub even so, again and again
                    return read(local_files_only=True)
            except OSError:
                if place.exists():
                    raise
                if hub.HF_HUB_OFFLINE or not is_reached(hub.ENDPOINT):
                    reason = "no such folder here, and no answer from the hub"
                    raise
                return read(local_files_only=False)
    except Exception as error:  # of many classes
        raise ConfigurationError(
            f"expected a folder that save_pretrained wrote, or a model's name on the hub, got {name}: "
            f"{reason or one_line(error)}"
        ) from None


@contextmanager
def silent(transformers: Any) -> Iterator[None]:
    """Keep transformers from writing what an error says again, and from bars for what takes a moment."""
    logging = transformers.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def one_line(error: Exception) -> str:
    """Return the beginning of what a library's error says, in one line."""
    return " ".join(str(error).split())[:160]
