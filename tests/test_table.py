"""Gates over the whole op table. They judge what the tests before them did, so they run last and need all row tests."""

import pathlib

import lower_harness
import pytest

pytestmark = pytest.mark.last

FOLDER = pathlib.Path(__file__).parent
# Compiling all of them takes libtpu minutes; every n-th row is compiled unless --all-rows is given.
NOT_FOR_TPU = {}


@pytest.fixture
def all_rows(request):
    """The names of the rows, where all of their tests ran."""
    ran = {item.path.name for item in request.session.items}
    files = {path.name for path in FOLDER.glob("test_rows_*.py")}
    if request.config.option.keyword or request.config.option.markexpr or not files <= ran:
        pytest.skip("needs a run of all test_rows_*.py")
    return lower_harness.rows()


@pytest.mark.cpu
def test_every_row_was_executed(all_rows):
    missing = [name for name in all_rows if name not in lower_harness.seen]
    assert not missing


@pytest.mark.aot
@pytest.mark.timeout(3600)
def test_rows_compile_for_a_tpu():
    """The smallest sample of each row that was executed, compiled by libtpu for one chip of a v5e."""
    lower_harness.open_topology("v5e:1x1")
    failed = {}
    with lower_harness.lowered_for("tpu"):
        for name, (args, kwargs) in sorted(lower_harness.seen.items()):
            try:
                lower_harness.call(name, *args, execute="aot", **kwargs)
            except lower_harness.RowError as error:
                failed[name] = str(error)[:300]
    assert set(failed) == set(NOT_FOR_TPU), failed
