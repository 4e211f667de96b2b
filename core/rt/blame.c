#include <string.h>

#include "base/alloc.h"
#include "base/strbuf.h"
#include "rt/private.h"

/* --- source lines */
static _Atomic(tpu_source_text_fn) describer;
void tpu_source_describer_set(tpu_source_text_fn text) { atomic_store(&describer, text); }

void tpu_lane_source_set(tpu_lane *lane, uint64_t source) { atomic_store_explicit(&lane->source, source, memory_order_relaxed); }

/* A ring, so that long graphs forget their oldest nodes. Slots are written by the lane's thread and read by threads that run its
 * backward; a slot overwritten meanwhile gives no line. */
#define NODES (1u << 15)
struct tpu_node_source {
  atomic_ullong sequence, source;
};

void tpu_lane_node_note(tpu_lane *lane, uint64_t sequence, uint64_t source) {
  if (!lane->nodes && !(lane->nodes = tpu_calloc(NODES, sizeof *lane->nodes))) return;
  tpu_node_source *n = &lane->nodes[sequence % NODES];
  atomic_store_explicit(&n->sequence, 0, memory_order_relaxed);
  atomic_store_explicit(&n->source, source, memory_order_release);
  atomic_store_explicit(&n->sequence, sequence + 1, memory_order_release);
}

uint64_t tpu_lane_node_find(const tpu_lane *lane, uint64_t sequence) {
  if (!lane->nodes) return 0;
  const tpu_node_source *n = &lane->nodes[sequence % NODES];
  if (atomic_load_explicit(&n->sequence, memory_order_acquire) != sequence + 1) return 0;
  uint64_t source = atomic_load_explicit(&n->source, memory_order_acquire);
  return atomic_load_explicit(&n->sequence, memory_order_acquire) == sequence + 1 ? source : 0;
}

static void put_source(tpu_strbuf *s, uint64_t source) {
  tpu_source_text_fn text = atomic_load(&describer);
  char *where = source && text ? text(source) : NULL;
  if (where) tpu_strbuf_printf(s, " (%s)", where);
  tpu_free(where);
}

static const char *name_of(const tpu_rec *r) {
  if (r->sig->args.row) return r->sig->args.row->aten;
  return r->sig->kind == SIG_CONVERT || r->sig->kind == SIG_STORE ? "copy_" : "fill_";
}

static void put_call(tpu_strbuf *s, const tpu_rec *r) {
  tpu_strbuf_printf(s, "aten::%s", name_of(r));
  put_source(s, r->source);
}

tpu_status tpu_blame_call(tpu_status status, const char *aten, uint64_t source) {
  tpu_strbuf s = {0};
  tpu_strbuf_printf(&s, "aten::%s", aten);
  put_source(&s, source);
  if (!s.failed) status = tpu_status_prefix(status, "%s: ", s.data);
  tpu_strbuf_destroy(&s);
  return status;
}

tpu_status tpu_blame_segment(tpu_status status, const tpu_segment *seg) {
  if (!status || !seg->n_records) return status;
  tpu_strbuf s = {0};
  uint32_t n = 0, first = 0, last = 0;
  for (uint32_t r = 0; r < seg->n_records; r++) {
    if (seg->records[r].sig->kind == SIG_ZERO || seg->records[r].sig->kind == SIG_ONE || seg->records[r].sig->kind == SIG_FILL)
      continue;
    if (!n++) first = r;
    last = r;
  }
  if (n > 1) tpu_strbuf_printf(&s, "a program of %u operations, from ", n);
  put_call(&s, &seg->records[first]);
  if (n > 1) {
    tpu_strbuf_put(&s, " to ");
    put_call(&s, &seg->records[last]);
    tpu_strbuf_put(&s, ", failed (TORCH_TPU_LAUNCH_BLOCKING=1 finds the operation)");
  }
  if (!s.failed) status = tpu_status_prefix(status, "%s: ", s.data);
  tpu_strbuf_destroy(&s);
  return status;
}

tpu_status tpu_blame_value(tpu_status status, const tpu_value *v) {
  if (!status) return NULL;
  tpu_strbuf s = {0};
  put_source(&s, v->source);
  if (!s.failed && s.size) status = tpu_status_prefix(status, "the program that made this tensor%s failed: ", s.data);
  tpu_strbuf_destroy(&s);
  return tpu_blame_memory(status, v->device, 0);
}

/* --- memory */
#define LARGE (64 << 10)
#define TOP 5
static pthread_mutex_t large_lock = PTHREAD_MUTEX_INITIALIZER;
static tpu_value *large;

void tpu_blame_note(tpu_value *v, bool is_live) {
  if (v->layout->nbytes < LARGE) return;
  pthread_mutex_lock(&large_lock);
  if (is_live) {
    v->large_prev = NULL;
    v->large_next = large;
    if (large) large->large_prev = v;
    large = v;
  } else {
    if (v->large_prev)
      v->large_prev->large_next = v->large_next;
    else
      large = v->large_next;
    if (v->large_next) v->large_next->large_prev = v->large_prev;
  }
  pthread_mutex_unlock(&large_lock);
}

static void put_bytes(tpu_strbuf *s, int64_t n) {
  if (n >= INT64_C(1) << 30)
    tpu_strbuf_printf(s, "%.2f GiB", (double)n / (double)(INT64_C(1) << 30));
  else if (n >= 1 << 20)
    tpu_strbuf_printf(s, "%.2f MiB", (double)n / (1 << 20));
  else
    tpu_strbuf_printf(s, "%lld bytes", (long long)n);
}

tpu_status tpu_blame_memory(tpu_status status, int device, int64_t asked) {
  if (tpu_status_code(status) != TPU_RESOURCE_EXHAUSTED) return status;
  struct {
    const tpu_layout *layout;
    uint64_t source;
  } top[TOP];
  int n = 0;
  pthread_mutex_lock(&large_lock);
  for (const tpu_value *v = large; v; v = v->large_next) {
    if (v->device != device) continue;
    int at = n < TOP ? n++ : TOP;
    for (; at > 0 && top[at - 1].layout->nbytes < v->layout->nbytes; at--)
      if (at < TOP) top[at] = top[at - 1];
    if (at == TOP) continue;
    top[at].layout = v->layout;
    top[at].source = v->source;
  }
  pthread_mutex_unlock(&large_lock);
  tpu_memory_info info;
  tpu_memory_info_get(device, &info);
  tpu_strbuf s = {0};
  tpu_strbuf_printf(&s, "tpu:%d is out of memory: ", device);
  if (asked) {
    tpu_strbuf_put(&s, "tried to allocate ");
    put_bytes(&s, asked);
    tpu_strbuf_put(&s, "; ");
  }
  put_bytes(&s, info.allocated);
  tpu_strbuf_put(&s, " are in use");
  if (info.limit > 0) {
    tpu_strbuf_put(&s, " of ");
    put_bytes(&s, info.limit);
  }
  for (int i = 0; i < n; i++) {
    const tpu_layout *l = top[i].layout;
    tpu_strbuf_printf(&s, i ? ", %s[" : ", the largest by %s[", tpu_dtype_name(l->dtype));
    for (int d = 0; d < l->rank; d++) tpu_strbuf_printf(&s, d ? ", %lld" : "%lld", (long long)l->dims[d]);
    tpu_strbuf_put(&s, "] of ");
    put_bytes(&s, l->nbytes);
    put_source(&s, top[i].source);
  }
  if (!s.failed) status = tpu_status_prefix(status, "%s. ", s.data);
  tpu_strbuf_destroy(&s);
  return status;
}
