#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "rt/private.h"

static tpu_status out_of_memory(void) { return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

/* --- lanes */
tpu_lane *tpu_lane_create(void) {
  tpu_lane *lane = tpu_calloc(1, sizeof *lane);
  if (!lane) return NULL;
  atomic_init(&lane->refs, 1);
  atomic_init(&lane->mode, -1);
  atomic_init(&lane->source, 0);
  if (tpu_in_bad_fork()) return lane; /* can record nothing */
  tpu_rt_lock();
  lane->next = tpu_rt.lanes;
  if (lane->next) lane->next->prev = lane;
  tpu_rt.lanes = lane;
  tpu_rt_unlock();
  return lane;
}

void tpu_lane_mode_set(tpu_lane *lane, int mode) { atomic_store_explicit(&lane->mode, mode, memory_order_relaxed); }
int tpu_lane_mode_get(const tpu_lane *lane) { return atomic_load_explicit(&lane->mode, memory_order_relaxed); }

tpu_lane *tpu_lane_retain(tpu_lane *lane) {
  atomic_fetch_add(&lane->refs, 1);
  return lane;
}

static bool is_wanted(const tpu_segment *seg) {
  for (uint32_t i = 0; i < seg->n_values; i++)
    if (!seg->is_leaf[i] && atomic_load_explicit(&seg->values[i]->refs, memory_order_acquire) > 1) return true;
  return false;
}

void tpu_lane_release(tpu_lane *lane) {
  if (!lane || tpu_in_bad_fork() || atomic_fetch_sub(&lane->refs, 1) != 1) return;
  tpu_segment *dead = NULL;
  tpu_rt_lock();
  for (int d = 0; d < lane->n_segments; d++) {
    tpu_segment *seg = lane->segments[d];
    if (!seg) continue;
    tpu_segment **list = &tpu_rt.orphans;
    if (is_wanted(seg)) {
      seg->lane = NULL;
    } else {
      tpu_segment_detach(seg);
      list = &dead;
    }
    seg->next = *list;
    *list = seg;
  }
  if (lane->prev)
    lane->prev->next = lane->next;
  else
    tpu_rt.lanes = lane->next;
  if (lane->next) lane->next->prev = lane->prev;
  tpu_rt_unlock();
  for (tpu_segment *next; dead; dead = next) {
    next = dead->next;
    tpu_segment_free(dead);
  }
  tpu_free(lane->segments);
  tpu_free(lane->nodes);
  tpu_free(lane);
}

void tpu_cut_later(tpu_lane *lane) {
  if (tpu_in_bad_fork()) return;
  tpu_rt_lock();
  lane->cut_later = true;
  tpu_rt_unlock();
}

/* --- segments */
static void leaf_note(tpu_segment *seg, const tpu_value *v, uint32_t index) {
  /* Failing to note it only makes the value a leaf twice. */
  (void)tpu_map_put(&seg->leaves, tpu_hash_u64((uint64_t)(uintptr_t)v), (void *)(uintptr_t)(index + 1));
}

static void share(tpu_segment *seg) {
  if (seg->shared) return;
  seg->shared = true;
  for (uint32_t i = 0; i < seg->n_values; i++)
    if (seg->is_leaf[i]) leaf_note(seg, seg->values[i], i);
}

tpu_segment *tpu_segment_new(int device) {
  tpu_segment *seg = tpu_rt.pool;
  if (seg)
    tpu_rt.pool = seg->next;
  else if (!(seg = tpu_calloc(1, sizeof *seg)))
    return NULL;
  seg->device = device;
  seg->serial = atomic_fetch_add_explicit(&tpu_rt.next_serial, 1, memory_order_relaxed);
  seg->precision = tpu_precision_get();
  seg->options = NULL;
  seg->key = (tpu_hash){UINT64_C(0xa4093822299f31d0), (uint64_t)seg->precision};
  seg->n_calls = seg->n_records = seg->n_refs = seg->n_outs = seg->n_numbers = seg->n_offsets = seg->n_values = 0;
  seg->first_address = tpu_next_address();
  seg->lane = NULL;
  seg->next = NULL;
  seg->shared = tpu_rt.devices[device].open_segments++ > 0;
  if (seg->shared) {
    for (tpu_lane *l = tpu_rt.lanes; l; l = l->next)
      if (device < l->n_segments && l->segments[device]) share(l->segments[device]);
    for (tpu_segment *o = tpu_rt.orphans; o; o = o->next)
      if (o->device == device) share(o);
  }
  return seg;
}

void tpu_segment_free(tpu_segment *seg) {
  for (uint32_t i = 0; i < seg->n_values; i++) tpu_value_release(seg->values[i]);
  seg->n_values = 0;
  while (seg->n_spare) tpu_value_release(seg->spare[--seg->n_spare]);
  if (seg->shared) tpu_map_clear(&seg->leaves);
  tpu_loop_reset(seg);
  tpu_rt_lock();
  seg->next = tpu_rt.pool;
  tpu_rt.pool = seg;
  tpu_rt_unlock();
}

static bool grow(void *array, uint32_t *capacity, uint32_t need, size_t item) {
  if (need <= *capacity) return true;
  uint32_t n = *capacity ? *capacity * 2 : 16;
  while (n < need) n *= 2;
  void **p = array;
  void *q = tpu_realloc(*p, n * item);
  if (!q) return false;
  *p = q;
  *capacity = n;
  return true;
}

bool tpu_segment_reserve(tpu_segment *s, uint32_t records, uint32_t refs, uint32_t outs, uint32_t numbers) {
  uint32_t flags_capacity = s->cap_values;
  return grow(&s->records, &s->cap_records, s->n_records + records, sizeof *s->records) &&
         grow(&s->refs, &s->cap_refs, s->n_refs + refs, sizeof *s->refs) &&
         grow(&s->outs, &s->cap_outs, s->n_outs + outs, sizeof *s->outs) &&
         grow(&s->numbers, &s->cap_numbers, s->n_numbers + numbers, sizeof *s->numbers) &&
         grow(&s->offsets, &s->cap_offsets, s->n_offsets + refs, sizeof *s->offsets) &&
         grow(&s->values, &s->cap_values, s->n_values + refs + outs, sizeof(tpu_value *)) &&
         grow(&s->is_leaf, &flags_capacity, s->cap_values, sizeof *s->is_leaf);
}

/* The lane's segment for recording on a device. May launch the one before (drops the lock). */
static tpu_status lane_segment(tpu_lane *lane, int device, tpu_segment **out) {
  if (device >= lane->n_segments) {
    tpu_segment **p = tpu_realloc(lane->segments, sizeof(tpu_segment *) * (size_t)tpu_rt.n_devices);
    if (!p) return out_of_memory();
    for (int i = lane->n_segments; i < tpu_rt.n_devices; i++) p[i] = NULL;
    lane->segments = p;
    lane->n_segments = tpu_rt.n_devices;
  }
  if (lane->cut_later) {
    lane->cut_later = false;
    for (int d = 0; d < lane->n_segments; d++)
      if (lane->segments[d]) tpu_status_release(tpu_segment_launch(lane->segments[d], false));
  }
  tpu_segment *seg = lane->segments[device];
  const tpu_options *options = tpu_options_now(lane);
  if (seg && (seg->n_records >= TPU_SEGMENT_MAX_RECORDS || seg->precision != tpu_precision_get() || seg->options != options)) {
    tpu_status_release(tpu_segment_launch(seg, false)); /* a failure is in the values */
    seg = lane->segments[device];
  }
  if (!seg) {
    seg = tpu_segment_new(device);
    if (!seg) return out_of_memory();
    seg->options = options;
    if (options) tpu_hash_mix(&seg->key, options->hash.lo);
    seg->lane = lane;
    lane->segments[device] = seg;
  }
  *out = seg;
  return NULL;
}

/* What the operands' storages hold must be usable in `lane`: launches what other segments owe, waits for what is being launched.
 * The lock may be dropped; true in *again if it was. */
static tpu_status settle_foreign(const tpu_segment *seg, tpu_storage *s, bool updated, bool *again) {
  tpu_value *v = s->value;
  if (!v) return NULL;
  int state = atomic_load_explicit(&v->state, memory_order_acquire);
  if (state == VALUE_READY || (state == VALUE_FILL && !updated) || (state == VALUE_DEFERRED && v->segment == seg)) return NULL;
  *again = true;
  tpu_value_retain(v);
  tpu_status status = tpu_value_settle(v);
  tpu_rt_unlock();
  tpu_value_release(v);
  tpu_rt_lock();
  return status;
}

/* The number of a leaf of the segment; NO_VALUE: it is none yet. */
static uint32_t leaf_find(const tpu_segment *seg, const tpu_value *v) {
  if (v->leaf_serial == seg->serial) return v->leaf_index;
  if (!seg->shared) return NO_VALUE;
  uintptr_t noted = (uintptr_t)tpu_map_get(&seg->leaves, tpu_hash_u64((uint64_t)(uintptr_t)v));
  return noted ? (uint32_t)noted - 1 : NO_VALUE;
}

/* The number of a value in the segment, as a new leaf if need be. Room was reserved. */
static uint32_t value_ref(tpu_segment *seg, tpu_value *v) {
  int state = atomic_load_explicit(&v->state, memory_order_relaxed);
  if (state == VALUE_DEFERRED) return v->index;
  if (state == VALUE_FILL) return v->leaf_index; /* defined just before */
  uint32_t i = leaf_find(seg, v);
  if (i != NO_VALUE) return i;
  i = seg->n_values++;
  if (seg->shared) leaf_note(seg, v, i);
  tpu_value_retain(v);
  seg->values[i] = v;
  seg->is_leaf[i] = 1;
  v->leaf_serial = seg->serial;
  v->leaf_index = i;
  tpu_hash_mix(&seg->key, v->layout->hash);
  return i;
}

static uint64_t source_now(const tpu_segment *seg) { return atomic_load_explicit(&seg->lane->source, memory_order_relaxed); }

/* Makes sure that `n` values can be added without failing. */
static bool stash(tpu_segment *seg, uint32_t n) {
  if (!grow(&seg->spare, &seg->cap_spare, n, sizeof(tpu_value *))) return false;
  while (seg->n_spare < n) {
    tpu_value *v = tpu_value_create(seg->device, NULL, VALUE_DEFERRED);
    if (!v) return false;
    seg->spare[seg->n_spare++] = v;
  }
  return true;
}

/* A value that `seg` will produce, number and reference included. It was stashed. */
static tpu_value *add_value(tpu_segment *seg, const tpu_layout *layout) {
  tpu_value *v = seg->spare[--seg->n_spare];
  v->device = seg->device;
  v->layout = layout;
  v->segment = seg;
  v->source = source_now(seg);
  v->index = seg->n_values;
  seg->values[seg->n_values] = v; /* the creation's reference is the segment's */
  seg->is_leaf[seg->n_values++] = 0;
  return v;
}

bool tpu_is_partial(const tpu_signature *sig, int k, const tpu_layout *base) { return sig->operand_bytes[k] != base->nbytes; }

static bool is_fill(const tpu_value *v) { return v && atomic_load_explicit(&v->state, memory_order_acquire) == VALUE_FILL; }

/* Points the storage at a value of this segment; the old one's leaf is what may be donated to it. Returns the old value, whose
 * reference the caller drops without the lock; NULL if the segment holds it too. */
static tpu_value *storage_assign(tpu_segment *seg, tpu_storage *s, tpu_value *v) {
  tpu_value *old = s->value;
  bool held = false;
  v->over_nothing = !old || old->is_define;
  if (old && seg) {
    uint32_t leaf = NO_VALUE;
    if (atomic_load_explicit(&old->state, memory_order_relaxed) == VALUE_DEFERRED) {
      held = old->segment == seg;
      if (held) leaf = old->replaces;
    } else if (!is_fill(old)) {
      leaf = leaf_find(seg, old);
      held = leaf != NO_VALUE;
    }
    if (v->replaces == NO_VALUE) v->replaces = leaf;
    tpu_hash_mix(&seg->key, UINT64_C(0x5707) + leaf);
  }
  tpu_value_retain(v);
  (void)tpu_storage_swap(s, v);
  if (held) { /* at once, so that a launch that follows finds it free to be donated */
    tpu_value_release(old);
    old = NULL;
  }
  if (v->replaces != NO_VALUE || v->is_define) {
    v->home = s;
    s->is_home = true;
  }
  s->hint = NULL;
  return old;
}

/* A storage of undefined contents that is about to be read or written in part needs a layout; true if it needs a value too. */
static tpu_status plan_undefined(tpu_storage *s, tpu_dtype dtype, uint32_t *count) {
  if (s->value && !is_fill(s->value)) return NULL;
  ++*count;
  if (s->value) return NULL;
  if (s->hint && s->hint->nbytes == s->nbytes) return NULL;
  int64_t bytes = tpu_dtype_bytes(dtype);
  if (s->nbytes % bytes) {
    dtype = TPU_U8;
    bytes = 1;
  }
  int64_t n = s->nbytes / bytes;
  s->hint = tpu_layout_intern(dtype, 1, &n);
  return s->hint ? NULL : out_of_memory();
}

static bool number_is(const tpu_number *n, double what) {
  return n->dtype == TPU_F64 ? n->f == what && !(what == 0 && signbit(n->f)) : n->dtype != TPU_C128 && (double)n->i == what;
}

/* Appends a constant of the layout: zeros, ones or a number. Reserved before. */
static tpu_value *append_constant(tpu_segment *seg, const tpu_layout *layout, const tpu_number *number) {
  const tpu_signature *sig = !number || number_is(number, 0) ? tpu_rt.zero : number_is(number, 1) ? tpu_rt.one : tpu_rt.fill;
  tpu_value *v = add_value(seg, layout);
  seg->records[seg->n_records++] = (tpu_rec){.sig = sig,
                                             .ref = seg->n_refs,
                                             .out = seg->n_outs,
                                             .number = seg->n_numbers,
                                             .offset = seg->n_offsets,
                                             .source = source_now(seg)};
  seg->outs[seg->n_outs++] = (tpu_record_out){.value = v->index, .layout = layout};
  if (sig == tpu_rt.fill) seg->numbers[seg->n_numbers++] = *number;
  tpu_hash_mix(&seg->key, sig->hash.lo);
  tpu_hash_mix(&seg->key, layout->hash);
  return v;
}

/* Gives a storage of undefined contents zeros; lets a FILL have a constant in the segment. Planned and reserved before. */
static void define(tpu_segment *seg, tpu_storage *s) {
  tpu_value *fill = s->value;
  if (!fill) {
    tpu_value *v = append_constant(seg, s->hint, NULL);
    v->is_define = true;
    (void)storage_assign(NULL, s, v);
  } else if (is_fill(fill) && fill->leaf_serial != seg->serial) {
    fill->leaf_index = append_constant(seg, fill->layout, &fill->fill)->index;
    fill->leaf_serial = seg->serial;
  }
}

static void add_operand(tpu_segment *seg, const tpu_signature *sig, int k, const tpu_tensor *t) {
  if (!t->storage) {
    seg->refs[seg->n_refs++] = NO_VALUE;
    return;
  }
  tpu_value *v = t->storage->value;
  uint32_t ref = value_ref(seg, v);
  seg->refs[seg->n_refs++] = ref;
  tpu_hash_mix(&seg->key, ref);
  if (tpu_is_partial(sig, k, v->layout)) seg->offsets[seg->n_offsets++] = t->offset;
}

typedef struct plan { /* how one output reaches its destination */
  const tpu_place *place;
  const tpu_signature *store; /* through a view: the STORE signature; else NULL */
} plan;

static bool is_whole(const tpu_tensor *t, const tpu_place *place) {
  return place && t->offset == 0 && place->layout->nbytes == t->storage->nbytes;
}

static tpu_status make_plan(const tpu_signature *sig, const tpu_tensor *dst, int n, plan *plans) {
  for (int k = 0; k < n; k++) {
    plans[k] = (plan){.place = sig->places[k]};
    if (!dst || !dst[k].storage || !sig->places[k]) continue;
    const tpu_tensor *d = &dst[k];
    const tpu_result *r = &sig->results[k];
    bool dense;
    const tpu_place *place = tpu_place_intern(d->dtype, d->rank, d->sizes, d->strides, &dense);
    if (!place && dense) return out_of_memory();
    if (is_whole(d, place)) {
      plans[k].place = place;
      continue;
    }
    plans[k].place = tpu_place_intern(d->dtype, r->rank, r->sizes, r->strides, &dense);
    if (!plans[k].place) return out_of_memory();
    tpu_tensor pair[2] = {*d, *d};
    pair[1].strides = r->strides;
    TPU_TRY(tpu_signature_internal(SIG_STORE, 2, pair, TPU_DTYPE_NONE, &plans[k].store));
  }
  return NULL;
}

static bool same_sizes(const tpu_tensor *d, const tpu_result *r) {
  return d->rank == r->rank && (d->rank == 0 || memcmp(d->sizes, r->sizes, sizeof(int64_t) * (size_t)d->rank) == 0);
}

/* Appends STORE: the view `d` of its storage replaced by value number `src`. Reserved before. Returns the storage's old value,
 * whose reference the caller drops without the lock. */
static tpu_value *append_store(tpu_segment *seg, const tpu_signature *store, const tpu_tensor *d, uint32_t src,
                               const tpu_layout *src_layout, int64_t src_offset) {
  const tpu_layout *layout = d->storage->value->layout;
  uint32_t base = value_ref(seg, d->storage->value);
  tpu_value *v = add_value(seg, layout);
  seg->records[seg->n_records++] = (tpu_rec){.sig = store,
                                             .ref = seg->n_refs,
                                             .out = seg->n_outs,
                                             .number = seg->n_numbers,
                                             .offset = seg->n_offsets,
                                             .source = source_now(seg)};
  seg->refs[seg->n_refs++] = base;
  seg->refs[seg->n_refs++] = src;
  tpu_hash_mix(&seg->key, store->hash.lo);
  tpu_hash_mix(&seg->key, (uint64_t)base << 32 | src);
  if (tpu_is_partial(store, 0, layout)) seg->offsets[seg->n_offsets++] = d->offset;
  if (tpu_is_partial(store, 1, src_layout)) seg->offsets[seg->n_offsets++] = src_offset;
  seg->outs[seg->n_outs++] = (tpu_record_out){.value = v->index, .layout = layout};
  return storage_assign(seg, d->storage, v);
}

/* In the per-op modes everything recorded is launched at once. */
static tpu_status after_record(tpu_lane *lane, int device) {
  tpu_mode mode = tpu_mode_now(lane);
  if (mode == TPU_DEFER_AND_FUSE || !lane->segments[device]) return NULL;
  return tpu_segment_launch(lane->segments[device], mode == TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING);
}

/* The launch of a call that stored into `s` failed, and the call with it: what `s` held before comes back. If that was a leaf, it
 * has come back already or is gone. */
static void undo_store(tpu_storage *s, tpu_value **old) {
  tpu_value *v = s->value;
  if (!v || atomic_load_explicit(&v->state, memory_order_relaxed) != VALUE_FAILED) return;
  if (*old || v->over_nothing) *old = tpu_storage_swap(s, *old);
}

static uint64_t fingerprint(const tpu_segment *seg, const tpu_call *call, const tpu_signature *sig, const tpu_tensor *dst) {
  tpu_hash h = sig->hash;
  for (int i = 0; i < call->n_tensors; i++) {
    const tpu_storage *s = call->tensors[i].storage;
    tpu_hash_mix(&h, s && s->address < seg->first_address ? s->address : 0);
  }
  for (int k = 0; dst && k < sig->n_out; k++)
    if (dst[k].storage) tpu_hash_mix(&h, dst[k].storage->address < seg->first_address ? dst[k].storage->address : 0);
  return tpu_hash_u64(h.lo ^ h.hi);
}

/* Is operand i's storage also written: state that is updated? */
static bool is_updated(const tpu_call *call, const tpu_tensor *dst, int n, int i) {
  if (!dst || !is_fill(call->tensors[i].storage->value)) return false;
  for (int k = 0; k < n; k++)
    if (dst[k].storage == call->tensors[i].storage) return true;
  return false;
}

/* A result that is one number everywhere needs no record: what reads it decides whether it becomes a constant or a buffer. */
static tpu_status record_fill(const tpu_call *call, const tpu_signature *sig, const tpu_place *place, tpu_storage *s) {
  const tpu_number *number = sig->fill_slot == NO_SLOT ? &sig->fill : &call->numbers[sig->fill_slot];
  tpu_value *v = tpu_value_fill(call->device, place->layout, number);
  if (!v) return out_of_memory();
  tpu_rt_lock();
  tpu_value *old = tpu_storage_swap(s, v);
  s->hint = NULL;
  tpu_rt.stats.calls++;
  tpu_rt_unlock();
  tpu_value_release(old);
  return NULL;
}

static tpu_status record_locked(tpu_lane *lane, const tpu_call *call, const tpu_signature *sig, const tpu_tensor *dst,
                                const plan *plans, tpu_storage **fresh, tpu_value **old, int *n_old) {
  const int n = sig->n_out;
  tpu_segment *seg = NULL;
  for (bool again = true; again;) {
    again = false;
    TPU_TRY(lane_segment(lane, call->device, &seg));
    for (int i = 0; !again && i < call->n_tensors; i++)
      if (call->tensors[i].storage) TPU_TRY(settle_foreign(seg, call->tensors[i].storage, is_updated(call, dst, n, i), &again));
    for (int k = 0; !again && dst && k < n; k++)
      if (dst[k].storage && plans[k].store) TPU_TRY(settle_foreign(seg, dst[k].storage, true, &again));
  }
  /* All that can fail comes first. */
  uint32_t undefined = 0;
  for (int i = 0; i < call->n_tensors; i++)
    if (call->tensors[i].storage) TPU_TRY(plan_undefined(call->tensors[i].storage, call->tensors[i].dtype, &undefined));
  for (int k = 0; dst && k < n; k++)
    if (dst[k].storage && plans[k].store) TPU_TRY(plan_undefined(dst[k].storage, dst[k].dtype, &undefined));
  uint32_t nt = (uint32_t)call->n_tensors, outs = (uint32_t)n * (dst ? 2 : 1) + undefined;
  if (!tpu_segment_reserve(seg, 1 + outs, nt + 2 * (uint32_t)n, outs, sig->n_numbers + undefined) || !stash(seg, outs))
    return out_of_memory();

  if (undefined) {
    for (int i = 0; i < call->n_tensors; i++)
      if (call->tensors[i].storage) define(seg, call->tensors[i].storage);
    for (int k = 0; dst && k < n; k++)
      if (dst[k].storage && plans[k].store) define(seg, dst[k].storage);
  }
  tpu_rec *r = &seg->records[seg->n_records++];
  *r = (tpu_rec){.sig = sig,
                 .ref = seg->n_refs,
                 .out = seg->n_outs,
                 .number = seg->n_numbers,
                 .offset = seg->n_offsets,
                 .source = source_now(seg)};
  tpu_hash_mix(&seg->key, sig->hash.lo);
  for (int i = 0; i < call->n_tensors; i++) add_operand(seg, sig, i, &call->tensors[i]);
  for (int i = 0; i < call->n_numbers; i++) seg->numbers[seg->n_numbers++] = call->numbers[i];
  if (sig->n_numbers > (uint32_t)call->n_numbers) {
    seg->numbers[seg->n_numbers++] = (tpu_number){.dtype = TPU_I64, .i = (int64_t)call->generator->seed};
    seg->numbers[seg->n_numbers++] = (tpu_number){.dtype = TPU_I64, .i = (int64_t)call->generator->offset};
    call->generator->offset += (uint64_t)sig->random_blocks;
  }
  uint32_t first = seg->n_outs;
  for (int k = 0; k < n; k++) {
    tpu_record_out *o = &seg->outs[seg->n_outs++];
    *o = (tpu_record_out){.value = NO_VALUE, .place = plans[k].place};
    if (!o->place) continue;
    o->layout = o->place->layout;
    o->value = add_value(seg, o->layout)->index;
    if (dst && dst[k].storage) tpu_hash_mix(&seg->key, o->place->hash);
  }
  for (int k = 0; k < n; k++) {
    uint32_t index = seg->outs[first + (uint32_t)k].value;
    if (index == NO_VALUE) continue;
    tpu_value *v = seg->values[index];
    if (fresh[k])
      (void)storage_assign(NULL, fresh[k], v);
    else if (!plans[k].store)
      old[(*n_old)++] = storage_assign(seg, dst[k].storage, v);
    else
      old[(*n_old)++] = append_store(seg, plans[k].store, &dst[k], index, v->layout, 0);
  }
  tpu_rt.stats.calls++;
  seg->n_calls++;
  if (seg->n_calls > TPU_LOOP_RECORDS && tpu_loop_note(seg, fingerprint(seg, call, sig, dst))) lane->cut_later = true;
  tpu_status status = after_record(lane, call->device);
  if (status) {
    if (sig->n_numbers > (uint32_t)call->n_numbers) call->generator->offset -= (uint64_t)sig->random_blocks;
    for (int k = 0, i = 0; k < n; k++)
      if (plans[k].place && !fresh[k]) undo_store(dst[k].storage, &old[i++]);
  }
  return status;
}

#define SMALL 16
tpu_status tpu_record(tpu_lane *lane, const tpu_call *call, const tpu_signature *sig, const tpu_tensor *dst, tpu_storage **out) {
  TPU_TRY(tpu_rt_enter());
  int n = sig->n_out;
  plan small_plans[SMALL], *plans = small_plans;
  tpu_storage *small_new[SMALL], **fresh = small_new;
  tpu_value *small_old[2 * SMALL], **old = small_old;
  void *block = NULL;
  tpu_status status = NULL;
  if (n > SMALL) {
    block = tpu_malloc((size_t)n * (sizeof *plans + sizeof *fresh + 2 * sizeof *old));
    if (!block) return out_of_memory();
    plans = block;
    fresh = (tpu_storage **)(void *)(plans + n);
    old = (tpu_value **)(void *)(fresh + n);
  }
  int n_old = 0, made = 0;
  status = make_plan(sig, dst, n, plans);
  for (int k = 0; !status && k < n; k++) {
    fresh[k] = NULL;
    made = k + 1;
    if (!sig->places[k]) continue;
    if (!dst || !dst[k].storage)
      status = tpu_storage_create(call->device, plans[k].place->layout->nbytes, &fresh[k]);
    else if (!same_sizes(&dst[k], &sig->results[k]))
      status = tpu_error(TPU_INTERNAL, "%s: the destination's sizes are not the result's", call->row->aten);
  }
  if (!status && sig->is_fill && !plans[0].store && plans[0].place->layout->dtype == sig->results[0].dtype) {
    status = record_fill(call, sig, plans[0].place, fresh[0] ? fresh[0] : dst[0].storage);
  } else if (!status) {
    tpu_rt_lock();
    status = record_locked(lane, call, sig, dst, plans, fresh, old, &n_old);
    tpu_rt_unlock();
    for (int i = 0; i < n_old; i++) tpu_value_release(old[i]);
  }
  for (int k = 0; k < made; k++) {
    if (status)
      tpu_storage_release(fresh[k]);
    else
      out[k] = fresh[k];
  }
  tpu_free(block);
  return status;
}

/* --- copies */
static tpu_status share_or_convert(tpu_lane *lane, const tpu_tensor *src, const tpu_tensor *dst, const tpu_place *place) {
  bool dense;
  const tpu_place *from = tpu_place_intern(src->dtype, src->rank, src->sizes, src->strides, &dense);
  if (from == place && is_whole(src, from)) {
    /* Values never change: both storages hold the same one until either is written. */
    tpu_rt_lock();
    tpu_value *v = src->storage->value, *old = NULL;
    /* Bytes are bytes: a storage copied as such keeps the type of its contents. */
    bool same = v && (v->layout == place->layout || (dst->dtype == TPU_U8 && v->layout->nbytes == place->layout->nbytes));
    bool shared = same && dst->storage->device == src->storage->device;
    if (shared && v != dst->storage->value) {
      tpu_value_retain(v);
      old = tpu_storage_swap(dst->storage, v);
    }
    tpu_rt_unlock();
    tpu_value_release(old);
    if (shared) return NULL;
  }
  const tpu_signature *sig;
  TPU_TRY(tpu_signature_internal(SIG_CONVERT, 1, src, dst->dtype, &sig));
  static const tpu_row copy_row = {.aten = "copy_", .file = __FILE__, .line = __LINE__};
  tpu_call call = {.row = &copy_row, .device = dst->storage->device, .n_tensors = 1, .n_returns = 1, .tensors = src};
  tpu_storage *none = NULL;
  return tpu_record(lane, &call, sig, dst, &none);
}

static tpu_status copy_across(tpu_lane *lane, const tpu_tensor *src, const tpu_tensor *dst) {
  /* A dense copy on the source's device moves as a whole; the rest happens on the destination's. */
  int64_t strides[TPU_MAX_RANK];
  strides_contiguous(src->rank, src->sizes, strides);
  bool dense;
  const tpu_place *place = tpu_place_intern(src->dtype, src->rank, src->sizes, strides, &dense);
  if (!place) return out_of_memory();
  tpu_storage *near = NULL, *far = NULL;
  TPU_TRY(tpu_storage_create(src->storage->device, place->layout->nbytes, &near));
  tpu_tensor a = *src, b = *src;
  a.storage = near;
  a.strides = strides;
  a.offset = 0;
  tpu_status status = share_or_convert(lane, src, &a, place);
  if (!status) status = tpu_storage_create(dst->storage->device, place->layout->nbytes, &far);
  tpu_value *v = NULL;
  if (!status) {
    tpu_rt_lock();
    v = near->value;
    tpu_value_retain(v);
    status = tpu_value_settle(v);
    tpu_rt_unlock();
  }
  tpu_buffer *moved = NULL;
  if (!status) status = tpu_buffer_copy_to_device(tpu_rt.client, v->buffer, dst->storage->device, &moved);
  if (!status) {
    tpu_value *w = tpu_value_create(dst->storage->device, v->layout, VALUE_READY);
    if (w) {
      w->room = v->room;
      tpu_value_set_buffer(w, moved);
      far->value = w;
    } else {
      tpu_buffer_destroy(tpu_rt.client, moved);
      status = out_of_memory();
    }
  }
  tpu_value_release(v);
  if (!status) {
    b.storage = far;
    b.strides = strides;
    b.offset = 0;
    status = tpu_copy(lane, &b, dst);
  }
  tpu_storage_release(near);
  tpu_storage_release(far);
  return status;
}

static tpu_status store_locked(tpu_lane *lane, const tpu_signature *store, const tpu_tensor *src, const tpu_tensor *dst,
                               tpu_value **old) {
  tpu_segment *seg = NULL;
  for (bool again = true; again;) {
    again = false;
    TPU_TRY(lane_segment(lane, dst->storage->device, &seg));
    TPU_TRY(settle_foreign(seg, src->storage, false, &again));
    if (!again) TPU_TRY(settle_foreign(seg, dst->storage, true, &again));
  }
  uint32_t undefined = 0;
  TPU_TRY(plan_undefined(src->storage, src->dtype, &undefined));
  TPU_TRY(plan_undefined(dst->storage, dst->dtype, &undefined));
  if (!tpu_segment_reserve(seg, 3, 4, 3, 2) || !stash(seg, 3)) return out_of_memory();
  define(seg, src->storage);
  define(seg, dst->storage);
  tpu_value *v = src->storage->value;
  *old = append_store(seg, store, dst, value_ref(seg, v), v->layout, src->offset);
  tpu_rt.stats.calls++;
  tpu_status status = after_record(lane, dst->storage->device);
  if (status) undo_store(dst->storage, old);
  return status;
}

tpu_status tpu_copy(tpu_lane *lane, const tpu_tensor *src, const tpu_tensor *dst) {
  TPU_TRY(tpu_rt_enter());
  if (src->rank != dst->rank || (src->rank && memcmp(src->sizes, dst->sizes, sizeof(int64_t) * (size_t)src->rank) != 0))
    return tpu_error(TPU_INTERNAL, "copy between different sizes");
  if (tpu_type_numel((tpu_type){dst->dtype, dst->rank, dst->sizes}) == 0) return NULL;
  if (src->storage->device != dst->storage->device) return copy_across(lane, src, dst);
  bool dense;
  const tpu_place *place = tpu_place_intern(dst->dtype, dst->rank, dst->sizes, dst->strides, &dense);
  if (!place && dense) return out_of_memory();
  if (is_whole(dst, place)) return share_or_convert(lane, src, dst, place);

  const tpu_signature *store;
  tpu_tensor pair[2] = {*dst, *src};
  TPU_TRY(tpu_signature_internal(SIG_STORE, 2, pair, TPU_DTYPE_NONE, &store));
  tpu_value *old = NULL;
  tpu_rt_lock();
  tpu_status status = store_locked(lane, store, src, dst, &old);
  tpu_rt_unlock();
  tpu_value_release(old);
  return status;
}

tpu_status tpu_storage_resize(tpu_lane *lane, tpu_storage *s, int64_t nbytes) {
  TPU_TRY(tpu_rt_enter());
  if (nbytes == s->nbytes) return NULL;
  tpu_storage *fresh = NULL;
  TPU_TRY(tpu_storage_create(s->device, nbytes, &fresh));
  int64_t common = nbytes < s->nbytes ? nbytes : s->nbytes;
  tpu_status status = NULL;
  tpu_rt_lock();
  const tpu_layout *layout = s->value ? s->value->layout : NULL;
  tpu_rt_unlock();
  if (layout && common) {
    tpu_dtype dtype = layout->dtype;
    int64_t item = tpu_dtype_bytes(dtype);
    if (common % item || nbytes % item || s->nbytes % item) {
      dtype = TPU_U8;
      item = 1;
    }
    int64_t n = common / item, one = 1, all = nbytes / item;
    tpu_tensor as = {fresh, dtype, 1, &all, &one, 0};
    tpu_storage_hint(fresh, &as);
    tpu_tensor from = {s, dtype, 1, &n, &one, 0}, to = {fresh, dtype, 1, &n, &one, 0};
    status = tpu_copy(lane, &from, &to);
  }
  if (!status) {
    tpu_rt_lock();
    tpu_value *v = tpu_storage_swap(fresh, NULL);
    fresh->value = tpu_storage_swap(s, v);
    s->hint = NULL;
    s->nbytes = nbytes;
    s->address = fresh->address;
    tpu_rt_unlock();
  }
  tpu_storage_release(fresh);
  return status;
}
