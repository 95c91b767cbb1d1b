"""Take the client module out of a run: as a plain Lightning checkpoint, a state_dict or an exported program."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from pydoc import locate
from typing import Any, Literal, TypeVar

import safetensors.torch
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import instantiate_module
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.hosting.initial import start_from
from fl_lightning.engine.hosting.saving import LEFT_OUT, check_state, fill_in, own_names
from fl_lightning.engine.validation import evaluating
from fl_lightning.errors import ConfigurationError
from fl_lightning.files import whole, whole_folder
from fl_lightning.runs.adapters import write_adapter, write_merged
from fl_lightning.runs.folder.checkpoints import checkpoint_of, read_checkpoint, run_of
from fl_lightning.runs.folder.files import NOT_RECORDED, SITES, read_mapping
from fl_lightning.seeding import isolated, seed_globals

SUFFIXES = (".ckpt", ".safetensors", ".pt", ".pt2")
# Entries of a run's checkpoint that a module alone has no use for.
OF_THE_RUN = {"loops", "callbacks", "optimizer_states", "lr_schedulers"}
OF_THE_RUN |= {"rounds_done", "rounds_before", "clients_at_once", "server_settings", "memory_orders", "trainer_metrics"}
OF_THE_RUN |= {"current_model_state", "averaging_state"}  # Lightning's weight averaging; state_dict holds the average
HYPER_PARAMETERS = LightningModule.CHECKPOINT_HYPER_PARAMS_KEY
NAME = LightningModule.CHECKPOINT_HYPER_PARAMS_NAME
PACKAGE = "fl_lightning."  # whose classes are looked at; of others, nothing is imported for a line
Made = TypeVar("Made", LightningModule, LightningDataModule)


def export(
    checkpoint: str | Path,
    out: str | Path,
    module: LightningModule | None = None,
    example: Any = None,
    overwrite: bool = False,
    form: Literal["model", "adapter", "merged"] = "model",
) -> None:
    """Write the global model of a run to a file, or a folder, that needs no fl-lightning.

    The suffix of the file decides what is written:

    - ``.ckpt``: a Lightning checkpoint of the client module, for ``MyModule.load_from_checkpoint(out)``. It holds the
      hyper-parameters that the module saved, and all other arguments from the run's config.yaml.
    - ``.safetensors``, ``.pt``: the module's state_dict. Tensors that layers share are written once for each name. What
      the checkpoint leaves out, such as a frozen backbone, comes from ``module``, or from the run's ``init_from``.
    - ``.pt2``: the program of the module's ``forward`` in evaluation mode, by ``torch.export``, for batches of any size
      if the example's size is 2 or more.

    The form ``adapter`` is a folder for ``PeftModel.from_pretrained(base model, out)``, ``merged`` a folder with the
    whole model, its adapters added to its weights, for transformers' ``from_pretrained`` or timm's
    ``create_model("local-dir:FOLDER")``.

    How the run's data module scales inputs, and which class an output stands for, is in none of them: a line says it.

    Args:
        checkpoint: a run folder, which stands for its best checkpoint, or else its last; or a checkpoint of a run.
        out: the file to write; a folder for an adapter or a merged model.
        module: a client module, which is given the checkpoint's tensors. Needed for ``.pt2`` if the run is from
            Python, and so has no config to make the module from.
        example: inputs of ``forward`` for ``.pt2``: a tensor, a tuple of positional arguments or a dict of keyword
            arguments; by default the module's ``example_input_array``, or the first element of a validation batch.
        overwrite: whether to replace an existing file or folder.
        form: whether to write the model, its adapter alone, or the model with its adapters added to its weights.

    Raises:
        ConfigurationError: ``out`` has another suffix or exists, ``checkpoint`` is not from a federated run, or the
            module cannot be made or exported; there is no adapter, or an adapter alone would not be the model.
    """
    from fl_lightning.runs.reader import Run  # imports pandas, which takes a while

    out = Path(out)
    path = checkpoint_of(Path(checkpoint))
    if form == "model" and out.suffix not in SUFFIXES:
        raise ConfigurationError(f"export: the file must end in {', '.join(SUFFIXES)}, got {out}")
    if out.exists() and not overwrite:
        raise ConfigurationError(f"export: {out} exists: give another name, or --overwrite")
    content = read_checkpoint(path, "export")
    folder = run_of(path)
    config = Run(folder).config if folder else {}
    config = {} if NOT_RECORDED in config else config  # of a run from Python, which has no arguments to rely on
    plain = _plain(content, config)
    if form != "model":
        _write_folder(out, form, module or _make_module(config, path), plain, config)
        return
    needs = _needs(folder, config.get("data") or {}) if folder and config else []
    program = None
    if plain.get(LEFT_OUT) or out.suffix == ".pt2" or (out.suffix != ".ckpt" and (module or _init_from(config))):
        module = _load_values(module or _make_module(config, path), plain, config)
        plain["state_dict"] = nn.Module.state_dict(module)
    if out.suffix == ".pt2" and module:
        program = _program(module, _example(module, config) if example is None else example)
    try:
        with whole(out) as part:
            _write(part, out.suffix, plain, program)
    except OSError as error:
        raise ConfigurationError(f"export: {out} cannot be written: {error}") from None
    if out.suffix == ".ckpt" and not config:
        names = ", ".join(plain.get(HYPER_PARAMETERS, ())) or "none"
        rank_zero_info(f"{out}: hyper-parameters inside: {names}; pass all other arguments to load_from_checkpoint")
    if needs:
        rank_zero_info(f"not in {out}, as it is the data module's: {'; '.join(needs)}")


def _write_folder(
    out: Path,
    form: Literal["adapter", "merged"],
    module: LightningModule,
    plain: dict[str, Any],
    config: Mapping[str, Any],
) -> None:
    """Write the adapter of a module, or the module with its adapters merged, as a folder that is whole or not there."""
    module.configure_model()
    state = nn.Module.state_dict(module)
    base = {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
    module = _load_values(module, plain, config).eval()
    settings = (config.get("data") or {}).get("init_args") or {}
    with whole_folder(out) as part:
        if form == "adapter":
            write_adapter(module, base, part)
        else:
            write_merged(module, settings.get("tokenizer"), part)


def _write(path: Path, suffix: str, plain: Mapping[str, Any], program: torch.export.ExportedProgram | None) -> None:
    state = plain["state_dict"]
    if program is not None:
        with path.open("wb") as file:
            torch.export.save(program, file)
    elif suffix == ".safetensors":
        if others := [name for name, value in state.items() if not isinstance(value, Tensor)]:
            raise ConfigurationError(f"export: safetensors hold tensors only, and {others[0]} is not one: write a .pt")
        copies = {name: value.clone(memory_format=torch.contiguous_format) for name, value in state.items()}
        safetensors.torch.save_file(copies, path, metadata={"format": "pt"})
    else:
        torch.save(plain if suffix == ".ckpt" else state, path)


def _plain(content: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Make the checkpoint that the plain Trainer would have saved of the client module, without its training state.

    The arguments from config.yaml have the form in which LightningCLI saves them, so that ``load_from_checkpoint``
    makes networks, optimizers and the like from their class paths.
    """
    plain = {name: value for name, value in content.items() if name not in OF_THE_RUN}
    plain["state_dict"] = own_names(content["state_dict"])
    if config:
        whole_argument = plain.pop(NAME, None) not in (None, "kwargs")  # the module saved the content of one argument
        saved = {} if whole_argument else content.get(HYPER_PARAMETERS, {})
        plain[HYPER_PARAMETERS] = _arguments(_class_in(config, "model", "client")) | saved
        plain[HYPER_PARAMETERS]["_instantiator"] = f"{instantiate_module.__module__}.{instantiate_module.__name__}"
    return plain


def _needs(folder: Path, data: Mapping[str, Any]) -> list[str]:
    """Say what a user of the model needs besides it: how inputs are scaled, and the classes of its outputs.

    Args:
        folder: the run folder, which may hold what the sites of a federation have told.
        data: the data module in the run's config.
    """
    path = str(data.get("class_path"))
    settings = data.get("init_args") or {}
    facts = read_mapping(folder, SITES).get("facts")
    told = facts[0] if isinstance(facts, list) and facts and isinstance(facts[0], dict) else {}
    normalize = settings.get("normalize", True)
    scaling: Sequence[Any] = [settings.get("mean"), settings.get("std")]
    if None in scaling:
        scaling = told.get("scaling") or scaling
    if isinstance(normalize, list | tuple):
        scaling = normalize
    needs = []
    if normalize and None not in scaling:
        columns = settings.get("features") or told.get("columns")
        of_columns = f" of {', '.join(columns)}, in this order" if columns else ""
        needs.append(f"inputs are (x - mean) / std, with the mean {scaling[0]} and the std {scaling[1]}{of_columns}")
    elif settings.get("normalize"):
        needs.append("inputs are (x - mean) / std, with its mean and std")
    classes = settings.get("classes") or told.get("class_names")
    if classes:
        needs.append(f"outputs are of the classes {', '.join(map(str, classes))}, in this order")
    elif path.startswith(PACKAGE) and hasattr(locate(path), "class_names"):
        needs.append("outputs for classes, if there are any, are in the order of its class_names")
    return needs


def _init_from(config: Mapping[str, Any]) -> str | None:
    return (config.get("model") or {}).get("init_from")


def _class_in(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Find the settings of a class in a run's config."""
    part: Any = config
    for name in names:
        part = part.get(name) or {}
    arguments = [part.get(name) or {} for name in ("init_args", "dict_kwargs")]
    are_mappings = all(isinstance(mapping, dict) for mapping in arguments)
    if not isinstance(part.get("class_path"), str) or not are_mappings:
        raise ConfigurationError(
            f"export: expected {'.'.join(names)} of the run's config.yaml to have a class_path, and perhaps init_args, "
            f"got {str(part)[:100]}: restore the file from a copy"
        )
    return dict(part)


def _arguments(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class in a config, in the form that Lightning's ``instantiate_module`` takes."""
    return {"_class_path": part["class_path"], **(part.get("init_args") or {}), **(part.get("dict_kwargs") or {})}


def _make(base: type[Made], part: Mapping[str, Any]) -> Made:
    name = str(part["class_path"])
    try:
        importlib.import_module(name.rpartition(".")[0])
        return instantiate_module(base, _arguments(part))
    except ConfigurationError:
        raise
    except Exception as error:  # whatever the user's class, or the parser, raises
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(
            f"export: {name} cannot be made from the run's config.yaml: {reason}; from Python, pass module and example"
        ) from error


def _make_module(config: Mapping[str, Any], path: Path) -> LightningModule:
    """Make the client module of a run as the run made it."""
    if not config:
        raise ConfigurationError(
            f"export: {path} is in no run folder with a config.yaml of the command line to make the module from: from "
            "Python, fl_lightning.export(checkpoint, out, module=MyModule(…))"
        )
    with isolated(torch.device("cpu")):
        seed_globals(int(config.get("seed_everything") or 0), torch.device("cpu"))
        return _make(LightningModule, _class_in(config, "model", "client"))


def _load_values(module: LightningModule, plain: dict[str, Any], config: Mapping[str, Any]) -> LightningModule:
    """Copy a checkpoint's tensors into a module, as ``load_from_checkpoint`` does; others get the values of the run."""
    module.configure_model()
    if (source := _init_from(config)) and (plain.get(LEFT_OUT) or not module.strict_loading):
        start_from(module, str(checkpoint_of(Path(source))))
    fill_in(plain, module)
    plain.pop(LEFT_OUT, None)
    plain = dict(plain)
    module.on_load_checkpoint(plain)
    if not is_overridden("load_state_dict", module, LightningModule):
        check_state(nn.Module.state_dict(module), plain["state_dict"], module.strict_loading)
    module.load_state_dict(plain["state_dict"], strict=module.strict_loading)
    return module


def _example(module: LightningModule, config: Mapping[str, Any]) -> Any:
    """Return the module's example input, or the first element of a validation batch of the run's data, on the CPU."""
    if module.example_input_array is not None:
        return module.example_input_array
    if not config:
        raise ConfigurationError("export: a program needs an example input: pass example, or set example_input_array")
    data: Any = _make(FederatedData, _class_in(config, "data"))
    data.prepare_data()
    data.setup("fit")
    loader = data.val_dataloader()
    batch = next(iter(loader[0] if isinstance(loader, list | tuple) else loader))
    for hook in ("on_before_batch_transfer", "on_after_batch_transfer"):
        owner = data if is_overridden(hook, data, LightningDataModule) else module
        batch = getattr(owner, hook)(batch, 0)
    return batch[0] if isinstance(batch, list | tuple) else batch


def _program(module: LightningModule, example: Any) -> torch.export.ExportedProgram:
    example = module.transfer_batch_to_device(example, module.device, 0)
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if isinstance(example, tuple):
        arguments = example
    elif isinstance(example, dict):
        keywords = example
    else:
        arguments = (example,)
    sizes: list[Any] = []
    for value in (*arguments, *keywords.values()):
        has_batches = isinstance(value, Tensor) and value.ndim > 0
        sizes.append({0: torch.export.Dim.AUTO} if has_batches else None)
    try:
        with evaluating(module), torch.no_grad(), redirect_stderr(StringIO()):  # torch prints half-made programs
            return torch.export.export(module, arguments, keywords, dynamic_shapes=sizes)
    except Exception as error:  # torch.export has a class of its own for most of what it cannot trace
        reason = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"export: {type(module).__name__}.forward cannot be exported ({type(error).__name__}: {reason}); check "
            "example_input_array, or write a .ckpt"
        ) from error
