"""Functions that read the splits of a Hugging Face data set: from folders, from single files, from the hub."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.datamodules.files.download import AnsweredError, answer
from fl_lightning.errors import ConfigurationError

LOADERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv", ".txt": "text"}  # of datasets
KINDS = "parquet, jsonl, json, csv or txt"


def read_splits(path: str, subset: str | None) -> Mapping[str, Any]:
    """Read the data sets of a folder, a file, or the hub's data set of a name, by the names of their splits.

    Args:
        path: folder that ``save_to_disk`` wrote; folder with the files of each split, as the hub keeps them; file, of
            the kind that its suffix says (``LOADERS``), parquet by default; or, if there is no such path, the name on
            the hub.
        subset: name of the part of the data set to read, for data sets with several; None for those with one.

    Raises:
        ConfigurationError: ``datasets`` is not installed, there is no such data set, it cannot be read, or the hub has
            not answered within 10 s and the data set is not in the cache of ``datasets``.
    """
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise ConfigurationError(
            "reading a Hugging Face data set needs datasets: pip install 'fl-lightning[huggingface]'"
        ) from None
    place = Path(path).expanduser().absolute()
    if place.exists():
        saved = _read_local(datasets, place, subset)
    elif path.count("/") == 1 and not path.startswith((".", "~", "/")):
        saved = _read_hub(datasets, path, subset)
    else:
        raise ConfigurationError(
            f"expected a folder, a file ({KINDS}), or a name on the hub (owner/name), got {place}, which does not "
            "exist: point train to one of these"
        )
    splits: Mapping[str, Any] = saved if isinstance(saved, Mapping) else {"train": saved}
    if "train" not in splits:
        raise ConfigurationError(f"expected a split train in {path}, got {', '.join(splits)}: rename a split")
    return splits


def parquet_features(path: str, subset: str | None) -> dict[str, Any]:
    """Read what each parquet file of a local folder says of its columns, by the file's path.

    The library takes all files of a folder to have the columns of the first, also where their classes have other names.

    Args:
        path: as for :func:`read_splits`, which has read it.
        subset: as for :func:`read_splits`.
    """
    datasets = import_module("datasets")
    place = Path(path).expanduser().absolute()
    if not place.is_dir() or _is_saved(place):
        return {}
    with _silent(datasets, bars=False):
        config = datasets.load_dataset_builder(str(place), subset).config
    found = {}
    for files in (config.data_files or {}).values():
        for file in files:
            if str(file).endswith(".parquet"):
                schema = import_module("pyarrow.parquet").read_schema(file)
                found[str(file)] = datasets.Features.from_arrow_schema(schema)
    return found


def _is_saved(place: Path) -> bool:
    """Tell whether ``save_to_disk`` wrote a folder."""
    return (place / "dataset_dict.json").exists() or (place / "state.json").exists()


def _read_local(datasets: Any, place: Path, subset: str | None) -> Any:
    try:
        with _silent(datasets, bars=False):
            if _is_saved(place):
                return datasets.load_from_disk(str(place))
            if place.is_file():
                loader = LOADERS.get(place.suffix.lower(), "parquet")
                return datasets.load_dataset(loader, data_files={"train": str(place)})
            return datasets.load_dataset(str(place), subset)
    except Exception as error:  # of many classes, of datasets and of pyarrow
        raise ConfigurationError(
            f"expected a folder that save_to_disk wrote, or files ({KINDS}), in {place}, got {_reason(error)!r}: point "
            "train to such a folder or file, or write a damaged one again"
        ) from None


def _read_hub(datasets: Any, name: str, subset: str | None) -> Any:
    with hub_or_cache(datasets.config, datasets.config.HF_ENDPOINT) as reached:
        try:
            with _silent(datasets, bars=True):
                return datasets.load_dataset(name, subset)
        except Exception as error:  # of many classes
            reason = _reason(error) if reached else "no answer from the hub"
            raise ConfigurationError(
                f"expected to read {name}, which is no file or folder here, from the hub, got {reason!r}: correct the "
                "name, or save the data set where there is a network, with save_to_disk, and point train to that folder"
            ) from None


@contextmanager
def hub_or_cache(settings: Any, hub: str) -> Iterator[bool]:
    """Let a library read what an earlier run has downloaded, at once, where the hub does not answer.

    Args:
        settings: module of the library with its switch ``HF_HUB_OFFLINE``.
        hub: address of the hub.

    Yields:
        Whether the hub answers.
    """
    reached = not settings.HF_HUB_OFFLINE and is_reached(hub)
    with cache_alone(settings) if not reached else nullcontext():
        yield reached


@contextmanager
def cache_alone(settings: Any) -> Iterator[None]:
    """Let a library read its cache alone; see :func:`hub_or_cache`."""
    offline = settings.HF_HUB_OFFLINE
    settings.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        settings.HF_HUB_OFFLINE = offline


def is_reached(hub: str) -> bool:
    """Tell whether the hub answers within 10 s; the library would try again for half a minute."""
    try:
        answer(hub).close()
    except AnsweredError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def _silent(datasets: Any, bars: bool) -> Iterator[None]:
    """Keep the library from writing what the error says again, and from showing bars for what takes a moment."""
    level, shown = datasets.logging.get_verbosity(), datasets.is_progress_bar_enabled()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if not bars:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()


def _reason(error: Exception) -> str:
    """Return what an error, or the one behind it, says in one line."""
    reason = error.__cause__ or error
    return " ".join(str(reason).split())[:100] or type(reason).__name__
