/* The one door through which a plugin is called. Private to this folder. Thread-safe.
 *
 * TPU_CALL checks that the plugin has the function, fills struct_size, and turns a PJRT_Error into a
 * status of the same code and message (the PJRT_Error is destroyed). No lock may be held across it.
 */
#ifndef TPU_PJRT_CALLS_H
#define TPU_PJRT_CALLS_H

#include <pthread.h>

#include "base/status.h"
#include "pjrt/pjrt_abi.h"
#include "pjrt/plugin.h"

struct tpu_plugin {
  const tpu_abi *api;
  char *path;
  struct tpu_plugin *next; /* the list of loaded plugins; never unloaded */
  pthread_mutex_t digest_lock;
  char digest[65]; /* "" until asked for */
  bool digest_known;
};

static inline tpu_abi_function tpu_call_find(const tpu_plugin *plugin, tpu_slot slot) {
  size_t end = offsetof(tpu_abi, slots) + ((size_t)slot + 1) * sizeof(tpu_abi_function);
  return end <= plugin->api->struct_size ? plugin->api->slots[slot] : (tpu_abi_function)0;
}

tpu_status tpu_call_missing(const tpu_plugin *plugin, tpu_slot slot) TPU_MUST_USE;
tpu_status tpu_call_failed(const tpu_plugin *plugin, PJRT_Error *error) TPU_MUST_USE; /* takes `error` */

static inline TPU_MUST_USE tpu_status tpu_call(const tpu_plugin *plugin, tpu_slot slot, void *args, size_t size) {
  tpu_abi_function function = tpu_call_find(plugin, slot);
  if (!function) return tpu_call_missing(plugin, slot);
  *(size_t *)args = size;
  PJRT_Error *error = ((tpu_abi_call)function)(args);
  return error ? tpu_call_failed(plugin, error) : NULL;
}

/* TPU_CALL(plugin, Buffer_Destroy, &args) with args a tpu_abi_Buffer_Destroy. */
#define TPU_CALL(plugin, name, args) tpu_call((plugin), TPU_SLOT_##name, 1 ? (args) : (tpu_abi_##name *)0, sizeof *(args))

/* For functions whose failure leaves nothing to do, such as destroys. */
#define TPU_CALL_IGNORE(plugin, name, args) tpu_status_release(TPU_CALL(plugin, name, args))

#endif
