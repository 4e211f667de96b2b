#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/alloc.h"
#include "rt/private.h"

/* Programs by segment key. Compiled programs are kept until tpu_cache_clear, bounded by count. */
static tpu_map programs;
static uint32_t n_executables;
static atomic_bool never, only;
static tpu_miss_fn _Atomic see_miss;
static uint64_t clock_ticks;
static tpu_arena immortal; /* rows of checks */
static pthread_mutex_t immortal_lock = PTHREAD_MUTEX_INITIALIZER;

static tpu_status out_of_memory(void) { return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

static double clock_s(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static double now_s(void) { return clock_s(CLOCK_MONOTONIC); }

/* --- from a segment to a graph */
typedef struct wanted {         /* what the program shall give, and how */
  const int64_t *multiple;      /* per offset, as a program's; NULL: all static */
  const uint64_t *live;         /* outputs; NULL: everything produced that is alive now */
  uint32_t *outputs, n_outputs; /* filled: values */
  const tpu_row **check_rows;   /* filled: one per check; room for one per operand or result */
  uint32_t *check_records;      /* likewise */
  uint32_t n_checks;
} wanted;

static tpu_val read_operand(tpu_build *b, const tpu_segment *seg, const tpu_val *vals, const tpu_signature *sig, int k,
                            uint32_t ref, uint32_t *offset, const int64_t *multiple, tpu_view_geometry *out_view) {
  const tpu_operand *o = &sig->args.operands[k];
  tpu_view_geometry view = {.dtype = o->dtype, .rank = o->rank, .sizes = o->sizes, .strides = o->strides};
  if (tpu_is_partial(sig, k, seg->values[ref]->layout)) {
    uint32_t i = (*offset)++;
    if (multiple && multiple[i]) {
      view.dyn_offset = tpu_slot(b, seg->n_numbers + i, TPU_I64);
      view.dyn_multiple = multiple[i];
    } else {
      view.offset = seg->offsets[i];
    }
  }
  if (out_view) {
    *out_view = view;
    return vals[ref];
  }
  return tpu_view_read(b, vals[ref], &view);
}

static void place_result(tpu_build *b, const tpu_record_out *o, tpu_val v, tpu_val *vals) {
  v = tpu_convert(b, v, o->layout->dtype);
  if (o->place->perm) v = tpu_transpose(b, v, o->place->perm);
  vals[o->value] = v;
}

static void lower_record(tpu_build *b, const tpu_segment *seg, const tpu_rec *r, const int64_t *multiple, tpu_val *vals) {
  const tpu_signature *sig = r->sig;
  uint32_t offset = r->offset;
  b->slot_base = 0;
  switch (sig->kind) {
    case SIG_ZERO:
    case SIG_ONE:
    case SIG_FILL: {
      const tpu_record_out *o = &seg->outs[r->out];
      const tpu_layout *l = o->layout;
      if (sig->kind == SIG_FILL)
        vals[o->value] = tpu_broadcast_to(b, tpu_slot(b, r->number, l->dtype), l->rank, l->dims);
      else
        vals[o->value] = tpu_full(b, l->dtype, l->rank, l->dims, sig->kind == SIG_ONE);
      return;
    }
    case SIG_STORE: {
      tpu_view_geometry view;
      tpu_val base = read_operand(b, seg, vals, sig, 0, seg->refs[r->ref], &offset, multiple, &view);
      tpu_val src = read_operand(b, seg, vals, sig, 1, seg->refs[r->ref + 1], &offset, multiple, NULL);
      vals[seg->outs[r->out].value] = tpu_view_write(b, base, &view, tpu_convert(b, src, view.dtype));
      return;
    }
    case SIG_CONVERT: {
      tpu_val src = read_operand(b, seg, vals, sig, 0, seg->refs[r->ref], &offset, multiple, NULL);
      place_result(b, &seg->outs[r->out], src, vals);
      return;
    }
    case SIG_CALL: break;
  }
  tpu_args args = sig->args;
  tpu_operand *ops = tpu_build_alloc(b, sizeof *ops * (size_t)(args.n_operands + 1));
  if (!ops) return;
  for (int k = 0; k < args.n_operands; k++) {
    ops[k] = sig->args.operands[k];
    if (ops[k].dtype == TPU_DTYPE_NONE) continue;
    ops[k].val = read_operand(b, seg, vals, sig, k, seg->refs[r->ref + (uint32_t)k], &offset, multiple, NULL);
  }
  args.operands = ops;
  tpu_outs outs = {.n = args.n_returns};
  b->slot_base = r->number;
  tpu_lower_call(b, &args, &outs);
  if (tpu_build_failed(b)) return;
  for (int k = 0; k < sig->n_out; k++)
    if (seg->outs[r->out + (uint32_t)k].value != NO_VALUE)
      place_result(b, &seg->outs[r->out + (uint32_t)k], outs.out[k].val, vals);
}

/* 1 + the number of the first check that failed, else 0. */
static tpu_val flag_of(tpu_build *b, const tpu_segment *seg, const tpu_checks *checks, wanted *w) {
  b->scope = 0;
  tpu_val code = tpu_scalar_i(b, TPU_I32, 0);
  for (uint32_t i = checks->n; i-- > 0;) code = tpu_select(b, checks->bad[i], tpu_scalar_i(b, TPU_I32, (int64_t)i + 1), code);
  for (uint32_t i = 0; i < checks->n; i++) {
    w->check_records[i] = checks->scope[i] - 1;
    w->check_rows[i] = seg->records[w->check_records[i]].sig->args.row;
  }
  w->n_checks = checks->n;
  return code;
}

/* Builds the graph of a segment. Its params are the leaves in order; out_leaf[param] = value. */
static tpu_status build(const tpu_segment *seg, const tpu_target *target, wanted *w, tpu_graph *graph, uint32_t *out_leaf) {
  tpu_build b;
  tpu_build_init(&b, graph, target);
  tpu_checks checks = {0};
  if (w->check_rows && !tpu_rt.no_checks) b.checks = &checks;
  tpu_val *vals = tpu_calloc(seg->n_values + 1, sizeof *vals);
  tpu_val *results = tpu_malloc((seg->n_values + 2) * sizeof *results);
  if (!vals || !results) {
    tpu_free(vals);
    tpu_free(results);
    return out_of_memory();
  }
  uint32_t n_params = 0;
  for (uint32_t i = 0; i < seg->n_values; i++)
    if (seg->is_leaf[i]) {
      const tpu_layout *l = seg->values[i]->layout;
      vals[i] = tpu_param(&b, l->dtype, l->rank, l->dims);
      out_leaf[n_params++] = i;
    }
  tpu_status status = NULL;
  for (uint32_t r = 0; r < seg->n_records; r++) {
    b.scope = r + 1;
    lower_record(&b, seg, &seg->records[r], w->multiple, vals);
    if (tpu_build_failed(&b)) {
      status = tpu_build_status(&b);
      const tpu_row *row = seg->records[r].sig->args.row;
      status = tpu_blame_call(status, row ? row->aten : "copy_", seg->records[r].source);
      break;
    }
  }
  w->n_outputs = 0;
  for (uint32_t i = 0; !status && i < seg->n_values; i++) {
    if (seg->is_leaf[i] || !(w->live[i / 64] >> (i % 64) & 1)) continue;
    w->outputs[w->n_outputs] = i;
    results[w->n_outputs++] = vals[i];
  }
  if (!status && checks.n) {
    results[w->n_outputs] = flag_of(&b, seg, &checks, w);
    status = tpu_build_status(&b);
  }
  if (!status) status = tpu_graph_set_outputs(graph, results, w->n_outputs + (w->n_checks ? 1 : 0));
  tpu_free(vals);
  tpu_free(results);
  tpu_status_release(tpu_build_status(&b));
  return status;
}

/* Which leaf's buffer each output may take: the one whose storage it took over. */
static uint32_t plan_aliases(const tpu_segment *seg, const wanted *w, const uint32_t *leaf_param, uint8_t *taken,
                             tpu_alias *out) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < w->n_outputs; k++) {
    const tpu_value *v = seg->values[w->outputs[k]];
    if (v->replaces == NO_VALUE || taken[v->replaces] || seg->values[v->replaces]->layout != v->layout) continue;
    taken[v->replaces] = 1;
    out[n++] = (tpu_alias){leaf_param[v->replaces], k};
  }
  return n;
}

static void module_name(const tpu_segment *seg, char *out, size_t size) {
  const tpu_row *first = NULL, *last = NULL;
  for (uint32_t r = 0; r < seg->n_records; r++) {
    const tpu_row *row = seg->records[r].sig->args.row;
    if (!row) continue;
    if (!first) first = row;
    last = row;
  }
  size_t n = 0;
  const char *parts[4] = {"tpu_", first ? first->aten : "store", last != first ? "__" : "", last != first ? last->aten : ""};
  for (int p = 0; p < 4; p++)
    for (const char *c = parts[p]; *c && n + 1 < size; c++)
      out[n++] = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ? *c : '_';
  out[n] = 0;
}

static void exe_destroy(tpu_exe *e) {
  if (!e) return;
  tpu_executable_destroy(tpu_rt.client, e->executable);
  tpu_free(e->params);
  tpu_free(e->outputs);
  tpu_free(e->slots);
  tpu_free(e->check_records);
  tpu_free(e->aliases);
  tpu_free(e->output_set);
  tpu_free(e);
}

static void *copy_of(const void *p, size_t size) {
  void *q = tpu_malloc(size ? size : 1);
  if (q && size) memcpy(q, p, size);
  return q;
}

/* The compiler of a program this long takes hundreds of megabytes and leaves most of them free, to which the first run would add. */
#define LONG_TEXT (64 << 10)
/* Compiles the text, through the disk cache if there is one. */
static tpu_status load(const tpu_segment *seg, const tpu_strbuf *text, tpu_executable **out) {
  char key[65];
  bool disk = tpu_rt_config()->cache_dir && tpu_rt.quirks->deserialize && !atomic_load(&never);
  int lock = -1;
  if (disk) {
    tpu_disk_key(text->data, text->size, seg->options, key);
    for (int attempt = 0; attempt < 2; attempt++) {
      size_t size;
      char *data = tpu_disk_read(key, &size);
      if (data) {
        tpu_status status = tpu_executable_deserialize(tpu_rt.client, data, size, out);
        tpu_free(data);
        if (!status) {
          tpu_disk_unlock(lock);
          tpu_rt_lock();
          tpu_rt.stats.disk_hits++;
          tpu_rt_unlock();
          return NULL;
        }
        tpu_status_release(status); /* foreign or damaged: a miss */
      }
      if (attempt == 0 && (lock = tpu_disk_lock(key)) < 0) break;
    }
  }
  if (atomic_load(&only)) {
    tpu_disk_unlock(lock);
    return tpu_error(TPU_FAILED_PRECONDITION, "a program is not in the cache, and only cached programs are allowed");
  }
  tpu_miss_fn see = atomic_load(&see_miss);
  if (see) see(text->data, text->size);
  if (text->size > LONG_TEXT) tpu_alloc_trim();
  double start = now_s();
  tpu_compile_options options = {0};
  options.override_count = tpu_options_list(seg->options, &options.overrides);
  tpu_status status = tpu_compile(tpu_rt.client, text->data, text->size, &options, out);
  double seconds = now_s() - start;
  if (text->size > LONG_TEXT) tpu_alloc_trim();
  status = tpu_blame_segment(status, seg);
  bool written = false;
  if (!status && disk) {
    char *data;
    size_t size;
    tpu_status s = tpu_executable_serialize(tpu_rt.client, *out, &data, &size);
    if (!s) {
      written = tpu_disk_write(key, data, size);
      tpu_free(data);
    }
    tpu_status_release(s);
  }
  tpu_disk_unlock(lock);
  struct rusage usage = {0};
  (void)getrusage(RUSAGE_SELF, &usage);
  uint64_t resident = (uint64_t)usage.ru_maxrss * 1024;
  tpu_rt_lock();
  if (resident > tpu_rt.stats.compile_peak_bytes) tpu_rt.stats.compile_peak_bytes = resident;
  tpu_rt.stats.compiles++;
  tpu_rt.stats.compile_s += seconds;
  tpu_rt.stats.disk_writes += written;
  tpu_rt_unlock();
  return status;
}

static tpu_status emit(const tpu_segment *seg, wanted *w, tpu_graph *graph, tpu_graph *flat, uint32_t *leaf, tpu_strbuf *text,
                       tpu_module *module, tpu_alias *aliases, uint32_t *n_aliases) {
  tpu_target target = tpu_rt.target;
  target.precision = seg->precision;
  TPU_TRY(build(seg, &target, w, graph, leaf));
  TPU_TRY(tpu_graph_expand(graph, &target, flat));
  uint32_t *param_of = tpu_malloc((seg->n_values + 1) * sizeof *param_of);
  uint8_t *taken = tpu_calloc(seg->n_values + 1, 1);
  tpu_status status = NULL;
  if (!param_of || !taken) {
    status = out_of_memory();
  } else {
    for (uint32_t p = 0; p < tpu_graph_param_count(graph); p++) param_of[leaf[p]] = p;
    *n_aliases = plan_aliases(seg, w, param_of, taken, aliases);
    char name[128];
    module_name(seg, name, sizeof name);
    status = tpu_graph_emit(flat, &target, name, aliases, *n_aliases, text, module);
    if (!status && text->failed) status = out_of_memory();
  }
  tpu_free(param_of);
  tpu_free(taken);
  return status;
}

/* Everything an execute needs, copied out of the graph. */
static tpu_exe *exe_create(const tpu_segment *seg, const wanted *w, const uint32_t *leaf, const tpu_module *m,
                           const tpu_alias *aliases, uint32_t n_aliases) {
  tpu_exe *e = tpu_calloc(1, sizeof *e);
  if (!e) return NULL;
  e->n_params = m->n_params;
  e->n_outputs = w->n_outputs;
  e->n_slots = m->n_slots;
  e->n_checks = w->n_checks;
  pthread_mutex_lock(&immortal_lock);
  e->check_rows = tpu_arena_copy(&immortal, w->check_rows, sizeof *e->check_rows * w->n_checks);
  immortal.failed = false;
  pthread_mutex_unlock(&immortal_lock);
  memcpy(e->pack_size, m->pack_size, sizeof e->pack_size);
  e->params = tpu_malloc(sizeof *e->params * (m->n_params + 1));
  e->outputs = copy_of(w->outputs, sizeof *e->outputs * w->n_outputs);
  e->slots = copy_of(m->slots, sizeof *e->slots * m->n_slots);
  e->check_records = copy_of(w->check_records, sizeof *e->check_records * w->n_checks);
  e->aliases = tpu_malloc(sizeof *e->aliases * (n_aliases + 1));
  e->output_set = tpu_calloc((seg->n_values + 63) / 64 + 1, sizeof *e->output_set);
  if (!e->params || !e->outputs || !e->slots || !e->aliases || !e->output_set || !e->check_rows || !e->check_records) {
    exe_destroy(e);
    return NULL;
  }
  for (uint32_t i = 0; i < m->n_params; i++) {
    e->params[i] = leaf[m->params[i]];
    e->input_bytes += seg->values[e->params[i]]->layout->nbytes;
  }
  for (uint32_t i = 0; i < w->n_outputs; i++) e->output_bytes += seg->values[w->outputs[i]]->layout->nbytes;
  for (uint32_t i = 0; i < w->n_outputs; i++) e->output_set[w->outputs[i] / 64] |= UINT64_C(1) << (w->outputs[i] % 64);
  for (uint32_t i = 0; i < n_aliases; i++)
    for (uint32_t a = 0; a < m->n_params; a++)
      if (m->params[a] == aliases[i].param) e->aliases[e->n_aliases++] = (tpu_alias){a, aliases[i].output};
  return e;
}

static tpu_status compile(const tpu_segment *seg, wanted *w, tpu_exe **out) {
  tpu_graph *graph = tpu_graph_create(), *flat = tpu_graph_create();
  uint32_t *leaf = tpu_malloc((seg->n_values + 1) * sizeof *leaf);
  w->outputs = tpu_malloc((seg->n_values + 1) * sizeof *w->outputs);
  w->check_rows = tpu_malloc((seg->n_values + seg->n_refs + 1) * sizeof *w->check_rows);
  w->check_records = tpu_malloc((seg->n_values + seg->n_refs + 1) * sizeof *w->check_records);
  tpu_alias *aliases = tpu_malloc((seg->n_values + 1) * sizeof *aliases);
  tpu_strbuf text = {0};
  tpu_module module = {0};
  uint32_t n_aliases = 0;
  tpu_status status = NULL;
  tpu_exe *e = NULL;
  if (!graph || !flat || !leaf || !w->outputs || !aliases || !w->check_rows || !w->check_records) status = out_of_memory();
  if (!status) status = emit(seg, w, graph, flat, leaf, &text, &module, aliases, &n_aliases);
  if (!status && !(e = exe_create(seg, w, leaf, &module, aliases, n_aliases))) status = out_of_memory();
  tpu_graph_destroy(graph); /* compiling needs the memory */
  tpu_graph_destroy(flat);
  double start = now_s();
  if (!status) status = load(seg, &text, &e->executable);
  if (!status) e->entry = (tpu_cache_entry){.compile_s = now_s() - start, .last_read = clock_s(CLOCK_REALTIME), .reads = 1};
  if (status)
    exe_destroy(e);
  else
    *out = e;
  tpu_strbuf_destroy(&text);
  tpu_free(leaf);
  tpu_free(w->outputs);
  tpu_free((void *)w->check_rows);
  tpu_free(w->check_records);
  tpu_free(aliases);
  return status;
}

/* --- the table */
static bool same_program(const tpu_program *p, const tpu_segment *seg) {
  if (p->key.hi != seg->key.hi || p->options != seg->options || p->n_records != seg->n_records || p->n_refs != seg->n_refs ||
      p->n_outs != seg->n_outs || p->n_offsets != seg->n_offsets || p->n_values != seg->n_values ||
      p->n_numbers != seg->n_numbers)
    return false;
  if (memcmp(p->refs, seg->refs, sizeof *p->refs * p->n_refs) != 0) return false;
  for (uint32_t i = 0; i < p->n_records; i++)
    if (p->records[i].sig != seg->records[i].sig) return false;
  for (uint32_t i = 0; i < p->n_outs; i++)
    if (p->outs[i].value != seg->outs[i].value || p->outs[i].layout != seg->outs[i].layout ||
        p->outs[i].place != seg->outs[i].place)
      return false;
  for (uint32_t i = 0; i < p->n_values; i++)
    if (p->layouts[i] != seg->values[i]->layout || p->replaces[i] != seg->values[i]->replaces) return false;
  return true;
}

static bool same_offsets(const tpu_program *p, const tpu_segment *seg) {
  for (uint32_t i = 0; i < p->n_offsets; i++)
    if (p->multiple[i] ? seg->offsets[i] % p->multiple[i] != 0 : p->offsets[i] != seg->offsets[i]) return false;
  return true;
}

static void program_destroy(tpu_program *p) {
  if (!p) return;
  for (tpu_exe *e = p->exes, *next; e; e = next) {
    next = e->next;
    exe_destroy(e);
  }
  tpu_free(p->records);
  tpu_free(p->refs);
  tpu_free(p->outs);
  tpu_free((void *)p->layouts);
  tpu_free(p->replaces);
  tpu_free(p->offsets);
  tpu_free(p->multiple);
  tpu_free(p);
}

static int64_t gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a < 0 ? -a : a;
}

/* The offsets in which the segment differs from `like` become run-time slots. Each is known to be a multiple of the innermost
 * dims of the base that divide what was seen: a position among rows stays one. */
static void free_offsets(const tpu_segment *seg, const tpu_program *like, int64_t *multiple) {
  for (uint32_t r = 0; r < seg->n_records; r++) {
    const tpu_rec *rec = &seg->records[r];
    uint32_t i = rec->offset;
    for (int k = 0; k < rec->sig->args.n_operands; k++) {
      uint32_t ref = seg->refs[rec->ref + (uint32_t)k];
      if (ref == NO_VALUE) continue;
      const tpu_layout *l = seg->values[ref]->layout;
      if (!tpu_is_partial(rec->sig, k, l)) continue;
      uint32_t at = i++;
      if (!like->multiple[at] && like->offsets[at] == seg->offsets[at]) continue;
      int64_t seen = gcd(like->multiple[at] ? like->multiple[at] : like->offsets[at], seg->offsets[at]), size = 1;
      multiple[at] = 1;
      if (tpu_dtype_bytes(l->dtype) != tpu_dtype_bytes(rec->sig->args.operands[k].dtype)) continue;
      for (int d = l->rank - 1; d >= 0 && l->numel; d--) {
        size *= l->dims[d];
        if (seen % size == 0) multiple[at] = size;
      }
    }
  }
}

/* A program entry for the segment. `like`: a program that differs only in offsets; those become run-time slots. */
static tpu_program *program_create(const tpu_segment *seg, const tpu_program *like) {
  tpu_program *p = tpu_calloc(1, sizeof *p);
  if (!p) return NULL;
  p->key = seg->key;
  p->options = seg->options;
  p->n_records = seg->n_records;
  p->n_refs = seg->n_refs;
  p->n_outs = seg->n_outs;
  p->n_offsets = seg->n_offsets;
  p->n_values = seg->n_values;
  p->n_numbers = seg->n_numbers;
  p->records = copy_of(seg->records, sizeof *p->records * p->n_records);
  p->refs = copy_of(seg->refs, sizeof *p->refs * p->n_refs);
  p->outs = copy_of(seg->outs, sizeof *p->outs * p->n_outs);
  p->offsets = copy_of(seg->offsets, sizeof *p->offsets * p->n_offsets);
  p->multiple = tpu_calloc(p->n_offsets + 1, sizeof *p->multiple);
  p->layouts = tpu_malloc(sizeof(tpu_layout *) * (p->n_values + 1));
  p->replaces = tpu_malloc(sizeof *p->replaces * (p->n_values + 1));
  if (!p->records || !p->refs || !p->outs || !p->offsets || !p->multiple || !p->layouts || !p->replaces) {
    program_destroy(p);
    return NULL;
  }
  for (uint32_t i = 0; i < p->n_values; i++) {
    p->layouts[i] = seg->values[i]->layout;
    p->replaces[i] = seg->values[i]->replaces;
  }
  if (like) free_offsets(seg, like, p->multiple);
  return p;
}

static bool covers(const tpu_exe *e, const uint64_t *live, uint32_t words) {
  for (uint32_t i = 0; i < words; i++)
    if (live[i] & ~e->output_set[i]) return false;
  return true;
}

static tpu_exe *best_exe(const tpu_program *p, const uint64_t *live, uint32_t words) {
  tpu_exe *best = NULL;
  for (tpu_exe *e = atomic_load_explicit(&never, memory_order_relaxed) ? NULL : p->exes; e; e = e->next)
    if (covers(e, live, words) && (!best || e->n_outputs < best->n_outputs)) best = e;
  return best;
}

/* The entry for the segment, made if need be. NULL: out of memory. */
static tpu_program *program_find(const tpu_segment *seg) {
  const tpu_program *like = NULL;
  tpu_program *head = tpu_map_get(&programs, seg->key.lo);
  for (tpu_program *p = head; p; p = p->next) {
    if (!same_program(p, seg)) continue;
    if (same_offsets(p, seg)) return p;
    if (!like) like = p; /* the newest comes first */
  }
  tpu_program *fresh = program_create(seg, like);
  if (!fresh) return NULL;
  fresh->next = head;
  if (tpu_map_put(&programs, seg->key.lo, fresh)) return fresh;
  fresh->next = NULL;
  program_destroy(fresh);
  return NULL;
}

static void add_outputs(uint64_t *want, const tpu_program *p, uint32_t words) {
  for (const tpu_exe *e = p->exes; e; e = e->next)
    for (uint32_t i = 0; i < words; i++) want[i] |= e->output_set[i];
}

static int by_use(const void *a, const void *b) {
  uint64_t x = (*(tpu_program *const *)a)->used, y = (*(tpu_program *const *)b)->used;
  return (x > y) - (x < y);
}

static void forget(tpu_program *p) {
  tpu_program *head = tpu_map_get(&programs, p->key.lo);
  if (head == p) {
    if (p->next)
      (void)tpu_map_put(&programs, p->key.lo, p->next); /* replaces: cannot fail */
    else
      (void)tpu_map_remove(&programs, p->key.lo);
  } else {
    while (head->next != p) head = head->next;
    head->next = p->next;
  }
  for (const tpu_exe *e = p->exes; e; e = e->next) n_executables--;
  program_destroy(p);
}

/* Drops the least recently used quarter. The newest, which the caller is about to run, stays. */
static void evict(void) {
  size_t n = 0, at = 0;
  uint64_t key;
  void *value;
  while (tpu_map_next(&programs, &at, &key, &value))
    for (const tpu_program *p = value; p; p = p->next) n++;
  tpu_program **all = tpu_malloc(n * sizeof(tpu_program *));
  if (!all) return;
  n = at = 0;
  while (tpu_map_next(&programs, &at, &key, &value))
    for (tpu_program *p = value; p; p = p->next) all[n++] = p;
  qsort(all, n, sizeof(tpu_program *), by_use);
  for (size_t i = 0; i < n / 4; i++) forget(all[i]);
  tpu_free(all);
}

tpu_status tpu_program_get(tpu_segment *seg, const uint64_t *live, const tpu_exe **out_exe) {
  uint32_t words = (seg->n_values + 63) / 64;
  tpu_rt.stats.cache_requests++;
  tpu_program *p = program_find(seg);
  if (!p) return out_of_memory();
  p->used = ++clock_ticks;
  tpu_exe *hit;
  for (; !(hit = best_exe(p, live, words)) && p->compiling;) pthread_cond_wait(&tpu_rt.settled, &tpu_rt.lock);
  if (hit) {
    tpu_rt.stats.cache_hits++;
    hit->entry.reads++;
    hit->entry.last_read = clock_s(CLOCK_REALTIME);
    *out_exe = hit;
    return NULL;
  }
  /* The union of what was wanted so far, whatever the offsets: who still held a value before may hold it again. */
  uint64_t *want = copy_of(live, words * sizeof *want);
  if (!want) return out_of_memory();
  for (const tpu_program *other = tpu_map_get(&programs, seg->key.lo); other; other = other->next)
    if (same_program(other, seg)) add_outputs(want, other, words);
  wanted w = {.multiple = p->multiple, .live = want};
  tpu_exe *e = NULL;
  p->compiling = true;
  tpu_rt_unlock();
  tpu_status status = compile(seg, &w, &e);
  tpu_rt_lock();
  p->compiling = false;
  pthread_cond_broadcast(&tpu_rt.settled);
  tpu_free(want);
  if (status) return status;
  e->next = p->exes;
  p->exes = e;
  *out_exe = e;
  if (++n_executables > TPU_MOST_EXECUTABLES && tpu_rt.busy == 1) evict(); /* busy: only this launch needs programs */
  return NULL;
}

void tpu_cache_policy_set(tpu_cache_policy policy) {
  atomic_store(&never, policy.never);
  atomic_store(&only, policy.only);
}
tpu_cache_policy tpu_cache_policy_get(void) { return (tpu_cache_policy){atomic_load(&never), atomic_load(&only)}; }
void tpu_miss_hook_set(tpu_miss_fn see) { atomic_store(&see_miss, see); }

size_t tpu_cache_entries(tpu_cache_entry *out, size_t n) {
  if (tpu_in_bad_fork()) return 0;
  size_t count = 0, at = 0;
  uint64_t key;
  void *value;
  tpu_rt_lock();
  while (tpu_map_next(&programs, &at, &key, &value))
    for (const tpu_program *p = value; p; p = p->next)
      for (const tpu_exe *e = p->exes; e; e = e->next, count++)
        if (count < n) out[count] = e->entry;
  tpu_rt_unlock();
  return count;
}

tpu_status tpu_program_text(tpu_segment *seg, tpu_strbuf *out) {
  uint32_t words = (seg->n_values + 63) / 64;
  uint64_t *live = tpu_calloc(words + 1, sizeof *live);
  uint32_t *leaf = tpu_malloc((seg->n_values + 1) * sizeof *leaf);
  wanted w = {.live = live, .outputs = tpu_malloc((seg->n_values + 1) * sizeof(uint32_t))};
  tpu_alias *aliases = tpu_malloc((seg->n_values + 1) * sizeof *aliases);
  tpu_graph *graph = tpu_graph_create(), *flat = tpu_graph_create();
  tpu_status status = NULL;
  if (!live || !leaf || !w.outputs || !aliases || !graph || !flat) {
    status = out_of_memory();
  } else {
    for (uint32_t i = 0; i < seg->n_values; i++)
      if (!seg->is_leaf[i] && atomic_load(&seg->values[i]->refs) > 1) live[i / 64] |= UINT64_C(1) << (i % 64);
    tpu_module module;
    uint32_t n;
    status = emit(seg, &w, graph, flat, leaf, out, &module, aliases, &n);
  }
  tpu_free(live);
  tpu_free(leaf);
  tpu_free(w.outputs);
  tpu_free(aliases);
  tpu_graph_destroy(graph);
  tpu_graph_destroy(flat);
  return status;
}

void tpu_program_cache_clear(void) {
  tpu_rt_lock();
  while (tpu_rt.busy) pthread_cond_wait(&tpu_rt.settled, &tpu_rt.lock);
  tpu_map old = programs;
  programs = (tpu_map){0};
  n_executables = 0;
  tpu_rt_unlock();
  size_t at = 0;
  uint64_t key;
  void *value;
  while (tpu_map_next(&old, &at, &key, &value))
    for (tpu_program *p = value, *next; p; p = next) {
      next = p->next;
      program_destroy(p);
    }
  tpu_map_destroy(&old);
}
