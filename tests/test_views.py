"""Views, in-place calls, out=, copies and resizes: random sequences on the device and on the CPU, in all modes, with
cuts at random places, must read the same everywhere."""

import random

import pytest
import torch

import torch_tpu  # noqa: F401

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not torch.tpu.is_available(), reason="no PJRT plugin is installed"),
    pytest.mark.filterwarnings("ignore:An output with one or more elements was resized"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real"),
]

MODES = list(torch.tpu.EagerMode)


@pytest.fixture(params=MODES, ids=lambda m: m.name)
def mode(request):
    with torch.tpu.set_eager_mode(request.param):
        yield request.param


# --- views: a function of a tensor and a source of random numbers, which returns a function of a tensor, or None


def dim_of(t, r):
    return r.randrange(t.dim()) if t.dim() else None


def view_slice(t, r):
    d = dim_of(t, r)
    if d is None:
        return None
    n = t.shape[d]
    a = r.randint(0, n)
    b = r.randint(a, n)
    step = r.choice((1, 1, 2, 3))
    index = (slice(None),) * d + (slice(a, b, step),)
    return lambda x: x[index]


def view_select(t, r):
    d = dim_of(t, r)
    if d is None or not t.shape[d]:
        return None
    i = r.randrange(-t.shape[d], t.shape[d])
    return lambda x: x.select(d, i)


def view_transpose(t, r):
    if t.dim() < 2:
        return None
    a, b = r.sample(range(t.dim()), 2)
    return lambda x: x.transpose(a, b)


def view_permute(t, r):
    perm = r.sample(range(t.dim()), t.dim())
    return lambda x: x.permute(perm)


def view_expand(t, r):
    if t.dim() > 3:
        return None
    sizes = [r.choice((2, 3)) if n == 1 and r.random() < 0.5 else -1 for n in t.shape]
    lead = [2] if r.random() < 0.4 else []
    return lambda x: x.expand(*lead, *sizes) if lead or sizes else x.expand(3)


def view_unfold(t, r):
    d = dim_of(t, r)
    if d is None or t.dim() > 3 or not t.shape[d]:
        return None
    size, step = r.randint(1, t.shape[d]), r.randint(1, 3)
    return lambda x: x.unfold(d, size, step)


def view_view(t, r):
    n = t.numel()
    if n == 0:
        return None
    first = r.choice([k for k in range(1, n + 1) if n % k == 0])
    shape = r.choice(((n,), (first, n // first), (n // first, first), (1, n), (first, 1, n // first)))
    return lambda x: x.view(shape)  # may raise: then it must on both


def view_as_strided(t, r):
    room = t.untyped_storage().nbytes() // t.element_size()
    if room < 1:
        return None
    rank = r.randint(0, 3)
    for _ in range(20):
        sizes = [r.randint(1, 4) for _ in range(rank)]
        strides = [r.randint(0, 6) for _ in range(rank)]
        span = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        if span < room:
            offset = r.randint(0, room - 1 - span)
            return lambda x: x.as_strided(sizes, strides, offset)
    return None


def view_diagonal(t, r):
    if t.dim() < 2:
        return None
    a, b = r.sample(range(t.dim()), 2)
    k = r.randint(-1, 1)
    return lambda x: x.diagonal(k, a, b)


def view_chunk(t, r):
    d = dim_of(t, r)
    if d is None:
        return None
    n, which = r.randint(1, 3), r.random()
    return lambda x: (lambda c: c[int(which * len(c))])(x.chunk(n, d))


def view_part(t, r):
    if t.is_complex():
        return r.choice((lambda x: x.real, lambda x: x.imag, lambda x: x.conj(), torch.view_as_real))
    if t.dtype is torch.float32 and t.dim() and t.shape[-1] == 2:
        return torch.view_as_complex
    return None


DTYPES_OF_BYTES = {
    1: (torch.uint8, torch.int8),
    2: (torch.int16, torch.bfloat16, torch.int32),
    4: (torch.int32, torch.float32, torch.int16),
    8: (torch.complex64, torch.int64, torch.int32),
}


def view_dtype(t, r):
    if t.is_conj() or t.is_neg():
        return None
    to = r.choice(DTYPES_OF_BYTES[t.element_size()])
    return lambda x: x.view(to)


def view_shape(t, r):
    return r.choice((lambda x: x.unsqueeze(0), lambda x: x.squeeze(), lambda x: x.flatten(), lambda x: x.t(),
                     lambda x: x.reshape(-1), lambda x: x.detach(), lambda x: x.unsqueeze(-1)))  # fmt: skip


VIEWS = [view_slice, view_slice, view_select, view_transpose, view_permute, view_expand, view_unfold, view_view,
         view_as_strided, view_diagonal, view_chunk, view_part, view_dtype, view_shape]  # fmt: skip


# --- writes: what they return is a function of (tensor, another tensor of the pool) without result


def number(t, r):
    return r.choice((0, 1, 2, -3)) if not t.is_floating_point() else r.choice((0.0, 0.5, -1.0, 2.0))


def write_number(t, r):
    v, alpha = number(t, r), r.choice((1, 2))
    return r.choice(
        (
            lambda x, y: x.add_(v), lambda x, y: x.mul_(v), lambda x, y: x.fill_(v), lambda x, y: x.zero_(),
            lambda x, y: x.sub_(v, alpha=alpha), lambda x, y: x.neg_(), lambda x, y: x.clamp_(-4, 4),
        )
    )  # fmt: skip


def write_tensor(t, r):
    return r.choice((lambda x, y: x.add_(y), lambda x, y: x.mul_(y), lambda x, y: x.copy_(y),
                     lambda x, y: x.add_(y.clone()), lambda x, y: x.copy_(y.flip(0) if y.dim() else y)))  # fmt: skip


def write_index(t, r):
    d = dim_of(t, r)
    if d is None or not t.shape[d]:
        return None
    places, v = [r.randrange(t.shape[d]) for _ in range(2)], number(t, r)
    which = r.random()

    def f(x, y):
        index = torch.tensor(places, device=x.device)
        value = torch.tensor(v, dtype=x.dtype, device=x.device)
        if which < 0.4:
            x[(slice(None),) * d + (index,)] = value
        elif which < 0.7:
            x.transpose(0, d).index_put_((index,), value, accumulate=True)
        else:
            x.index_fill_(d, index, v)

    return f


def write_mask(t, r):
    v, bits = number(t, r), [r.random() < 0.4 for _ in range(min(t.numel(), 64))]
    as_index = r.random() < 0.3

    def f(x, y):
        if x.numel() > 64:
            return
        mask = torch.tensor(bits, device=x.device).view(x.shape)
        if as_index:
            x[mask] = v
        else:
            x.masked_fill_(mask, v)

    return f


def write_out(t, r):
    v = number(t, r)
    return r.choice((lambda x, y: torch.add(x, v, out=x), lambda x, y: torch.mul(y, v, out=x),
                     lambda x, y: torch.add(y, y, out=x) if y.shape == x.shape else None))  # fmt: skip


def write_set(t, r):
    which, n = r.random(), r.randint(0, 12)

    def f(x, y):
        if which < 0.2 and x.dtype == y.dtype:
            x.set_(y)
        elif which < 0.4 and x.dtype == y.dtype and not (x.is_conj() or x.is_neg() or y.is_conj() or y.is_neg()):
            x.data = y
        elif which < 0.6:
            x.resize_(n).fill_(1)
        elif which < 0.8:  # contents stay, what is new is filled before it is read
            old = x.untyped_storage().nbytes()
            if x.numel() and x.is_contiguous() and not x.storage_offset():
                m = x.numel()
                x.resize_(m + n)[m:].fill_(2)
                if x.untyped_storage().nbytes() > old:
                    torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())[old:].fill_(0)
        else:
            x.swapaxes_(0, -1) if x.dim() else x.unsqueeze_(0)

    return f


WRITES = [write_number, write_number, write_tensor, write_tensor, write_index, write_mask, write_out, write_set]


def overlaps(t):
    """Do elements share memory?"""
    places = torch.zeros((), dtype=torch.long)
    for n, s in zip(t.shape, t.stride(), strict=True):
        places = places[..., None] + torch.arange(n) * s
    return places.unique().numel() < t.numel()


def write_overlapping(t, r):
    v = number(t, r)
    return r.choice((lambda x, y: x.fill_(v), lambda x, y: x.zero_())) if overlaps(t) else None


def share(t, u):
    return t.untyped_storage()._cdata == u.untyped_storage()._cdata


def fresh(r):
    dtype = r.choice((torch.float32, torch.float32, torch.int32, torch.complex64, torch.bfloat16, torch.int64))
    shape = r.choice(((6,), (2, 3), (4, 2), (2, 3, 2), (), (3, 1), (12,)))
    n = max(1, torch.Size(shape).numel())
    values = torch.tensor([r.randint(-5, 5) for _ in range(n)]).to(dtype)
    if dtype is torch.complex64:
        values = values + 1j * values.flip(0).real
    kind = r.random()

    def make(device):
        t = values.view(shape).to(device)
        if kind < 0.2:
            return torch.zeros(shape, dtype=dtype, device=device)
        if kind < 0.3:
            return torch.full(shape, 3, dtype=dtype, device=device)
        if kind < 0.4 and t.dim() > 1:
            return t.t().contiguous().t() if t.dim() == 2 else t.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        return t.clone()

    return make


def outcome(f, *args):
    try:
        return f(*args), None
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
        return None, error


def state(t):
    place = tuple(t.shape), t.stride(), t.storage_offset(), t.untyped_storage().nbytes()
    return place, t.dtype, t.is_conj(), t.is_neg()


def check(host, device, history):
    assert state(host) == state(device), history
    a, b = host.resolve_conj().resolve_neg(), device.cpu().resolve_conj().resolve_neg()
    if a.dtype is torch.bfloat16:
        torch.testing.assert_close(b, a, rtol=2e-2, atol=1e-2, equal_nan=True, msg=lambda m: f"{m}\n{history}")
    else:
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda m: f"{m}\n{history}")


def tame(t):
    """Whether the numbers are such that the order of roundings and bits of NaN do not matter."""
    if not (t.is_floating_point() or t.is_complex()):
        return True
    x = t.resolve_conj().resolve_neg()
    x = torch.view_as_real(x) if x.is_complex() else x
    x = x.float().abs()
    return bool(((x == 0) | ((x > 1e-20) & (x < 1e8))).all())


def sequence(seed, steps):
    r = random.Random(seed)
    pool, history = [], []
    for _ in range(steps):
        if len(pool) < 2 or r.random() < 0.08:
            make = fresh(r)
            pool.append((make("cpu"), make("tpu")))
            history.append(f"t{len(pool) - 1} = fresh {tuple(pool[-1][0].shape)} {pool[-1][0].dtype}")
            continue
        i, j = r.randrange(len(pool)), r.randrange(len(pool))
        (host, device), (host2, device2) = pool[i], pool[j]
        if r.random() < 0.5:
            kind = r.choice(VIEWS)
            f = kind(host, r)
            if f is None:
                continue
            (a, ea), (b, eb) = outcome(f, host), outcome(f, device)
            history.append(f"t{len(pool)} = {kind.__name__}(t{i}) -> {ea or (tuple(a.shape), a.dtype)}")
            if not ea and not eb and a.numel() <= 200 and tame(a):
                pool.append((a, b))
        else:
            kind = r.choice(WRITES)
            if overlaps(host):  # PyTorch refuses it where it notices; elsewhere the order of writes decides
                kind = write_overlapping if 0 in host.stride() or kind is write_number else write_set
            elif kind in (write_tensor, write_out) and share(host, host2) and state(host) != state(host2):
                continue  # likewise
            f = kind(host, r)
            if f is None:
                continue
            if kind is not write_set and not all(tame(p) for p, _ in pool):
                return
            history.append(f"{kind.__name__}(t{i}, t{j})")
            (a, ea), (b, eb) = outcome(f, host, host2), outcome(f, device, device2)
            if ea:
                history[-1] += f" raises {ea}"
        assert type(ea) is type(eb), (ea, eb, history)
        if ea and not isinstance(ea, NotImplementedError):
            words = str(eb).replace("tpu:0", "cpu")
            assert words.split("\n")[0] == str(ea).split("\n")[0], (str(ea), str(eb), history)
        if not all(tame(p) for p, _ in pool):
            return
        if r.random() < 0.15:
            p = r.choice(pool)
            check(*p, history)
        if r.random() < 0.05:
            torch.tpu.synchronize()
    for host, device in pool:
        check(host, device, history)


@pytest.mark.parametrize("seed", range(14))
def test_random_sequences(mode, seed):
    sequence(seed, 40)


# --- autograd


def same(function, rtol=1e-4, atol=1e-5):
    for host, device in zip(function("cpu"), function("tpu"), strict=True):
        assert (host is None) == (device is None)
        if host is not None:
            assert state(host) == state(device)
            torch.testing.assert_close(device.cpu(), host, rtol=rtol, atol=atol)


GRAD_VIEWS = [v for v in VIEWS if v not in (view_chunk, view_as_strided, view_part, view_dtype)]


@pytest.mark.parametrize("seed", range(10))
def test_gradients_through_writes_to_views(mode, seed):
    """y is x * 2; views of it are written, also with what depends on w, then everything is summed with weights."""

    def run(device):
        r = random.Random(seed)
        x = torch.linspace(-1, 1, 12).view(3, 4).to(device).requires_grad_()
        w = torch.linspace(0.5, 1.5, 12).view(4, 3).to(device).requires_grad_()
        y, others = x * 2, []
        for _ in range(5):
            v = y
            for _ in range(r.randint(1, 3)):
                f = r.choice(GRAD_VIEWS)(v, r)
                u, error = outcome(f, v) if f else (None, None)
                if u is not None and u.numel() and not overlaps(u):
                    v = u
            kind = r.randrange(6)
            if kind == 0:
                v.mul_(w.reshape(-1)[: v.numel()].view(v.shape) if v.numel() <= 12 else 0.5)
            elif kind == 1:
                v.copy_(w.sum())
            elif kind == 2:
                v.add_(v * 0.5)
            elif kind == 3:
                v.fill_(0.25)
            elif kind == 4 and v.dim():
                v[0] = w.mean()
            else:
                v.masked_fill_(v.detach() > 0.5, 0.5)
            others.append(v)
            if r.random() < 0.3:
                y.sum().item()
        out = (y * w.t()).sum() + sum((o * o).sum() for o in others)
        out.backward()
        return y.detach(), x.grad, w.grad

    same(run)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: (lambda x: (lambda y: (y.mul_(2), y.exp().sum().backward()))(x.exp()))(leaf(d)),
        lambda d: (lambda x: (lambda y, z: (y.add_(1), z.sum().backward()))(*(lambda y: (y, y * y))(x.exp())))(leaf(d)),
        lambda d: (lambda x: (lambda y, z: (z[0].zero_(), z.sum().backward()))(*(lambda y: (y, y.exp()))(x * 2)))(
            leaf(d)
        ),
        lambda d: leaf(d).add_(1),
        lambda d: leaf(d)[0].zero_(),
        lambda d: leaf(d).unbind(0)[0].mul_(2),
        lambda d: (leaf(d) * 2).unbind(0)[0].mul_(2),
        lambda d: torch.add(leaf(d), 1, out=torch.empty(3, device=d)),
        lambda d: leaf(d).expand(2, 3).contiguous().view(7),
        lambda d: leaf(d).resize_(5),
        lambda d: (leaf(d) * 2).backward(),
        lambda d: (lambda y: (y.backward(), y.backward()))(leaf(d).exp().sum()),
        lambda d: leaf(d).detach().sum().backward(),
        lambda d: torch.ones(3, dtype=torch.int32, device=d).requires_grad_(),
    ],
)
def test_autograd_errors(wrong):
    with pytest.raises(Exception) as host:
        wrong("cpu")
    with pytest.raises(Exception) as device:
        wrong("tpu")
    assert device.type is host.type
    words = str(device.value).replace("tpu:0", "cpu").replace("tpuFloatType", "torch.FloatTensor")
    assert words.split("Hint")[0] == str(host.value).split("Hint")[0]


def leaf(device):
    return torch.tensor([0.1, 0.2, 0.3], device=device, requires_grad=True)


def test_versions(mode):
    def run(d):
        x = torch.zeros(4, device=d)
        y, seen = x[1:], []
        for f in (
            lambda: x.add_(1), lambda: y.mul_(2), lambda: y[0].fill_(3), lambda: x.detach().copy_(x + 1),
            lambda: torch.add(x, 1, out=x), lambda: x.data.zero_(), lambda: x.resize_(4), lambda: x.normal_(),
            lambda: x.index_put_((torch.tensor([0], device=d),), torch.ones((), device=d)), lambda: x.set_(x.clone()),
        ):  # fmt: skip
            f()
            seen.append((x._version, y._version))
        return seen

    assert run("cpu") == run("tpu")


def test_set_to_none_and_accumulation_in_place(mode):
    def run(d):
        x = torch.arange(4.0, device=d, requires_grad=True)
        (x * x).sum().backward()
        kept = x.grad
        (x[1:] * 3).sum().backward()
        assert kept is x.grad
        x.grad = None
        (x.view(2, 2)[:, 1] * 2).sum().backward()
        return kept, x.grad

    same(run)
