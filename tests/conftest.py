"""What all tests share: a private cache of programs, tiers by marker, a limit of time per test.

Tests run against the installed package (`make test`) or a checkout with its native part built and first in PYTHONPATH.

    host  no device           cpu  the CPU plugin
    aot   libtpu, no chip     tpu  a TPU
"""

import atexit
import os
import shutil
import sys
import tempfile

import pytest

SECONDS = 180  # of one test

# Before torch is imported: the backend reads its settings once. Workers of pytest-xdist share their parent's folder.
if "TORCH_TPU_TEST_RUN" not in os.environ:
    _folder, _owner = tempfile.mkdtemp(prefix="torch-tpu-tests-"), os.getpid()
    atexit.register(lambda: os.getpid() == _owner and shutil.rmtree(_folder, ignore_errors=True))
    os.environ["TORCH_TPU_TEST_RUN"] = _folder
    os.environ["TORCH_TPU_CACHE_DIR"] = os.path.join(_folder, "cache")
# The plugin is this machine's, whatever a user's shell is set to.
for _name in ("TORCH_TPU_LAUNCH_BLOCKING", "TORCH_TPU_DEFER_AND_FUSE", "TORCH_TPU_CPU_FALLBACK"):
    os.environ.pop(_name, None)
# Programs that tests start import the installed package too, not sources in the folder they start in.
os.environ["PYTHONSAFEPATH"] = "1"
# cmake and ninja of this environment build the library behind lower_harness.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")

import torch  # noqa: E402

import torch_tpu  # noqa: E402
from torch_tpu import plugins  # noqa: E402

TIERS = ("host", "cpu", "aot", "tpu")


def pytest_configure(config):
    for line in (
        "host: needs no device",
        "cpu: needs a CPU plugin",
        "aot: compiles for a TPU topology without hardware",
        "tpu: needs a TPU",
        "last: runs after all others",
    ):
        config.addinivalue_line("markers", line)


def pytest_report_header():
    return f"torch {torch.__version__}, torch_tpu {torch_tpu.__version__} in {os.path.dirname(torch_tpu.__file__)}"


def _missing():
    """Why tests of a tier cannot run here, by tier."""
    missing = {}
    if not plugins.cpu_plugin():
        missing["cpu"] = "no CPU plugin is installed (fastatomstruct-xla-cpu or xla-cpu-pjrt)"
    if not plugins.library("libtpu", "libtpu.so"):
        missing["aot"] = missing["tpu"] = "libtpu is not installed (pip install 'torch-tpu-c[tpu]')"
    elif not any(os.path.exists(path) for path in ("/dev/accel0", "/dev/vfio/0")):
        missing["tpu"] = "no TPU is attached to this machine"
    return missing


def pytest_collection_modifyitems(config, items):
    missing = _missing()
    for item in items:
        tiers = [tier for tier in TIERS if item.get_closest_marker(tier)]
        if len(tiers) != 1:
            raise pytest.UsageError(f"{item.nodeid} must be of one tier of {', '.join(TIERS)}, not of {tiers}")
        if tiers[0] in missing:
            item.add_marker(pytest.mark.skip(reason=missing[tiers[0]]))
        if config.pluginmanager.hasplugin("timeout") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
