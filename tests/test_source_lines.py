"""Errors that are found after the call name the line of the user's program that recorded it."""

import inspect
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.cpu


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def message(read):
    with pytest.raises(IndexError) as caught:
        read()
    return str(caught.value)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        x = self.table(x)  # looked up
        return self.out(x)


def test_forward_of_a_module():
    net = Model().to("tpu")
    said = message(lambda: net(torch.tensor([1, 9]).to("tpu")).sum().item())
    assert f'File "{__file__}", line {line_of(Model.forward, "looked up")}, in Model.forward' in said
    assert "aten::embedding" in said


def test_backward_names_the_forward_line():
    torch.tpu.synchronize()
    x = torch.ones(3, 4, device="tpu", requires_grad=True)
    index = torch.tensor([0, 5]).to("tpu")

    def run():
        y = x.index_select(0, index)  # the cause
        loss = y.sum()
        with pytest.raises(IndexError):
            y.sum().item()
        loss.backward()
        torch.tpu.synchronize()

    said = message(run)
    assert f"line {line_of(test_backward_names_the_forward_line, 'the cause')}, in" in said


class Picks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g + g[torch.tensor([7]).to("tpu")]  # in Python


def test_backward_in_python():
    x = torch.ones(3, device="tpu", requires_grad=True)
    Picks.apply(x).sum().backward()
    said = message(lambda: x.grad.sum().item())
    assert f"line {line_of(Picks.backward, 'in Python')}, in Picks.backward" in said


def test_thread_of_the_engine():
    x = torch.ones(3, 4, device="tpu", requires_grad=True)
    y = x.index_select(0, torch.tensor([0, 3]).to("tpu"))  # in a thread
    with pytest.raises(IndexError):
        y.sum().item()
    with torch.autograd.set_multithreading_enabled(True):
        y.sum().backward()
    said = message(torch.tpu.synchronize)
    assert f"line {line_of(test_thread_of_the_engine, '# in a thread')}, in test_thread_of_the_engine" in said


def test_code_made_at_run_time():
    scope = {"torch": torch, "F": F}
    for k in range(3):
        exec(compile(f"\n\ndef f{k}(x, i):\n    return x[i]", f"<made {k}>", "exec"), scope)
        x = torch.ones(2, device="tpu")
        y = scope[f"f{k}"](x, torch.tensor([4]).to("tpu"))
        assert f'File "<made {k}>", line 4, in f{k}' in message(y.item)


def test_out_of_memory():
    x = torch.arange(1 << 20, device="tpu", dtype=torch.float32)
    state = torch.ones(3, device="tpu")
    state.add_(1)
    small = x + 1
    product = x[:, None] * x[None, :]  # 4 TiB
    after = product.sum(1)
    other = small * 2
    state.mul_(3)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        product[5, 7].item()
    said = str(caught.value)
    assert re.search(
        r"tpu:0 is out of memory: tried to allocate 4096.00 GiB; .*the largest by float32\[1048576\] of 4.00 MiB", said
    )
    line = line_of(test_out_of_memory, "# 4 TiB")
    assert f'aten::mul.Tensor (File "{__file__}", line {line}, in test_out_of_memory)' in said
    with pytest.raises(torch.OutOfMemoryError):
        after.cpu()
    # What only shared its program goes on.
    assert small[7].item() == 8 and other[7].item() == 16 and state.tolist() == [6, 6, 6]
