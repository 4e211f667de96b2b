#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/alloc.h"
#include "rt/private.h"

static atomic_bool never, only;
static tpu_miss_fn _Atomic see_miss;
static tpu_arena immortal; /* rows of checks */
static pthread_mutex_t immortal_lock = PTHREAD_MUTEX_INITIALIZER;

static tpu_status out_of_memory(void) { return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

static double clock_s(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static double now_s(void) { return clock_s(CLOCK_MONOTONIC); }

void *tpu_rt_copy(const void *p, size_t size) {
  void *q = tpu_malloc(size ? size : 1);
  if (q && size) memcpy(q, p, size);
  return q;
}

/* --- from a segment to a graph */
typedef struct wanted {         /* what the program shall give, and how */
  const int64_t *multiple;      /* per offset, as a program's; NULL: all static */
  const uint64_t *live;         /* outputs; NULL: everything produced that is alive now */
  uint32_t *outputs, n_outputs; /* filled: values */
  const tpu_row **check_rows;   /* filled: one per check; room for one per operand or result */
  uint32_t *check_records;      /* likewise */
  uint32_t n_checks;
  tpu_bounded *bounded; /* NULL: not asked for; family NULL: it is not what serves */
  tpu_graph *wide;      /* filled: the bounded graph */
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

void tpu_exe_destroy(tpu_exe *e) {
  if (!e) return;
  tpu_executable_destroy(tpu_rt.client, e->executable);
  tpu_free(e->params);
  tpu_free(e->outputs);
  tpu_free(e->slots);
  tpu_free(e->check_records);
  tpu_free(e->aliases);
  tpu_free(e->output_set);
  tpu_free((void *)e->param_rooms);
  tpu_free((void *)e->output_rooms);
  tpu_free(e);
}

/* The compiler of a program this long takes hundreds of megabytes and leaves most of them free, to which the first run would add.
 */
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

/* The graph to compile: a bounded one, if one that is not there yet shall serve (w->bounded). */
static tpu_status choose(const tpu_segment *seg, wanted *w, const tpu_target *target, tpu_graph **graph) {
  tpu_numbers_of numbers;
  if (!w->bounded) return NULL;
  if (!tpu_graph_numbers(*graph, &numbers)) return out_of_memory();
  tpu_status status = NULL;
  if (!tpu_family_choose(seg, w->live, *graph, &numbers, w->bounded)) {
    w->bounded->family = NULL;
  } else if (!w->bounded->exe) {
    status =
        tpu_graph_bound(*graph, &numbers, w->bounded->plan, w->bounded->bounds, seg->n_numbers + seg->n_offsets, target, w->wide);
    if (!status) *graph = w->wide;
    if (tpu_status_code(status) == TPU_UNIMPLEMENTED) {
      tpu_family_give_up(w->bounded->family);
      w->bounded->family = NULL;
      tpu_status_release(status);
      status = NULL;
    }
  }
  tpu_numbers_of_destroy(&numbers);
  return status;
}

/* Types of the graph's params; NULL: out of memory. */
static tpu_type *param_types(const tpu_graph *g) {
  tpu_type *types = tpu_malloc((tpu_graph_param_count(g) + 1) * sizeof *types);
  uint32_t n = 0;
  for (uint32_t i = 0; types && i < tpu_graph_node_count(g) && n < tpu_graph_param_count(g); i++) {
    const tpu_node *node = tpu_graph_node(g, i);
    if (node->op == TPU_HLO_PARAM) types[n++] = tpu_graph_type(g, (tpu_val){node->first_result});
  }
  return types;
}

/* Sizes may be equal by chance where bounds are not. */
static tpu_status drop_unequal(const tpu_graph *g, tpu_alias *aliases, uint32_t *n_aliases) {
  uint32_t n_outputs, n = 0;
  const tpu_val *outputs = tpu_graph_outputs(g, &n_outputs);
  tpu_type *params = param_types(g);
  if (!params) return out_of_memory();
  for (uint32_t i = 0; i < *n_aliases; i++)
    if (tpu_type_equal(params[aliases[i].param], tpu_graph_type(g, outputs[aliases[i].output]))) aliases[n++] = aliases[i];
  *n_aliases = n;
  tpu_free(params);
  return NULL;
}

/* No text if a bounded program that is there already serves. */
static tpu_status emit(const tpu_segment *seg, wanted *w, tpu_graph *graph, tpu_graph *flat, uint32_t *leaf, tpu_strbuf *text,
                       tpu_module *module, tpu_alias *aliases, uint32_t *n_aliases) {
  tpu_target target = tpu_rt.target;
  target.precision = seg->precision;
  TPU_TRY(build(seg, &target, w, graph, leaf));
  TPU_TRY(choose(seg, w, &target, &graph));
  if (w->bounded && w->bounded->exe) return NULL;
  TPU_TRY(tpu_graph_expand(graph, &target, flat));
  uint32_t *param_of = tpu_malloc((seg->n_values + 1) * sizeof *param_of);
  uint8_t *taken = tpu_calloc(seg->n_values + 1, 1);
  tpu_status status = NULL;
  if (!param_of || !taken) {
    status = out_of_memory();
  } else {
    for (uint32_t p = 0; p < tpu_graph_param_count(graph); p++) param_of[leaf[p]] = p;
    *n_aliases = plan_aliases(seg, w, param_of, taken, aliases);
    status = drop_unequal(flat, aliases, n_aliases);
    char name[128];
    module_name(seg, name, sizeof name);
    if (!status) status = tpu_graph_emit(flat, &target, name, aliases, *n_aliases, text, module);
    if (!status && text->failed) status = out_of_memory();
  }
  tpu_free(param_of);
  tpu_free(taken);
  return status;
}

static bool room_of(tpu_type type, const tpu_layout **out) {
  *out = tpu_layout_intern(type.dtype, type.rank, type.dims);
  return *out;
}

static bool note_rooms(const tpu_graph *flat, const tpu_module *m, tpu_exe *e) {
  uint32_t n;
  const tpu_val *outputs = tpu_graph_outputs(flat, &n);
  tpu_type *params = param_types(flat);
  e->param_rooms = tpu_calloc(e->n_params + 1, sizeof(tpu_layout *));
  e->output_rooms = tpu_calloc(e->n_outputs + 1, sizeof(tpu_layout *));
  bool ok = params && e->param_rooms && e->output_rooms;
  for (uint32_t i = 0; ok && i < e->n_params; i++) ok = room_of(params[m->params[i]], &e->param_rooms[i]);
  for (uint32_t i = 0; ok && i < e->n_outputs; i++) ok = room_of(tpu_graph_type(flat, outputs[i]), &e->output_rooms[i]);
  tpu_free(params);
  return ok;
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
  e->outputs = tpu_rt_copy(w->outputs, sizeof *e->outputs * w->n_outputs);
  e->slots = tpu_rt_copy(m->slots, sizeof *e->slots * m->n_slots);
  e->check_records = tpu_rt_copy(w->check_records, sizeof *e->check_records * w->n_checks);
  e->aliases = tpu_malloc(sizeof *e->aliases * (n_aliases + 1));
  e->output_set = tpu_calloc((seg->n_values + 63) / 64 + 1, sizeof *e->output_set);
  if (!e->params || !e->outputs || !e->slots || !e->aliases || !e->output_set || !e->check_rows || !e->check_records) {
    tpu_exe_destroy(e);
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

tpu_status tpu_exe_compile(const tpu_segment *seg, const int64_t *multiple, const uint64_t *live, tpu_bounded *bounded,
                           tpu_exe **out) {
  wanted all = {.multiple = multiple, .live = live, .bounded = bounded}, *w = &all;
  tpu_graph *graph = tpu_graph_create(), *flat = tpu_graph_create();
  uint32_t *leaf = tpu_malloc((seg->n_values + 1) * sizeof *leaf);
  w->wide = tpu_graph_create();
  w->outputs = tpu_malloc((seg->n_values + 1) * sizeof *w->outputs);
  w->check_rows = tpu_malloc((seg->n_values + seg->n_refs + 1) * sizeof *w->check_rows);
  w->check_records = tpu_malloc((seg->n_values + seg->n_refs + 1) * sizeof *w->check_records);
  tpu_alias *aliases = tpu_malloc((seg->n_values + 1) * sizeof *aliases);
  tpu_strbuf text = {0};
  tpu_module module = {0};
  uint32_t n_aliases = 0;
  tpu_status status = NULL;
  tpu_exe *e = NULL;
  if (!graph || !flat || !w->wide || !leaf || !w->outputs || !aliases || !w->check_rows || !w->check_records)
    status = out_of_memory();
  if (!status) status = emit(seg, w, graph, flat, leaf, &text, &module, aliases, &n_aliases);
  bool is_new = !status && !(bounded && bounded->exe), is_bounded = bounded && bounded->family;
  if (is_new && !(e = exe_create(seg, w, leaf, &module, aliases, n_aliases))) status = out_of_memory();
  if (e && is_bounded && !note_rooms(flat, &module, e)) status = out_of_memory();
  tpu_graph_destroy(graph); /* compiling needs the memory */
  tpu_graph_destroy(flat);
  tpu_graph_destroy(w->wide);
  double start = now_s();
  if (is_new && !status) status = load(seg, &text, &e->executable);
  if (is_new && !status) {
    e->entry = (tpu_cache_entry){.compile_s = now_s() - start, .last_read = clock_s(CLOCK_REALTIME), .reads = 1};
    if (is_bounded && !tpu_family_add(bounded, e)) status = out_of_memory();
  }
  if (status)
    tpu_exe_destroy(e);
  else
    *out = is_new ? e : bounded->exe;
  tpu_strbuf_destroy(&text);
  tpu_free(leaf);
  tpu_free(w->outputs);
  tpu_free((void *)w->check_rows);
  tpu_free(w->check_records);
  tpu_free(aliases);
  return status;
}

void tpu_cache_policy_set(tpu_cache_policy policy) {
  atomic_store(&never, policy.never);
  atomic_store(&only, policy.only);
}
tpu_cache_policy tpu_cache_policy_get(void) { return (tpu_cache_policy){atomic_load(&never), atomic_load(&only)}; }
void tpu_miss_hook_set(tpu_miss_fn see) { atomic_store(&see_miss, see); }

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
