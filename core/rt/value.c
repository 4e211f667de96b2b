#include "base/alloc.h"
#include "rt/private.h"

/* Values and storages are made and dropped for every recorded call, so each thread keeps some. */
#define CACHE_LIMIT 4096
typedef struct free_node {
  struct free_node *next;
} free_node;
static _Thread_local free_node *free_values, *free_storages;
static _Thread_local int n_free_values, n_free_storages;
static _Thread_local bool frees_at_exit;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static pthread_key_t exit_key;
static bool have_exit_key;

static void free_list(free_node **list, int *n) {
  for (free_node *p = *list, *next; p; p = next) {
    next = p->next;
    tpu_free(p);
  }
  *list = NULL;
  *n = 0;
}
static void thread_exits(void *unused) {
  (void)unused;
  frees_at_exit = false; /* what other destructors still release registers again */
  free_list(&free_values, &n_free_values);
  free_list(&free_storages, &n_free_storages);
}
static void make_exit_key(void) { have_exit_key = pthread_key_create(&exit_key, thread_exits) == 0; }
static bool register_exit(void) {
  (void)pthread_once(&exit_once, make_exit_key);
  return frees_at_exit = have_exit_key && pthread_setspecific(exit_key, &exit_key) == 0;
}

static void *cache_take(free_node **list, int *n, size_t size) {
  free_node *p = *list;
  if (!p) return tpu_malloc(size);
  *list = p->next;
  --*n;
  return p;
}

static void cache_give(free_node **list, int *n, void *p) {
  if (*n >= CACHE_LIMIT || (!frees_at_exit && !register_exit())) {
    tpu_free(p);
    return;
  }
  free_node *node = p;
  node->next = *list;
  *list = node;
  ++*n;
}

static atomic_int live_values, live_storages;
int64_t tpu_live_values(void) { return atomic_load(&live_values); }
int64_t tpu_live_storages(void) { return atomic_load(&live_storages); }

tpu_value *tpu_value_create(int device, const tpu_layout *layout, tpu_value_state state) {
  tpu_value *v = cache_take(&free_values, &n_free_values, sizeof *v);
  if (!v) return NULL;
  *v = (tpu_value){.layout = layout, .device = device, .index = NO_VALUE, .replaces = NO_VALUE, .leaf_index = NO_VALUE};
  atomic_init(&v->refs, 1);
  atomic_init(&v->state, (int)state);
  atomic_fetch_add_explicit(&live_values, 1, memory_order_relaxed);
  return v;
}

void tpu_value_retain(tpu_value *v) { atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed); }

static void account(int device, int64_t bytes) {
  tpu_device_state *d = &tpu_rt.devices[device];
  long long now = atomic_fetch_add_explicit(&d->bytes, bytes, memory_order_relaxed) + bytes;
  long long peak = atomic_load_explicit(&d->peak, memory_order_relaxed);
  while (now > peak && !atomic_compare_exchange_weak_explicit(&d->peak, &peak, now, memory_order_relaxed, memory_order_relaxed)) {
  }
  if (bytes >= 0)
    atomic_fetch_add_explicit(&d->allocations, 1, memory_order_relaxed);
  else
    atomic_fetch_add_explicit(&d->frees, 1, memory_order_relaxed);
}

static void count(tpu_value *v, bool counted) {
  if (v->counted == counted) return;
  v->counted = counted;
  account(v->device, counted ? v->layout->nbytes : -v->layout->nbytes);
  tpu_blame_note(v, counted);
}

tpu_value *tpu_value_fill(int device, const tpu_layout *layout, const tpu_number *number) {
  tpu_value *v = tpu_value_create(device, layout, VALUE_FILL);
  if (!v) return NULL;
  v->fill = *number;
  count(v, true);
  return v;
}

void tpu_value_set_buffer(tpu_value *v, tpu_buffer *buffer) {
  v->buffer = buffer;
  count(v, true);
}

tpu_buffer *tpu_value_take_buffer(tpu_value *v) {
  tpu_buffer *buffer = v->buffer;
  v->buffer = NULL;
  count(v, false);
  return buffer;
}

void tpu_value_release(tpu_value *v) {
  if (!v || tpu_in_bad_fork() || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) != 1) return;
  if (v->buffer)
    tpu_buffer_destroy(tpu_rt.client, tpu_value_take_buffer(v));
  else if (v->counted)
    count(v, false);
  if (v->room) tpu_free(atomic_load_explicit(&v->host, memory_order_acquire));
  tpu_status_release(v->error);
  atomic_fetch_sub_explicit(&live_values, 1, memory_order_relaxed);
  cache_give(&free_values, &n_free_values, v);
}

/* Addresses only have to be distinct. They start where no pointer can be (non-canonical on x86-64 and aarch64), so that
 * reading one faults. */
static _Atomic uint64_t next_address = UINT64_C(0x5450000000000000);
uint64_t tpu_next_address(void) { return atomic_load_explicit(&next_address, memory_order_relaxed); }

tpu_status tpu_storage_create(int device, int64_t nbytes, tpu_storage **out) {
  TPU_TRY(tpu_rt_enter());
  if (device < 0 || device >= tpu_rt.n_devices)
    return tpu_error(TPU_INVALID_ARGUMENT, "tpu:%d does not exist: there %s %d device%s", device,
                     tpu_rt.n_devices == 1 ? "is" : "are", tpu_rt.n_devices, tpu_rt.n_devices == 1 ? "" : "s");
  if (nbytes < 0) return tpu_error(TPU_INVALID_ARGUMENT, "a storage of %lld bytes", (long long)nbytes);
  tpu_storage *s = cache_take(&free_storages, &n_free_storages, sizeof *s);
  if (!s) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  *s = (tpu_storage){.device = device, .nbytes = nbytes};
  atomic_init(&s->refs, 1);
  if (nbytes)
    s->address = atomic_fetch_add_explicit(&next_address, ((uint64_t)nbytes + 127) & ~UINT64_C(63), memory_order_relaxed);
  atomic_fetch_add_explicit(&live_storages, 1, memory_order_relaxed);
  *out = s;
  return NULL;
}

void tpu_storage_retain(tpu_storage *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }

tpu_value *tpu_storage_swap(tpu_storage *s, tpu_value *v) {
  tpu_value *old = s->value;
  if (old && old->home == s) old->home = NULL;
  s->value = v;
  return old;
}

void tpu_storage_release(tpu_storage *s) {
  if (!s || tpu_in_bad_fork() || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
  tpu_value *v;
  if (s->is_home) { /* a launch that fails may be about to give it its old value */
    tpu_rt_lock();
    v = tpu_storage_swap(s, NULL);
    tpu_rt_unlock();
  } else {
    v = s->value;
  }
  tpu_value_release(v);
  atomic_fetch_sub_explicit(&live_storages, 1, memory_order_relaxed);
  cache_give(&free_storages, &n_free_storages, s);
}

int64_t tpu_storage_nbytes(const tpu_storage *s) { return s->nbytes; }
int tpu_storage_device(const tpu_storage *s) { return s->device; }
uint64_t tpu_storage_address(const tpu_storage *s) { return s->address; }

void tpu_storage_hint(tpu_storage *s, const tpu_tensor *as) {
  if (tpu_in_bad_fork()) return;
  bool dense;
  const tpu_place *p = tpu_place_intern(as->dtype, as->rank, as->sizes, as->strides, &dense);
  if (p && p->layout->nbytes == s->nbytes) s->hint = p->layout;
}
