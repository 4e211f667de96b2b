/* Where the Python program is, cheaply enough to ask at every call: the interpreter's own frames are walked without the GIL,
 * which is safe because only the thread that runs them changes them, and nothing is resolved before somebody wants to read it. */
#define Py_BUILD_CORE 1
#include <Python.h>
#if PY_VERSION_HEX < 0x030F0000 && !defined(Py_GIL_DISABLED)
#include <internal/pycore_frame.h>
#define HAVE_FRAMES 1
#endif

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "bridge/bridge_c.h"

#ifdef HAVE_FRAMES

/* Code objects that were seen. They are kept alive, so that an address means one of them for ever; slots are filled under the GIL
 * and read by anybody. A source is (slot + 1) << 32 | instruction. */
#define SLOTS (1u << 16)
#define MOST_CODES (SLOTS / 2)
#define MOST_FRAMES 32
typedef struct code_slot {
  _Atomic(PyCodeObject *) code;
  atomic_bool is_library; /* PyTorch's or ours: its caller is the one to tell */
} code_slot;
static code_slot slots[SLOTS];
static uint32_t n_codes; /* under the GIL */
static char *libraries[2];
static size_t library_sizes[2];

static bool is_library(PyCodeObject *code) {
  const char *file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) {
    PyErr_Clear();
    return true;
  }
  if (strncmp(file, "<frozen", 7) == 0 || strncmp(file, "<interpreter", 12) == 0) return true;
  for (int i = 0; i < 2; i++)
    if (libraries[i] && strncmp(file, libraries[i], library_sizes[i]) == 0 && file[library_sizes[i]] == '/') return true;
  return false;
}

static uint32_t slot_of(PyCodeObject *code) {
  uint32_t i = (uint32_t)tpu_hash_u64((uint64_t)(uintptr_t)code) % SLOTS;
  for (;; i = (i + 1) % SLOTS) {
    PyCodeObject *seen = atomic_load_explicit(&slots[i].code, memory_order_acquire);
    if (seen == code || !seen) return i;
  }
}

static bool is_finalizing(void) {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

/* False: there is no room for it. */
static bool intern(PyCodeObject *code, uint32_t *out_slot) {
  uint32_t i = slot_of(code);
  if (!atomic_load_explicit(&slots[i].code, memory_order_acquire)) {
    if (!Py_IsInitialized() || is_finalizing() || tpu_in_bad_fork()) return false;
    PyGILState_STATE gil = PyGILState_Ensure();
    i = slot_of(code);
    bool room = n_codes < MOST_CODES;
    if (!atomic_load_explicit(&slots[i].code, memory_order_acquire) && room) {
      PyObject *type, *value, *trace; /* the caller may be raising */
      PyErr_Fetch(&type, &value, &trace);
      n_codes++;
      Py_INCREF(code);
      atomic_store_explicit(&slots[i].is_library, is_library(code), memory_order_relaxed);
      atomic_store_explicit(&slots[i].code, code, memory_order_release);
      PyErr_Restore(type, value, trace);
    }
    PyGILState_Release(gil);
    if (!atomic_load_explicit(&slots[i].code, memory_order_acquire)) return false;
  }
  *out_slot = i;
  return true;
}

static struct _PyInterpreterFrame *first_frame(PyThreadState *thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread->current_frame;
#else
  return thread->cframe ? thread->cframe->current_frame : NULL;
#endif
}

static PyCodeObject *code_of(const struct _PyInterpreterFrame *frame) {
#if PY_VERSION_HEX >= 0x030E0000
  PyObject *code = PyStackRef_AsPyObjectBorrow(frame->f_executable);
#elif PY_VERSION_HEX >= 0x030D0000
  PyObject *code = frame->f_executable;
#else
  PyObject *code = (PyObject *)frame->f_code;
#endif
  return code && PyCode_Check(code) ? (PyCodeObject *)code : NULL;
}

static uint32_t instruction_of(const struct _PyInterpreterFrame *frame, PyCodeObject *code) {
#if PY_VERSION_HEX >= 0x030D0000
  const _Py_CODEUNIT *at = frame->instr_ptr;
#else
  const _Py_CODEUNIT *at = frame->prev_instr;
#endif
  ptrdiff_t n = at - (const _Py_CODEUNIT *)(const void *)code->co_code_adaptive;
  return n < 0 ? 0 : (uint32_t)n;
}

uint64_t bridge_source_here(bool *out_is_innermost) {
  *out_is_innermost = false;
  PyThreadState *thread = PyGILState_GetThisThreadState();
  if (!thread) return 0;
  uint64_t innermost = 0;
  int n = 0;
  for (struct _PyInterpreterFrame *frame = first_frame(thread); frame && n < MOST_FRAMES; frame = frame->previous, n++) {
    PyCodeObject *code = code_of(frame);
    uint32_t slot;
    if (!code || !intern(code, &slot)) continue;
    uint64_t source = (uint64_t)(slot + 1) << 32 | instruction_of(frame, code);
    if (!atomic_load_explicit(&slots[slot].is_library, memory_order_relaxed)) {
      *out_is_innermost = !innermost;
      return source;
    }
    if (!innermost) innermost = source;
  }
  return innermost;
}

static char *text_of(uint64_t source) {
  uint64_t slot = (source >> 32) - 1;
  PyCodeObject *code = slot < SLOTS ? atomic_load_explicit(&slots[slot].code, memory_order_acquire) : NULL;
  if (!code || !Py_IsInitialized() || is_finalizing() || tpu_in_bad_fork()) return NULL;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const char *file = PyUnicode_AsUTF8(code->co_filename), *name = PyUnicode_AsUTF8(code->co_qualname);
  const int line = PyCode_Addr2Line(code, (int)((uint32_t)source * sizeof(_Py_CODEUNIT)));
  char *text = NULL;
  if (file && name) {
    const size_t size = strlen(file) + strlen(name) + 64;
    text = tpu_malloc(size);
    if (text) (void)snprintf(text, size, "File \"%s\", line %d, in %s", file, line, name);
  }
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
  return text;
}

void bridge_source_start(const char *torch, const char *ours) {
  const char *paths[2] = {torch, ours};
  for (int i = 0; i < 2; i++) {
    libraries[i] = tpu_strdup(paths[i]);
    library_sizes[i] = strlen(paths[i]);
  }
  tpu_source_describer_set(text_of);
}

#else /* an interpreter whose frames are not known: no lines */

void bridge_source_start(const char *torch, const char *ours) { (void)torch, (void)ours; }
uint64_t bridge_source_here(bool *out_is_innermost) { return *out_is_innermost = false; }

#endif
