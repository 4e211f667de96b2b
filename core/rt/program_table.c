#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "rt/private.h"

/* Programs by segment key. Compiled programs are kept until tpu_cache_clear, bounded by count. */
static tpu_map programs;
static uint32_t n_executables;
static uint64_t clock_ticks;

static tpu_status out_of_memory(void) { return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

static double wall_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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
    tpu_exe_destroy(e);
  }
  tpu_free(p->records);
  tpu_free(p->refs);
  tpu_free(p->outs);
  tpu_free((void *)p->layouts);
  tpu_free(p->replaces);
  tpu_free(p->offsets);
  tpu_free(p->multiple);
  tpu_free(p->classes);
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
  p->records = tpu_rt_copy(seg->records, sizeof *p->records * p->n_records);
  p->refs = tpu_rt_copy(seg->refs, sizeof *p->refs * p->n_refs);
  p->outs = tpu_rt_copy(seg->outs, sizeof *p->outs * p->n_outs);
  p->offsets = tpu_rt_copy(seg->offsets, sizeof *p->offsets * p->n_offsets);
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
  for (tpu_exe *e = tpu_cache_policy_get().never ? NULL : p->exes; e; e = e->next)
    if (covers(e, live, words) && (!best || e->n_outputs < best->n_outputs)) best = e;
  return best;
}

/* Sizes that keep coming back get a program of their own after so many runs of a bounded one. */
enum { BOUNDED_RUNS = 16 };

/* The bounded program, if it serves. */
static bool take_bounded(tpu_program *p, const uint64_t *live, uint32_t words, tpu_ready *out) {
  if (!p->bounded || tpu_cache_policy_get().never || !covers(p->bounded, live, words) || p->n_bounded == BOUNDED_RUNS)
    return false;
  p->n_bounded++;
  *out = (tpu_ready){p->bounded, p->classes};
  return true;
}

static tpu_status keep_bounded(tpu_program *p, const tpu_bounded *bounded, tpu_exe *e, tpu_ready *out) {
  tpu_number *classes = tpu_rt_copy(bounded->values, bounded->n * sizeof *classes);
  if (!classes) return out_of_memory();
  tpu_free(p->classes); /* of one that went */
  p->classes = classes;
  p->bounded = e;
  p->n_bounded = 1;
  *out = (tpu_ready){e, classes};
  return NULL;
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

static long lines_of(const char *path) {
  char piece[1 << 14];
  long n = 0;
  FILE *f = fopen(path, "r");
  if (!f) return 0;
  for (size_t got; (got = fread(piece, 1, sizeof piece, f)) > 0;)
    for (size_t i = 0; i < got; i++) n += piece[i] == '\n';
  fclose(f);
  return n;
}

/* Half of the regions that the process may map: the other half is everybody else's. 0: unknown. */
static long most_regions(void) {
  static long most = -1;
  if (most >= 0) return most;
  char text[32] = "";
  FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
  if (f) {
    if (!fgets(text, sizeof text, f)) text[0] = 0;
    fclose(f);
  }
  return most = strtol(text, NULL, 10) / 2;
}

/* Whether the code of all executables takes too many regions. They are counted seldom: reading them takes 10 ms at worst. */
static bool regions_run_out(void) {
  static long until_next;
  enum { PER_EXECUTABLE = 1024 };
  if (!tpu_rt.quirks->maps_code || !most_regions() || --until_next > 0) return false;
  long left = most_regions() - lines_of("/proc/self/maps");
  until_next = left > 0 ? 1 + left / PER_EXECUTABLE : 8;
  return left <= 0;
}

/* Drops the least recently used quarter, and all bounded programs. The newest, which the caller is about to run, stays. */
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
  for (size_t i = 0; i < n; i++) {
    if (i < n / 4)
      forget(all[i]);
    else
      all[i]->bounded = NULL;
  }
  tpu_free(all);
  tpu_family_clear();
}

tpu_status tpu_program_get(tpu_segment *seg, const uint64_t *live, tpu_ready *out) {
  uint32_t words = (seg->n_values + 63) / 64;
  tpu_rt.stats.cache_requests++;
  tpu_program *p = program_find(seg);
  if (!p) return out_of_memory();
  p->used = ++clock_ticks;
  tpu_exe *hit;
  for (; !(hit = best_exe(p, live, words)) && p->compiling;) pthread_cond_wait(&tpu_rt.settled, &tpu_rt.lock);
  *out = (tpu_ready){.exe = hit};
  if (!hit && take_bounded(p, live, words, out)) hit = p->bounded;
  if (hit) {
    tpu_rt.stats.cache_hits++;
    hit->entry.reads++;
    hit->entry.last_read = wall_s();
    return NULL;
  }
  /* The union of what was wanted so far, whatever the offsets: who still held a value before may hold it again. */
  uint64_t *want = tpu_rt_copy(live, words * sizeof *want);
  if (!want) return out_of_memory();
  for (const tpu_program *other = tpu_map_get(&programs, seg->key.lo); other; other = other->next)
    if (same_program(other, seg)) add_outputs(want, other, words);
  tpu_exe *e = NULL;
  p->compiling = true;
  tpu_rt_unlock();
  tpu_bounded bounded = {0};
  bool own = p->bounded || tpu_cache_policy_get().never;
  tpu_status status = tpu_exe_compile(seg, p->multiple, want, own ? NULL : &bounded, &e);
  tpu_rt_lock();
  p->compiling = false;
  pthread_cond_broadcast(&tpu_rt.settled);
  tpu_free(want);
  if (status) return status;
  if (bounded.family) return keep_bounded(p, &bounded, e, out);
  e->next = p->exes;
  p->exes = e;
  *out = (tpu_ready){.exe = e};
  n_executables++;
  if (tpu_rt.busy != 1) return NULL; /* other launches need programs */
  if (n_executables > TPU_MOST_EXECUTABLES || regions_run_out()) evict();
  return NULL;
}

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

void tpu_program_cache_clear(void) {
  tpu_rt_lock();
  while (tpu_rt.busy) pthread_cond_wait(&tpu_rt.settled, &tpu_rt.lock);
  tpu_map old = programs;
  programs = (tpu_map){0};
  n_executables = 0;
  tpu_rt_unlock();
  tpu_family_clear();
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
