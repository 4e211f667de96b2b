#include <string.h>

#include "base/alloc.h"
#include "rt/private.h"

static uint32_t n_operands(const tpu_rec *r) { return (uint32_t)r->sig->args.n_operands; }
static bool is_constant(const tpu_rec *r) { return r->sig->kind >= SIG_ZERO; }
static uint32_t n_outs(const tpu_rec *r) { return r->sig->kind == SIG_CALL ? (uint32_t)r->sig->n_out : 1; }
static uint32_t n_numbers(const tpu_rec *r) { return r->sig->kind == SIG_FILL ? 1 : r->sig->n_numbers; }

static uint32_t add_value(tpu_segment *one, tpu_value *v, bool is_leaf) {
  for (uint32_t i = 0; i < one->n_values; i++)
    if (one->values[i] == v) return i;
  tpu_value_retain(v);
  one->values[one->n_values] = v;
  one->is_leaf[one->n_values] = is_leaf;
  tpu_hash_mix(&one->key, v->layout->hash);
  return one->n_values++;
}

/* A detached segment of record `r` alone, whose operands exist by now. NULL: out of memory. Lock held. */
static tpu_segment *single(const tpu_segment *seg, const tpu_rec *r) {
  tpu_segment *one = tpu_segment_new(seg->device);
  if (!one) return NULL;
  tpu_segment_detach(one);
  one->precision = seg->precision;
  one->options = seg->options;
  one->key = (tpu_hash){UINT64_C(0x452821e638d01377), (uint64_t)seg->precision};
  if (one->options) tpu_hash_mix(&one->key, one->options->hash.lo);
  if (!tpu_segment_reserve(one, 1, n_operands(r), n_outs(r), n_numbers(r))) {
    tpu_rt_unlock();
    tpu_segment_free(one);
    tpu_rt_lock();
    return NULL;
  }
  one->records[one->n_records++] = (tpu_rec){.sig = r->sig, .source = r->source};
  tpu_hash_mix(&one->key, r->sig->hash.lo);
  uint32_t offset = r->offset;
  for (uint32_t k = 0; k < n_operands(r); k++) {
    uint32_t ref = seg->refs[r->ref + k];
    one->refs[one->n_refs++] = ref == NO_VALUE ? NO_VALUE : add_value(one, seg->values[ref], true);
    tpu_hash_mix(&one->key, one->refs[k]);
    if (ref != NO_VALUE && tpu_is_partial(r->sig, (int)k, seg->values[ref]->layout))
      one->offsets[one->n_offsets++] = seg->offsets[offset++];
  }
  for (uint32_t i = 0; i < n_numbers(r); i++) one->numbers[one->n_numbers++] = seg->numbers[r->number + i];
  for (uint32_t k = 0; k < n_outs(r); k++) {
    tpu_record_out *o = &one->outs[one->n_outs++];
    *o = seg->outs[r->out + k];
    if (o->value == NO_VALUE) continue;
    tpu_hash_mix(&one->key, o->place ? o->place->hash : 0);
    o->value = add_value(one, seg->values[o->value], false);
  }
  return one;
}

static tpu_status run_single(tpu_segment *one, uint64_t *live) {
  memset(live, 0, ((one->n_values + 63) / 64) * sizeof *live);
  for (uint32_t i = 0; i < one->n_values; i++)
    if (!one->is_leaf[i]) live[i / 64] |= UINT64_C(1) << (i % 64);
  tpu_ready ready;
  TPU_TRY(tpu_program_get(one, live, &ready));
  return tpu_segment_run(one, &ready, false);
}

/* The error of an operand that does not exist. */
static tpu_status missing_operand(const tpu_segment *seg, const tpu_rec *r) {
  for (uint32_t k = 0; k < n_operands(r); k++) {
    uint32_t ref = seg->refs[r->ref + k];
    if (ref != NO_VALUE && seg->values[ref]->error) return tpu_status_retain(seg->values[ref]->error);
  }
  return NULL;
}

/* What only the segment holds and no later call reads is memory that the rest can have. */
static void drop_used(tpu_segment *seg, uint32_t r, const uint32_t *last_use) {
  const tpu_rec *rec = &seg->records[r];
  for (uint32_t k = 0; k < n_operands(rec); k++) {
    uint32_t ref = seg->refs[rec->ref + k];
    if (ref == NO_VALUE || seg->is_leaf[ref] || last_use[ref] != r) continue;
    tpu_value *v = seg->values[ref];
    if (v->buffer && atomic_load(&v->refs) == 1) tpu_buffer_destroy(tpu_rt.client, tpu_value_take_buffer(v));
  }
}

static tpu_status run_record(tpu_segment *seg, const tpu_rec *r, tpu_status otherwise, uint64_t *live) {
  tpu_status status = missing_operand(seg, r);
  if (status) return status;
  tpu_segment *one = single(seg, r);
  if (!one) return tpu_status_retain(otherwise);
  status = run_single(one, live);
  tpu_rt_unlock();
  tpu_segment_free(one);
  tpu_rt_lock();
  return status;
}

/* May it be one call's fault? */
static bool is_somebodys(tpu_status status) {
  switch (tpu_status_code(status)) {
    case TPU_CANCELLED:
    case TPU_DEADLINE_EXCEEDED:
    case TPU_FAILED_PRECONDITION:
    case TPU_ABORTED:
    case TPU_UNAVAILABLE: return false;
    default: return true;
  }
}

tpu_status tpu_segment_salvage(tpu_segment *seg, tpu_status status) {
  if (!is_somebodys(status)) return status;
  uint32_t real = 0, n = seg->n_values;
  for (uint32_t r = 0; r < seg->n_records; r++) real += !is_constant(&seg->records[r]);
  if (real < 2) return status;
  uint32_t *replaces = tpu_malloc(n * sizeof *replaces), *last_use = tpu_calloc(n, sizeof *last_use);
  uint64_t *live = tpu_malloc((n / 64 + 1) * sizeof *live);
  tpu_status first = replaces && last_use && live ? NULL : tpu_status_retain(status);
  for (uint32_t i = 0; !first && i < n; i++) { /* nothing is donated, so that every call can fail */
    replaces[i] = seg->values[i]->replaces;
    if (!seg->is_leaf[i]) seg->values[i]->replaces = NO_VALUE;
  }
  for (uint32_t r = 0; !first && r < seg->n_records; r++)
    for (uint32_t k = 0; k < n_operands(&seg->records[r]); k++)
      if (seg->refs[seg->records[r].ref + k] != NO_VALUE) last_use[seg->refs[seg->records[r].ref + k]] = r;
  if (first) {
    tpu_status_release(status);
  } else {
    for (uint32_t r = 0; r < seg->n_records; r++) {
      const tpu_rec *rec = &seg->records[r];
      tpu_status failure = run_record(seg, rec, status, live);
      if (!failure) {
        drop_used(seg, r, last_use);
        continue;
      }
      for (uint32_t k = 0; k < n_outs(rec); k++) {
        uint32_t out = seg->outs[rec->out + k].value;
        if (out != NO_VALUE) seg->values[out]->error = tpu_status_retain(failure);
      }
      first = tpu_status_join(first, failure);
    }
    for (uint32_t i = 0; i < n; i++)
      if (!seg->is_leaf[i] && atomic_load_explicit(&seg->values[i]->state, memory_order_relaxed) != VALUE_READY)
        seg->values[i]->replaces = replaces[i];
    tpu_status_release(status);
  }
  tpu_free(replaces);
  tpu_free(last_use);
  tpu_free(live);
  return first;
}
