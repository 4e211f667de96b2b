/* The C side of the bridge: what module.c needs of the C++ files. All statuses are the caller's. */
#ifndef TPU_BRIDGE_C_H
#define TPU_BRIDGE_C_H

#include "rt/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Registers everything with PyTorch; once, at import. */
tpu_status bridge_register(void);
/* Creates the client, and gives the autograd engine a thread per device where it was started without. */
tpu_status bridge_initialize(void);
tpu_lane *bridge_lane(void);
int bridge_current_device(void);
tpu_status bridge_set_device(int device);
/* Waits for everything on a device, asynchronous copies to the host included. */
tpu_status bridge_synchronize(int device);

/* A device's default generator as a torch.Generator: a new reference to a PyObject. */
void *bridge_generator_object(int device);
void bridge_generator_seed(int device, uint64_t seed);
void bridge_generator_get(int device, uint64_t out_seed_offset[2]);
void bridge_generator_set(int device, const uint64_t seed_offset[2]);

/* Source lines (source.c): the folders of PyTorch and of this package, whose lines are not the user's. Once, at import. */
void bridge_source_start(const char *torch, const char *ours);
/* The innermost line of this thread's Python program outside those folders, as core/rt's source; 0: none. Is it the innermost of
 * all? Takes the GIL when it meets a function for the first time: hold no lock. */
uint64_t bridge_source_here(bool *out_is_innermost);

/* Precision of float32 products on this thread (a tpu_precision); -1: torch.get_float32_matmul_precision() decides. */
int bridge_precision_get(void);
void bridge_precision_set(int precision);

/* What to do with an operator that has neither a row nor a composite kernel. */
typedef enum bridge_fallback { BRIDGE_FALLBACK_WARN, BRIDGE_FALLBACK_SILENT, BRIDGE_FALLBACK_ERROR } bridge_fallback;
void bridge_fallback_set(bridge_fallback policy);
bridge_fallback bridge_fallback_get(void);
/* Asked once per operator before it falls back: registers a decomposition for it and returns 1, or returns 0. Called
 * without the GIL; -1: a Python exception is set aside as `message`. */
typedef int (*bridge_decompose_fn)(const char *name, const char *overload);
void bridge_decompose_set(bridge_decompose_fn find);
/* Calls see(name, calls) for each operator that ran on the CPU. */
void bridge_fallback_each(void (*see)(void *context, const char *name, uint64_t calls), void *context);
/* The kernel behind an overload: "row", "in-place of add.Tensor", ... NULL: none of ours. */
void bridge_kernel_each(void (*see)(void *context, const char *name, const char *row), void *context);

#ifdef __cplusplus
}
#endif
#endif
