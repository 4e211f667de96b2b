/* Ahead-of-time compilation for a named TPU without hardware, through a plugin's topology compiler.
 * Thread-safe. Source: PJRT_TopologyDescription_Create, PJRT_Compile.
 */
#ifndef TPU_PJRT_TOPOLOGY_H
#define TPU_PJRT_TOPOLOGY_H

#include "pjrt/client.h"

typedef struct tpu_topology tpu_topology;

/* name: "v5e:2x2", "v5e:1x1", "v6e:2x2", "v5p:2x2x1", "tpu7x:2x2x1", ... NOT_FOUND / INVALID_ARGUMENT: unknown. */
tpu_status tpu_topology_create(tpu_plugin *plugin, const char *name, tpu_topology **out) TPU_MUST_USE;
void tpu_topology_destroy(tpu_topology *topology);
/* Compiles and returns what the compiler says of it; nothing can be run. */
tpu_status tpu_topology_compile(tpu_topology *topology, const char *mlir, size_t mlir_size, const tpu_compile_options *options,
                                tpu_program_stats *out_stats) TPU_MUST_USE;

#endif
