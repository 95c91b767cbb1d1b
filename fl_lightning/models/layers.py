"""Functions that find the classifier of a network, or a layer by its name."""

from typing import Any

from torch import nn

from fl_lightning.errors import ConfigurationError, most_similar

TIMM = ("forward_features", "forward_head", "get_classifier")


def find_classifier(module: nn.Module) -> nn.Module | None:
    """Find the layer that turns features into class scores.

    The layer is timm's classifier if the module holds exactly one timm network and the classifier is a single layer
    (not nn.Identity), else the last nn.Linear in the order of ``modules()``.

    >>> from torch import nn
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
    >>> find_classifier(network)
    Linear(in_features=16, out_features=10, bias=True)

    Args:
        module: network, or a module that contains one.

    Returns:
        The layer; None if there is neither a timm classifier nor an nn.Linear.
    """
    networks: list[Any] = [part for part in module.modules() if all(hasattr(part, name) for name in TIMM)]
    if len(networks) == 1:
        classifier = networks[0].get_classifier()
        is_layer = isinstance(classifier, nn.Module)  # distilled networks return a tuple
        if is_layer and not isinstance(classifier, nn.Identity):
            return classifier  # type: ignore[no-any-return]  # timm's, see above
    return next((part for part in reversed([*module.modules()]) if isinstance(part, nn.Linear)), None)


def find_layer(module: nn.Module, name: str) -> nn.Module:
    """Return the submodule that ``named_modules()`` lists under ``name``.

    Raises:
        ConfigurationError: the module has no submodule of that name.
    """
    parts: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if name not in parts:
        names = [part for part in parts if part]
        near = most_similar(name, names, 3, cutoff=0.4) or names[:8]
        raise ConfigurationError(
            f"layer must name a submodule of {type(module).__name__}, got {name!r}; similar names: {', '.join(near)}"
        )
    return parts[name]
