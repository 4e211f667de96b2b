"""Processes in trouble: plugins that do not fit, damaged caches, forks, signals, exits."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu


def run(code, *arguments, status=0, **environment):
    """Runs Python code, which ends with that status; (what it printed, what it said on stderr)."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def quiet(code, *arguments, **options):
    out, said = run(code, *arguments, **options)
    assert said == ""
    return out


# --- the plugin

WITHOUT_A_DEVICE = """
import torch
assert not torch.tpu.is_available() and torch.tpu.device_count() == 0
for f in (lambda: torch.ones(2).to("tpu"), lambda: torch.empty(2, device="tpu"), torch.tpu.get_device_name,
          lambda: torch.nn.Linear(2, 2).to("tpu")):
    try:
        f()
    except RuntimeError as error:
        print(error)
    else:
        raise AssertionError("no error")
torch.manual_seed(1), torch.tpu.synchronize()
assert torch.ones(2, requires_grad=True).sum().item() == 2
"""
PLUGIN = """
#include <stddef.h>
struct version { size_t size; void *next; int major, minor; };
static struct { size_t size; void *next; struct version version; void *calls[200]; } api = {
  sizeof api, 0, {sizeof(struct version), 0, MAJOR, MINOR}, {0}};
void *GetPjrtApi(void) { return EMPTY ? NULL : &api; }
"""


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing", "there is no PJRT plugin at {}"),
        ("text", "cannot load the PJRT plugin {}"),
        ("folder", "cannot load the PJRT plugin {}"),
        ("-DMAJOR=0 -DMINOR=90 -DEMPTY=1", "{} is no usable PJRT plugin: GetPjrtApi returned NULL"),
        ("-DMAJOR=0 -DMINOR=3 -DEMPTY=0", "{} speaks PJRT API 0.3, but 0."),
        ("-DMAJOR=1 -DMINOR=0 -DEMPTY=0", "{} speaks PJRT API 1.0, but 0."),
        ("-DMAJOR=0 -DMINOR=9999 -DEMPTY=0", "{} is no usable PJRT plugin: it lacks the error functions"),
        ("-DGetPjrtApi=Other -DMAJOR=0 -DMINOR=90 -DEMPTY=0", "{} is no PJRT plugin: it does not export GetPjrtApi"),
    ],
)
def test_a_plugin_that_does_not_fit(kind, says, tmp_path):
    path = tmp_path / "plugin.so"
    if kind == "text":
        path.write_text("not a library")
    elif kind == "folder":
        path.mkdir()
    elif kind != "missing":
        if not (compiler := shutil.which("cc")):
            pytest.skip("no C compiler is installed")
        (tmp_path / "plugin.c").write_text(PLUGIN)
        subprocess.run([compiler, "-shared", "-fPIC", *kind.split(), tmp_path / "plugin.c", "-o", path], check=True)
    lines = quiet(WITHOUT_A_DEVICE, TPU_LIBRARY_PATH=str(path)).splitlines()
    assert len(lines) == 4 and all(line.startswith(says.format(path)) for line in lines), lines


# --- the folder of programs

PROGRAMS = """
import torch
x = torch.arange(4.0, device="tpu")
print((x * 2).tolist(), (x.sin() + x.view(2, 2).sum(1)[0]).sum().item(), torch.randint(9, (3,), device="tpu").shape[0])
stats = torch.tpu.stats()
print(stats["compiles"], stats["disk_hits"], stats["disk_writes"])
"""


def programs(folder, limit=""):
    """(results, compiles, hits, writes)"""
    results, counts = quiet(limit + PROGRAMS, TORCH_TPU_CACHE_DIR=str(folder)).splitlines()
    return results, *map(int, counts.split())


def cut_short(files):
    for file in files:
        os.truncate(file, 100)


def flip(files):
    for file in files:
        data = bytearray(file.read_bytes())
        data[-7] ^= 4
        file.write_bytes(data)


def exchange(files):
    """Each is whole, and another program's."""
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)


def test_a_damaged_program_is_compiled_again(tmp_path):
    results, n, hits, writes = programs(tmp_path)
    assert n > 1 and (hits, writes) == (0, n)
    assert programs(tmp_path) == (results, 0, n, 0)
    for damage in (cut_short, flip, exchange):
        damage(sorted(tmp_path.rglob("*.bin")))
        assert programs(tmp_path) == (results, n, 0, n)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    results, n, *rest = programs(tmp_path / "file")
    assert rest == [0, 0]
    assert programs("/proc/none") == (results, n, 0, 0)
    (tmp_path / "locked").mkdir(mode=0o500)
    assert programs(tmp_path / "locked")[:2] == (results, n)  # root may write all the same
    # A disk that is full, as far as one process can have it.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))"
    assert programs(tmp_path / "full", limit) == (results, n, 0, 0)
    assert not list((tmp_path / "full").rglob("*.bin*"))


def test_a_folder_that_goes_away(tmp_path):
    code = """
import shutil, sys, torch
x = torch.arange(4.0, device="tpu")
for k in range(3):
    print(x.roll(k).tolist()[0])
    shutil.rmtree(sys.argv[1])
"""
    assert quiet(code, tmp_path / "c", TORCH_TPU_CACHE_DIR=str(tmp_path / "c")).split() == ["0.0", "3.0", "2.0"]


# --- forks

FORK = """
import os, sys, torch
x = torch.arange(3.0, device="tpu")
y = x * 2  # not run yet
child = os.fork()
if child == 0:
    for f in (lambda: x + 1, lambda: y.cpu(), lambda: torch.ones(2, device="tpu"), lambda: x.add_(1), lambda: repr(x),
              lambda: torch.ones(2).to("tpu"), lambda: torch.rand(2, device="tpu"), torch.tpu.synchronize):
        try:
            f()
        except RuntimeError as error:
            assert "Cannot re-initialize TPU in forked subprocess" in str(error), error
        else:
            os._exit(1)
    assert (torch.ones(2) + 1).tolist() == [2, 2] and x.shape == (3,)
    del x, y
    sys.exit(7)  # with all that an exit does
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert y.tolist() == [0, 2, 4]
"""


def test_fork_after_use():
    quiet(FORK)


def test_fork_before_use():
    quiet("""
import os, torch
child = os.fork()
x = torch.arange(3.0, device="tpu") * 2
assert x.tolist() == [0, 2, 4]
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")


def test_workers_of_a_loader():
    """Forked workers read host data while the parent has work pending; spawned ones may use the device."""
    quiet("""
import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.arange(6.0, device="tpu") * 2
loader = DataLoader(TensorDataset(torch.arange(6.0)), 2, num_workers=1, multiprocessing_context="fork")
assert sum(batch.to("tpu").sum().item() for (batch,) in loader) == 15
assert x.sum().item() == 30
""")


def test_a_spawned_process_uses_the_device(tmp_path):
    (tmp_path / "spawned.py").write_text("""
import torch
import torch.multiprocessing as mp
def work(k, out):
    out.put((torch.arange(3, device="tpu") * k).tolist())
if __name__ == "__main__":
    context = mp.get_context("spawn")
    out = context.SimpleQueue()
    assert torch.ones(2, device="tpu").sum().item() == 2
    child = context.Process(target=work, args=(3, out))
    child.start()
    assert out.get() == [0, 3, 6]
    child.join()
    assert child.exitcode == 0
""")
    quiet("import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')", tmp_path / "spawned.py")


# --- signals and exits

LONG = """
import os, signal, sys, threading, time, torch
x = torch.eye(600).to("tpu")
def long():
    y = x
    for _ in range(40):
        y = y @ x
    return y
"""


def test_interrupt_during_a_wait():
    out = quiet(
        LONG
        + """
y, started = long(), threading.Event()
def interrupt():
    started.wait()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    started.set()
    y.sum().item()
    time.sleep(100)  # the signal may come late
except KeyboardInterrupt:
    print("interrupted")
print(y.sum().item(), (x[0] + 1).sum().item(), long().trace().item())
"""
    )
    assert out.split() == ["interrupted", "600.0", "601.0", "600.0"]


# Daemon threads are not among them: in torch, on whatever device, the interpreter's end may end them by abort().
EXITS = {
    "recorded": "y = long()",
    "running": "with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER): y = long()",
    "recorded by a thread": "t = threading.Thread(target=long); t.start()",
    "threads go on": """
def work(k):
    for n in range(k, k + 3): (torch.ones(n, device="tpu").sin() * long()[0, 0]).sum().item()
for k in (1, 1000): threading.Thread(target=work, args=(k,)).start()""",
    "backward": "w = torch.ones(600, 600, device='tpu', requires_grad=True); (long() @ w).sum().backward()",
    "atexit": "import atexit; y = long(); atexit.register(lambda: print(y.trace().item()))",
    "in a cycle": """
class Node: pass
n = Node(); n.me, n.value = n, long()
n.event = torch.Event("tpu"); n.event.record(); n.generator = torch.Generator("tpu"); n.stream = torch.tpu.Stream()""",
    "finalizer": """
class Late:
    def __init__(self): self.value = long()
    def __del__(self): print(float(self.value.trace()))
late = Late()""",
    "without ceremony": "y = long(); os._exit(0)",
    "nothing used": "pass",
}


@pytest.mark.parametrize("name", EXITS)
def test_exit(name):
    out = quiet(LONG + EXITS[name])
    assert out.split() == (["600.0"] if name in ("atexit", "finalizer") else [])


def test_exit_by_an_exception():
    _, said = run(LONG + "y = long()\nraise ValueError('on purpose')", status=1)
    assert said.startswith("Traceback (most recent call last):") and said.endswith("ValueError: on purpose\n")
    assert run(LONG + "y = long()\nsys.exit('bye')", status=1)[1] == "bye\n"


def test_termination():
    code = LONG + "y = long(); print('ready', flush=True)\nwhile True: y = long(); y.sum().item()"
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"ready\n"
            child.send_signal(number)
            assert child.wait(100) == -number and child.stderr.read() == b""
