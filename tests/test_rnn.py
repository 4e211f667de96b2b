"""Recurrent layers over many steps: loops in the program, the CPU's results and gradients."""

import copy

import pytest
import torch
import torch.nn as nn

from torch_tpu import _C

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not torch.tpu.is_available(), reason="no PJRT plugin is installed"),
]

KINDS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
FORMS = [
    {},
    {"num_layers": 2, "batch_first": True},
    {"bidirectional": True, "bias": False},
    {"num_layers": 2, "bidirectional": True},
]


def run(module, x, device, state=None, dtype=None):
    m = copy.deepcopy(module).to(device)
    x = x.detach().clone().to(device).requires_grad_()
    if state is not None:
        state = tuple(s.detach().clone().to(device).requires_grad_() for s in state)
        state = state if isinstance(module, nn.LSTM) else state[0]
    y, last = m(x, state)
    last = last if isinstance(last, tuple) else (last,)
    loss = y.float().square().sum() + sum((k + 2) * s.float().sum() for k, s in enumerate(last))
    loss.backward()
    grads = [x.grad, *(p.grad for p in m.parameters())]
    if state is not None:
        grads += [s.grad for s in (state if isinstance(state, tuple) else (state,))]
    return [t.detach().cpu() for t in (y, *last, *grads)]


def close(got, want, rtol=1e-4, atol=1e-4):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients(kind, options):
    torch.manual_seed(0)
    m = KINDS[kind](5, 4, **options)
    n = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    x = torch.randn(3, 20, 5) if options.get("batch_first") else torch.randn(20, 3, 5)
    close(run(m, x, "tpu"), run(m, x, "cpu"))
    state = (torch.randn(n, 3, 4), torch.randn(n, 3, 4))
    close(run(m, x, "tpu", state), run(m, x, "cpu", state))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_many_steps_are_one_small_program(kind):
    torch.manual_seed(0)
    m = KINDS[kind](6, 5, num_layers=2)

    def length(steps):
        on_device, x = copy.deepcopy(m).to("tpu"), torch.ones(steps, 2, 6, device="tpu")
        torch.tpu.synchronize()
        on_device(x)[0].sum().backward()
        text = _C.pending_text(0)
        torch.tpu.synchronize()
        return len(text)

    assert abs(length(300) - length(20)) < 0.02 * length(20)
    x = torch.randn(300, 2, 6)
    close(run(m, x, "tpu"), run(m, x, "cpu"), rtol=1e-3, atol=1e-3)


def test_without_gradients():
    torch.manual_seed(0)
    m, x = nn.LSTM(4, 6, 2, dropout=0.5).eval(), torch.randn(18, 2, 4)
    with torch.no_grad():
        want = m(x)[0]
        close([copy.deepcopy(m).to("tpu")(x.to("tpu"))[0].cpu()], [want])


def test_dropout_between_layers():
    m, x = nn.GRU(4, 6, 2, dropout=0.5).to("tpu"), torch.randn(18, 2, 4, device="tpu")

    def run(seed):
        torch.manual_seed(seed)
        return m(x)[0].detach().cpu()

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    m.eval()
    assert torch.equal(run(1), run(2))


def test_half_precision():
    torch.manual_seed(0)
    m, x = nn.LSTM(4, 6), torch.randn(18, 2, 4)
    with torch.autocast("tpu", torch.bfloat16):
        y = copy.deepcopy(m).to("tpu")(x.to("tpu"))[0]
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y.float().cpu(), m(x)[0], rtol=2e-2, atol=2e-2)
    close(run(m.bfloat16(), x.bfloat16(), "tpu"), run(m, x.bfloat16(), "cpu"), rtol=6e-2, atol=6e-2)


def test_second_gradients_are_the_composite_kernels():
    m, x = nn.LSTM(3, 4).to("tpu"), torch.randn(17, 2, 3, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="cudnn"):
        (g,) = torch.autograd.grad(m(x)[0].square().sum(), x, create_graph=True)
        g.sum().backward()
    with torch.backends.cudnn.flags(enabled=False):
        (g,) = torch.autograd.grad(m(x)[0].square().sum(), x, create_graph=True)
    g.sum().backward()
    assert x.grad.isfinite().all()


def test_what_stays_composite():
    torch.manual_seed(0)
    x = torch.randn(18, 2, 4)
    m = nn.LSTM(4, 6, proj_size=3)
    close([copy.deepcopy(m).to("tpu")(x.to("tpu"))[0].detach().cpu()], [m(x)[0].detach()])
    m = nn.GRU(4, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x, [18, 17])
    want = nn.utils.rnn.pad_packed_sequence(m(packed)[0])[0]
    got = nn.utils.rnn.pad_packed_sequence(m.to("tpu")(packed.to("tpu"))[0])[0]
    close([got.detach().cpu()], [want.detach()])


def test_wrong_sizes():
    m = nn.LSTM(4, 6).to("tpu")
    with pytest.raises(RuntimeError, match="must be equal to"):
        m(torch.randn(18, 2, 5, device="tpu"))
    with pytest.raises(RuntimeError, match="Expected hidden"):
        m(torch.randn(18, 2, 4, device="tpu"), (torch.zeros(1, 3, 6, device="tpu"), torch.zeros(1, 3, 6, device="tpu")))
    with pytest.raises(RuntimeError):
        m(torch.randn(18, 2, 4, device="tpu"), (torch.zeros(1, 2, 6), torch.zeros(1, 2, 6)))
