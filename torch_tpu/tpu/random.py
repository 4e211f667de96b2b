"""Random state: a seed and an offset per device, kept on the host."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from torch_tpu import _C

from .devices import _Device, _get_device_index


class _Generators:
    """`default_generators[i]`: the torch.Generator behind operations that are given none."""

    def __len__(self) -> int:
        return _C.device_count()

    def __getitem__(self, index: int) -> torch.Generator:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tpu devices")
        return _C.generator(index % len(self))

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[i] for i in range(len(self)))


default_generators = _Generators()


def _manual_seed_on(seed: int, index: int) -> None:
    seed = int(seed)
    _C.generator_seed(index, seed & 0xFFFF_FFFF_FFFF_FFFF)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _manual_seed_on(seed, _C.current_device())


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator. `torch.manual_seed` calls it."""
    for index in range(max(_C.device_count(), 1)):
        _manual_seed_on(seed, index)


def seed(device: _Device = None) -> int:
    """Seeds the device's generator from the operating system and returns the seed."""
    import secrets

    value = secrets.randbits(63)
    _manual_seed_on(value, _get_device_index(device))
    return value


def seed_all() -> None:
    """Seeds every device's generator from the operating system, all alike."""
    manual_seed_all(seed())


def initial_seed(device: _Device = None) -> int:
    """The seed of the device's generator."""
    return int.from_bytes(_C.generator_get(_get_device_index(device))[:8], sys.byteorder)


def get_rng_state(device: _Device = "tpu") -> torch.Tensor:
    """The generator's seed and offset: 16 bytes, on the CPU. Waits for nothing."""
    return torch.frombuffer(bytearray(_C.generator_get(_get_device_index(device))), dtype=torch.uint8)


def get_rng_state_all() -> list[torch.Tensor]:
    """`get_rng_state` of each device."""
    return [get_rng_state(i) for i in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: _Device = "tpu") -> None:
    """Sets what `get_rng_state` returned. Waits for nothing."""
    if new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
        raise TypeError("RNG state must be a torch.ByteTensor")
    _C.generator_set(_get_device_index(device), bytes(new_state.tolist()))


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """`set_rng_state` of each device."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)
