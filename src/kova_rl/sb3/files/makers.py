"""How each kind of value in a file is made again; checks what names one before it is used."""

from __future__ import annotations

import pathlib
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kova_rl.sb3 import registry

__all__ = ["BIT_GENERATORS", "MAKERS", "tensor"]

BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def tensor(array: NDArray[Any], dtype: str, shape: list[int], order: list[int]) -> Tensor:
    """A tensor from its array, or from its bytes if NumPy has no such dtype.

    Args:
        array: The elements as they lay in memory.
        dtype: The tensor's.
        shape: The array's.
        order: The tensor's dimensions, from the outermost in memory to the innermost.
    """
    wanted, plain = _dtype(dtype), torch.from_numpy(array)
    if not array.size:
        plain = torch.empty(shape, dtype=wanted)
    elif plain.dtype != wanted:
        plain = plain.reshape(-1).view(wanted)
    return plain.reshape(shape).permute([order.index(dim) for dim in range(len(order))])


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"the file names the dtype {name!r}, which torch has not")
    return found


def _plain(name: str) -> np.dtype[Any]:
    found = np.dtype(name)
    if found.hasobject:
        raise ValueError(f"the file names the dtype {name!r}, which it may not hold")
    return found


def _generator(state: dict[str, Any]) -> np.random.Generator:
    name = state["bit_generator"]
    if name not in BIT_GENERATORS:
        raise ValueError(f"the file names the bit generator {name!r}, expected {', '.join(BIT_GENERATORS)}")
    bits = getattr(np.random, name)(0)
    bits.state = state
    return np.random.Generator(bits)


def _random_state(state: dict[str, Any]) -> np.random.RandomState:
    found = np.random.RandomState(0)
    found.set_state(state)
    return found


MAKERS: dict[str, Callable[..., Any]] = {
    "dict": lambda ordered, pairs: (OrderedDict if ordered else dict)((key, item) for key, item in pairs),
    "tuple": lambda items: tuple(items),
    "deque": lambda items, maxlen: deque(items, maxlen),
    "float": lambda bits: struct.unpack(">d", bytes.fromhex(bits))[0],
    "scalar": lambda dtype, bits: np.frombuffer(bytes.fromhex(bits), _plain(dtype))[0],
    "numpy dtype": _plain,
    "numpy type": lambda name: _plain(name).type,
    "generator": _generator,
    "random state": _random_state,
    "dtype": _dtype,
    "device": lambda name: torch.device(name),
    "size": lambda items: torch.Size(items),
    "class": registry.class_named,
    "path": lambda name: pathlib.Path(name),
    "object": lambda state, **named: registry.rebuilt(registry.class_named(named["class"]), state),
}
