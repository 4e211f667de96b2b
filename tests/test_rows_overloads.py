"""Overloads that differ from a tested one in which argument is a number, and some that the CPU has no kernel for."""

import pytest
import torch
from lower_harness import check, expected, run, zero_dim

pytestmark = pytest.mark.cpu

INTS = torch.tensor([0, 1, 5, -7, 12])
SHIFTS = torch.tensor([0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    "name,args",
    [
        ("__lshift__.Tensor", (INTS, SHIFTS)),
        ("__rshift__.Scalar", (INTS, 2)),
        ("_add_relu.Scalar", (torch.tensor([-3.0, -1.0, 2.0]), 1.5)),
        ("_conj_copy", (torch.tensor([1 + 2j, -3j]),)),
        ("bitwise_left_shift.Scalar_Tensor", (3, SHIFTS)),
        ("bitwise_right_shift.Scalar_Tensor", (-37, SHIFTS)),
        ("bitwise_or.Scalar_Tensor", (6, INTS)),
        ("bitwise_xor.Scalar_Tensor", (6, INTS)),
        ("isin.Scalar_Tensor", (5, INTS)),
        ("special_xlog1py.self_scalar", (2.5, torch.tensor([0.0, 0.5, 3.0]))),
        ("special_zeta.other_scalar", (torch.tensor([1.5, 2.0, 3.0]), 2.5)),
        ("special_zeta.self_scalar", (2.5, torch.tensor([0.5, 2.0, 30.0]))),
        ("range.step", (1, 10, 3)),
        ("linspace.Scalar_Tensor", (1.0, zero_dim(torch.tensor(4.0)), 5)),
        ("linspace.Tensor_Scalar", (zero_dim(torch.tensor(1.0)), 4.0, 5)),
        ("linspace.Tensor_Tensor", (zero_dim(torch.tensor(1.0)), zero_dim(torch.tensor(4.0)), 5)),
        ("logspace.Scalar_Tensor", (1.0, zero_dim(torch.tensor(4.0)), 5)),
        ("logspace.Tensor_Scalar", (zero_dim(torch.tensor(1.0)), 4.0, 5)),
        ("logspace.Tensor_Tensor", (zero_dim(torch.tensor(1.0)), zero_dim(torch.tensor(4.0)), 5)),
    ],
)
def test_overloads(name, args):
    want = None
    if any(isinstance(v, zero_dim) for v in args):  # the CPU's take tensors
        base = getattr(torch.ops.aten, name.split(".")[0])
        want = [getattr(base, name.split(".")[1])(*(v.tensor if isinstance(v, zero_dim) else v for v in args))]
    check(name, *args, rtol=1e-5, atol=1e-6, want=want)


def test_randperm_generator():
    got = run("randperm.generator", 40, generator=None)
    assert torch.equal(got.sort()[0], torch.arange(40)) and not torch.equal(got, torch.arange(40))


def test_products_of_another_dtype():
    x, a, b = torch.randn(2, 3, 5), torch.randn(2, 3, 4).bfloat16(), torch.randn(2, 4, 5).bfloat16()
    want = [0.5 * x - 2 * (a.float() @ b.float())]
    check("baddbmm.dtype", x, a, b, torch.float32, beta=0.5, alpha=-2, want=want, rtol=1e-5, atol=1e-5)


def test_upsample_lanczos():
    x = torch.randn(2, 3, 8, 9)
    for size in ([5, 4], [8, 9], [11, 18]):
        for corners in (False, True):
            check("_upsample_lanczos2d_aa", x, size, corners, rtol=1e-4, atol=1e-5)


def test_batch_norm_backward():
    x, g, w = torch.randn(4, 3, 5), torch.randn(4, 3, 5), torch.randn(3)
    running = torch.randn(3), torch.rand(3) + 0.5
    saved = expected("native_batch_norm", x, w, w, *running, True, 0.1, 1e-5)[1:]
    for training in (True, False):
        args = g, x, w, *running, *saved, training, 1e-5, [True] * 3
        want = expected("native_batch_norm_backward", *args)
        check("batch_norm_backward", *args, torch.empty(0), want=want, rtol=1e-4, atol=1e-5)


def gradients(outputs, inputs, cotangents):
    got = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, retain_graph=True)
    return [g.detach() for g in got]


@pytest.mark.parametrize("bias", [True, False])
def test_cells_of_recurrent_layers(bias):
    """Against the formulas of nn.LSTMCell and nn.GRUCell (the CPU has no fused cells)."""

    def rand(*shape):
        return torch.randn(*shape, generator=generator).requires_grad_()

    generator = torch.Generator().manual_seed(1)
    batch, hidden = 3, 4
    h, c = rand(batch, hidden), rand(batch, hidden)
    near = {"rtol": 1e-5, "atol": 1e-5}

    x, y = rand(batch, 4 * hidden), rand(batch, 4 * hidden)
    b = [rand(4 * hidden), rand(4 * hidden)] if bias else []
    i, f, n, o = (x + y + sum(b)).chunk(4, 1)
    i, f, n, o = i.sigmoid(), f.sigmoid(), n.tanh(), o.sigmoid()
    cy = f * c + i * n
    hy = o * cy.tanh()
    workspace = torch.cat([i, f, n, o], 1).detach()
    check("_thnn_fused_lstm_cell", x, y, c, *b, want=[hy.detach(), cy.detach(), workspace], **near)
    grads = torch.randn(batch, hidden), torch.randn(batch, hidden)
    want = gradients([hy, cy], [x, c, *b[:1]], grads) + ([] if bias else [None])
    check("_thnn_fused_lstm_cell_backward_impl", *grads, c.detach(), cy.detach(), workspace, bias, want=want, **near)
    check("_thnn_fused_lstm_cell_backward_impl", None, None, c, cy, workspace, bias, want=[None] * 3)

    x, y = rand(batch, 3 * hidden), rand(batch, 3 * hidden)
    b = [rand(3 * hidden), rand(3 * hidden)] if bias else []
    ri, zi, ni = (x + sum(b[:1])).chunk(3, 1)
    rh, zh, nh = (y + sum(b[1:])).chunk(3, 1)
    r, z = (ri + rh).sigmoid(), (zi + zh).sigmoid()
    n = (ni + r * nh).tanh()
    hy = n + z * (h - n)
    workspace = torch.cat([r, z, n, h, nh], 1).detach()
    check("_thnn_fused_gru_cell", x, y, h, *b, want=[hy.detach(), workspace], **near)
    want = gradients([hy], [x, y, h, *b], grads[:1]) + ([] if bias else [None] * 2)
    check("_thnn_fused_gru_cell_backward", grads[0], workspace, bias, want=want, **near)


def recurrent_step(mode, x, h, c, w):
    """One step of cuDNN's layer: h, c, and what is kept for the gradient."""
    a, b = x @ w[0].t() + (w[2] if len(w) > 2 else 0), h @ w[1].t() + (w[3] if len(w) > 2 else 0)
    if mode == 2:
        i, f, g, o = (a + b).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        return o * c.tanh(), c, [i, f, g, o, c]
    if mode == 3:
        (ar, az, an), (br, bz, bn) = a.chunk(3, 1), b.chunk(3, 1)
        r, z = (ar + br).sigmoid(), (az + bz).sigmoid()
        n = (an + r * bn).tanh()
        return n + z * (h - n), c, [r, z, n, bn]
    return ((a + b).tanh() if mode else (a + b).relu()), c, []


def recurrent_layer(mode, x, w, hx, cx, directions):
    per, outs, hy, cy, kept = len(w) // directions, [], [], [], []
    for d in range(directions):
        h, c, ys, saved = hx[d], cx[d] if mode == 2 else None, {}, {}
        for t in range(len(x) - 1, -1, -1) if d else range(len(x)):
            h, c, parts = recurrent_step(mode, x[t], h, c, w[d * per : (d + 1) * per])
            ys[t], saved[t] = h, torch.cat([*parts, h[:, :0]], 1)
        outs.append(torch.stack([ys[t] for t in range(len(x))]))
        kept.append(torch.stack([saved[t] for t in range(len(x))]))
        hy.append(h)
        cy.append(c)
    return torch.cat(outs, 2), torch.stack(hy), torch.stack(cy) if mode == 2 else None, torch.stack(kept)


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize(("bias", "directions"), [(True, 1), (False, 2), (True, 2)])
def test_layers_of_recurrent_networks(mode, bias, directions):
    """Against the formulas of nn.LSTM and its kin (the CPU has no cuDNN)."""
    g = torch.Generator().manual_seed(mode)
    steps, batch, features, hidden = 5, 2, 3, 4
    gates = {2: 4, 3: 3}.get(mode, 1) * hidden
    shapes = [(gates, features), (gates, hidden)] + [(gates,)] * 2 * bias
    x, hx, *w = (
        torch.randn(*s, generator=g).requires_grad_()
        for s in [(steps, batch, features), (directions, batch, hidden), *shapes * directions]
    )
    cx = torch.randn(directions, batch, hidden, generator=g).requires_grad_() if mode == 2 else None
    y, hy, cy, kept = recurrent_layer(mode, x, w, hx, cx, directions)
    sizes = mode, hidden, 0, 1, False, 0.0, True, directions == 2, [], None
    near = {"rtol": 1e-4, "atol": 1e-5}
    detached = [t.detach() for t in w]
    empty = torch.empty(0)
    want = [y.detach(), hy.detach(), cy.detach() if mode == 2 else empty, kept.detach(), empty]
    inner = x.detach(), detached, 2 + 2 * bias
    states = hx.detach(), cx.detach() if mode == 2 else None
    check("_cudnn_rnn", *inner, None, *states, *sizes, want=want, **near)

    outputs = [y, hy] + [cy] * (mode == 2)
    grads = [torch.randn(t.shape, generator=g) for t in outputs]
    inputs = [x, hx] + [cx] * (mode == 2)
    found = gradients(outputs, inputs + w, grads)
    want = found[: len(inputs)] + [None] * (mode != 2) + found[len(inputs) :]
    grads += [None] * (mode != 2)
    args = *inner, empty, *states, y.detach(), *grads, *sizes, kept.detach(), [True] * 4
    check("_cudnn_rnn_backward", *args, want=want, **near)
    found = gradients(outputs[:1], inputs + w, grads[:1])
    want = found[: len(inputs)] + [None] * (mode != 2) + found[len(inputs) :]
    args = *inner, empty, *states, y.detach(), grads[0], None, None, *sizes, kept.detach(), [True] * 4
    check("_cudnn_rnn_backward", *args, want=want, **near)
