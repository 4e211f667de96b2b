#include "pjrt/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "pjrt/calls.h"
#include "pjrt/hardware.h"
#include "pjrt/plugin_private.h"

enum { OLDEST_MINOR = 81 };

/* Held while a plugin loads, as an exception to the rule: plugins read the environment then, which is one for all. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static tpu_plugin *loaded;

static const char *const slot_names[] = {
#define SLOT(name) "PJRT_" #name,
#include "pjrt/pjrt_slots.inc"
};

tpu_status tpu_call_missing(const tpu_plugin *plugin, tpu_slot slot) {
  return tpu_error(TPU_UNIMPLEMENTED, "the PJRT plugin %s (API 0.%d) has no %s", plugin->path, plugin->api->version.minor,
                   slot_names[slot]);
}

tpu_status tpu_call_failed(const tpu_plugin *plugin, PJRT_Error *error) {
  tpu_code code = TPU_UNKNOWN;
  tpu_abi_Error_GetCode get_code = {.struct_size = sizeof get_code, .error = error};
  tpu_abi_Error_Message message = {.struct_size = sizeof message, .error = error};
  tpu_abi_Error_Destroy destroy = {.struct_size = sizeof destroy, .error = error};
  PJRT_Error *second = ((tpu_abi_call)tpu_call_find(plugin, TPU_SLOT_Error_GetCode))(&get_code);
  if (!second && get_code.code > 0 && get_code.code <= TPU_UNAUTHENTICATED) code = (tpu_code)get_code.code;
  void (*ask)(void *) = (void (*)(void *))tpu_call_find(plugin, TPU_SLOT_Error_Message);
  void (*end)(void *) = (void (*)(void *))tpu_call_find(plugin, TPU_SLOT_Error_Destroy);
  ask(&message);
  int size = message.message_size < INT_MAX ? (int)message.message_size : INT_MAX;
  tpu_status status = tpu_error(code, "%.*s", size, message.message ? message.message : "");
  end(&destroy);
  if (second) {
    destroy.error = second;
    end(&destroy);
  }
  return status;
}

/* Sets a variable for the time of a load, unless the user has set it. */
static bool set_unless_set(const char *name, const char *value) { return !getenv(name) && setenv(name, value, 1) == 0; }

/* libtpu without a TPU asks a metadata server for minutes, writes logs and takes a lock for the whole machine. */
static void prepare_aot(void) {
  (void)set_unless_set("TPU_SKIP_MDS_QUERY", "1");
  (void)set_unless_set("TPU_LOG_DIR", "disabled");
  (void)set_unless_set("ALLOW_MULTIPLE_LIBTPU_LOAD", "1");
  (void)set_unless_set("TPU_ACCELERATOR_TYPE", "v5litepod-1");
  (void)set_unless_set("TPU_WORKER_HOSTNAMES", "localhost");
}

/* Checks what GetPjrtApi gave before any function of it is called. */
static tpu_status check_api(const char *path, const tpu_abi *api) {
  if (!api) return tpu_error(TPU_FAILED_PRECONDITION, "%s is no usable PJRT plugin: GetPjrtApi returned NULL", path);
  size_t head = offsetof(tpu_abi, slots);
  if (api->struct_size < head)
    return tpu_error(TPU_FAILED_PRECONDITION, "%s is no usable PJRT plugin: its PJRT_Api has %zu bytes", path, api->struct_size);
  if (api->version.major != 0 || api->version.minor < OLDEST_MINOR)
    return tpu_error(TPU_FAILED_PRECONDITION, "%s speaks PJRT API %d.%d, but 0.%d or a later 0.x is needed", path,
                     api->version.major, api->version.minor, OLDEST_MINOR);
  tpu_plugin probe = {.api = api};
  if (!tpu_call_find(&probe, TPU_SLOT_Error_Destroy) || !tpu_call_find(&probe, TPU_SLOT_Error_Message) ||
      !tpu_call_find(&probe, TPU_SLOT_Error_GetCode))
    return tpu_error(TPU_FAILED_PRECONDITION, "%s is no usable PJRT plugin: it lacks the error functions", path);
  return NULL;
}

static tpu_status load(const char *path, tpu_plugin **out_plugin) {
  tpu_plugin *plugin = tpu_calloc(1, sizeof *plugin);
  char *copy = tpu_strdup(path);
  tpu_status status = NULL;
  if (!plugin || !copy) {
    status = tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
    goto fail;
  }
  /* XLA reads its log level once; what it prints of itself below a fatal error is noise to our users. */
  bool quiet = set_unless_set("TF_CPP_MIN_LOG_LEVEL", "3");
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const tpu_abi *(*get)(void) = NULL;
  if (!library) {
    const char *why = dlerror();
    status = tpu_error(TPU_FAILED_PRECONDITION, "cannot load the PJRT plugin %s: %s", path, why ? why : "unknown error");
  } else {
    *(void **)&get = dlsym(library, "GetPjrtApi");
    if (!get) status = tpu_error(TPU_FAILED_PRECONDITION, "%s is no PJRT plugin: it does not export GetPjrtApi", path);
  }
  if (!status) {
    plugin->api = get();
    plugin->path = copy;
    status = check_api(path, plugin->api);
  }
  if (!status) {
    tpu_abi_Plugin_Initialize args = {0};
    status = tpu_status_prefix(TPU_CALL(plugin, Plugin_Initialize, &args), "cannot initialise the PJRT plugin %s: ", path);
  }
  if (quiet) unsetenv("TF_CPP_MIN_LOG_LEVEL");
  if (status) goto fail; /* the library stays: unloading one whose threads may run is not safe */
  if (pthread_mutex_init(&plugin->digest_lock, NULL) != 0) {
    status = tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
    goto fail;
  }
  *out_plugin = plugin;
  return NULL;
fail:
  tpu_free(copy);
  tpu_free(plugin);
  return status;
}

tpu_status tpu_plugin_load(const char *path, bool for_aot, tpu_plugin **out_plugin) {
  *out_plugin = NULL;
  char real[PATH_MAX];
  if (!path || !*path) return tpu_error(TPU_NOT_FOUND, "no PJRT plugin is given: the path is empty");
  if (!realpath(path, real)) return tpu_error(TPU_NOT_FOUND, "there is no PJRT plugin at %s: %s", path, strerror(errno));
  tpu_status status = NULL;
  pthread_mutex_lock(&load_lock);
  tpu_plugin *plugin = loaded;
  while (plugin && strcmp(plugin->path, real) != 0) plugin = plugin->next;
  if (!plugin) {
    if (for_aot && tpu_hardware_count() == 0) prepare_aot();
    status = load(real, &plugin);
    if (!status) {
      plugin->next = loaded;
      loaded = plugin;
    }
  }
  pthread_mutex_unlock(&load_lock);
  if (!status) *out_plugin = plugin;
  return status;
}

tpu_status tpu_plugin_choose_at(const char *root, const char *libtpu, const char *embedded, char *out_path, size_t path_size,
                                bool *out_is_tpu) {
  const char *given = getenv("TPU_LIBRARY_PATH"), *chosen = NULL;
  int chips = tpu_hardware_count_at(root);
  *out_is_tpu = false;
  if (given && *given) {
    chosen = given;
    const char *name = strrchr(given, '/');
    *out_is_tpu = strstr(name ? name : given, "libtpu") != NULL;
  } else if (chips && libtpu && *libtpu) {
    chosen = libtpu;
    *out_is_tpu = true;
  } else if (embedded && *embedded) {
    chosen = embedded;
  }
  if (!chosen)
    return tpu_error(TPU_NOT_FOUND, "no PJRT plugin was found: TPU_LIBRARY_PATH is not set, %s, and no CPU plugin is installed",
                     chips ? "a TPU is attached but libtpu is not installed" : "no TPU is attached to this machine");
  size_t size = strlen(chosen) + 1;
  if (size > path_size) return tpu_error(TPU_INVALID_ARGUMENT, "the path of the PJRT plugin is too long: %s", chosen);
  memcpy(out_path, chosen, size);
  return NULL;
}

tpu_status tpu_plugin_choose(const char *libtpu, const char *embedded, char *out_path, size_t path_size, bool *out_is_tpu) {
  return tpu_plugin_choose_at("", libtpu, embedded, out_path, path_size, out_is_tpu);
}

const char *tpu_plugin_path(const tpu_plugin *plugin) { return plugin->path; }
int tpu_plugin_api_minor(const tpu_plugin *plugin) { return plugin->api->version.minor; }

static bool digest_file(const char *path, char out_hex[65]) {
  enum { CHUNK = 1 << 18 };
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  char *chunk = tpu_malloc(CHUNK);
  ssize_t got = -1;
  if (fd >= 0 && chunk) {
    tpu_sha256 sha;
    tpu_sha256_init(&sha);
    while ((got = read(fd, chunk, CHUNK)) > 0) tpu_sha256_update(&sha, chunk, (size_t)got);
    uint8_t digest[32];
    tpu_sha256_final(&sha, digest);
    if (got == 0) tpu_sha256_hex(digest, out_hex);
  }
  tpu_free(chunk);
  if (fd >= 0) close(fd);
  return got == 0;
}

const char *tpu_plugin_digest(tpu_plugin *plugin) {
  pthread_mutex_lock(&plugin->digest_lock);
  if (!plugin->digest_known) plugin->digest_known = digest_file(plugin->path, plugin->digest);
  pthread_mutex_unlock(&plugin->digest_lock);
  return plugin->digest;
}

bool tpu_plugin_version(const tpu_plugin *plugin, const char *name, int64_t out_version[3]) {
  tpu_abi_Plugin_Attributes args = {0};
  tpu_status status = TPU_CALL(plugin, Plugin_Attributes, &args);
  if (status) {
    tpu_status_release(status);
    return false;
  }
  for (size_t i = 0; i < args.num_attributes; i++) {
    const tpu_abi_named_value *a = &args.attributes[i];
    if (a->name_size != strlen(name) || memcmp(a->name, name, a->name_size) != 0) continue;
    if (a->type != TPU_VALUE_INT64 && a->type != TPU_VALUE_INT64_LIST) return false;
    for (size_t j = 0; j < 3; j++) {
      if (a->type == TPU_VALUE_INT64)
        out_version[j] = j ? 0 : a->value.int64_value;
      else
        out_version[j] = j < a->value_size ? a->value.int64_array_value[j] : 0;
    }
    return true;
  }
  return false;
}
