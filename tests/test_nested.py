"""Nested tensors of the strided layout, and attention under torch.func and torch.nn.attention: as on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.cpu


def nested(device, **kwargs):
    parts = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (2, 5, 3)]
    return torch.nested.nested_tensor(parts, device=device, **kwargs)


def tensors(value):
    if isinstance(value, torch.Tensor):
        return list(value.unbind()) if value.is_nested else [value]
    return [t for v in value for t in tensors(v)]


def same(on_cpu, on_tpu):
    on_cpu, on_tpu = tensors(on_cpu), tensors(on_tpu)
    assert len(on_cpu) == len(on_tpu)
    for a, b in zip(on_cpu, on_tpu, strict=True):
        assert b.device.type == "tpu"
        torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)


def heads(n):
    return n.reshape(3, -1, 2, 2).transpose(1, 2).contiguous()


# Kernels that are compositions, those that have a composite kernel beside, and those that read memory.
OPS = {
    "to_padded_tensor": lambda n: n.to_padded_tensor(-1.0),
    "unbind": lambda n: n.unbind(),
    "select": lambda n: n[1],
    "add": lambda n: n + n,
    "mul_number": lambda n: n * 2,
    "gelu": F.gelu,
    "silu": F.silu,
    "softmax": lambda n: n.softmax(-1),
    "linear": lambda n: F.linear(n, torch.full((3, 4), 0.5, device=n.device), torch.ones(3, device=n.device)),
    "layer_norm": lambda n: F.layer_norm(
        n, (4,), torch.full((4,), 2.0, device=n.device), torch.ones(4, device=n.device)
    ),
    "sum": lambda n: n.sum(-1, keepdim=True),
    "matmul": lambda n: torch.matmul(n, n.transpose(1, 2)),
    "chunk": lambda n: n.chunk(2, -1),
    "cat": lambda n: torch.cat([n, n]),
    "to": lambda n: n.double(),
    "attention": lambda n: F.scaled_dot_product_attention(heads(n), heads(n), heads(n)).transpose(1, 2),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.filterwarnings("ignore:The operator", "ignore:The PyTorch API of nested")
def test_nested_tensors(name):
    same(OPS[name](nested("cpu")), OPS[name](nested("tpu")))


@pytest.mark.parametrize("name", [name for name in OPS if name not in ("chunk", "cat", "to", "add")])
@pytest.mark.filterwarnings("ignore:The operator", "ignore:The PyTorch API of nested")
def test_gradients_of_nested_tensors(name):
    grads = []
    for device in ("cpu", "tpu"):
        n = nested(device, requires_grad=True)
        sum(t.sin().sum() for t in tensors(OPS[name](n))).backward()
        grads.append(n.grad)
    same(*grads)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_what_nested_tensors_cannot_do():
    with pytest.raises(NotImplementedError, match="aten::exp.*nested"):
        nested("tpu").exp()


@pytest.mark.filterwarnings("ignore:The operator", "ignore:The PyTorch API of nested")
def test_an_encoder_without_a_check_of_its_mask():
    def run(device):
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, mask_check=False).eval().to(device)
        padding = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]).bool().to(device)
        with torch.no_grad():
            return encoder(torch.randn(2, 5, 16).to(device), src_key_padding_mask=padding)

    same(run("cpu"), run("tpu"))


def attention(x):
    return F.scaled_dot_product_attention(x, x.cos(), x.sin(), is_causal=True)


def second_gradient(x):
    x = x.requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        (grad,) = torch.autograd.grad(attention(x).sin().sum(), x, create_graph=True)
        grad.pow(2).sum().backward()
    return x.grad


def tangent(x):
    with sdpa_kernel(SDPBackend.MATH):
        return torch.func.jvp(attention, (x,), (x.cos(),))


TRANSFORMS = {
    "second_gradient": second_gradient,
    "tangent": tangent,
    "vmap": torch.vmap(attention),
    "gradient_of_each": torch.vmap(torch.func.grad(lambda x: attention(x).sin().sum())),
    "gradient_of_all": torch.func.grad(lambda x: torch.vmap(attention)(x).sin().sum()),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformed_attention(name):
    x = torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    x = x if name in ("second_gradient", "tangent") else x[:, None]
    same(TRANSFORMS[name](x.clone()), TRANSFORMS[name](x.to("tpu")))


def test_no_kernel_of_attention_is_wanted():
    x = torch.randn(1, 2, 4, 8)
    for device in ("cpu", "tpu"):
        with sdpa_kernel([]), pytest.raises(RuntimeError, match="No viable backend"):
            attention(x.to(device))
