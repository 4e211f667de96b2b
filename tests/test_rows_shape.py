"""Rows that rearrange elements, pads, gradients of views, sliding blocks and searches, against the CPU kernels."""

import math

import pytest
import torch
from lower_harness import check, check_error, run, text, zero_dim
from test_rows_reduce import cases, make

pytestmark = pytest.mark.cpu

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
X = make(3, 4, 5)
L = make(2, 3, 4, 5).to(memory_format=torch.channels_last)
nan, inf = math.nan, math.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    x = make(3, 4, dtype=dtype)
    check("cat", [x, x], 1)
    check("stack", [x, x], 1)
    check("repeat", x, [2, 3])
    check("roll", x, [1], [0])
    check("flip", x, [0, 1])
    check("constant_pad_nd", x, [1, 2], 1)
    check("tril", x)
    check("diag_embed", x)
    check("clone", x)
    check("select_backward", x, [3, 2, 4], 1, 1)


@cases(
    ("cat", [X, X, X]),
    ("cat", [X, make(1, 4, 5)], 0),
    ("cat", [X, make(3, 4, 1)], -1),
    ("cat", [X]),
    ("cat", [X, make(0)], 1),
    ("cat", [make(0), make(0)]),
    ("cat", [make(0), X, make(0)], -1),
    ("cat", [X, make(3, 0, 5)], 1),
    ("cat", [X, X.double()], 1),
    ("cat", [X.int(), X.half()], 1),
    ("cat", [make(2, dtype=torch.uint8), make(3, dtype=torch.int8)]),
    ("cat", [make(2, dtype=torch.bool), make(3, dtype=torch.int8)]),
    ("cat", [L, L], 1),
    ("cat", [L, L.contiguous()], 1),
    ("cat", [X.transpose(0, 1), X.transpose(0, 1)], 0),
    ("stack", [X, X], 0),
    ("stack", [X, X], -1),
    ("stack", [make(), make(), make()]),
    ("stack", [X, X.double()], 2),
    ("stack", [make(2, 0), make(2, 0)], 1),
    ("stack", [L, L], 0),
    ("stack", [L, L], 2),
    ("stack", [L, L.double()], -1),
    ("stack", [X.transpose(0, 1)], 3),
    ("repeat", X, [2, 1, 1]),
    ("repeat", X, [2, 1, 3, 2]),
    ("repeat", X, [1, 0, 1]),
    ("repeat", make(), [2, 3]),
    ("repeat", make(), []),
    ("repeat", make(0, 2), [3, 2]),
    ("repeat", X.transpose(0, 2), [1, 2, 1]),
    ("roll", X, [1]),
    ("roll", X, [-3], [1]),
    ("roll", X, [2, 9], [0, -1]),
    ("roll", X, [1, 1], [0, 0]),
    ("roll", make(0, 3), [1], [0]),
    ("roll", make(), [1]),
    ("roll", X.transpose(0, 1), [1], [0]),
    ("flip", X, [0]),
    ("flip", X, [-1, 0]),
    ("flip", X, []),
    ("flip", make(), [0]),
    ("flip", X.transpose(0, 2), [1]),
    ("flip", L, [1]),
    ("flip", make(0, 3), [0]),
    ("tril", X),
    ("tril", X, 2),
    ("tril", X, -2),
    ("tril", X, 100),
    ("triu", X, -100),
    ("triu", X),
    ("triu", X, 1),
    ("triu", X.transpose(1, 2), -1),
    ("triu", make(0, 3)),
    ("tril", make(4, 4, dtype=torch.float64).t()),
    ("triu", torch.full((3, 3), nan), 1),
    ("diag_embed", make(3)),
    ("diag_embed", X, 1),
    ("diag_embed", X, -2, 0, 2),
    ("diag_embed", X, 0, 2, 0),
    ("diag_embed", X, 1, -1, 1),
    ("diag_embed", make(2, 0)),
    ("diag_embed", make(0), 2),
    ("pixel_shuffle", make(2, 12, 3, 4), 2),
    ("pixel_shuffle", make(9, 3, 4), 3),
    ("pixel_shuffle", make(1, 2, 12, 3, 4), 2),
    ("pixel_shuffle", make(2, 12, 3, 4).to(memory_format=torch.channels_last), 2),
    ("pixel_unshuffle", make(2, 3, 4, 6), 2),
    ("pixel_unshuffle", make(1, 6, 9), 3),
    ("pixel_unshuffle", make(2, 3, 4, 6).to(memory_format=torch.channels_last), 2),
    ("channel_shuffle", make(2, 6, 3, 4), 3),
    ("channel_shuffle", make(2, 6, 3, 4).to(memory_format=torch.channels_last), 2),
    ("channel_shuffle", make(2, 6, 3), 2),
    ("clone", X.transpose(0, 2)),
    ("clone", X.transpose(0, 2), {"memory_format": torch.contiguous_format}),
    ("clone", L),
    ("clone", L.contiguous(), {"memory_format": torch.channels_last}),
    ("clone", make(1, 2, 3, 4, 5), {"memory_format": torch.channels_last_3d}),
    ("clone", make(3, 1).expand(3, 4)),
    ("clone", make(6)[::2]),
    ("clone", make(4, 6)[:, ::2]),
    ("clone", make()),
    ("split_with_sizes_copy", X, [1, 3], 1),
    ("split_with_sizes_copy", X, [2, 0, 1], 0),
)
def test_moves(name, args, kwargs):
    check(name, *args, **kwargs)


@cases(
    ("constant_pad_nd", X, [1, 2], 2.5),
    ("constant_pad_nd", X, [1, 2, 0, 1, 3, 0]),
    ("constant_pad_nd", X, [-1, -2], 1),
    ("constant_pad_nd", X, [-1, 2, 1, -3], 1),
    ("constant_pad_nd", X, []),
    ("constant_pad_nd", X, [1, 1], nan),
    ("constant_pad_nd", make(0, 3), [1, 1, 2, 2], 7),
    ("constant_pad_nd", make(3, dtype=torch.int32), [1, 1], 2.7),
    ("constant_pad_nd", make(3, dtype=torch.bool), [1, 1], 1),
    ("constant_pad_nd", L, [1, 1, 1, 1]),
    ("constant_pad_nd", X.transpose(0, 2), [1, 1]),
    ("constant_pad_nd", X, [0, -5]),
)
def test_constant_pad(name, args, kwargs):
    check(name, *args, **kwargs)


@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_border_pads(kind, dtype):
    for n, pads in (
        (1, [[1, 2], [0, 3], [-1, 2], [3, -1], [0, 0]]),
        (2, [[1, 2, 2, 1], [0, 1, -1, 2]]),
        (3, [[1, 1, 2, 0, 1, 2], [1, 0, 0, 2, -1, 1]]),
    ):
        for pad in pads:
            for lead in ((2, 3), (3,), (0, 3)) if dtype == torch.float32 else ((2, 3),):
                x = make(*lead, *(4, 3, 5)[3 - n :], dtype=dtype)
                (y,) = check(f"{kind}_pad{n}d", x, pad)
                grad = make(*y.shape, dtype=dtype, seed=1)
                if lead[0]:
                    check(f"{kind}_pad{n}d_backward", grad, x, pad, rtol=1e-5, atol=1e-5)
    check(f"{kind}_pad2d", L.to(dtype), [1, 1, 1, 1])
    check(f"{kind}_pad2d_backward", make(2, 3, 6, 7, dtype=dtype), L.to(dtype), [1, 1, 1, 1], rtol=1e-5, atol=1e-5)
    check(
        f"{kind}_pad3d", make(1, 2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last_3d), [1, 1, 1, 1, 1, 1]
    )


@cases(
    ("slice_backward", make(3, 2, 5), [3, 4, 5], 1, 1, 3, 1),
    ("slice_backward", make(3, 2, 5), [3, 4, 5], -2, 0, 4, 2),
    ("slice_backward", make(3, 2, 5), [3, 4, 5], 1, 1, 2**63 - 1, 2),
    ("slice_backward", make(3, 2, 5), [3, 4, 5], 1, -2, 2**63 - 1, 1),
    ("slice_backward", make(3, 0, 5), [3, 4, 5], 1, 3, 3, 1),
    ("slice_backward", make(0), [4], 0, 9, 12, 1),
    ("select_backward", make(3, 5), [3, 4, 5], 1, 2),
    ("select_backward", make(3, 5), [3, 4, 5], 1, -1),
    ("select_backward", make(), [4], 0, 0),
    ("diagonal_backward", make(3), [3, 4], 0, 0, 1),
    ("diagonal_backward", make(3), [3, 4], 1, 0, 1),
    ("diagonal_backward", make(2), [3, 4], -1, 0, 1),
    ("diagonal_backward", make(3), [3, 4], -1, 1, 0),
    ("diagonal_backward", make(4, 3), [3, 4, 5], 0, 0, 2),
    ("diagonal_backward", make(4, 3), [3, 4, 5], 2, 0, 2),
    ("diagonal_backward", make(4, 3), [3, 4, 5], 0, 2, 0),
    ("diagonal_backward", make(3, 0), [3, 4, 5], 9, 1, 2),
    ("unfold_backward", make(3, 4, 2), [3, 8], 1, 2, 2),
    ("unfold_backward", make(3, 4, 3), [3, 9], 1, 3, 2),
    ("unfold_backward", make(3, 3, 2), [3, 9], 1, 2, 3),
    ("unfold_backward", make(3, 7, 3), [3, 9], 1, 3, 1),
    ("unfold_backward", make(2, 4, 5), [7, 4], 0, 5, 2),
    ("unfold_backward", make(2, 4, 5), [8, 4], 0, 5, 2),
    ("unfold_backward", make(1), [], 0, 1, 1),
    ("unfold_backward", make(3, 2, 4, 3, dtype=torch.float64), [3, 5, 4], 1, 3, 2),
    ("slice_scatter", X, make(3, 2, 5), 1, 1, 3),
    ("slice_scatter", X, make(3, 2, 5), 1, 0, None, 2),
    ("slice_scatter", X, make(3, 4, 5), 1),
    ("slice_scatter", X, make(3, 2, 5).double(), 1, -2, 100),
    ("slice_scatter", X, make(3, 0, 5), 1, 3, 2),
    ("slice_scatter", make(7), make(3), 0, 0, None, 3),
    ("select_scatter", X, make(3, 5), 1, 2),
    ("select_scatter", X, make(3, 4), -1, -1),
    ("diagonal_scatter", make(3, 4), make(3)),
    ("diagonal_scatter", make(3, 4), make(2), -1),
    ("diagonal_scatter", X, make(4, 3), 1, 0, 2),
    ("diagonal_scatter", X, make(4, 2), 1, 2, 0),
)
def test_views(name, args, kwargs):
    check(name, *args, strides=not name.endswith("scatter"), **kwargs)


@pytest.mark.parametrize("kernel,dilation,padding,stride", [
    ((2, 2), (1, 1), (0, 0), (1, 1)),
    ((2, 2), (1, 1), (0, 0), (2, 2)),
    ((2, 3), (1, 1), (0, 0), (2, 3)),
    ((3, 2), (1, 2), (1, 0), (2, 1)),
    ((1, 1), (1, 1), (0, 0), (1, 1)),
    ((3, 3), (2, 1), (2, 1), (1, 3)),
])  # fmt: skip
def test_sliding_blocks(kernel, dilation, padding, stride):
    for shape in ((2, 3, 7, 8), (3, 7, 8)):
        for dtype in (torch.float32, torch.complex64):
            x = make(*shape, dtype=dtype)
            (columns,) = check("im2col", x, kernel, dilation, padding, stride)
            check("col2im", columns, (7, 8), kernel, dilation, padding, stride, rtol=1e-5, atol=1e-5)
    check("im2col", make(0, 3, 7, 8), kernel, dilation, padding, stride)


@pytest.mark.parametrize("size", [1, 5, 64, 65, 1000])
@pytest.mark.parametrize("right", [False, True])
def test_searches(size, right):
    edges = make(size).sort()[0]
    if size > 4:
        edges[2] = edges[1]
    values = torch.cat([make(20), edges[:3], torch.tensor([inf, -inf, nan])]).reshape(2, -1)
    check("searchsorted.Tensor", edges, values, right=right)
    check("searchsorted.Tensor", edges, values, side="right" if right else "left", out_int32=True)
    check("bucketize.Tensor", values, edges, right=right)
    check("bucketize.Tensor", make(), edges, right=right, out_int32=True)
    check("searchsorted.Scalar", edges, 0.3, right=right)
    check("bucketize.Scalar", 0.3, edges, right=right)
    rows = make(2, 3, size).sort(-1)[0]
    check("searchsorted.Tensor", rows, make(2, 3, 7), right=right)
    unsorted = make(2, 3, size)
    check("searchsorted.Tensor", unsorted, make(2, 3, 7), right=right, sorter=unsorted.argsort(-1))
    check("searchsorted.Tensor", torch.arange(0, 3 * size, 3), torch.arange(-3, 20), right=right)
    check("searchsorted.Tensor", edges[:0], values, right=right)
    check("searchsorted.Tensor", edges, values.double(), right=right)
    check("bucketize.Tensor", torch.arange(-3, 20), edges, right=right)
    check("bucketize.Scalar", 2.5, torch.arange(0, 3 * size, 3), right=right)
    check("searchsorted.Tensor", edges, make(0), right=right)


@pytest.mark.parametrize(
    "row,col,offset",
    [(3, 3, 0), (4, 2, 0), (2, 5, 1), (5, 3, -2), (3, 4, 9), (3, 4, -9), (0, 3, 0), (3, 0, 1), (1, 1, 0), (70, 50, -7)],
)
def test_triangle_indices(row, col, offset):
    for name in ("tril_indices", "triu_indices"):
        got = run(name, row, col, offset)
        assert torch.equal(got, getattr(torch, name)(row, col, offset))
        assert run(name, row, col, offset, dtype=torch.int32).dtype == torch.int32


def test_histc():
    x = torch.cat([make(500), torch.tensor([0.0, 1.0, -1.0])])
    check("histc", x, 10, -2, 2)
    check("histc", x)
    check("histc", x, 7, 0, 0)
    check("histc", torch.ones(5), 4, 0, 0)
    check("histc", make(0), 4, 0, 0)
    check("histc", x.double(), 300, -1, 1)


@cases(
    ("cat", []),
    ("cat", [X, make(3, 5, 4)], 1),
    ("cat", [X, make(3, 5)], 1),
    ("cat", [make(), make()]),
    ("cat", [X, X], 3),
    ("stack", [X, make(3, 4)]),
    ("stack", [X, X], 4),
    ("stack", []),
    ("repeat", X, [2, 3]),
    ("repeat", X, [2, 3, -1]),
    ("roll", X, []),
    ("roll", X, [1, 2], [0]),
    ("roll", X, [1], [3]),
    ("flip", X, [0, 0]),
    ("flip", X, [3]),
    ("tril", make(3)),
    ("triu", make(3)),
    ("diag_embed", X, 0, 1, 1),
    ("diag_embed", X, 0, 1, 7),
    ("constant_pad_nd", X, [1]),
    ("constant_pad_nd", make(3), [1, 1, 1, 1]),
    ("constant_pad_nd", X, [-4, -3]),
    ("constant_pad_nd", X, [1, -9, 1, 1]),
    ("reflection_pad1d", make(2, 3), [3, 0]),
    ("reflection_pad2d", make(2, 3, 4), [1, 1, 3, 0]),
    ("reflection_pad2d", make(2, 3, 4), [4, 1, 0, 0]),
    ("reflection_pad3d", make(1, 2, 3, 4), [1, 1, 1, 1, 2, 0]),
    ("reflection_pad1d", make(3), [1, 1]),
    ("reflection_pad2d", make(3, 4), [1, 1, 1, 1]),
    ("replication_pad1d", make(2, 0), [1, 1]),
    ("replication_pad2d", make(3), [1, 1, 1, 1]),
    ("replication_pad3d", make(3), [1, 1, 1, 1, 1, 1]),
    ("pixel_shuffle", make(3, 4), 2),
    ("pixel_shuffle", make(3, 4, 5), 2),
    ("pixel_shuffle", make(4, 4, 5), 0),
    ("pixel_unshuffle", make(3, 4, 5), 2),
    ("pixel_unshuffle", make(4, 5), 2),
    ("channel_shuffle", make(2, 5, 3), 2),
    ("channel_shuffle", make(2, 5), 2),
    ("channel_shuffle", make(2, 5, 3), 0),
    ("clone", X, {"memory_format": torch.channels_last}),
    ("split_with_sizes_copy", X, [1, 2], 1),
    ("split_with_sizes_copy", X, [-1, 5], 1),
    ("slice_scatter", X, make(3, 3, 5), 1, 1, 3),
    ("select_scatter", X, make(3, 4), 1, 2),
    ("select_scatter", X, make(3, 5), 1, 4),
    ("im2col", X, (5, 2), (1, 1), (0, 0), (1, 1)),
    ("im2col", X, (2, 2), (1, 1), (0, 0), (0, 1)),
    ("im2col", X, (2, 2), (0, 1), (0, 0), (1, 1)),
    ("im2col", X, (0, 2), (1, 1), (0, 0), (1, 1)),
    ("col2im", make(2, 5, 4), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    ("col2im", make(2, 4, 4), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    ("searchsorted.Tensor", X, make(3, 5, 2)),
    ("searchsorted.Tensor", make(), make(4)),
    ("searchsorted.Tensor", make(4), make(4), {"side": "middle"}),
    ("searchsorted.Tensor", make(4), make(4), {"side": "left", "right": True}),
    ("bucketize.Tensor", make(3), X),
    ("histc", make(3), 0),
)
def test_errors(name, args, kwargs):
    check_error(name, *args, **kwargs)


def test_repeat_is_a_broadcast():
    program = text("repeat", X, [2, 1, 3])
    assert "concatenate" not in program and "broadcast_in_dim" in program


def test_numbers_are_run_time_inputs():
    a, b = text("constant_pad_nd", X, [1, 1], 2.5), text("constant_pad_nd", X, [1, 1], 3.5)
    assert a == b
    check("cat", [make(3), make(2)])
    check("searchsorted.Tensor", make(4).sort()[0], zero_dim(torch.tensor(0.5)), strides=False)
