"""Where PyTorch asks for a device's type by name and has no door for another one. Each function replaced here behaves
as before for tensors of other devices; ARCHITECTURE.md lists them.
"""

from __future__ import annotations

import copyreg
import functools
import io
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import has_torch_function_unary


def _on_tpu(x: Any) -> bool:
    return x.device.type == "tpu"


def apply() -> None:
    """Once, after the device has its name and methods."""
    _print_on_the_host()
    _write_storages()
    _exchange()
    _send_to_processes()
    torch.nn.parameter.UninitializedTensorMixin._allowed_methods.append(torch.Tensor.tpu)  # type: ignore[attr-defined]


def _print_on_the_host() -> None:
    """A tensor is formatted from one copy. PyTorch formats with dozens of operations, on the tensor's device."""
    module = torch._tensor_str
    format_on_device = module._tensor_str

    @functools.wraps(format_on_device)
    def _tensor_str(self, indent):
        return format_on_device(self.cpu() if _on_tpu(self) else self, indent)

    module._tensor_str = _tensor_str  # type: ignore[assignment]


def _reduce_storage(storage: Any) -> Any:
    if not _on_tpu(getattr(storage, "_untyped_storage", storage)):
        return storage.__reduce__()
    file = io.BytesIO()
    torch.save(storage, file)
    return torch.storage._load_from_bytes, (file.getvalue(),)


def _write_storages() -> None:
    """PyTorch writes a storage to a file of the old format, and reads it from there, at its address. It pickles one in
    that format too, which has no 8-bit floats; copyreg is Python's own registry."""
    copyreg.pickle(torch.storage.TypedStorage, _reduce_storage)
    copyreg.pickle(torch.storage.UntypedStorage, _reduce_storage)
    storage = torch.UntypedStorage
    write_at_address = storage._write_file

    @functools.wraps(write_at_address)
    def _write_file(self, *args, **kwargs):
        return write_at_address(self.cpu() if _on_tpu(self) else self, *args, **kwargs)

    read_at_address = storage._set_from_file

    @functools.wraps(read_at_address)
    def _set_from_file(self, *args, **kwargs):
        if not _on_tpu(self):
            return read_at_address(self, *args, **kwargs)
        host = torch.UntypedStorage(self.nbytes())
        read_at_address(host, *args, **kwargs)
        return self.copy_(host)

    storage._write_file = _write_file  # type: ignore[method-assign]
    storage._set_from_file = _set_from_file  # type: ignore[method-assign]


def _exchange() -> None:
    """DLPack. Device memory cannot be shared: an operation gives a tensor's storage another buffer. A copy on the host
    can be had."""
    from torch.utils.dlpack import DLDeviceType

    export: Callable[..., Any] = torch.Tensor.__dlpack__
    device_of = torch.Tensor.__dlpack_device__

    @functools.wraps(export)
    def __dlpack__(self, *, stream=-1, max_version=None, dl_device=None, copy=None):
        if not has_torch_function_unary(self) and _on_tpu(self):
            if dl_device is None or dl_device[0] != DLDeviceType.kDLCPU or copy is False:
                raise BufferError(
                    f"The memory of a {self.device.type} tensor cannot be shared, since each write to it makes a new "
                    "buffer. Export a copy on the host: pass dl_device=(1, 0), or call Tensor.cpu() first."
                )
            if not self.requires_grad and not self.is_conj():  # else PyTorch's own refusal follows
                return export(self.cpu(), max_version=max_version)
        return export(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    @functools.wraps(device_of)
    def __dlpack_device__(self):
        if not has_torch_function_unary(self) and _on_tpu(self):
            return DLDeviceType.kDLExtDev, self.device.index
        return device_of(self)

    export_capsule = torch.utils.dlpack.to_dlpack

    @functools.wraps(export_capsule)
    def to_dlpack(tensor):
        return __dlpack__(tensor) if _on_tpu(tensor) else export_capsule(tensor)

    torch.to_dlpack = torch.utils.dlpack.to_dlpack = to_dlpack  # type: ignore[assignment]
    torch.Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]
    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign, assignment]


def _rebuild(host: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    return host.to(device=torch.device(device))


def _send_to_processes() -> None:
    """What torch.multiprocessing sends is a copy, through shared memory of the host. This is its own registry."""
    from torch.multiprocessing import reductions

    def reduce_storage(storage):
        if not _on_tpu(storage):
            return reductions.reduce_storage(storage)
        return _rebuild, (storage.cpu(), str(storage.device))

    reductions.reduction.register(torch.UntypedStorage, reduce_storage)
