#include "rt/runtime.h"

#include <limits.h>
#ifdef __GLIBC__
#endif
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "pjrt/plugin.h"
#include "rt/private.h"

tpu_runtime tpu_rt = {.lock = PTHREAD_MUTEX_INITIALIZER, .settled = PTHREAD_COND_INITIALIZER, .next_serial = 1};

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int initialized; /* 0 no, 1 yes, 2 failed for good, 3 under way */
static tpu_status init_error;
static atomic_bool bad_fork;
static bool configured;
static tpu_config config;
static atomic_int mode = TPU_DEFER_AND_FUSE;

void tpu_configure(const tpu_config *c) {
  pthread_mutex_lock(&init_lock);
  if (!configured) {
    configured = true;
    tpu_alloc_tune();
    const char *checks = getenv("TORCH_TPU_INDEX_CHECKS");
    tpu_rt.no_checks = checks && strcmp(checks, "0") == 0;
    config = *c;
    if (c->libtpu) config.libtpu = tpu_strdup(c->libtpu);
    if (c->embedded) config.embedded = tpu_strdup(c->embedded);
    if (c->cache_dir && *c->cache_dir)
      config.cache_dir = tpu_strdup(c->cache_dir);
    else
      config.cache_dir = NULL;
    if (config.cache_bytes <= 0) config.cache_bytes = INT64_C(4) << 30;
    if (config.devices <= 0) config.devices = 1;
  }
  pthread_mutex_unlock(&init_lock);
}

const tpu_config *tpu_rt_config(void) { return &config; }

void tpu_after_fork_child(void) {
  int state = atomic_load(&initialized);
  if (state == 1 || state == 3) atomic_store(&bad_fork, true); /* under way: its lock is held for ever */
}
bool tpu_in_bad_fork(void) { return atomic_load_explicit(&bad_fork, memory_order_relaxed); }
bool tpu_is_initialized(void) { return atomic_load(&initialized) == 1; }
tpu_client *tpu_runtime_client(void) { return tpu_rt.client; }
const tpu_target *tpu_runtime_target(void) { return &tpu_rt.target; }

static void target_set(void) {
  tpu_rt.quirks = tpu_client_quirks(tpu_rt.client);
  tpu_rt.target.platform = tpu_rt.quirks->platform == TPU_PLATFORM_CPU   ? TPU_TARGET_CPU
                           : tpu_rt.quirks->platform == TPU_PLATFORM_TPU ? TPU_TARGET_TPU
                                                                         : TPU_TARGET_OTHER;
  tpu_rt.target.atan_is_broken = tpu_rt.quirks->atan_is_broken;
  tpu_rt.target.widens_half_dots = tpu_rt.quirks->half_dots_fail;
  tpu_rt.target.host_custom_calls = tpu_rt.quirks->platform == TPU_PLATFORM_CPU;
}

static tpu_status fill_runtime(const char *path) {
  target_set();
  int n = tpu_client_device_count(tpu_rt.client);
  if (n <= 0) return tpu_error(TPU_FAILED_PRECONDITION, "the PJRT plugin %s offers no device", path);
  tpu_rt.devices = tpu_calloc((size_t)n, sizeof *tpu_rt.devices);
  if (!tpu_rt.devices) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  tpu_rt.n_devices = n;
  TPU_TRY(tpu_signature_internal(SIG_ZERO, 0, NULL, TPU_DTYPE_NONE, &tpu_rt.zero));
  TPU_TRY(tpu_signature_internal(SIG_ONE, 0, NULL, TPU_DTYPE_NONE, &tpu_rt.one));
  return tpu_signature_internal(SIG_FILL, 0, NULL, TPU_DTYPE_NONE, &tpu_rt.fill);
}

static tpu_status create_client(void) {
  char path[4096];
  bool is_tpu;
  tpu_plugin *plugin;
  TPU_TRY(tpu_plugin_choose(config.libtpu, config.embedded, path, sizeof path, &is_tpu));
  TPU_TRY(tpu_plugin_load(path, false, &plugin));
  TPU_TRY(tpu_client_create(plugin, config.devices > 0 ? config.devices : 1, &tpu_rt.client));
  tpu_status status = fill_runtime(path);
  if (status) {
    tpu_free(tpu_rt.devices);
    tpu_client_destroy(tpu_rt.client);
    tpu_rt.devices = NULL;
    tpu_rt.client = NULL;
    tpu_rt.n_devices = 0;
  }
  return status;
}

static tpu_status bad_fork_error(void) {
  return tpu_error(TPU_FAILED_PRECONDITION,
                   "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must use the "
                   "'spawn' start method");
}

tpu_status tpu_initialize(void) {
  if (tpu_in_bad_fork()) return bad_fork_error();
  if (atomic_load_explicit(&initialized, memory_order_acquire) == 1) return NULL;
  pthread_mutex_lock(&init_lock);
  tpu_status status = NULL;
  if (atomic_load(&initialized) == 0) {
    pthread_atfork(NULL, NULL, tpu_after_fork_child);
    atomic_store(&initialized, 3);
    status = create_client();
    if (status) init_error = tpu_status_retain(status);
    atomic_store_explicit(&initialized, status ? 2 : 1, memory_order_release);
  } else if (atomic_load(&initialized) == 2) {
    status = tpu_status_retain(init_error);
  }
  pthread_mutex_unlock(&init_lock);
  return status;
}

tpu_status tpu_rt_enter(void) {
  if (atomic_load_explicit(&initialized, memory_order_acquire) == 1 && !tpu_in_bad_fork()) return NULL;
  return tpu_initialize();
}

int tpu_device_count(void) {
  if (tpu_is_initialized()) return tpu_rt.n_devices;
  if (atomic_load(&initialized) == 2) return 0;
  char path[4096];
  bool is_tpu;
  tpu_status status = tpu_plugin_choose(config.libtpu, config.embedded, path, sizeof path, &is_tpu);
  if (status) {
    tpu_status_release(status);
    return 0;
  }
  /* Only an unknown plugin has to be asked. */
  if (!is_tpu && config.embedded && strcmp(path, config.embedded) == 0) return config.devices > 0 ? config.devices : 1;
  status = tpu_initialize();
  if (status) {
    tpu_status_release(status);
    return 0;
  }
  return tpu_rt.n_devices;
}

/* --- modes and policy */
void tpu_mode_set(tpu_mode m) { atomic_store(&mode, (int)m); }
tpu_mode tpu_mode_get(void) { return (tpu_mode)atomic_load(&mode); }
tpu_mode tpu_mode_now(const tpu_lane *lane) {
  int own = tpu_lane_mode_get(lane);
  return own >= 0 ? (tpu_mode)own : tpu_mode_get();
}

static atomic_int precision = TPU_PRECISION_HIGHEST;
void tpu_precision_set(tpu_precision p) { atomic_store(&precision, (int)p); }
tpu_precision tpu_precision_get(void) { return (tpu_precision)atomic_load_explicit(&precision, memory_order_relaxed); }

/* --- accounting */
void tpu_memory_info_get(int device, tpu_memory_info *out) {
  *out = (tpu_memory_info){.limit = -1};
  if (tpu_in_bad_fork() || !tpu_is_initialized() || device < 0 || device >= tpu_rt.n_devices) return;
  tpu_device_state *d = &tpu_rt.devices[device];
  out->allocated = atomic_load(&d->bytes);
  out->peak = atomic_load(&d->peak);
  out->allocations = atomic_load(&d->allocations);
  out->frees = atomic_load(&d->frees);
  tpu_memory_stats stats;
  tpu_status status = tpu_client_memory_stats(tpu_rt.client, device, &stats);
  if (!status) {
    out->limit = stats.bytes_limit;
    if (stats.bytes_in_use >= 0) out->allocated = stats.bytes_in_use;
    if (stats.peak_bytes > out->peak) out->peak = stats.peak_bytes;
  }
  tpu_status_release(status);
}

void tpu_memory_reset_peak(int device) {
  if (!tpu_is_initialized() || device < 0 || device >= tpu_rt.n_devices) return;
  tpu_device_state *d = &tpu_rt.devices[device];
  atomic_store(&d->peak, atomic_load(&d->bytes));
}

void tpu_stats_get(tpu_stats *out) {
  *out = (tpu_stats){0};
  if (tpu_in_bad_fork()) return;
  tpu_rt_lock();
  *out = tpu_rt.stats;
  tpu_rt_unlock();
}

void tpu_stats_reset(void) {
  if (tpu_in_bad_fork()) return;
  tpu_rt_lock();
  tpu_rt.stats = (tpu_stats){0};
  tpu_rt_unlock();
}

void tpu_cache_clear(void) {
  if (!tpu_in_bad_fork()) tpu_program_cache_clear();
}

static bool must_wait(const tpu_device_state *d, int64_t bytes) {
  if (d->n_big == TPU_BIG_IN_FLIGHT) return true;
  if (!tpu_rt.quirks->host_pointers || !d->n_big) return false;
  for (uint32_t i = 0; i < d->n_big; i++) bytes += d->big[i].bytes;
  return bytes > TPU_HOST_BYTES_IN_FLIGHT;
}

void tpu_event_pace(int device, int64_t bytes) {
  tpu_device_state *d = &tpu_rt.devices[device];
  while (bytes >= TPU_BIG_BYTES && must_wait(d, bytes)) {
    tpu_event *oldest = d->big[0].done;
    d->n_big--;
    for (uint32_t i = 0; i < d->n_big; i++) d->big[i] = d->big[i + 1];
    tpu_rt_unlock();
    tpu_status status = tpu_event_await(tpu_rt.client, oldest);
    tpu_event_destroy(tpu_rt.client, oldest);
    tpu_rt_lock();
    d->async_error = tpu_status_join(d->async_error, status);
  }
}

bool tpu_event_push(int device, tpu_event *event, int64_t bytes) {
  tpu_device_state *d = &tpu_rt.devices[device];
  if (!event) return true;
  if (bytes >= TPU_BIG_BYTES && d->n_big < TPU_BIG_IN_FLIGHT) {
    d->big[d->n_big].done = event;
    d->big[d->n_big++].bytes = bytes;
    return true;
  }
  if (d->n_pending == d->cap_pending) {
    uint32_t kept = 0; /* forget what has ended */
    for (uint32_t i = 0; i < d->n_pending; i++) {
      if (tpu_event_ready(tpu_rt.client, d->pending[i])) {
        tpu_status s = tpu_event_await(tpu_rt.client, d->pending[i]);
        if (s && !d->async_error)
          d->async_error = s;
        else
          tpu_status_release(s);
        tpu_event_destroy(tpu_rt.client, d->pending[i]);
      } else {
        d->pending[kept++] = d->pending[i];
      }
    }
    d->n_pending = kept;
    if (kept > d->cap_pending / 2 || d->cap_pending == 0) {
      uint32_t cap = d->cap_pending ? d->cap_pending * 2 : 64;
      tpu_event **p = tpu_realloc(d->pending, cap * sizeof(tpu_event *));
      if (!p && kept == d->cap_pending) return false;
      if (p) {
        d->pending = p;
        d->cap_pending = cap;
      }
    }
  }
  d->pending[d->n_pending++] = event;
  return true;
}
