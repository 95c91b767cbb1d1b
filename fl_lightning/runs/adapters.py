"""Adapters out of a module: as the folder that peft loads, or merged into a model that transformers or timm load."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import save_file
from torch import Tensor, nn

from fl_lightning.engine.hosting.adapted import TENSORS, adapted_layers, adapted_network, is_of, quantized_layers
from fl_lightning.errors import ConfigurationError

MADE_WITH = "made_with"  # attribute in which TimmNetwork notes timm's arguments
PREFIX = "base_model.model."  # of the names of an adapter's tensors
# peft's words for tasks, and transformers' lists of the classes for these.
TASKS = {
    "CAUSAL_LM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "SEQ_CLS": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
}


def write_adapter(module: nn.Module, base: Mapping[str, Tensor], folder: Path) -> None:
    """Write the adapter of a module as peft does, for ``PeftModel.from_pretrained(base model, folder)``.

    Modules beside the adapters that train whole, such as the head of a classifier, are peft's ``modules_to_save``.

    Args:
        module: the trained client module.
        base: the state of the module as it was made, before a run has given it values.
        folder: folder to write, which exists.

    Raises:
        ConfigurationError: the module has no adapters, its frozen weights are of no pretrained model or are no longer
            those of that model, or a part of a layer with adapters trains whole.
    """
    from peft import get_peft_model_state_dict

    network = adapted_network(module)
    if len(network.peft_config) > 1:
        raise ConfigurationError(f"export: expected one adapter, got {', '.join(network.peft_config)}: write a .ckpt")
    source = _name_of(network)
    _check_base(module, base, source or "its pretrained model")
    plain = _trained_whole(network)
    (config,) = (copy.copy(config) for config in network.peft_config.values())
    config.base_model_name_or_path, config.inference_mode = source, True
    config.modules_to_save = plain or config.modules_to_save
    config.task_type = _task_of(network)
    tensors = dict(get_peft_model_state_dict(network))
    for part in plain:
        tensors |= {f"{part}.{own}": value for own, value in network.get_submodule(part).state_dict().items()}
    copies = {f"{PREFIX}{key.removeprefix(PREFIX)}": value.contiguous().clone() for key, value in tensors.items()}
    save_file(copies, folder / TENSORS, metadata={"format": "pt"})
    config.save_pretrained(folder)


def write_merged(module: nn.Module, tokenizer: str | None, folder: Path) -> None:
    """Add the adapters of a module, if it has some, to its weights, in place, and write the whole model.

    transformers loads the folder by ``from_pretrained``, timm by ``create_model("local-dir:FOLDER")``.

    Args:
        module: the trained client module, which is changed.
        tokenizer: folder or name on the hub of the tokenizer that belongs to the model; None for none.
        folder: folder to write, which exists.

    Raises:
        ConfigurationError: the module has no one network of transformers or of :class:`TimmNetwork`, or its weights are
            quantised.
    """
    if any(quantized_layers(module)):
        raise ConfigurationError(
            "export: the frozen weights are of 4 or 8 bits, into which no adapter fits without loss: write it by "
            "--adapter DIR, and merge it into the model as it was saved, by peft's "
            "AutoPeftModelForCausalLM.from_pretrained(DIR).merge_and_unload()"
        )
    has_adapters = any(adapted_layers(module))
    network: Any = adapted_network(module) if has_adapters else _library_network(module)
    if is_of(network, "peft", "PeftModel"):
        network = network.merge_and_unload(safe_merge=True)
    for name, layer in [*adapted_layers(network)][::-1]:
        layer.merge(safe_merge=True)
        network.set_submodule(name, layer.get_base_layer())
    if _is_of_transformers(network):
        network.config = getattr(network, "config_as_made", network.config)
        network.save_pretrained(folder)
        if tokenizer is not None:
            from transformers import AutoTokenizer

            AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
        else:
            rank_zero_info(f"{folder} has no tokenizer: the run's data name none")
    elif hasattr(network, MADE_WITH):
        from timm.models import save_for_hf

        save_for_hf(network, str(folder), model_args=getattr(network, MADE_WITH), safe_serialization=True)
    else:
        raise ConfigurationError(
            f"export: {type(network).__name__} is no network of transformers or of TimmNetwork: write a .safetensors, "
            "with the weights and the adapters beside each other"
        )


def _library_network(module: nn.Module) -> nn.Module:
    """Find the one network of transformers or of :class:`TimmNetwork`; the module itself if there is none."""
    found = [part for part in module.modules() if _is_of_transformers(part) or hasattr(part, MADE_WITH)]
    return found[0] if found else module  # the outermost comes first


def _is_of_transformers(network: object) -> bool:
    return is_of(network, "transformers", "PreTrainedModel")


def _name_of(network: Any) -> str | None:
    """Return the name on the hub, or the folder, of a network's pretrained model, if the network knows it."""
    (config, *_) = network.peft_config.values()
    of_timm: Any = getattr(network, "pretrained_cfg", None) or {}
    return getattr(network, "name_or_path", "") or config.base_model_name_or_path or of_timm.get("hf_hub_id")


def _task_of(network: Any) -> str | None:
    """Return peft's word for what a network of transformers is made for; None for other networks."""
    lists: Any = sys.modules.get("transformers.models.auto.modeling_auto")
    for task, classes in TASKS.items():
        if lists is not None and type(network).__name__ in getattr(lists, classes).values():
            return task
    return None


def _check_base(module: nn.Module, base: Mapping[str, Tensor], source: str) -> None:
    """Refuse frozen weights that are not those of a pretrained model: the adapter would lack the difference."""
    elsewhere = set(getattr(module, "from_elsewhere", ()))
    trained = {name for name, own in module.named_parameters() if own.requires_grad}
    adapters = {f"{name}.{own}" for name, layer in adapted_layers(module) for own in _own_of(layer)}
    for name, _ in module.named_parameters():
        if name not in trained | adapters | elsewhere:
            raise ConfigurationError(
                f"export: {name} is frozen, and of no pretrained model, so that an adapter would have no base: --merge "
                "DIR writes all weights; a module of your own that loads weights names these in from_elsewhere"
            )
    for name, value in nn.Module.state_dict(module).items():
        if name not in trained | adapters and isinstance(value, Tensor) and not torch.equal(value, base[name]):
            raise ConfigurationError(
                f"export: {name} is frozen, and not as in {source}, as after FedExLoRA or with init_from: an adapter "
                "alone would give other outputs; --merge DIR writes all weights"
            )


def _own_of(layer: Any) -> Iterator[str]:
    """Yield the names of an adapter's own tensors within the layer around which it stands."""
    for name in layer.state_dict():
        if not name.startswith("base_layer."):
            yield name


def _trained_whole(network: nn.Module) -> list[str]:
    """Name the modules without adapters of which all parameters train, the outermost first."""
    layers = dict(adapted_layers(network))
    kept = [part for part in network.modules() if is_of(part, "peft.utils.other", "AuxiliaryTrainingWrapper")]
    inside = {id(own) for part in (*layers.values(), *kept) for own in part.parameters()}
    rest = {id(own) for own in network.parameters() if own.requires_grad} - inside
    chosen = list[str]()
    for name, part in network.named_modules():
        own = {id(parameter) for parameter in part.parameters()}
        if name and own and own <= rest:
            chosen.append(name)
            rest -= own
    for layer, part in layers.items():
        for name, own in part.get_base_layer().named_parameters():
            if own.requires_grad:
                raise ConfigurationError(
                    f"export: {name} of {layer} trains beside the layer's adapter, which peft does not save: --merge "
                    "DIR writes all weights"
                )
    if rest:
        names = [name for name, own in network.named_parameters() if id(own) in rest]
        raise ConfigurationError(
            f"export: {names[0]} trains, and other parts of its module are frozen, which peft does not save: --merge "
            "DIR writes all weights"
        )
    return chosen
