/* Private to this folder. */
#ifndef TPU_PJRT_EXECUTABLE_PRIVATE_H
#define TPU_PJRT_EXECUTABLE_PRIVATE_H

#include "pjrt/calls.h"
#include "pjrt/client.h"

/* What the compiler says of a program; what the plugin cannot tell stays -1. */
tpu_status tpu_executable_read_stats(const tpu_plugin *plugin, PJRT_Executable *executable, tpu_program_stats *out) TPU_MUST_USE;
void tpu_executable_release_unloaded(const tpu_plugin *plugin, PJRT_Executable *executable);

/* The status of a compile, with a code that tells whose fault it is. Takes `status`; NULL stays NULL. */
tpu_status tpu_compile_refused(tpu_status status) TPU_MUST_USE;

/* A program as the plugin takes it; borrows `mlir`. */
tpu_abi_program tpu_program_from_mlir(const char *mlir, size_t size);

#endif
