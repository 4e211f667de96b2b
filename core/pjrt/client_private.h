/* What a client is made of. Private to this folder. */
#ifndef TPU_PJRT_CLIENT_PRIVATE_H
#define TPU_PJRT_CLIENT_PRIVATE_H

#include <stdatomic.h>
#include <time.h>

#include "pjrt/calls.h"
#include "pjrt/client.h"

/* The calls that are counted; the last ones are too short to be timed. */
#define TPU_COUNTED(X) \
  X(execute)           \
  X(compile)           \
  X(serialize)         \
  X(deserialize)       \
  X(from_host)         \
  X(to_host)           \
  X(copy_to_device)    \
  X(await)             \
  X(buffer_destroy)
typedef enum tpu_counted {
#define X(name) TPU_COUNTED_##name,
  TPU_COUNTED(X)
#undef X
      TPU_COUNTED_COUNT
} tpu_counted;

typedef struct tpu_counter {
  _Atomic uint64_t calls, ns;
} tpu_counter;

typedef struct tpu_device {
  PJRT_Device *handle; /* the plugin's */
  int id;
  char *kind;
} tpu_device;

struct tpu_client {
  tpu_plugin *plugin;
  PJRT_Client *handle;
  tpu_quirks quirks;
  char *platform_name, *platform_version;
  tpu_device *devices;
  int device_count;
  tpu_counter *counters; /* [TPU_COUNTED_COUNT] */
};

static inline uint64_t tpu_count_start(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}
static inline void tpu_count_add(const tpu_client *client, tpu_counted what, uint64_t ns) {
  tpu_counter *c = &client->counters[what];
  atomic_fetch_add_explicit(&c->calls, 1, memory_order_relaxed);
  if (ns) atomic_fetch_add_explicit(&c->ns, ns, memory_order_relaxed);
}
static inline void tpu_count_end(const tpu_client *client, tpu_counted what, uint64_t start) {
  tpu_count_add(client, what, tpu_count_start() - start);
}

/* INVALID_ARGUMENT unless `device` counts one of the client's devices. */
tpu_status tpu_client_check_device(const tpu_client *client, int device) TPU_MUST_USE;

#endif
