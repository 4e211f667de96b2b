"""Sparse tensors, as gradients of embeddings are, against the CPU's."""

import pytest
import torch
import torch.nn as nn

pytestmark = pytest.mark.cpu


def same(function):
    with torch.tpu.cpu_fallback("error"):
        got = function("tpu")
    for a, b in zip(got, function("cpu"), strict=True):
        a, b = a.detach().cpu(), b.detach()
        assert (a.layout, a.shape, a.dtype) == (b.layout, b.shape, b.dtype)
        if b.is_sparse:
            assert a.is_coalesced() == b.is_coalesced()
            a, b = a.coalesce(), b.coalesce()
            assert torch.equal(a.indices(), b.indices())
            a, b = a.values(), b.values()
        torch.testing.assert_close(a, b)


def matrix(device):
    """[4, 3], with one place named twice."""
    places = torch.tensor([[3, 1, 3, 0], [0, 2, 0, 1]])
    return torch.sparse_coo_tensor(places, torch.tensor([1.0, 2, 3, 4]), (4, 3)).to(device)


def rows(device):
    """[3, 4], of whole rows."""
    return torch.sparse_coo_tensor(torch.tensor([[2, 0, 2]]), torch.arange(12.0).view(3, 4) + 1, (3, 4)).to(device)


def dense(device):
    return torch.arange(12.0, device=device).view(4, 3)


FUNCTIONS = {
    "coalesce": lambda d: [matrix(d), matrix(d).coalesce(), rows(d).coalesce(), rows(d).coalesce().indices()],
    "convert": lambda d: [matrix(d).to_dense(), rows(d).to_dense(), dense(d).to_sparse()],
    "dense + sparse": lambda d: [
        dense(d).add_(matrix(d), alpha=-2),
        dense(d) + matrix(d),
        dense(d).t().contiguous().t() + matrix(d).coalesce(),
        torch.ones(4, 3, device=d).t().add_(rows(d)),
    ],
    "sparse + sparse": lambda d: [
        matrix(d) + matrix(d),
        matrix(d).add_(matrix(d), alpha=0.5),
        rows(d) - rows(d).coalesce(),
    ],
    "multiply": lambda d: [
        matrix(d) * 2,
        rows(d) / 4,
        matrix(d).mul_(3).div_(2),
        matrix(d) * torch.full((), 2.0, device=d),
        matrix(d) * dense(d),
        matrix(d) * matrix(d),
    ],
    "unary": lambda d: [-matrix(d), matrix(d).abs(), matrix(d).zero_(), rows(d).clone(), matrix(d).coalesce().sqrt()],
    "reduce": lambda d: [matrix(d).sum(), matrix(d).norm(), rows(d).norm(1)],
    "mask": lambda d: [dense(d).sparse_mask(matrix(d).coalesce())],
    "product": lambda d: [torch.sparse.mm(matrix(d), dense(d).t()), matrix(d) @ torch.ones(3, 2, device=d)],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    same(FUNCTIONS[name])


def test_gradient_of_a_product():
    def run(device):
        x = dense(device).t().contiguous().requires_grad_()
        torch.sparse.mm(matrix(device), x).square().sum().backward()
        return [x.grad]

    same(run)


def test_errors():
    with pytest.raises(RuntimeError, match="same size"):
        dense("tpu").t().add_(matrix("tpu"))
    with pytest.raises(RuntimeError, match="add\\(sparse, dense\\) is not supported"):
        matrix("tpu") + dense("tpu")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.sparse.mm(matrix("tpu"), dense("tpu"))


@pytest.mark.parametrize("bag", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, 0.1),
        lambda p: torch.optim.SparseAdam(p, 0.1),
    ],
    ids=["sgd", "momentum", "adagrad", "sparse_adam"],
)
def test_training_an_embedding(bag, optimizer):
    def run(device):
        torch.manual_seed(0)
        kind = {"mode": "mean"} if bag else {"padding_idx": 0}
        table = (nn.EmbeddingBag if bag else nn.Embedding)(6, 3, sparse=True, **kind).to(device)
        steps, seen = optimizer(list(table.parameters())), []
        index = torch.tensor([[1, 1, 2], [0, 4, 1]], device=device)
        for i in range(3):
            steps.zero_grad(set_to_none=i != 1)
            (table(index) * torch.arange(3.0, device=device)).square().sum().backward()
            table(index).sum().backward()
            seen.append(table.weight.grad.clone())
            steps.step()
        return [*seen, table.weight]

    same(run)
