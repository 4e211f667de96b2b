#include <string.h>

#include "base/alloc.h"
#include "pjrt/client_private.h"
#include "pjrt/compile_options.h"
#include "pjrt/executable_private.h"

tpu_abi_program tpu_program_from_mlir(const char *mlir, size_t size) {
  static const char format[] = "mlir";
  union {
    const char *in;
    char *out;
  } code = {mlir}; /* the struct serves reading too, where the plugin fills it */
  return (tpu_abi_program){
      .struct_size = sizeof(tpu_abi_program),
      .code = code.out,
      .code_size = size,
      .format = format,
      .format_size = sizeof format - 1,
  };
}

/* A text that does not parse is reported as UNKNOWN by all plugins. */
tpu_status tpu_compile_refused(tpu_status status) {
  if (tpu_status_code(status) != TPU_UNKNOWN) return status;
  tpu_status refused = tpu_error(TPU_INVALID_ARGUMENT, "%s", tpu_status_message(status));
  tpu_status_release(status);
  return refused;
}

tpu_status tpu_compile(const tpu_client *client, const char *mlir, size_t mlir_size, const tpu_compile_options *options,
                       tpu_executable **out) {
  *out = NULL;
  tpu_strbuf encoded = {0};
  tpu_compile_options_encode(options, &client->quirks, &encoded);
  tpu_status status = NULL;
  if (encoded.failed) {
    status = tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  } else {
    tpu_abi_program program = tpu_program_from_mlir(mlir, mlir_size);
    tpu_abi_Client_Compile args = {
        .client = client->handle,
        .program = &program,
        .compile_options = encoded.data,
        .compile_options_size = encoded.size,
    };
    uint64_t start = tpu_count_start();
    status = tpu_compile_refused(TPU_CALL(client->plugin, Client_Compile, &args));
    tpu_count_end(client, TPU_COUNTED_compile, start);
    if (!status) *out = args.executable;
  }
  tpu_strbuf_destroy(&encoded);
  return status;
}

void tpu_executable_destroy(const tpu_client *client, tpu_executable *executable) {
  if (!executable) return;
  tpu_abi_LoadedExecutable_Destroy args = {.executable = executable};
  TPU_CALL_IGNORE(client->plugin, LoadedExecutable_Destroy, &args);
}

static tpu_status get_unloaded(const tpu_client *client, tpu_executable *executable, PJRT_Executable **out) {
  tpu_abi_LoadedExecutable_GetExecutable args = {.loaded_executable = executable};
  TPU_TRY(TPU_CALL(client->plugin, LoadedExecutable_GetExecutable, &args));
  *out = args.executable;
  return NULL;
}

void tpu_executable_release_unloaded(const tpu_plugin *plugin, PJRT_Executable *executable) {
  tpu_abi_Executable_Destroy args = {.executable = executable};
  TPU_CALL_IGNORE(plugin, Executable_Destroy, &args);
}

static tpu_status serialize(const tpu_client *client, PJRT_Executable *executable, char **out_data, size_t *out_size) {
  tpu_abi_Executable_Serialize args = {.executable = executable};
  uint64_t start = tpu_count_start();
  tpu_status status = TPU_CALL(client->plugin, Executable_Serialize, &args);
  tpu_count_end(client, TPU_COUNTED_serialize, start);
  if (status) return status;
  char *copy = tpu_malloc(args.serialized_bytes_size);
  if (copy) {
    memcpy(copy, args.serialized_bytes, args.serialized_bytes_size);
    *out_data = copy;
    *out_size = args.serialized_bytes_size;
  }
  if (args.serialized_executable_deleter) args.serialized_executable_deleter(args.serialized_executable);
  return copy ? NULL : tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
}

tpu_status tpu_executable_serialize(const tpu_client *client, tpu_executable *executable, char **out_data, size_t *out_size) {
  *out_data = NULL;
  *out_size = 0;
  if (!client->quirks.deserialize)
    return tpu_error(TPU_UNIMPLEMENTED, "the platform %s cannot load serialised programs", client->platform_name);
  PJRT_Executable *unloaded;
  TPU_TRY(get_unloaded(client, executable, &unloaded));
  tpu_status status = serialize(client, unloaded, out_data, out_size);
  tpu_executable_release_unloaded(client->plugin, unloaded);
  return status;
}

tpu_status tpu_executable_deserialize(const tpu_client *client, const char *data, size_t size, tpu_executable **out) {
  *out = NULL;
  if (!client->quirks.deserialize)
    return tpu_error(TPU_UNIMPLEMENTED, "the platform %s cannot load serialised programs", client->platform_name);
  tpu_abi_Executable_DeserializeAndLoad args = {
      .client = client->handle,
      .serialized_executable = data,
      .serialized_executable_size = size,
  };
  uint64_t start = tpu_count_start();
  tpu_status status = TPU_CALL(client->plugin, Executable_DeserializeAndLoad, &args);
  tpu_count_end(client, TPU_COUNTED_deserialize, start);
  if (!status) *out = args.loaded_executable;
  return status;
}

/* NULL if the plugin merely does not know. */
static tpu_status allow_unimplemented(tpu_status status) {
  if (tpu_status_code(status) != TPU_UNIMPLEMENTED) return status;
  tpu_status_release(status);
  return NULL;
}

static void read_property(const tpu_abi_named_value *p, const char *name, double *out) {
  if (p->type != TPU_VALUE_FLOAT || p->name_size != strlen(name) || memcmp(p->name, name, p->name_size) != 0) return;
  double v = (double)p->value.float_value;
  *out = v >= 0 ? v : -1; /* libtpu counts -1 for each op it does not know */
}

tpu_status tpu_executable_read_stats(const tpu_plugin *plugin, PJRT_Executable *executable, tpu_program_stats *out) {
  *out = (tpu_program_stats){-1, -1, -1, -1, -1, -1, -1, -1, -1};
  tpu_abi_Executable_GetCompiledMemoryStats m = {.executable = executable, .peak_memory_in_bytes = -1};
  tpu_status status = TPU_CALL(plugin, Executable_GetCompiledMemoryStats, &m);
  if (!status) {
    out->argument_bytes = m.argument_size_in_bytes;
    out->output_bytes = m.output_size_in_bytes;
    out->alias_bytes = m.alias_size_in_bytes;
    out->temp_bytes = m.temp_size_in_bytes;
    out->peak_bytes = m.peak_memory_in_bytes;
    out->code_bytes = m.generated_code_size_in_bytes;
  }
  TPU_TRY(allow_unimplemented(status));
  tpu_abi_Executable_GetCostAnalysis cost = {.executable = executable};
  status = TPU_CALL(plugin, Executable_GetCostAnalysis, &cost);
  for (size_t i = 0; !status && i < cost.num_properties; i++) {
    read_property(&cost.properties[i], "flops", &out->flops);
    read_property(&cost.properties[i], "bytes accessed", &out->bytes_accessed);
    read_property(&cost.properties[i], "optimal_seconds", &out->optimal_seconds);
  }
  return allow_unimplemented(status);
}

tpu_status tpu_executable_stats(const tpu_client *client, tpu_executable *executable, tpu_program_stats *out) {
  PJRT_Executable *unloaded;
  TPU_TRY(get_unloaded(client, executable, &unloaded));
  tpu_status status = tpu_executable_read_stats(client->plugin, unloaded, out);
  tpu_executable_release_unloaded(client->plugin, unloaded);
  return status;
}

tpu_status tpu_execute(const tpu_client *client, tpu_executable *executable, int device, tpu_buffer *const *inputs,
                       size_t n_inputs, const int64_t *keep, size_t n_keep, tpu_buffer **outputs, size_t n_outputs,
                       tpu_event **out_done) {
  if (out_done) *out_done = NULL;
  for (size_t i = 0; i < n_outputs; i++) outputs[i] = NULL;
  TPU_TRY(tpu_client_check_device(client, device));
  tpu_abi_execute_options options = {
      .struct_size = sizeof options,
      .launch_id = 1, /* quirks.needs_launch_id */
      .non_donatable_input_indices = keep,
      .num_non_donatable_input_indices = n_keep,
  };
  PJRT_Event *done = NULL;
  tpu_abi_LoadedExecutable_Execute args = {
      .executable = executable,
      .options = &options,
      .argument_lists = &inputs,
      .num_devices = 1,
      .num_args = n_inputs,
      .output_lists = &outputs,
      .device_complete_events = out_done ? &done : NULL,
      .execute_device = client->devices[device].handle,
  };
  uint64_t start = tpu_count_start();
  tpu_status status = TPU_CALL(client->plugin, LoadedExecutable_Execute, &args);
  tpu_count_end(client, TPU_COUNTED_execute, start);
  if (status) {
    for (size_t i = 0; i < n_outputs; i++) outputs[i] = NULL;
  } else if (out_done) {
    *out_done = done;
  }
  return status;
}
