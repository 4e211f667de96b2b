/* Private to this folder. */
#ifndef TPU_PJRT_EXECUTABLE_PRIVATE_H
#define TPU_PJRT_EXECUTABLE_PRIVATE_H

#include "pjrt/calls.h"
#include "pjrt/client.h"

/* What the compiler says of a program; what the plugin cannot tell stays -1. */
tpu_status tpu_executable_read_stats(const tpu_plugin *plugin, PJRT_Executable *executable,
                                     tpu_program_stats *out) TPU_MUST_USE;
void tpu_executable_release_unloaded(const tpu_plugin *plugin, PJRT_Executable *executable);

/* A program as the plugin takes it; borrows `mlir`. */
tpu_abi_program tpu_program_from_mlir(const char *mlir, size_t size);

#endif
