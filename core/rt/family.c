#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ir/number.h"
#include "rt/private.h"

/* One program at several sizes is a family. The first sizes get programs of their own; when sizes keep coming, a few bounded
 * programs serve all that follow. A family stays until the cache is cleared. */
enum {
  FUSED_SAMPLES = 2,  /* sizes with programs of their own; */
  SINGLE_SAMPLES = 4, /* of one call alone, since a model's layers differ too */
  MOST_SAMPLES = 8,
  LEAST_BOUND = 16
};
#define MOST_NUMBERS (INT64_C(8) << 20) /* of all families together */

typedef struct variant {
  int64_t *bounds; /* per class */
  tpu_exe *exe;
  struct variant *next;
} variant;
typedef struct plan_state {
  tpu_plan *plan;
  variant *variants;
  struct plan_state *next; /* replaced ones: launches may use them still */
} plan_state;
struct tpu_family {
  tpu_hash key;
  const tpu_options *options;
  uint32_t n, n_samples;
  int64_t *samples[MOST_SAMPLES];
  bool hopeless; /* some operation has no bounded form */
  plan_state *state;
  tpu_family *next; /* same key.lo */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tpu_map families;
static int64_t n_numbers;

static bool is_off(void) {
  static atomic_int off = -1;
  int known = atomic_load(&off);
  if (known < 0) {
    const char *setting = getenv("TORCH_TPU_BOUNDED_PROGRAMS");
    atomic_store(&off, known = setting && strcmp(setting, "0") == 0);
  }
  return known;
}

/* What must be equal beside the graph for an executable to serve. */
static tpu_hash family_key(tpu_hash skeleton, const tpu_segment *seg, const uint64_t *live) {
  tpu_hash_mix(&skeleton, (uint64_t)seg->n_numbers << 32 | seg->n_offsets);
  tpu_hash_mix(&skeleton, (uint64_t)seg->precision << 32 | seg->n_values);
  for (uint32_t i = 0; i < seg->n_values; i++) {
    tpu_hash_mix(&skeleton, (uint64_t)seg->values[i]->replaces << 1 | seg->is_leaf[i]);
    if (i % 64 == 0) tpu_hash_mix(&skeleton, live[i / 64]);
  }
  return skeleton;
}

static tpu_family *family_find(tpu_hash key, const tpu_segment *seg, const tpu_numbers_of *numbers) {
  tpu_family *head = tpu_map_get(&families, key.lo), *f = head;
  for (; f; f = f->next)
    if (f->key.hi == key.hi && f->n == numbers->n && f->options == seg->options) return f;
  if (n_numbers > MOST_NUMBERS || !(f = tpu_calloc(1, sizeof *f))) return NULL;
  *f = (tpu_family){.key = key, .options = seg->options, .n = numbers->n, .next = head};
  if (tpu_map_put(&families, key.lo, f)) return f;
  tpu_free(f);
  return NULL;
}

static bool add_sample(tpu_family *f, const tpu_numbers_of *numbers) {
  if (f->n_samples == MOST_SAMPLES) {
    f->hopeless = true;
    return false;
  }
  int64_t *copy = tpu_rt_copy(numbers->v, f->n * sizeof *copy);
  if (!copy) return false;
  f->samples[f->n_samples++] = copy;
  n_numbers += f->n;
  return true;
}

static bool is_known(const tpu_family *f, const int64_t *v) {
  for (uint32_t s = 0; s < f->n_samples; s++)
    if (memcmp(f->samples[s], v, f->n * sizeof *v) == 0) return true;
  return false;
}

/* Do all dims follow from one? So they do where one length grows, and seldom among the layers of a model. */
static bool is_one_length(const tpu_family *f, const tpu_plan *p) {
  const tpu_class *lead = NULL;
  for (uint32_t c = 0; c < p->n_classes; c++) {
    if (!p->classes[c].is_dim) continue;
    if (!lead) lead = &p->classes[c];
    int64_t x0 = f->samples[0][lead->number], y0 = f->samples[0][p->classes[c].number];
    int64_t dx = f->samples[1][lead->number] - x0, dy = f->samples[1][p->classes[c].number] - y0;
    for (uint32_t s = 2; s < f->n_samples; s++)
      if ((f->samples[s][lead->number] - x0) * dy != (f->samples[s][p->classes[c].number] - y0) * dx) return false;
  }
  return true;
}

static bool is_single(const tpu_segment *seg) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < seg->n_records; r++) n += seg->records[r].sig->kind < SIG_ZERO;
  return n <= 1;
}

/* Makes a plan that these numbers fit too. */
static bool make_plan(tpu_family *f, const tpu_segment *seg, const tpu_graph *graph, const tpu_numbers_of *numbers) {
  if (!add_sample(f, numbers)) return false;
  plan_state *state = tpu_calloc(1, sizeof *state);
  if (!state) return false;
  state->plan = tpu_plan_create(graph, numbers, f->n_samples, (const int64_t *const *)f->samples);
  if (!state->plan || (is_single(seg) && !is_one_length(f, state->plan))) {
    f->hopeless = !state->plan || f->n_samples == MOST_SAMPLES;
    tpu_plan_destroy(state->plan);
    tpu_free(state);
    return false;
  }
  state->next = f->state;
  f->state = state;
  return true;
}

/* --- bounds */
static int64_t bound_of(int64_t n) {
  int64_t p = LEAST_BOUND;
  if (n <= 1024) {
    while (p < n) p *= 2;
    return p;
  }
  while (p <= n / 2) p *= 2;
  return (n + p / 4 - 1) / (p / 4) * (p / 4);
}

/* Lengths that grow together, one just ahead of the other, cross a bound together. */
static void align_bounds(const tpu_plan *p, const int64_t *sizes, int64_t *bounds) {
  for (bool again = true; again;) {
    again = false;
    for (uint32_t i = 0; i < p->n_classes; i++)
      for (uint32_t k = 0; k < p->n_classes; k++) {
        if (!p->classes[i].is_dim || !p->classes[k].is_dim || sizes[i] > sizes[k]) continue;
        if (sizes[k] > sizes[i] + sizes[i] / 4 + 1 || bounds[i] == bounds[k]) continue;
        bounds[i] = bounds[k] = bounds[i] > bounds[k] ? bounds[i] : bounds[k];
        again = true;
      }
  }
}

static bool serves(const tpu_plan *p, const variant *v, const int64_t *sizes) {
  for (uint32_t c = 0; c < p->n_classes; c++) {
    if (!p->classes[c].is_dim) continue;
    int64_t most = 4 * bound_of(sizes[c]);
    if (v->bounds[c] < sizes[c] || v->bounds[c] > most) return false;
  }
  return true;
}

static const variant *best_variant(const plan_state *state, const int64_t *sizes) {
  const variant *best = NULL;
  double least = 0;
  for (const variant *v = state->variants; v; v = v->next) {
    if (!serves(state->plan, v, sizes)) continue;
    double total = 1;
    for (uint32_t c = 0; c < state->plan->n_classes; c++)
      if (state->plan->classes[c].is_dim) total *= (double)v->bounds[c];
    if (best && total >= least) continue;
    best = v;
    least = total;
  }
  return best;
}

static tpu_number class_value(const tpu_class *c, int64_t word) {
  if (c->dtype == TPU_DTYPE_NONE) return (tpu_number){.dtype = TPU_I64, .i = word};
  if (tpu_dtype_kind(c->dtype) == TPU_KIND_FLOAT)
    return (tpu_number){.dtype = TPU_F64, .f = tpu_number_to_double(c->dtype, &word)};
  return (tpu_number){.dtype = TPU_I64, .i = tpu_number_to_int(c->dtype, &word)};
}

static bool fill(tpu_bounded *out, tpu_family *f, const tpu_numbers_of *numbers) {
  const tpu_plan *p = f->state->plan;
  int64_t sizes[TPU_MOST_CLASSES];
  if (p->n_classes > TPU_MOST_CLASSES) return false;
  for (uint32_t c = 0; c < p->n_classes; c++) {
    sizes[c] = numbers->v[p->classes[c].number];
    if (p->classes[c].is_dim && (sizes[c] < 0 || sizes[c] > INT32_MAX / 4)) return false;
    out->values[c] = class_value(&p->classes[c], sizes[c]);
    out->bounds[c] = p->classes[c].is_dim ? bound_of(sizes[c]) : 0;
  }
  align_bounds(p, sizes, out->bounds);
  out->family = f;
  out->plan = p;
  out->n = p->n_classes;
  const variant *v = best_variant(f->state, sizes);
  out->exe = v ? v->exe : NULL;
  return true;
}

bool tpu_family_choose(const tpu_segment *seg, const uint64_t *live, const tpu_graph *graph, const tpu_numbers_of *numbers,
                       tpu_bounded *out) {
  if (is_off()) return false;
  bool bounded = false;
  pthread_mutex_lock(&lock);
  tpu_family *f = family_find(family_key(numbers->skeleton, seg, live), seg, numbers);
  if (f && !f->hopeless) {
    uint32_t own = is_single(seg) ? SINGLE_SAMPLES : FUSED_SAMPLES;
    if (f->state && tpu_plan_fits(f->state->plan, numbers->v, f->samples[0]))
      bounded = !is_known(f, numbers->v) || f->n_samples > own;
    else if (!is_known(f, numbers->v)) {
      if (f->n_samples < own)
        (void)add_sample(f, numbers);
      else
        bounded = make_plan(f, seg, graph, numbers);
    }
    if (bounded) bounded = fill(out, f, numbers);
  }
  pthread_mutex_unlock(&lock);
  return bounded;
}

void tpu_family_give_up(tpu_family *f) {
  pthread_mutex_lock(&lock);
  f->hopeless = true;
  pthread_mutex_unlock(&lock);
}

bool tpu_family_add(const tpu_bounded *bounded, tpu_exe *exe) {
  variant *v = tpu_calloc(1, sizeof *v);
  int64_t *bounds = tpu_rt_copy(bounded->bounds, bounded->n * sizeof *bounds);
  plan_state *state = NULL;
  pthread_mutex_lock(&lock);
  for (state = bounded->family->state; state && state->plan != bounded->plan;) state = state->next;
  bool ok = v && bounds && state;
  if (ok) {
    *v = (variant){.bounds = bounds, .exe = exe, .next = state->variants};
    state->variants = v;
  }
  pthread_mutex_unlock(&lock);
  if (ok) return true;
  tpu_free(v);
  tpu_free(bounds);
  return false;
}

static void family_destroy(tpu_family *f) {
  for (plan_state *s = f->state, *next; s; s = next) {
    next = s->next;
    for (variant *v = s->variants, *after; v; v = after) {
      after = v->next;
      tpu_exe_destroy(v->exe);
      tpu_free(v->bounds);
      tpu_free(v);
    }
    tpu_plan_destroy(s->plan);
    tpu_free(s);
  }
  for (uint32_t i = 0; i < f->n_samples; i++) tpu_free(f->samples[i]);
  tpu_free(f);
}

void tpu_family_clear(void) {
  size_t at = 0;
  uint64_t key;
  void *value;
  pthread_mutex_lock(&lock);
  while (tpu_map_next(&families, &at, &key, &value))
    for (tpu_family *f = value, *next; f; f = next) {
      next = f->next;
      family_destroy(f);
    }
  tpu_map_destroy(&families);
  families = (tpu_map){0};
  n_numbers = 0;
  pthread_mutex_unlock(&lock);
}
