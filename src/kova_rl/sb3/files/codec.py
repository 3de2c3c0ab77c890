"""Values as JSON and arrays, and back to the bit. Decoding makes what the registry names, and runs no code.

A value that JSON has no word for is ``{"!": tag, ...}``; arrays and tensors stand in a list beside it.
"""

from __future__ import annotations

import math
import pathlib
import struct
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kova_rl.sb3 import registry
from kova_rl.sb3.files import makers

__all__ = ["Encoder", "decode", "encode"]

Array = NDArray[Any]
MARK = "!"


def encode(value: Any, path: str = "value") -> tuple[Any, list[Array]]:
    """A value as what ``json.dumps`` takes, and the arrays that it refers to.

    Raises:
        TypeError: There is something that a file of ours can't hold; says where, and what to do.
    """
    encoder = Encoder()
    return encoder(value, path), encoder.arrays


class Encoder:
    """Encodes values that share one list of arrays; a tensor that comes again is stored once."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._seen: dict[Any, tuple[dict[str, Any], Tensor]] = {}

    def __call__(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return value
        if kind is list:
            return self._items(value, path)
        if kind is dict and MARK not in value and all(type(key) is str for key in value):
            return {key: self(item, f"{path}.{key}") for key, item in value.items()}
        for part in (self._container, self._number, self._torch, self._named):
            found = part(value, path)
            if found is not None:
                return found
        raise _refusal(value, path)

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self(item, f"{path}[{i}]") for i, item in enumerate(values)]

    def _container(self, value: Any, path: str) -> dict[str, Any] | None:
        kind = type(value)
        if kind in (dict, OrderedDict):
            pairs = [[self(key, f"{path} (key)"), self(item, f"{path}.{key}")] for key, item in value.items()]
            return {MARK: "dict", "ordered": kind is OrderedDict, "pairs": pairs}
        if kind is tuple:
            return {MARK: "tuple", "items": self._items(value, path)}
        if kind is deque:
            return {MARK: "deque", "items": self._items(value, path), "maxlen": value.maxlen}
        return None

    def _number(self, value: Any, path: str) -> dict[str, Any] | None:
        if type(value) is float:
            return {MARK: "float", "bits": struct.pack(">d", value).hex()}
        if isinstance(value, np.generic) and value.dtype.kind in "biufcMm":
            return {MARK: "scalar", "dtype": value.dtype.str, "bits": value.tobytes().hex()}
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return {MARK: "array", "at": self._stored(value)}
        if isinstance(value, np.dtype) and value.kind in "biufcMmSU":
            return {MARK: "numpy dtype", "name": value.str}
        if (
            isinstance(value, np.random.Generator)
            and type(value.bit_generator).__name__ in makers.BIT_GENERATORS
        ):
            return {MARK: "generator", "state": self(value.bit_generator.state, path)}
        if type(value) is np.random.RandomState:
            return {MARK: "random state", "state": self(value.get_state(legacy=False), path)}
        return None

    def _torch(self, value: Any, path: str) -> dict[str, Any] | None:
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized:
            return self._tensor(value)
        if isinstance(value, torch.dtype):
            return {MARK: "dtype", "name": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {MARK: "device", "name": str(value)}
        if isinstance(value, torch.Size):
            return {MARK: "size", "items": list(value)}
        return None

    def _tensor(self, value: Tensor) -> dict[str, Any]:
        where = (value.data_ptr(), value.shape, value.stride(), value.dtype, value.device)
        if value.numel() and where in self._seen:
            return self._seen[where][0]
        order = sorted(range(value.ndim), key=lambda dim: -value.stride()[dim])
        plain = value.detach().cpu().resolve_conj().resolve_neg().permute(order).contiguous()
        dtype = str(plain.dtype).removeprefix("torch.")
        try:
            at = self._stored(plain.numpy())
        except TypeError:  # bfloat16, and others that NumPy has not
            at = self._stored(plain.reshape(-1).view(torch.uint8).numpy())
        found = {MARK: "tensor", "at": at, "dtype": dtype, "shape": list(plain.shape), "order": order}
        self._seen[where] = found, value  # the tensor is kept, so that its address stays its own
        return found

    def _named(self, value: Any, path: str) -> dict[str, Any] | None:
        if isinstance(value, type):
            if issubclass(value, np.generic) and np.dtype(value).type is value and value is not np.object_:
                return {MARK: "numpy type", "name": np.dtype(value).str}
            name = registry.name_of(value)
            return None if name is None else {MARK: "class", "name": name}
        if isinstance(value, pathlib.Path):
            return {MARK: "path", "name": str(value)}
        state = registry.state_of(value)
        if state is None:
            return None
        fields = {name: self(item, f"{path}.{name}") for name, item in state.items()}
        return {MARK: "object", "class": registry.name_of(type(value)), "state": fields}

    def _stored(self, array: Array) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1


def _refusal(value: Any, path: str) -> TypeError:
    kind = f"class {value.__name__}" if isinstance(value, type) else type(value).__name__
    first = path.split(".")[0].split("[")[0]
    return TypeError(
        f"{path} is of type {kind}, which a file without code can't hold: pass it to "
        f"load(path, custom_objects={{{first!r}: ...}}), or kova_rl.sb3.registry.register(name, cls) "
        "before save and before load"
    )


def decode(coded: Any, arrays: list[Array]) -> Any:
    """The value that :func:`encode` was given, its tensors on the CPU.

    Raises:
        ValueError: It is not what :func:`encode` gives, or names a class that is not registered.
    """
    try:
        return _decode(coded, arrays)
    except ValueError:
        raise
    except (
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        OverflowError,
        RuntimeError,
        struct.error,
    ) as error:
        raise ValueError(f"the file is damaged ({type(error).__name__}: {error})") from None


def _decode(coded: Any, arrays: list[Array]) -> Any:
    if isinstance(coded, list):
        return [_decode(item, arrays) for item in coded]
    if not isinstance(coded, dict):
        return coded
    if MARK not in coded:
        return {key: _decode(item, arrays) for key, item in coded.items()}
    tag = coded[MARK]
    if tag in ("array", "tensor"):
        array = arrays[coded["at"]]
        if tag == "array":
            return array
        return makers.tensor(array, coded["dtype"], coded["shape"], coded["order"])
    if tag not in makers.MAKERS:
        raise ValueError(f"the file has a value of the kind {tag!r}, which this version does not know")
    fields = {key: _decode(item, arrays) for key, item in coded.items() if key != MARK}
    return makers.MAKERS[tag](**fields)
