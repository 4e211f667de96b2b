#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "rt/private.h"

static tpu_status out_of_memory(void) { return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

/* --- packing run-time numbers */
static int64_t number_i(const tpu_number *n) {
  switch (n->dtype) {
    case TPU_F64: return (int64_t)n->f;
    case TPU_C128: return (int64_t)n->c[0];
    default: return n->i;
  }
}
static bool number_is_true(const tpu_number *n) {
  switch (n->dtype) {
    case TPU_F64: return n->f != 0;
    case TPU_C128: return n->c[0] != 0 || n->c[1] != 0;
    default: return n->i != 0;
  }
}
static uint32_t float_bits(double v) {
  float f = (float)v;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

static void pack_one(const tpu_slot_use *u, const tpu_number *n, uint32_t *words, double *doubles) {
  switch (u->dtype) {
    case TPU_F64: doubles[u->at] = tpu_number_real(n); break;
    case TPU_C128:
      doubles[u->at] = tpu_number_real(n);
      doubles[u->at + 1] = n->dtype == TPU_C128 ? n->c[1] : 0;
      break;
    case TPU_C64:
      words[u->at] = float_bits(tpu_number_real(n));
      words[u->at + 1] = float_bits(n->dtype == TPU_C128 ? n->c[1] : 0);
      break;
    case TPU_I64:
    case TPU_U64: {
      uint64_t v = (uint64_t)number_i(n);
      words[u->at] = (uint32_t)v;
      words[u->at + 1] = (uint32_t)(v >> 32);
      break;
    }
    case TPU_BOOL: words[u->at] = number_is_true(n); break;
    default:
      words[u->at] =
          tpu_dtype_kind(u->dtype) == TPU_KIND_FLOAT ? float_bits(tpu_number_real(n)) : (uint32_t)(uint64_t)number_i(n);
  }
}

#define SMALL_PACK 256
/* Sends the packs; out[] gets a buffer per non-empty pack. */
static tpu_status send_packs(const tpu_segment *seg, const tpu_ready *ready, tpu_buffer **out, int *out_n) {
  const tpu_exe *exe = ready->exe;
  uint32_t small_words[SMALL_PACK] __attribute__((aligned(64)));
  double small_doubles[SMALL_PACK / 4] __attribute__((aligned(64)));
  uint32_t *words = small_words, n_words = exe->pack_size[TPU_PACK_WORDS];
  double *doubles = small_doubles;
  uint32_t n_doubles = exe->pack_size[TPU_PACK_F64];
  if (n_words > SMALL_PACK && !(words = tpu_malloc(n_words * sizeof *words))) return out_of_memory();
  tpu_status status = NULL;
  if (n_doubles > SMALL_PACK / 4 && !(doubles = tpu_malloc(n_doubles * sizeof *doubles))) {
    doubles = small_doubles;
    status = out_of_memory();
  }
  for (uint32_t i = 0; !status && i < exe->n_slots; i++) {
    const tpu_slot_use *u = &exe->slots[i];
    tpu_number offset = {.dtype = TPU_I64};
    const tpu_number *n = &offset;
    if (u->index < seg->n_numbers)
      n = &seg->numbers[u->index];
    else if (u->index - seg->n_numbers < seg->n_offsets)
      offset.i = seg->offsets[u->index - seg->n_numbers];
    else
      n = &ready->classes[u->index - seg->n_numbers - seg->n_offsets];
    pack_one(u, n, words, doubles);
  }
  *out_n = 0;
  for (int p = 0; !status && p < TPU_PACK_COUNT; p++) {
    if (!exe->pack_size[p]) continue;
    int64_t dim = exe->pack_size[p];
    status = tpu_buffer_from_host(tpu_rt.client, seg->device, p == TPU_PACK_WORDS ? TPU_U32 : TPU_F64, 1, &dim,
                                  p == TPU_PACK_WORDS ? (const void *)words : (const void *)doubles, TPU_HOST_COPY, &out[*out_n],
                                  NULL);
    if (!status) ++*out_n;
  }
  if (words != small_words) tpu_free(words);
  if (doubles != small_doubles) tpu_free(doubles);
  if (status) {
    for (int i = 0; i < *out_n; i++) tpu_buffer_destroy(tpu_rt.client, out[i]);
    *out_n = 0;
  }
  return status;
}

/* --- running a segment's program */
/* The machine's memory; asking for it takes longer than recording a call. */
static int64_t memory_bytes(void) {
  static atomic_llong known;
  int64_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
  if (!bytes) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    bytes = pages > 0 && page > 0 ? (int64_t)pages * page : INT64_MAX;
    atomic_store_explicit(&known, bytes, memory_order_relaxed);
  }
  return bytes;
}

/* A CPU plugin finds out too late, when operands were donated already. */
static tpu_status never_fits(const tpu_exe *exe) {
  if (!tpu_rt.quirks->host_pointers || exe->output_bytes < memory_bytes()) return NULL;
  return tpu_error(TPU_RESOURCE_EXHAUSTED, "the results are larger than this machine's memory");
}

/* The room of a value whose buffer has such dims. */
static const tpu_layout *room_in(const tpu_layout **rooms, uint32_t i, const tpu_value *v) {
  return rooms && rooms[i] != v->layout ? rooms[i] : NULL;
}

/* Buffers for the params that are not in the room the program wants; NULL elsewhere. Lock not held. */
static tpu_status change_rooms(const tpu_segment *seg, const tpu_exe *exe, tpu_buffer **in, tpu_buffer ***out) {
  *out = NULL;
  for (uint32_t i = 0; i < exe->n_params; i++) {
    tpu_value *v = seg->values[exe->params[i]];
    const tpu_layout *room = room_in(exe->param_rooms, i, v);
    if (v->room == room) continue;
    if (!*out && !(*out = tpu_calloc(exe->n_params, sizeof **out))) return out_of_memory();
    TPU_TRY(tpu_room_change(v, room, &(*out)[i]));
    in[i] = (*out)[i];
  }
  return NULL;
}

static void drop_rooms(const tpu_exe *exe, tpu_buffer **rooms) {
  for (uint32_t i = 0; rooms && i < exe->n_params; i++)
    if (rooms[i]) tpu_buffer_destroy(tpu_rt.client, rooms[i]);
  tpu_free(rooms);
}

#define SMALL_IO 64
tpu_status tpu_segment_run(tpu_segment *seg, const tpu_ready *ready, bool wait) {
  const tpu_exe *exe = ready->exe;
  uint32_t n_in = exe->n_params + TPU_PACK_COUNT, n_out = exe->n_outputs + (exe->n_checks ? 1 : 0);
  void *small[2 * SMALL_IO], **block = small;
  int64_t small_keep[SMALL_IO], *keep = small_keep;
  if (n_in + n_out > 2 * SMALL_IO && !(block = tpu_malloc((n_in + n_out) * sizeof *block))) return out_of_memory();
  if (exe->n_aliases > SMALL_IO && !(keep = tpu_malloc(exe->n_aliases * sizeof *keep))) {
    if (block != small) tpu_free(block);
    return out_of_memory();
  }
  tpu_buffer **in = (tpu_buffer **)(void *)block, **out = in + n_in, *packs[TPU_PACK_COUNT], **rooms = NULL;
  int n_packs = 0;
  size_t n_keep = 0;
  tpu_event *done = NULL;
  tpu_event_pace(seg->device, exe->input_bytes + exe->output_bytes);
  for (uint32_t i = 0; i < exe->n_params; i++) in[i] = seg->values[exe->params[i]]->buffer;
  /* A leaf somebody else still holds must survive. Its count cannot rise again from one: only storages hand it out. */
  for (uint32_t i = 0; i < exe->n_aliases; i++) {
    const tpu_value *leaf = seg->values[exe->params[exe->aliases[i].param]];
    if (atomic_load_explicit(&leaf->refs, memory_order_acquire) > 1) keep[n_keep++] = exe->aliases[i].param;
  }
  tpu_rt.stats.donated += exe->n_aliases - n_keep;
  tpu_rt.stats.executes++;
  tpu_rt_unlock();
  tpu_status status = never_fits(exe);
  if (!status) status = change_rooms(seg, exe, in, &rooms);
  if (!status) status = send_packs(seg, ready, packs, &n_packs);
  for (int i = 0; i < n_packs; i++) in[exe->n_params + (uint32_t)i] = packs[i];
  if (!status)
    status = tpu_execute(tpu_rt.client, exe->executable, seg->device, in, exe->n_params + (uint32_t)n_packs, keep, n_keep, out,
                         n_out, &done);
  for (int i = 0; i < n_packs; i++) tpu_buffer_destroy(tpu_rt.client, packs[i]);
  drop_rooms(exe, rooms);
  if (status) status = tpu_blame_memory(tpu_blame_segment(status, seg), seg->device, exe->output_bytes);
  tpu_flag flag = {0};
  if (!status && exe->n_checks) flag = tpu_flag_create(out[--n_out], exe, seg);
  if (!status && wait) {
    status = tpu_blame_segment(tpu_event_await(tpu_rt.client, done), seg);
    status = tpu_blame_memory(status, seg->device, exe->output_bytes);
    if (flag.buffer) status = tpu_status_join(status, tpu_flag_read(flag));
    flag.buffer = NULL;
    if (status)
      for (uint32_t i = 0; i < n_out; i++) tpu_buffer_destroy(tpu_rt.client, out[i]);
  }
  for (uint32_t i = 0, k = 0; !status && i < exe->n_aliases; i++) { /* what was donated is no memory any more */
    if (k < n_keep && keep[k] == exe->aliases[i].param)
      k++;
    else
      tpu_buffer_destroy(tpu_rt.client, tpu_value_take_buffer(seg->values[exe->params[exe->aliases[i].param]]));
  }
  tpu_rt_lock();
  if (wait || status || !tpu_event_push(seg->device, done, exe->input_bytes + exe->output_bytes)) {
    tpu_rt_unlock();
    tpu_status_release(wait || status ? NULL : tpu_event_await(tpu_rt.client, done)); /* the values tell */
    tpu_event_destroy(tpu_rt.client, done);
    tpu_rt_lock();
  }
  if (flag.buffer && !tpu_flag_push(seg->device, flag)) {
    tpu_status earlier = tpu_flags_settle(seg->device);
    tpu_device_state *d = &tpu_rt.devices[seg->device];
    d->async_error = tpu_status_join(d->async_error, earlier);
    (void)tpu_flag_push(seg->device, flag); /* there is room now */
  }
  for (uint32_t i = 0; !status && i < n_out; i++) {
    tpu_value *v = seg->values[exe->outputs[i]];
    v->room = room_in(exe->output_rooms, i, v);
    tpu_value_set_buffer(v, out[i]); /* one that nobody wants any more goes with the segment */
    v->segment = NULL;
    v->home = NULL;
    v->replaces = NO_VALUE; /* said nothing of the segments that read it from now on */
    atomic_store_explicit(&v->state, VALUE_READY, memory_order_release);
  }
  if (block != small) tpu_free(block);
  if (keep != small_keep) tpu_free(keep);
  return status;
}

/* After a failure: a storage whose old contents still exist gets them back, everything else that was to be made carries the
 * error, its own if it has one. */
static void poison(tpu_segment *seg, tpu_status status) {
  for (uint32_t i = 0; i < seg->n_values; i++) {
    tpu_value *v = seg->values[i];
    if (seg->is_leaf[i] || atomic_load_explicit(&v->state, memory_order_relaxed) == VALUE_READY) continue;
    v->segment = NULL;
    if (!v->error) v->error = tpu_status_retain(status);
    atomic_store_explicit(&v->state, VALUE_FAILED, memory_order_release);
    tpu_storage *home = v->home;
    if (!home) continue;
    tpu_value *leaf = v->replaces != NO_VALUE ? seg->values[v->replaces] : NULL;
    v->home = NULL;
    if (leaf ? tpu_buffer_is_deleted(tpu_rt.client, leaf->buffer) : !v->is_define) continue;
    if (leaf) tpu_value_retain(leaf);
    (void)tpu_storage_swap(home, leaf);
    tpu_value_release(v); /* the segment still holds it */
  }
}

void tpu_segment_detach(tpu_segment *seg) {
  tpu_rt.devices[seg->device].open_segments--;
  if (seg->lane) {
    seg->lane->segments[seg->device] = NULL;
    seg->lane = NULL;
    return;
  }
  for (tpu_segment **p = &tpu_rt.orphans; *p; p = &(*p)->next)
    if (*p == seg) {
      *p = seg->next;
      return;
    }
}

tpu_status tpu_segment_launch(tpu_segment *seg, bool wait) {
  uint64_t small_live[64], *live = small_live;
  tpu_segment_detach(seg);
  uint32_t words = (seg->n_values + 63) / 64;
  tpu_status status = NULL;
  bool any = false;
  if (words > 64 && !(live = tpu_malloc(words * sizeof *live))) {
    live = small_live;
    status = out_of_memory();
  } else {
    memset(live, 0, words * sizeof *live);
  }
  for (uint32_t i = 0; i < seg->n_values; i++) {
    tpu_value *v = seg->values[i];
    if (seg->is_leaf[i]) continue;
    atomic_store_explicit(&v->state, VALUE_LAUNCHING, memory_order_release);
    if (atomic_load_explicit(&v->refs, memory_order_acquire) <= 1) continue;
    any = true;
    if (!status) live[i / 64] |= UINT64_C(1) << (i % 64);
  }
  if (any) {
    tpu_ready ready;
    tpu_rt.stats.segments++;
    tpu_rt.busy++;
    tpu_rt.devices[seg->device].launching++;
    if (!status) status = tpu_program_get(seg, live, &ready);
    if (!status) status = tpu_segment_run(seg, &ready, wait);
    if (status && !wait) status = tpu_segment_salvage(seg, status);
    if (status) poison(seg, status);
    tpu_rt.busy--;
    tpu_rt.devices[seg->device].launching--;
    pthread_cond_broadcast(&tpu_rt.settled);
  }
  tpu_rt_unlock();
  if (live != small_live) tpu_free(live);
  tpu_segment_free(seg);
  tpu_rt_lock();
  return status;
}

tpu_status tpu_value_settle(tpu_value *v) {
  for (;;) {
    switch ((tpu_value_state)atomic_load_explicit(&v->state, memory_order_acquire)) {
      case VALUE_READY: return NULL;
      case VALUE_FILL: TPU_TRY(tpu_value_upload_fill(v)); break;
      case VALUE_FAILED: return tpu_status_retain(v->error);
      case VALUE_DEFERRED: tpu_status_release(tpu_segment_launch(v->segment, false)); break; /* v tells */
      case VALUE_LAUNCHING: pthread_cond_wait(&tpu_rt.settled, &tpu_rt.lock); break;
    }
  }
}

/* --- cuts that are asked for */
static tpu_status cut_locked(tpu_lane *lane, int device) {
  tpu_status status = NULL;
  lane->cut_later = false;
  for (int d = 0; d < lane->n_segments; d++)
    if (lane->segments[d] && (device < 0 || d == device))
      status = tpu_status_join(status, tpu_segment_launch(lane->segments[d], false));
  return status;
}

tpu_status tpu_cut(tpu_lane *lane, int device) {
  TPU_TRY(tpu_rt_enter());
  tpu_rt_lock();
  tpu_status status = cut_locked(lane, device);
  tpu_rt_unlock();
  return status;
}

static tpu_segment *pending_segment(int device) {
  for (tpu_lane *l = tpu_rt.lanes; l; l = l->next)
    if (device < l->n_segments && l->segments[device]) return l->segments[device];
  for (tpu_segment *o = tpu_rt.orphans; o; o = o->next)
    if (o->device == device) return o;
  return NULL;
}

tpu_status tpu_synchronize(int device) {
  if (!tpu_is_initialized() && !tpu_in_bad_fork()) return NULL; /* nothing can be pending */
  TPU_TRY(tpu_rt_enter());
  if (device < 0 || device >= tpu_rt.n_devices)
    return tpu_error(TPU_INVALID_ARGUMENT, "tpu:%d does not exist: there are %d devices", device, tpu_rt.n_devices);
  tpu_device_state *d = &tpu_rt.devices[device];
  tpu_status status = NULL;
  tpu_rt_lock();
  for (tpu_segment *seg; (seg = pending_segment(device));) status = tpu_status_join(status, tpu_segment_launch(seg, false));
  while (d->launching) pthread_cond_wait(&tpu_rt.settled, &tpu_rt.lock); /* other threads' */
  while (d->n_pending || d->n_big) {
    tpu_event *e = d->n_pending ? d->pending[--d->n_pending] : d->big[--d->n_big].done;
    tpu_rt_unlock();
    status = tpu_status_join(status, tpu_event_await(tpu_rt.client, e));
    tpu_event_destroy(tpu_rt.client, e);
    tpu_rt_lock();
  }
  tpu_status flagged = tpu_flags_settle(device);
  tpu_status earlier = d->async_error;
  d->async_error = NULL;
  tpu_rt_unlock();
  earlier = tpu_status_join(earlier, flagged);
  return tpu_status_join(earlier, status);
}

tpu_status tpu_query(tpu_lane *lane, int device, bool *out_done) {
  *out_done = true;
  if (!tpu_is_initialized() && !tpu_in_bad_fork()) return NULL;
  TPU_TRY(tpu_rt_enter());
  if (device < 0 || device >= tpu_rt.n_devices) return tpu_error(TPU_INVALID_ARGUMENT, "tpu:%d does not exist", device);
  tpu_device_state *d = &tpu_rt.devices[device];
  tpu_rt_lock();
  tpu_status status = cut_locked(lane, device);
  *out_done = !d->launching;
  for (uint32_t i = 0; i < d->n_big && *out_done; i++) *out_done = tpu_event_ready(tpu_rt.client, d->big[i].done);
  for (uint32_t i = 0; i < d->n_pending && *out_done; i++) *out_done = tpu_event_ready(tpu_rt.client, d->pending[i]);
  tpu_rt_unlock();
  return status;
}

tpu_status tpu_pending_text(tpu_lane *lane, int device, char **out_text) {
  TPU_TRY(tpu_rt_enter());
  tpu_strbuf text = {0};
  tpu_status status = NULL;
  tpu_rt_lock();
  tpu_segment *seg = device >= 0 && device < lane->n_segments ? lane->segments[device] : NULL;
  if (seg && seg->n_records) status = tpu_program_text(seg, &text);
  tpu_rt_unlock();
  if (!status) {
    *out_text = text.size ? tpu_strbuf_take(&text) : tpu_strdup("");
    if (!*out_text) status = out_of_memory();
  }
  tpu_strbuf_destroy(&text);
  return status;
}
