#include "pjrt/client.h"

#include <string.h>

#include "base/alloc.h"
#include "pjrt/client_private.h"

static tpu_status no_memory(void) { return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

static tpu_status copy_text(const char *text, size_t size, char **out) {
  char *copy = tpu_malloc(size + 1);
  if (!copy) return no_memory();
  if (size) memcpy(copy, text, size);
  copy[size] = 0;
  *out = copy;
  return NULL;
}

static bool has_extension(const tpu_plugin *plugin, int type) {
  for (const tpu_abi_extension *e = plugin->api->extension_start; e; e = e->next)
    if (e->type == type) return true;
  return false;
}

/* The platform is known only after the client exists, and the number of devices must be given before. So it is offered
 * to all but TPU plugins, and one that refuses it is asked again without. */
static tpu_status create_handle(tpu_plugin *plugin, int devices, PJRT_Client **out_handle) {
  static const char name[] = "cpu_device_count";
  tpu_abi_named_value option = {
      .struct_size = sizeof option,
      .name = name,
      .name_size = sizeof name - 1,
      .type = TPU_VALUE_INT64,
      .value.int64_value = devices,
      .value_size = 1,
  };
  tpu_status status = NULL;
  bool offer = devices > 0 && !has_extension(plugin, TPU_EXTENSION_TPU_TOPOLOGY);
  if (offer) {
    tpu_abi_Client_Create args = {.create_options = &option, .num_options = 1};
    status = TPU_CALL(plugin, Client_Create, &args);
    *out_handle = args.client;
  }
  if (!offer || tpu_status_code(status) == TPU_INVALID_ARGUMENT) {
    tpu_status_release(status);
    tpu_abi_Client_Create args = {0};
    status = TPU_CALL(plugin, Client_Create, &args);
    *out_handle = args.client;
  }
  return tpu_status_prefix(status, "cannot create a client of the PJRT plugin %s: ", tpu_plugin_path(plugin));
}

static tpu_status describe_device(const tpu_plugin *plugin, tpu_device *device) {
  tpu_abi_Device_GetDescription get = {.device = device->handle};
  TPU_TRY(TPU_CALL(plugin, Device_GetDescription, &get));
  tpu_abi_DeviceDescription_Id id = {.device_description = get.device_description};
  TPU_TRY(TPU_CALL(plugin, DeviceDescription_Id, &id));
  device->id = id.id;
  tpu_abi_DeviceDescription_Kind kind = {.device_description = get.device_description};
  TPU_TRY(TPU_CALL(plugin, DeviceDescription_Kind, &kind));
  return copy_text(kind.device_kind, kind.device_kind_size, &device->kind);
}

static tpu_status describe(tpu_client *client) {
  const tpu_plugin *plugin = client->plugin;
  tpu_abi_Client_PlatformName name = {.client = client->handle};
  TPU_TRY(TPU_CALL(plugin, Client_PlatformName, &name));
  TPU_TRY(copy_text(name.platform_name, name.platform_name_size, &client->platform_name));
  tpu_abi_Client_PlatformVersion version = {.client = client->handle};
  TPU_TRY(TPU_CALL(plugin, Client_PlatformVersion, &version));
  TPU_TRY(copy_text(version.platform_version, version.platform_version_size, &client->platform_version));
  client->quirks = tpu_quirks_find(client->platform_name, client->platform_version, tpu_plugin_api_minor(plugin));

  tpu_abi_Client_AddressableDevices devices = {.client = client->handle};
  TPU_TRY(TPU_CALL(plugin, Client_AddressableDevices, &devices));
  if (!devices.num_addressable_devices || devices.num_addressable_devices > INT32_MAX)
    return tpu_error(TPU_UNAVAILABLE, "the PJRT plugin %s offers no device to this process", tpu_plugin_path(plugin));
  client->devices = tpu_calloc(devices.num_addressable_devices, sizeof *client->devices);
  if (!client->devices) return no_memory();
  client->device_count = (int)devices.num_addressable_devices;
  for (int i = 0; i < client->device_count; i++) {
    client->devices[i].handle = devices.addressable_devices[i];
    TPU_TRY(describe_device(plugin, &client->devices[i]));
  }
  return NULL;
}

tpu_status tpu_client_create(tpu_plugin *plugin, int devices, tpu_client **out_client) {
  *out_client = NULL;
  tpu_client *client = tpu_calloc(1, sizeof *client);
  tpu_counter *counters = tpu_calloc(TPU_COUNTED_COUNT, sizeof *counters);
  if (!client || !counters) {
    tpu_free(client);
    tpu_free(counters);
    return no_memory();
  }
  client->plugin = plugin;
  client->counters = counters;
  tpu_status status = create_handle(plugin, devices, &client->handle);
  if (!status) status = describe(client);
  if (status) {
    tpu_client_destroy(client);
    return status;
  }
  *out_client = client;
  return NULL;
}

void tpu_client_destroy(tpu_client *client) {
  if (!client) return;
  if (client->handle) {
    tpu_abi_Client_Destroy args = {.client = client->handle};
    TPU_CALL_IGNORE(client->plugin, Client_Destroy, &args);
  }
  for (int i = 0; i < client->device_count; i++) tpu_free(client->devices[i].kind);
  tpu_free(client->devices);
  tpu_free(client->platform_name);
  tpu_free(client->platform_version);
  tpu_free(client->counters);
  tpu_free(client);
}

tpu_plugin *tpu_client_plugin(const tpu_client *client) { return client->plugin; }
const tpu_quirks *tpu_client_quirks(const tpu_client *client) { return &client->quirks; }
const char *tpu_client_platform_name(const tpu_client *client) { return client->platform_name; }
const char *tpu_client_platform_version(const tpu_client *client) { return client->platform_version; }
int tpu_client_device_count(const tpu_client *client) { return client->device_count; }

static bool is_device(const tpu_client *client, int device) { return device >= 0 && device < client->device_count; }

const char *tpu_client_device_kind(const tpu_client *client, int device) {
  return is_device(client, device) ? client->devices[device].kind : "";
}
int tpu_client_device_id(const tpu_client *client, int device) {
  return is_device(client, device) ? client->devices[device].id : -1;
}

tpu_status tpu_client_check_device(const tpu_client *client, int device) {
  if (is_device(client, device)) return NULL;
  return tpu_error(TPU_INVALID_ARGUMENT, "device %d does not exist: there are %d", device, client->device_count);
}

tpu_status tpu_client_memory_stats(const tpu_client *client, int device, tpu_memory_stats *out) {
  *out = (tpu_memory_stats){-1, -1, -1};
  TPU_TRY(tpu_client_check_device(client, device));
  tpu_abi_Device_MemoryStats args = {.device = client->devices[device].handle};
  TPU_TRY(TPU_CALL(client->plugin, Device_MemoryStats, &args));
  out->bytes_in_use = args.bytes_in_use;
  if (args.peak_bytes_in_use_is_set) out->peak_bytes = args.peak_bytes_in_use;
  if (args.bytes_limit_is_set) out->bytes_limit = args.bytes_limit;
  return NULL;
}

int tpu_client_counts(const tpu_client *client, tpu_call_count *out, int capacity) {
  static const char *const names[] = {
#define X(name) #name,
      TPU_COUNTED(X)
#undef X
  };
  int count = capacity < TPU_COUNTED_COUNT ? capacity : TPU_COUNTED_COUNT;
  for (int i = 0; i < count; i++) {
    out[i].name = names[i];
    out[i].calls = atomic_load_explicit(&client->counters[i].calls, memory_order_relaxed);
    out[i].ns = atomic_load_explicit(&client->counters[i].ns, memory_order_relaxed);
  }
  return count;
}
