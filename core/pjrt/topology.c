#include "pjrt/topology.h"

#include <string.h>

#include "base/alloc.h"
#include "pjrt/compile_options.h"
#include "pjrt/executable_private.h"

struct tpu_topology {
  tpu_plugin *plugin;
  PJRT_TopologyDescription *handle;
};

tpu_status tpu_topology_create(tpu_plugin *plugin, const char *name, tpu_topology **out) {
  *out = NULL;
  if (!*name) return tpu_error(TPU_INVALID_ARGUMENT, "a topology needs a name such as \"v5e:1x1\"");
  tpu_topology *topology = tpu_calloc(1, sizeof *topology);
  if (!topology) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  tpu_abi_TopologyDescription_Create args = {.topology_name = name, .topology_name_size = strlen(name)};
  tpu_status status = TPU_CALL(plugin, TopologyDescription_Create, &args);
  if (status) {
    tpu_free(topology);
    return tpu_status_prefix(status, "cannot describe the topology %s: ", name);
  }
  topology->plugin = plugin;
  topology->handle = args.topology;
  *out = topology;
  return NULL;
}

void tpu_topology_destroy(tpu_topology *topology) {
  if (!topology) return;
  tpu_abi_TopologyDescription_Destroy args = {.topology = topology->handle};
  TPU_CALL_IGNORE(topology->plugin, TopologyDescription_Destroy, &args);
  tpu_free(topology);
}

tpu_status tpu_topology_compile(tpu_topology *topology, const char *mlir, size_t mlir_size, const tpu_compile_options *options,
                                tpu_program_stats *out_stats) {
  tpu_quirks quirks = {.platform = TPU_PLATFORM_TPU};
  tpu_strbuf encoded = {0};
  tpu_compile_options_encode(options, &quirks, &encoded);
  tpu_status status = NULL;
  if (encoded.failed) {
    status = tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  } else {
    tpu_abi_program program = tpu_program_from_mlir(mlir, mlir_size);
    tpu_abi_Compile args = {
        .topology = topology->handle,
        .program = &program,
        .compile_options = encoded.data,
        .compile_options_size = encoded.size,
    };
    status = tpu_compile_refused(TPU_CALL(topology->plugin, Compile, &args));
    if (!status) {
      status = tpu_executable_read_stats(topology->plugin, args.executable, out_stats);
      tpu_executable_release_unloaded(topology->plugin, args.executable);
    }
  }
  tpu_strbuf_destroy(&encoded);
  return status;
}
