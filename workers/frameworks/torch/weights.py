"""The weights of a network of ours in TensorFlow, taken into its namesake in PyTorch, and back.

They are arrays by path, as Keras has them: `{weight.path: weight.numpy() for weight in network.weights}`. The layers of
a kind are paired by the number in Keras' name for them, which says in which order they were made, and torch's order of
registration. A kernel is turned: height, width, channels, filters in Keras; filters, channels, height, width in torch.
The first dense layer after a flattening takes its numbers in another order, too: places, channels in Keras; channels,
places in torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from workers.contract.ranks import Fault

Array = np.ndarray[Any, np.dtype[np.float32]]

NORMALISING = {"gamma": "weight", "beta": "bias"}
MULTIPLYING = {"kernel": "weight", "bias": "bias"}
KINDS: dict[str, tuple[type[nn.Module], dict[str, str]]] = {  # Keras' names of a layer, without its number, and weights
    "conv2d": (nn.Conv2d, MULTIPLYING),
    "dense": (nn.Linear, MULTIPLYING),
    "group_normalization": (nn.GroupNorm, NORMALISING),
    "batch_normalization": (
        nn.BatchNorm2d,
        {**NORMALISING, "moving_mean": "running_mean", "moving_variance": "running_var"},
    ),
}
PATH = re.compile(rf"({'|'.join(KINDS)})(?:_([1-9]\d*))?/(\w+)")


class Counterpart(NamedTuple):
    """A weight of a network, by its path in Keras and its name in torch."""

    path: str
    name: str
    tensor: torch.Tensor
    places: int  # that each channel has in what a dense layer takes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that it has in Keras."""
        sides = tuple(self.tensor.shape)
        return (*sides[2:], sides[1], sides[0]) if len(sides) > 1 else sides


def take(network: nn.Module, weights: Mapping[str, Array]) -> None:
    """Give a network the weights of its namesake in TensorFlow; none of them, if not all fit."""
    pairs = _pairs(network, weights)
    for pair in pairs:
        given = np.asarray(weights[pair.path])
        if given.shape != pair.shape or given.dtype != np.float32:
            rule = f"{pair.name} takes {_sides(pair.shape)} numbers of float32"
            raise _mistake(rule, f"{pair.path} has {_sides(given.shape)} of {given.dtype}")
    with torch.no_grad():
        for pair in pairs:
            pair.tensor.copy_(torch.from_numpy(_turned(np.asarray(weights[pair.path]), pair.places)))


def give(network: nn.Module, paths: Iterable[str]) -> dict[str, Array]:
    """Return a network's weights by the paths of its namesake in TensorFlow, in the order of these."""
    paths = list(paths)
    found = {pair.path: _turned_back(pair.tensor.cpu().numpy(), pair.places) for pair in _pairs(network, paths)}
    return {path: found[path] for path in paths}


def _pairs(network: nn.Module, paths: Iterable[str]) -> list[Counterpart]:
    """Return every weight of a network with its path; each of both is there once."""
    layers = _layers(paths)
    pairs = []
    for kind, modules in _modules(network).items():
        _, names = KINDS[kind]
        numbers = sorted(layers.get(kind, {}))
        if len(numbers) != len(modules):
            rule = f"the network takes {len(modules)} layers that Keras calls {kind}"
            raise _mistake(rule, f"there are {len(numbers)}: {', '.join(_layer(kind, n) for n in numbers) or 'none'}")
        for number, (prefix, module, places) in zip(numbers, modules, strict=True):
            layer, tensors = _layer(kind, number), _tensors(module)
            wanted = [weight for weight, name in names.items() if name in tensors]
            if sorted(layers[kind][number]) != sorted(wanted):
                found = f"{layer} has {', '.join(sorted(layers[kind][number]))}"
                raise _mistake(f"{prefix} takes {', '.join(sorted(wanted))}", found)
            pairs += [
                Counterpart(f"{layer}/{weight}", f"{prefix}.{names[weight]}", tensors[names[weight]], places)
                for weight in wanted
            ]
    return pairs


def _layers(paths: Iterable[str]) -> dict[str, dict[int, list[str]]]:
    """Return the names of the weights of each layer, by its kind and number."""
    layers: dict[str, dict[int, list[str]]] = {}
    for path in paths:
        parts = PATH.fullmatch(path)
        if not parts:
            raise _mistake(f"a path names a layer ({', '.join(KINDS)}; _1, _2 …), / and its weight", f"there is {path}")
        kind, number, weight = parts.groups()
        layers.setdefault(kind, {}).setdefault(int(number or 0), []).append(weight)
    return layers


def _modules(network: nn.Module) -> dict[str, list[tuple[str, nn.Module, int]]]:
    """Return the modules with weights by kind, each with its name and the places that each channel has in its input."""
    modules: dict[str, list[tuple[str, nn.Module, int]]] = {kind: [] for kind in KINDS}
    channels, is_flattened = 0, False
    for name, module in network.named_modules():
        kind = next((kind for kind, (made, _) in KINDS.items() if isinstance(module, made)), None)
        places = 1
        if isinstance(module, nn.Conv2d):
            channels = module.out_channels
        elif isinstance(module, nn.Flatten):
            is_flattened = True
        elif isinstance(module, nn.Linear) and is_flattened:
            places, is_flattened = module.in_features // channels, False
        known = KINDS[kind][1].values() if kind else ()
        if strange := _tensors(module).keys() - known:
            rule = f"a network's weights are those of layers that Keras calls {', '.join(KINDS)}"
            raise _mistake(rule, f"{name or 'the network'} has {', '.join(sorted(strange))}")
        if kind:
            modules[kind].append((name, module, places))
    return modules


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return what a module itself saves, but for its count of batches, which Keras has not and nothing here reads."""
    saved = module.state_dict()
    return {name: saved[name] for name in saved if "." not in name and name != "num_batches_tracked"}


def _turned(array: Array, places: int) -> Array:
    """Return a weight of Keras' as torch has it."""
    if array.ndim == 4:
        array = array.transpose(3, 2, 0, 1)
    elif array.ndim == 2:
        array = array.reshape(places, -1, array.shape[1]).transpose(2, 1, 0).reshape(array.shape[::-1])
    return np.ascontiguousarray(array)


def _turned_back(array: Array, places: int) -> Array:
    """Return a weight of torch's as Keras has it."""
    if array.ndim == 4:
        array = array.transpose(2, 3, 1, 0)
    elif array.ndim == 2:
        array = array.reshape(array.shape[0], -1, places).transpose(2, 1, 0).reshape(array.shape[::-1])
    return array.copy()  # the network's own goes on changing


def _layer(kind: str, number: int) -> str:
    return f"{kind}_{number}" if number else kind


def _sides(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _mistake(rule: str, found: str) -> Fault:
    cure = "give all weights of the built-in network of the same name, image size and classes"
    return Fault("weights do not fit", f"{rule}, but {found}: {cure}")
