"""Runs rows of the op table against PyTorch's CPU kernels.

    PYTHONPATH=tests python -c "
    import torch
    from lower_harness import check, check_error, run, text, zero_dim
    check('add.Tensor', torch.randn(3, 4), torch.randn(4), alpha=2)   # dtype, shape, strides and values equal CPU's
    check('add.Tensor', torch.randn(3), 2.5)                          # a Python number: a wrapped run-time number
    check('add.Tensor', torch.randn(3), zero_dim(torch.tensor(2.5)))  # a 0-dim CPU tensor: a run-time number
    print(run('exp', torch.ones(2)))                                  # the result itself (a list for several)
    print(text('exp', torch.ones(2)))                                 # the StableHLO program
    check_error('add.Tensor', torch.ones(3), torch.ones(4))           # same class and message as PyTorch's
    "

Overload names are written as in the table ("add.Tensor", "exp"). Strides must be the CPU kernel's or the meta kernel's.
TPU_LOWER_HARNESS names a built library; otherwise the target tpu_lower_harness is built in TPU_BUILD_DIR (default
build/) with CMake, once per process. TPU_HARNESS_PLUGIN names a PJRT plugin (default: the installed CPU plugin).
"""

import contextlib
import ctypes
import functools
import importlib.util
import os
import pathlib
import subprocess

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
_seen = {}  # size of the sample that was kept, by row
NONE, TENSOR, TENSORS, NUMBER, NUMBERS, INT, INTS, BOOL, BOOLS, DTYPE, STRING, OTHER = range(12)
WRAPPED, ZERO_DIM, STATIC, IS_DEFAULT = 1, 2, 4, 8
DTYPE_NONE = 255
CLASSES = {
    3: RuntimeError,
    11: IndexError,
    12: NotImplementedError,
    100: TypeError,
    101: ValueError,
}


class RowError(Exception):
    """A failure of a row. `.code` is the tpu_code, `.kind` the class PyTorch users would see, `.where` the layer."""

    def __init__(self, code, where, message, text):
        super().__init__(f"{where}: {message}")
        self.code, self.where, self.message, self.text = code, where, message, text
        self.kind = CLASSES.get(code, RuntimeError)


class NoRow(Exception):
    pass


class _Value(ctypes.Union):
    _fields_ = [("i", ctypes.c_int64), ("f", ctypes.c_double), ("ptr", ctypes.c_void_p)]


class _Arg(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint8),
        ("dtype", ctypes.c_uint8),
        ("flags", ctypes.c_uint16),
        ("n", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("value", _Value),
    ]


class _Number(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_uint8), ("value", _Value)]


class _Slot(ctypes.Structure):
    _fields_ = [("i", ctypes.c_int64), ("re", ctypes.c_double), ("im", ctypes.c_double)]


class _Operand(ctypes.Structure):
    _fields_ = [
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    ]


class _Call(ctypes.Structure):
    _fields_ = (
        [("aten", ctypes.c_char_p)]
        + [
            (n, ctypes.c_int32)
            for n in (
                "n_args",
                "n_operands",
                "n_numbers",
                "n_returns",
                "default_dtype",
                "run",
            )
        ]
        + [(n, ctypes.c_void_p) for n in ("args", "operands", "numbers")]
    )


class _Result(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("undefined", "dtype", "rank", "reserved")] + [
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    ]


class _Reply(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int32),
        ("n_results", ctypes.c_int32),
        ("message", ctypes.c_char_p),
        ("where", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
        ("results", ctypes.POINTER(_Result)),
        ("random_blocks", ctypes.c_int64),
    ]


def _build():
    directory = pathlib.Path(os.environ.get("TPU_BUILD_DIR", ROOT / "build"))
    if not (directory / "build.ninja").exists():
        subprocess.run(
            ["cmake", "-S", ROOT, "-B", directory, "-G", "Ninja"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    command = ["cmake", "--build", directory, "--target", "tpu_lower_harness"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return next(directory.rglob("libtpu_lower_harness.*"))


def _plugin():
    if path := os.environ.get("TPU_HARNESS_PLUGIN"):
        return path
    for package in ("fastatomstruct_xla_cpu", "xla_plugins.xla_cpu_pjrt"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        if spec and spec.submodule_search_locations:
            for directory in spec.submodule_search_locations:
                for library in sorted(pathlib.Path(directory).rglob("*pjrt*.so*")):
                    return str(library)
    raise RuntimeError("no CPU plugin is installed (fastatomstruct-xla-cpu or xla-cpu-pjrt)")


@functools.cache
def lib():
    library = ctypes.CDLL(os.environ.get("TPU_LOWER_HARNESS") or str(_build()))
    for name in ("harness_open", "harness_open_topology", "harness_row_name", "harness_dtype_name"):
        getattr(library, name).restype = ctypes.c_char_p
    library.harness_run.restype = None
    if failed := library.harness_open(_plugin().encode()):
        raise RuntimeError(failed.decode())
    return library


@functools.cache
def dtypes():
    """Codes by torch dtype and torch dtypes by code."""
    by_code = {}
    for code in range(100):
        name = lib().harness_dtype_name(code)
        if name is None:
            break
        by_code[code] = getattr(torch, name.decode())
    return {t: c for c, t in by_code.items()}, by_code


@contextlib.contextmanager
def lowered_for(platform):
    """Within it, programs take the form for "cpu", "tpu" or "other", still run on the CPU plugin."""
    lib().harness_set_platform(["cpu", "tpu", "other"].index(platform))
    try:
        yield
    finally:
        lib().harness_set_platform(0)


@functools.cache
def open_topology(name):
    """Loads libtpu; from then on `call(..., execute="aot")` compiles for a TPU of that name, without having one."""
    from torch_tpu import plugins

    if failed := lib().harness_open_topology(plugins.library("libtpu", "libtpu.so").encode(), name.encode()):
        raise RuntimeError(failed.decode())


def rows():
    return [lib().harness_row_name(i).decode() for i in range(lib().harness_row_count())]


def overload(name):
    base, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), which or "default")


class zero_dim:
    """Passes a 0-dim CPU tensor the way a backend sees one: as a run-time number of its dtype."""

    def __init__(self, tensor):
        self.tensor = tensor


def _number_dtype(value):
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        return torch.int64
    return torch.complex128 if isinstance(value, complex) else torch.float64


class _Packed:
    """The arguments of one call as the C side wants them."""

    def __init__(self, name, args, kwargs):
        self.keep, self.operands, self.slots, self.args = [], [], [], []
        statics, defaults, random = (
            ctypes.c_uint32(),
            ctypes.c_uint32(),
            ctypes.c_int32(),
        )
        if not lib().harness_row(
            name.encode(),
            ctypes.byref(statics),
            ctypes.byref(defaults),
            ctypes.byref(random),
        ):
            raise NoRow(name)
        self.statics, self.defaults, self.random = (
            statics.value,
            defaults.value,
            random.value,
        )
        schema = overload(name)._schema
        kwargs = dict(kwargs)
        for i, parameter in enumerate(schema.arguments):
            if i < len(args) and not parameter.kwarg_only:
                value = args[i]
            elif parameter.name in kwargs:
                value = kwargs.pop(parameter.name)
            else:
                value = parameter.default_value
            self.args.append(self.argument(i, parameter, value))
        if kwargs:
            raise TypeError(f"{name} has no argument {list(kwargs)}")
        self.n_returns = len(schema.returns)

    def array(self, kind, values):
        array = (kind * max(len(values), 1))(*values)
        self.keep.append(array)
        return ctypes.cast(array, ctypes.c_void_p).value

    def operand(self, tensor):
        codes, _ = dtypes()
        if tensor is None:
            self.operands.append(_Operand(dtype=DTYPE_NONE))
        else:
            dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
            self.keep.append(dense)
            self.operands.append(
                _Operand(
                    codes[tensor.dtype],
                    tensor.dim(),
                    self.array(ctypes.c_int64, tensor.shape),
                    self.array(ctypes.c_int64, tensor.stride()),
                    dense.data_ptr(),
                )
            )
        return len(self.operands) - 1

    def slot(self, value):
        v = complex(value)
        as_int = int(value) if isinstance(value, (bool, int)) else 0
        if as_int >= 2**63:
            as_int -= 2**64
        self.slots.append(_Slot(as_int, v.real, v.imag))
        return len(self.slots) - 1

    def number(self, i, value, dtype, flags, default=None):
        arg = _Arg(
            kind=NUMBER,
            dtype=dtypes()[0][dtype],
            flags=flags,
            n=1,
            first=self.slot(value),
        )
        if self.statics >> i & 1:
            arg.flags |= STATIC
            self.set_static(arg, value)
        if self.defaults >> i & 1 and default is not None and value == default:
            arg.flags |= IS_DEFAULT
        return arg

    @staticmethod
    def set_static(holder, value):
        if isinstance(value, (bool, int)):
            holder.value.i = int(value)
        else:
            holder.value.f = complex(value).real

    def numbers(self, i, values):
        arg = _Arg(kind=NUMBERS, n=len(values), first=len(self.slots))
        items = []
        for value in values:
            self.slot(value)
            item = _Number(dtype=dtypes()[0][_number_dtype(value)])
            self.set_static(item, value)
            items.append(item)
        arg.dtype = items[0].dtype if items else 0
        arg.flags = STATIC if self.statics >> i & 1 else 0
        arg.value.ptr = self.array(_Number, items)
        return arg

    def argument(self, i, parameter, value):
        kind, real = str(parameter.type), str(parameter.real_type)
        optional = kind.startswith("Optional[")
        if optional:
            kind, real = kind[9:-1], real[9:-1]
        if value is None:
            return _Arg(kind=NONE)
        if kind == "Tensor":
            if isinstance(value, zero_dim):
                return self.number(i, value.tensor.item(), value.tensor.dtype, ZERO_DIM)
            if isinstance(value, torch.Tensor):
                return _Arg(kind=TENSOR, first=self.operand(value))
            return self.number(i, value, _number_dtype(value), WRAPPED)
        if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
            arg = _Arg(kind=TENSORS, n=len(value), first=len(self.operands))
            for tensor in value:
                self.operand(tensor)
            return arg
        if kind == "number":
            return self.number(i, value, _number_dtype(value), 0, parameter.default_value)
        if kind == "float":
            return self.number(i, float(value), torch.float64, 0, parameter.default_value)
        if kind == "List[number]":
            return self.numbers(i, value)
        if kind == "List[float]":
            return self.numbers(i, [float(v) for v in value])
        if real == "ScalarType":
            code = value if isinstance(value, torch.dtype) else torch_dtype(value)
            return _Arg(kind=DTYPE, dtype=dtypes()[0][code])
        if real in ("Layout", "MemoryFormat"):
            codes = {
                torch.contiguous_format: 0,
                torch.preserve_format: 1,
                torch.channels_last: 2,
                torch.channels_last_3d: 3,
            }
            return _Arg(
                kind=OTHER,
                value=_Value(i=value if isinstance(value, int) else codes.get(value, 0)),
            )
        if kind == "Device" or kind == "Generator":
            return _Arg(kind=OTHER)
        if kind == "int":
            return _Arg(kind=INT, value=_Value(i=int(value)))
        if kind == "bool":
            return _Arg(kind=BOOL, value=_Value(i=int(value)))
        if kind in ("List[int]", "List[bool]"):
            values = [value] if isinstance(value, (int, bool)) else list(value)
            pointer = self.array(ctypes.c_int64, [int(v) for v in values])
            return _Arg(
                kind=INTS if kind == "List[int]" else BOOLS,
                n=len(values),
                value=_Value(ptr=pointer),
            )
        if kind == "str":
            text = ctypes.create_string_buffer(value.encode())
            self.keep.append(text)
            return _Arg(kind=STRING, value=_Value(ptr=ctypes.addressof(text)))
        raise TypeError(f"argument {parameter.name}: {kind}")


def torch_dtype(number):
    order = (
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
        None, torch.complex64, torch.complex128, torch.bool, None, None, None, torch.bfloat16,
    )  # fmt: skip
    return order[number]


def call(name, *args, execute=True, seed=0, offset=0, **kwargs):
    """(list of results, reply as a dict). A result is a tensor, None if undefined, a meta tensor if not executed.

    execute: True, False (lower only) or "aot" (compile for the topology of open_topology).
    """
    run_it = execute is True
    packed = _Packed(name, args, kwargs)
    n = len(packed.slots)
    slots = packed.slots + [_Slot(seed, 0, 0), _Slot(offset, 0, 0)]
    request = _Call(
        aten=name.encode(),
        n_args=len(packed.args),
        n_operands=len(packed.operands),
        n_numbers=n,
        n_returns=packed.n_returns,
        default_dtype=dtypes()[0][torch.get_default_dtype()],
        run=2 if execute == "aot" else int(execute),
        args=packed.array(_Arg, packed.args),
        operands=packed.array(_Operand, packed.operands),
        numbers=packed.array(_Slot, slots),
    )
    reply = _Reply()
    lib().harness_run(ctypes.byref(request), ctypes.byref(reply))
    text = (reply.text or b"").decode()
    if reply.code:
        raise RowError(
            reply.code,
            (reply.where or b"").decode(),
            (reply.message or b"").decode(),
            text,
        )
    if run_it:
        _keep(name, args, kwargs)
    results = []
    for k in range(reply.n_results):
        r = reply.results[k]
        if r.undefined:
            results.append(None)
            continue
        dtype = dtypes()[1][r.dtype]
        sizes, strides = (
            [r.sizes[d] for d in range(r.rank)],
            [r.strides[d] for d in range(r.rank)],
        )
        out = torch.empty_strided(sizes, strides, dtype=dtype, device="cpu" if run_it else "meta")
        if run_it:
            dense = torch.empty(sizes, dtype=dtype)
            if r.data:
                ctypes.memmove(dense.data_ptr(), r.data, dense.numel() * dense.element_size())
            out.copy_(dense)
        results.append(out)
    return results, {"text": text, "random_blocks": reply.random_blocks}


def _samples():
    return pathlib.Path(os.environ["TORCH_TPU_TEST_RUN"], "samples")


def _keep(name, args, kwargs):
    """Keeps an executed sample for the tests that judge the whole table: a small one with float32, if there is one."""
    if "TORCH_TPU_TEST_RUN" not in os.environ:
        return
    leaves = _flatten([*args, *kwargs.values()])
    size = sum(v.numel() for v in leaves if isinstance(v, torch.Tensor) and v.dtype == torch.float32) or 1 << 40
    if name in _seen and _seen[name] <= size:
        return
    _seen[name] = size
    _samples().mkdir(exist_ok=True)
    part = _samples() / f"{os.getpid()}.part"
    torch.save((args, kwargs), part)
    part.rename(_samples() / f"{name}.pt")


def kept():
    """The names of the rows that were executed in this run of the tests, by all of its processes."""
    return {path.name.removesuffix(".pt") for path in _samples().glob("*.pt")}


def kept_sample(name):
    """(args, kwargs)"""
    return torch.load(_samples() / f"{name}.pt", weights_only=False)


def run(name, *args, **kwargs):
    results, _ = call(name, *args, **kwargs)
    return results[0] if len(results) == 1 else results


def text(name, *args, **kwargs):
    return call(name, *args, **kwargs)[1]["text"]


def _map(value, fn):
    if isinstance(value, zero_dim):
        return _map(value.tensor, fn)
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, (list, tuple)):
        return [_map(v, fn) for v in value]
    return value


def _flatten(value):
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in _flatten(v)]
    return [value]


def _meta(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def expected(name, *args, **kwargs):
    """PyTorch's CPU results, as a flat list."""
    args, kwargs = (
        _map(args, lambda t: t.detach().clone() if t.is_contiguous() else t),
        _map_kwargs(kwargs, lambda t: t),
    )
    return _flatten(overload(name)(*args, **kwargs))


def _map_kwargs(kwargs, fn):
    return {k: _map(v, fn) for k, v in kwargs.items()}


def meta(name, *args, **kwargs):
    """The meta kernel's results as a flat list, or None where it cannot say."""
    leaves = _flatten(list(args) + list(kwargs.values()))
    if any(isinstance(v, zero_dim) for v in leaves) or not any(isinstance(v, torch.Tensor) for v in leaves):
        return None
    try:
        return _flatten(overload(name)(*_map(args, _meta), **_map_kwargs(kwargs, _meta)))
    except Exception:  # noqa: BLE001  (whatever keeps meta from running it)
        return None


def meta_strides(name, *args, **kwargs):
    """Strides of the meta kernel's results, or None where there is none."""
    out = meta(name, *args, **kwargs)
    return out and [t.stride() if isinstance(t, torch.Tensor) else None for t in out]


TOLERANCES = {
    torch.float16: (2e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (2e-6, 1e-6),
    torch.float64: (1e-12, 1e-12),
    torch.complex64: (4e-6, 1e-6),
    torch.complex128: (1e-12, 1e-12),
}


def check(name, *args, rtol=None, atol=None, strides=True, values=True, want=None, **kwargs):
    """Compares a row with PyTorch's CPU kernel (or `want`, a list); returns its results. values=False only lowers."""
    got, reply = call(name, *args, execute=values, **kwargs)
    want = expected(name, *args, **kwargs) if want is None else want
    assert len(got) == len(want), f"{name}: {len(got)} results, PyTorch has {len(want)}"
    meta = meta_strides(name, *args, **kwargs) if strides else None
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        where = f"{name} result {i} of {[_describe(v) for v in args]} {kwargs}"
        if g is None or w is None:
            assert g is None and (w is None or w.numel() == 0), f"{where}: {g} is not {w}"
            continue
        assert g.dtype == w.dtype, f"{where}: {g.dtype}, PyTorch gives {w.dtype}"
        assert g.shape == w.shape, f"{where}: {tuple(g.shape)}, PyTorch gives {tuple(w.shape)}"
        if strides and g.stride() != w.stride():
            s = meta[i] if meta and i < len(meta) else None
            assert g.stride() == s, f"{where}: strides {g.stride()}, PyTorch gives {w.stride()} (meta {s})"
        if values:
            r, a = TOLERANCES.get(w.dtype, (0, 0))
            try:
                torch.testing.assert_close(
                    g,
                    w,
                    rtol=r if rtol is None else rtol,
                    atol=a if atol is None else atol,
                    equal_nan=True,
                )
            except AssertionError as e:
                raise AssertionError(f"{where}: {e}\n{reply['text']}") from None
    return got


def check_error(name, *args, **kwargs):
    """Both must fail, with the same class and message (up to PyTorch's trailing hints)."""
    try:
        expected(name, *args, **kwargs)
    except Exception as e:  # noqa: BLE001  (its class is what is compared)
        theirs = e
    else:
        raise AssertionError(f"{name}: PyTorch does not fail")
    try:
        run(name, *args, execute=False, **kwargs)
    except RowError as e:
        ours = e
    else:
        raise AssertionError(f"{name} should fail: {theirs}")
    assert ours.where == "aten" and isinstance(theirs, ours.kind), f"{name}: {ours!r}, PyTorch raises {theirs!r}"
    assert ours.message.split("\n")[0] in str(theirs), f"{name}: {ours.message!r} is not {str(theirs)!r}"


def _describe(value):
    if isinstance(value, zero_dim):
        return f"zero_dim({value.tensor})"
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype)[6:]}{list(value.shape)}"
        return text if value.is_contiguous() else text + f" strides {value.stride()}"
    if isinstance(value, (list, tuple)):
        return [_describe(v) for v in value]
    return value
