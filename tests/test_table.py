"""Gates over the whole op table. They judge what the tests before them did, so they run last and need all row tests."""

import pathlib
import time

import lower_harness
import pytest
import torch

pytestmark = [pytest.mark.last, pytest.mark.timeout(3600)]

FOLDER = pathlib.Path(__file__).parent
# Rows that libtpu does not compile, and why.
NOT_FOR_TPU = {}
# Rows whose results the meta kernel sees differently, and why.
NOT_META = {
    "_cudnn_rnn": "what is kept for the gradient is of our own form",
    "_scaled_dot_product_efficient_attention": "memory order and a padded logsumexp as CUDA's kernel has them",
    "_scaled_dot_product_efficient_attention_backward": "memory order as CUDA's kernel has it",
    "_scaled_dot_product_flash_attention": "the random state of CUDA's kernel",
    "_weight_norm_interface": "the CPU's norms have the size of v, not of g, where v has one dim",
    "log_sigmoid_forward": "an empty buffer, as on CUDA",
    "multi_margin_loss": "the CPU's result has no dim",
    "multilabel_margin_loss_forward": "the CPU's result has no dim",
}


def aten_rows():
    """The backend's own rows have no schema, nor a CPU kernel: core/aten/lower_test.c runs them."""
    return {name for name in lower_harness.rows() if not name.startswith("tpu::")}


@pytest.fixture
def samples(request):
    """The names of the rows that were executed, where all of their tests run."""
    option = request.config.option
    ran = {item.path.name for item in request.session.items}
    if option.keyword or option.markexpr or not {path.name for path in FOLDER.glob("test_rows_*.py")} <= ran:
        pytest.skip("needs a run of all test_rows_*.py")
    # Another worker may be in its last tests still.
    end = time.monotonic() + 120
    while aten_rows() - lower_harness.kept() and time.monotonic() < end:
        time.sleep(1)
    return sorted(lower_harness.kept())


@pytest.mark.cpu
def test_every_row_was_executed(samples):
    missing = aten_rows() - set(samples)
    assert not missing, " ".join(sorted(missing))


@pytest.mark.cpu
def test_results_are_the_meta_kernels(samples):
    """What a row infers before anything runs: numbers of results, dtypes, shapes, strides."""
    differ, compared = {}, 0
    for name in samples:
        args, kwargs = lower_harness.kept_sample(name)
        want = lower_harness.meta(name, *args, **kwargs)
        if want is None:
            continue
        compared += 1
        got, _ = lower_harness.call(name, *args, execute=False, **kwargs)
        found, wanted = [described(t) for t in got], [described(t) for t in want]
        if found != wanted:
            differ[name] = f"{found}, the meta kernel has {wanted}"
    assert set(differ) == set(NOT_META), differ
    assert compared > 0.8 * len(samples)


def described(result):
    if not isinstance(result, torch.Tensor) or result.shape == (0,):
        return None  # what is undefined here may be empty there
    strides = [s for s, n in zip(result.stride(), result.shape, strict=True) if n > 1] if result.numel() else []
    return str(result.dtype)[6:], list(result.shape), strides


@pytest.mark.aot
def test_rows_compile_for_a_tpu(samples):
    """A small sample of each row that was executed, compiled by libtpu for one chip of a v5e."""
    lower_harness.open_topology("v5e:1x1")
    failed = {}
    with lower_harness.lowered_for("tpu"):
        for name in samples:
            args, kwargs = lower_harness.kept_sample(name)
            try:
                lower_harness.call(name, *args, execute="aot", **kwargs)
            except lower_harness.RowError as error:
                failed[name] = str(error)[:300]
    assert set(failed) == set(NOT_FOR_TPU), failed
