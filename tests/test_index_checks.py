"""Indices outside their tensor raise IndexError: at the next read where calls are deferred, else at the call."""

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.cpu
MODES = ["DEFER_AND_FUSE", "DEFER_NEVER", "DEFER_NEVER_AND_LAUNCH_BLOCKING"]


@pytest.fixture(params=MODES)
def mode(request):
    with torch.tpu.set_eager_mode(getattr(torch.tpu.EagerMode, request.param)):
        yield request.param


def idx(*values):
    return torch.tensor(values, device="tpu")


def grad_of_bags(x):
    weight = x.clone().requires_grad_()
    F.embedding_bag(idx(1, 4, 2), weight, idx(0, 3, 3), mode="max").sum().backward()
    return weight.grad


WRONG = {
    "embedding": lambda x: F.embedding(idx(1, 7), x),
    "embedding, negative": lambda x: F.embedding(idx(-1), x),
    "embedding_bag": lambda x: F.embedding_bag(idx(1, 7, 2), x, idx(0, 2)),
    "gather": lambda x: x.gather(1, idx(3, 0)[:, None]),
    "gather, negative": lambda x: x.gather(1, idx(-1, 0)[:, None]),
    "index": lambda x: x[idx(5)],
    "index, too negative": lambda x: x[idx(-6)],
    "index of two": lambda x: x[idx(0, 1), idx(2, 3)],
    "index_put": lambda x: x.clone().index_put_((idx(9),), torch.ones(3, device="tpu")),
    "index_select": lambda x: x.index_select(0, idx(5)),
    "index_add": lambda x: x.clone().index_add_(0, idx(5), torch.ones(1, 3, device="tpu")),
    "index_copy": lambda x: x.clone().index_copy_(0, idx(5), torch.ones(1, 3, device="tpu")),
    "index_fill": lambda x: x.clone().index_fill_(1, idx(3), 0.0),
    "scatter": lambda x: x.clone().scatter_(1, idx(4, 0)[:, None], 1.0),
    "scatter_add": lambda x: x.clone().scatter_add_(1, idx(4, 0)[:, None], torch.ones(2, 1, device="tpu")),
    "take": lambda x: x.take(idx(15)),
    "cross_entropy": lambda x: F.cross_entropy(x, idx(0, 3, 1, 2, 0)),
}
RIGHT = {
    "embedding": lambda x: F.embedding(idx(0, 4), x),
    "embedding_bag with padding": lambda x: F.embedding_bag(idx(1, 4, 2), x, idx(0, 2), padding_idx=1, mode="sum"),
    "embedding_bag, last bags empty": lambda x: F.embedding_bag(idx(1, 4, 2), x, idx(0, 3, 3), mode="sum"),
    "embedding_bag, maximum of an empty bag": lambda x: grad_of_bags(x),
    "index, negative": lambda x: x[idx(-5, 4)],
    "gather": lambda x: x.gather(1, idx(2, 0)[:, None]),
    "cross_entropy, ignored": lambda x: F.cross_entropy(x, idx(0, -100, 1, 2, 0)),
    "empty": lambda x: x[torch.empty(0, dtype=torch.int64, device="tpu")],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_index_raises(name, mode):
    x = torch.arange(15.0, device="tpu").view(5, 3)
    with pytest.raises(IndexError, match="out of range"):
        y = WRONG[name](x)
        if mode.endswith("BLOCKING"):
            pytest.fail("the blocking mode did not raise at the call")
        y.cpu()
    assert torch.equal((x + 1).cpu(), torch.arange(1.0, 16).view(5, 3))  # everything else goes on


@pytest.mark.parametrize("name", RIGHT)
def test_right_index_is_quiet(name, mode):
    RIGHT[name](torch.arange(15.0, device="tpu").view(5, 3)).cpu()
    torch.tpu.synchronize()


def test_synchronize_reports():
    x = torch.zeros(4, device="tpu")
    y = x[idx(4)]
    with pytest.raises(IndexError, match="aten::index"):
        torch.tpu.synchronize()
    torch.tpu.synchronize()  # once
    del y


def test_many_pending_flags_are_read():
    x = torch.zeros(4, device="tpu")
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
        kept = [x[idx(i % 4)] for i in range(600)]
        kept.append(x[idx(4)])
        kept += [x[idx(i % 4)] for i in range(600)]
        with pytest.raises(IndexError):
            kept[0].item()
        assert kept[1].item() == 0
