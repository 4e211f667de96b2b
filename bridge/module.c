/* torch_tpu._C: the runtime's functions for torch_tpu's Python. Plain CPython API. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/alloc.h"
#include "bridge/bridge_c.h"

/* Sets the Python exception of a status' class. Takes it. Returns NULL. */
static PyObject *fail(tpu_status status) {
  PyObject *type = PyExc_RuntimeError, *held = NULL;
  switch (tpu_status_code(status)) {
    case TPU_OUT_OF_RANGE: type = PyExc_IndexError; break;
    case TPU_TYPE_ERROR: type = PyExc_TypeError; break;
    case TPU_VALUE_ERROR: type = PyExc_ValueError; break;
    case TPU_UNIMPLEMENTED: type = PyExc_NotImplementedError; break;
    case TPU_RESOURCE_EXHAUSTED: {
      PyObject *torch = PyImport_ImportModule("torch");
      held = torch ? PyObject_GetAttrString(torch, "OutOfMemoryError") : NULL;
      Py_XDECREF(torch);
      if (held)
        type = held;
      else
        PyErr_Clear();
      break;
    }
    default: break;
  }
  PyErr_SetString(type, tpu_status_message(status));
  Py_XDECREF(held);
  tpu_status_release(status);
  return NULL;
}

static PyObject *done(tpu_status status) {
  if (status) return fail(status);
  Py_RETURN_NONE;
}

#define WITHOUT_GIL(status, call)         \
  tpu_status status;                      \
  Py_BEGIN_ALLOW_THREADS status = (call); \
  Py_END_ALLOW_THREADS

/* --- process */

static PyObject *configure(PyObject *self, PyObject *args, PyObject *names) {
  (void)self;
  static char *keys[] = {"libtpu", "embedded", "cache_dir", "cache_bytes", "devices", NULL};
  tpu_config c = {0};
  long long bytes = 0;
  if (!PyArg_ParseTupleAndKeywords(args, names, "|zzzLi:configure", keys, &c.libtpu, &c.embedded, &c.cache_dir, &bytes,
                                   &c.devices))
    return NULL;
  c.cache_bytes = bytes;
  tpu_configure(&c);
  Py_RETURN_NONE;
}

static PyObject *register_all(PyObject *self, PyObject *args) {
  (void)self;
  const char *torch, *ours;
  if (!PyArg_ParseTuple(args, "ss:register", &torch, &ours)) return NULL;
  bridge_source_start(torch, ours);
  return done(bridge_register());
}

static PyObject *initialize(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  WITHOUT_GIL(status, bridge_initialize());
  return done(status);
}

static PyObject *is_initialized(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  return PyBool_FromLong(tpu_is_initialized());
}

static PyObject *in_bad_fork(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  return PyBool_FromLong(tpu_in_bad_fork());
}

static PyObject *device_count(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  return PyLong_FromLong(tpu_device_count());
}

static PyObject *current_device(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  return PyLong_FromLong(bridge_current_device());
}

static PyObject *set_device(PyObject *self, PyObject *arg) {
  (void)self;
  long d = PyLong_AsLong(arg);
  if (d == -1 && PyErr_Occurred()) return NULL;
  return done(bridge_set_device((int)d));
}

static PyObject *client_info(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  WITHOUT_GIL(status, bridge_initialize());
  if (status) return fail(status);
  const tpu_client *client = tpu_runtime_client();
  const tpu_plugin *plugin = tpu_client_plugin(client);
  int n = tpu_client_device_count(client);
  PyObject *kinds = PyTuple_New(n);
  for (int i = 0; kinds && i < n; i++) {
    PyObject *kind = PyUnicode_FromString(tpu_client_device_kind(client, i));
    if (!kind)
      Py_CLEAR(kinds);
    else
      PyTuple_SET_ITEM(kinds, i, kind);
  }
  if (!kinds) return NULL;
  return Py_BuildValue("{s:s,s:s,s:s,s:i,s:N}", "platform", tpu_client_platform_name(client), "platform_version",
                       tpu_client_platform_version(client), "plugin", tpu_plugin_path(plugin), "api_minor",
                       tpu_plugin_api_minor(plugin), "device_kinds", kinds);
}

static PyObject *client_counts(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  PyObject *dict = PyDict_New();
  const tpu_client *client = tpu_runtime_client();
  if (!dict || !client) return dict;
  tpu_call_count counts[64];
  int n = tpu_client_counts(client, counts, 64);
  for (int i = 0; i < n && i < 64; i++) {
    PyObject *v = Py_BuildValue("(Kd)", (unsigned long long)counts[i].calls, (double)counts[i].ns * 1e-9);
    if (!v || PyDict_SetItemString(dict, counts[i].name, v) < 0) Py_CLEAR(dict);
    Py_XDECREF(v);
    if (!dict) return NULL;
  }
  return dict;
}

/* --- modes and policy */

static PyObject *mode_get(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  return PyLong_FromLong((long)tpu_mode_get());
}

static PyObject *mode_set(PyObject *self, PyObject *arg) {
  (void)self;
  long mode = PyLong_AsLong(arg);
  if (mode == -1 && PyErr_Occurred()) return NULL;
  if (mode < TPU_DEFER_AND_FUSE || mode > TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING)
    return PyErr_Format(PyExc_ValueError, "no eager mode %ld", mode);
  WITHOUT_GIL(status, tpu_cut(bridge_lane(), -1)); /* what the old mode deferred runs under it */
  if (status) return fail(status);
  tpu_mode_set((tpu_mode)mode);
  Py_RETURN_NONE;
}

static PyObject *mode_get_thread(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  return PyLong_FromLong(tpu_lane_mode_get(bridge_lane()));
}

static PyObject *mode_set_thread(PyObject *self, PyObject *arg) {
  (void)self;
  long mode = PyLong_AsLong(arg);
  if (mode == -1 && PyErr_Occurred()) return NULL;
  if (mode < -1 || mode > TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING) return PyErr_Format(PyExc_ValueError, "no eager mode %ld", mode);
  if (tpu_is_initialized()) {
    WITHOUT_GIL(status, tpu_cut(bridge_lane(), -1));
    if (status) return fail(status);
  }
  tpu_lane_mode_set(bridge_lane(), (int)mode);
  Py_RETURN_NONE;
}

static PyObject *precision_get(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  return PyLong_FromLong(bridge_precision_get());
}

static PyObject *precision_set(PyObject *self, PyObject *arg) {
  (void)self;
  long p = PyLong_AsLong(arg);
  if (p == -1 && PyErr_Occurred()) return NULL;
  if (p < -1 || p > TPU_PRECISION_HIGHEST) return PyErr_Format(PyExc_ValueError, "no precision %ld", p);
  bridge_precision_set((int)p);
  Py_RETURN_NONE;
}

/* {name: value} -> options; NULL with an exception set, or with none for None. */
static const tpu_options *options_of(PyObject *dict) {
  if (dict == Py_None) return NULL;
  if (!PyDict_Check(dict)) return PyErr_SetString(PyExc_TypeError, "options are a dict of strings"), NULL;
  Py_ssize_t n = PyDict_Size(dict), at = 0;
  tpu_option *list = PyMem_Calloc((size_t)n + 1, sizeof *list);
  if (!list) return (void)PyErr_NoMemory(), NULL;
  PyObject *key, *value;
  int i = 0;
  while (i < n && PyDict_Next(dict, &at, &key, &value)) {
    list[i].key = PyUnicode_AsUTF8(key);
    list[i].value = list[i].key ? PyUnicode_AsUTF8(value) : NULL;
    if (!list[i++].value) break;
  }
  const tpu_options *options = PyErr_Occurred() ? NULL : tpu_options_get(list, i);
  if (!options && !PyErr_Occurred()) (void)PyErr_NoMemory();
  PyMem_Free(list);
  return options;
}

static PyObject *options_set(PyObject *self, PyObject *arg) {
  (void)self;
  const tpu_options *options = options_of(arg);
  if (PyErr_Occurred()) return NULL;
  tpu_options_set(options);
  Py_RETURN_NONE;
}

static PyObject *options_set_thread(PyObject *self, PyObject *arg) {
  (void)self;
  const tpu_options *options = options_of(arg);
  if (PyErr_Occurred()) return NULL;
  tpu_lane_options_set(bridge_lane(), options);
  Py_RETURN_NONE;
}

static PyObject *options_get_thread(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  const tpu_options *options = tpu_lane_options_get(bridge_lane());
  if (!options) Py_RETURN_NONE;
  const tpu_option *list;
  int n = tpu_options_list(options, &list);
  PyObject *dict = PyDict_New();
  for (int i = 0; dict && i < n; i++) {
    PyObject *v = PyUnicode_FromString(list[i].value);
    if (!v || PyDict_SetItemString(dict, list[i].key, v) < 0) Py_CLEAR(dict);
    Py_XDECREF(v);
  }
  return dict;
}

/* --- order and waiting */

static PyObject *synchronize(PyObject *self, PyObject *arg) {
  (void)self;
  long d = PyLong_AsLong(arg);
  if (d == -1 && PyErr_Occurred()) return NULL;
  WITHOUT_GIL(status, bridge_synchronize((int)d));
  return done(status);
}

static PyObject *cut(PyObject *self, PyObject *arg) {
  (void)self;
  long d = PyLong_AsLong(arg);
  if (d == -1 && PyErr_Occurred()) return NULL;
  WITHOUT_GIL(status, tpu_cut(bridge_lane(), (int)d));
  return done(status);
}

static PyObject *cut_later(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  tpu_cut_later(bridge_lane());
  Py_RETURN_NONE;
}

static PyObject *pending_text(PyObject *self, PyObject *arg) {
  (void)self;
  long d = PyLong_AsLong(arg);
  if (d == -1 && PyErr_Occurred()) return NULL;
  char *text = NULL;
  WITHOUT_GIL(status, tpu_pending_text(bridge_lane(), (int)d, &text));
  if (status) return fail(status);
  PyObject *result = PyUnicode_FromString(text ? text : "");
  tpu_free(text);
  return result;
}

/* --- accounting */

static PyObject *stats(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  tpu_stats s;
  tpu_stats_get(&s);
#define COUNT(name) #name, (unsigned long long)s.name
  return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:d}", COUNT(calls), COUNT(signatures),
                       COUNT(segments), COUNT(executes), COUNT(cache_requests), COUNT(cache_hits), COUNT(compiles),
                       COUNT(disk_hits), COUNT(disk_writes), COUNT(reads), COUNT(writes), COUNT(donated),
                       COUNT(compile_peak_bytes), "compile_s", s.compile_s);
#undef COUNT
}

static PyObject *reset_stats(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  tpu_stats_reset();
  Py_RETURN_NONE;
}

static PyObject *cache_clear(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  Py_BEGIN_ALLOW_THREADS tpu_cache_clear();
  Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *cache_policy(PyObject *self, PyObject *args, PyObject *names) {
  (void)self;
  static char *keys[] = {"allow", "only", NULL};
  tpu_cache_policy policy = tpu_cache_policy_get();
  int allow = !policy.never, only = policy.only;
  if (!PyArg_ParseTupleAndKeywords(args, names, "|pp:cache_policy", keys, &allow, &only)) return NULL;
  tpu_cache_policy_set((tpu_cache_policy){.never = !allow, .only = only});
  Py_RETURN_NONE;
}

static PyObject *cache_entries(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  size_t room = tpu_cache_entries(NULL, 0);
  tpu_cache_entry *entries = PyMem_Calloc(room + 1, sizeof *entries);
  if (!entries) return PyErr_NoMemory();
  size_t n = tpu_cache_entries(entries, room);
  if (n > room) n = room;
  PyObject *list = PyList_New((Py_ssize_t)n);
  for (size_t i = 0; list && i < n; i++) {
    PyObject *v = Py_BuildValue("(ddK)", entries[i].compile_s, entries[i].last_read, (unsigned long long)entries[i].reads);
    if (!v)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, (Py_ssize_t)i, v);
  }
  PyMem_Free(entries);
  return list;
}

static PyObject *miss_hook;

static void see_miss(const char *text, size_t size) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *hook = miss_hook;
  Py_XINCREF(hook);
  PyObject *result = hook && hook != Py_None ? PyObject_CallFunction(hook, "s#", text, (Py_ssize_t)size) : NULL;
  if (PyErr_Occurred()) PyErr_WriteUnraisable(hook);
  Py_XDECREF(result);
  Py_XDECREF(hook);
  PyGILState_Release(gil);
}

static PyObject *set_miss_hook(PyObject *self, PyObject *arg) {
  (void)self;
  Py_INCREF(arg);
  Py_XSETREF(miss_hook, arg);
  tpu_miss_hook_set(arg == Py_None ? NULL : see_miss);
  Py_RETURN_NONE;
}

/* Does a device exist? Loads no plugin for the first. Sets an exception if not. */
static bool device_exists(long d) {
  if (d == 0 || (d > 0 && d < tpu_device_count())) return true;
  if (d != -1 || !PyErr_Occurred())
    PyErr_Format(PyExc_RuntimeError, "invalid device ordinal: tpu:%ld does not exist; there are %d devices", d,
                 tpu_device_count());
  return false;
}

static PyObject *memory_info(PyObject *self, PyObject *arg) {
  (void)self;
  long d = PyLong_AsLong(arg);
  if (!device_exists(d)) return NULL;
  tpu_memory_info m;
  tpu_memory_info_get((int)d, &m);
  return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L}", "allocated", (long long)m.allocated, "peak", (long long)m.peak, "limit",
                       (long long)m.limit, "allocations", (long long)m.allocations, "frees", (long long)m.frees);
}

/* --- random numbers */

static PyObject *generator(PyObject *self, PyObject *arg) {
  (void)self;
  long d = PyLong_AsLong(arg);
  if (!device_exists(d)) return NULL;
  return bridge_generator_object((int)d);
}

static PyObject *generator_seed(PyObject *self, PyObject *args) {
  (void)self;
  int d;
  unsigned long long seed;
  if (!PyArg_ParseTuple(args, "iK", &d, &seed) || !device_exists(d)) return NULL;
  bridge_generator_seed(d, seed);
  Py_RETURN_NONE;
}

static PyObject *generator_get(PyObject *self, PyObject *arg) {
  (void)self;
  long d = PyLong_AsLong(arg);
  if (!device_exists(d)) return NULL;
  uint64_t state[2];
  bridge_generator_get((int)d, state);
  return PyBytes_FromStringAndSize((const char *)state, sizeof state);
}

static PyObject *generator_set(PyObject *self, PyObject *args) {
  (void)self;
  int d;
  Py_buffer bytes;
  if (!PyArg_ParseTuple(args, "iy*", &d, &bytes)) return NULL;
  uint64_t state[2];
  int right = bytes.len == sizeof state;
  if (right) memcpy(state, bytes.buf, sizeof state);
  PyBuffer_Release(&bytes);
  if (!right) return PyErr_Format(PyExc_RuntimeError, "RNG state is wrong size: expected 16 bytes");
  if (!device_exists(d)) return NULL;
  bridge_generator_set(d, state);
  Py_RETURN_NONE;
}

/* --- operators without a row */

static PyObject *fallback_get(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  return PyLong_FromLong((long)bridge_fallback_get());
}

static PyObject *fallback_set(PyObject *self, PyObject *arg) {
  (void)self;
  long policy = PyLong_AsLong(arg);
  if (policy == -1 && PyErr_Occurred()) return NULL;
  if (policy < BRIDGE_FALLBACK_WARN || policy > BRIDGE_FALLBACK_ERROR)
    return PyErr_Format(PyExc_ValueError, "no fallback policy %ld", policy);
  bridge_fallback_set((bridge_fallback)policy);
  Py_RETURN_NONE;
}

static void see_count(void *dict, const char *name, uint64_t calls) {
  PyObject *v = calls ? PyLong_FromUnsignedLongLong(calls) : NULL;
  if (v) PyDict_SetItemString(dict, name, v);
  Py_XDECREF(v);
}

static PyObject *fallback_counts(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  PyObject *dict = PyDict_New();
  if (dict) bridge_fallback_each(see_count, dict);
  return dict;
}

static void see_kernel(void *dict, const char *name, const char *row) {
  PyObject *v = PyUnicode_FromString(row);
  if (v) PyDict_SetItemString(dict, name, v);
  Py_XDECREF(v);
}

static PyObject *kernels(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  PyObject *dict = PyDict_New();
  if (dict) bridge_kernel_each(see_kernel, dict);
  return dict;
}

static PyObject *decompose; /* name, overload -> bool */

static int find_decomposition(const char *name, const char *overload) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *found = decompose ? PyObject_CallFunction(decompose, "ss", name, overload) : NULL;
  int yes = found ? PyObject_IsTrue(found) : 0;
  if (PyErr_Occurred()) {
    PyErr_WriteUnraisable(decompose);
    yes = 0;
  }
  Py_XDECREF(found);
  PyGILState_Release(gil);
  return yes > 0;
}

static PyObject *set_decompose(PyObject *self, PyObject *arg) {
  (void)self;
  Py_INCREF(arg);
  Py_XSETREF(decompose, arg);
  bridge_decompose_set(arg == Py_None ? NULL : find_decomposition);
  Py_RETURN_NONE;
}

#define NO(name, doc) {#name, name, METH_NOARGS, doc}
#define ONE(name, doc) {#name, name, METH_O, doc}
static PyMethodDef methods[] = {
    {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS,
     "Remembers plugin paths, the cache and the number of CPU devices; before anything else."},
    {"register", register_all, METH_VARARGS,
     "register(torch, ours): registers the backend with PyTorch, once. The folders of the two packages are not the user's "
     "program."},
    NO(initialize, "Loads the plugin and creates the client."),
    NO(is_initialized, "Has the client been created in this process?"),
    NO(in_bad_fork, "Is this a forked child of a process that used the device?"),
    NO(device_count, "Number of devices, without loading the plugin where possible."),
    NO(current_device, "This thread's device."),
    ONE(set_device, "Sets this thread's device."),
    NO(client_info, "What the plugin says of itself and of its devices."),
    NO(client_counts, "{plugin function: (calls, seconds)}"),
    NO(mode_get, "The eager mode in force on this thread."),
    ONE(mode_set, "Sets the process' eager mode."),
    NO(mode_get_thread, "This thread's own eager mode; -1: none."),
    ONE(mode_set_thread, "Sets this thread's own eager mode; -1: none."),
    NO(precision_get, "This thread's own precision of float32 products; -1: torch's setting decides."),
    ONE(precision_set, "Sets this thread's own precision of float32 products; -1: torch's setting decides."),
    ONE(options_set, "Sets the compiler's options of this process; None: none."),
    NO(options_get_thread, "This thread's own options of the compiler; None: the process'."),
    ONE(options_set_thread, "Sets this thread's own options of the compiler; None: the process'."),
    ONE(synchronize, "Waits for everything on a device."),
    ONE(cut, "Launches what this thread has pending on a device (-1: all)."),
    NO(cut_later, "Lets the next recorded call start a new program."),
    ONE(pending_text, "StableHLO of what this thread has pending on a device."),
    NO(stats, "Counters since start or reset_stats."),
    NO(reset_stats, "Sets the counters to zero."),
    NO(cache_clear, "Forgets compiled programs in memory."),
    {"cache_policy", (PyCFunction)(void (*)(void))cache_policy, METH_VARARGS | METH_KEYWORDS,
     "allow: may programs be taken from the cache; only: must they be."},
    NO(cache_entries, "[(seconds to compile, last read, reads)] of the programs in memory."),
    ONE(set_miss_hook, "Sets the function that is given the StableHLO of programs about to be compiled; None: nobody."),
    ONE(memory_info, "Bytes allocated, peak and limit (-1: unknown), and allocation counts of a device."),
    ONE(generator, "A device's default generator."),
    {"generator_seed", generator_seed, METH_VARARGS, "Seeds a device's default generator."},
    ONE(generator_get, "State of a device's default generator: seed and offset, 16 bytes."),
    {"generator_set", generator_set, METH_VARARGS, "Sets the state of a device's default generator."},
    NO(fallback_get, "0 warn, 1 silent, 2 error."),
    ONE(fallback_set, "Decides what happens to operators without a kernel: 0 warn, 1 silent, 2 error."),
    NO(fallback_counts, "{operator: calls that ran on the CPU}"),
    NO(kernels, "{overload: row of the op table that computes it}"),
    ONE(set_decompose, "Sets the function that is asked for a decomposition before an operator falls back."),
    {NULL, NULL, 0, NULL}};

PyMODINIT_FUNC PyInit__C(void);
PyMODINIT_FUNC PyInit__C(void) {
  static struct PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "torch_tpu._C", "The native part of torch_tpu.", -1, methods, NULL, NULL, NULL, NULL};
  PyObject *module = PyModule_Create(&definition);
  if (module && PyModule_AddStringConstant(module, "torch_version", TPU_TORCH_VERSION) < 0) Py_CLEAR(module);
  return module;
}
