#include <string.h>

#include "base/alloc.h"
#include "ir/attrs.h"
#include "rt/private.h"

/* The table of everything that lowering a call once taught. Signatures are immortal: there are as many as a program has
 * distinct calls, and results point into them. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static tpu_map table;
static tpu_arena memory = {.block_bytes = 1 << 16};
static tpu_graph *scratch;

#define INLINE_WORDS 512
typedef struct key {
  uint64_t *words;
  uint32_t n, capacity;
  bool failed;
  uint64_t inline_words[INLINE_WORDS];
} key;

static void key_grow(key *k, uint32_t more) {
  uint32_t capacity = k->capacity * 2 > k->n + more ? k->capacity * 2 : k->n + more;
  uint64_t *p = k->words == k->inline_words ? tpu_malloc(capacity * sizeof *p) : tpu_realloc(k->words, capacity * sizeof *p);
  if (!p) {
    k->failed = true;
    return;
  }
  if (k->words == k->inline_words) memcpy(p, k->inline_words, k->n * sizeof *p);
  k->words = p;
  k->capacity = capacity;
}
static inline uint64_t *key_room(key *k, uint32_t n) {
  if (k->n + n > k->capacity) key_grow(k, n);
  if (k->failed) return NULL;
  uint64_t *at = k->words + k->n;
  k->n += n;
  return at;
}
static inline void key_word(key *k, uint64_t w) {
  uint64_t *at = key_room(k, 1);
  if (at) *at = w;
}
static inline void key_words(key *k, uint32_t n, const void *words) {
  uint64_t *at = key_room(k, n);
  if (at && n) memcpy(at, words, n * sizeof *at);
}

static void key_arg(key *k, const tpu_arg *a) {
  key_word(k, (uint64_t)a->kind | (uint64_t)a->dtype << 8 | (uint64_t)a->flags << 16 | (uint64_t)a->n << 32);
  switch ((tpu_arg_kind)a->kind) {
    case TPU_ARG_INT:
    case TPU_ARG_BOOL:
    case TPU_ARG_OTHER: key_word(k, (uint64_t)a->i); break;
    case TPU_ARG_INTS:
    case TPU_ARG_BOOLS: key_words(k, a->n, a->ints); break;
    case TPU_ARG_STRING: {
      size_t size = strlen(a->str);
      key_word(k, size);
      uint64_t *at = key_room(k, (uint32_t)(size + 7) / 8);
      if (at && size) {
        at[(size - 1) / 8] = 0;
        memcpy(at, a->str, size);
      }
      break;
    }
    case TPU_ARG_NUMBER:
      if (a->flags & TPU_ARG_STATIC) key_word(k, (uint64_t)a->i);
      break;
    case TPU_ARG_NONE:
    case TPU_ARG_TENSOR:
    case TPU_ARG_TENSORS:
    case TPU_ARG_DTYPE: break;
    case TPU_ARG_NUMBERS:
      for (uint32_t i = 0; a->numbers && i < a->n; i++) {
        key_word(k, a->numbers[i].dtype);
        if (a->flags & TPU_ARG_STATIC) key_word(k, (uint64_t)a->numbers[i].i);
      }
      break;
  }
}

/* The strides by which a call's operand is known. Results whose strides are copied from it want all of them. */
static const int64_t *key_strides(const tpu_row *row, const tpu_tensor *t, int64_t plain[TPU_MAX_RANK]) {
  if (row && row->strides == TPU_STRIDES_PRESERVE) return t->strides;
  return tpu_strides_plain(t->rank, t->sizes, t->strides, plain);
}

static void key_tensor(key *k, const tpu_row *row, const tpu_tensor *t) {
  if (!t->storage) {
    key_word(k, TPU_DTYPE_NONE);
    return;
  }
  uint32_t rank = (uint32_t)t->rank;
  uint64_t *at = key_room(k, 1 + 2 * rank);
  if (!at) return;
  at[0] = (uint64_t)t->dtype | (uint64_t)rank << 8;
  for (uint32_t i = 0; i < rank; i++) at[1 + i] = (uint64_t)t->sizes[i];
  int64_t plain[TPU_MAX_RANK];
  const int64_t *strides = key_strides(row, t, plain);
  for (uint32_t i = 0; i < rank; i++) at[1 + rank + i] = (uint64_t)strides[i];
}

static tpu_hash key_hash(const key *k) {
  tpu_hash h = {UINT64_C(0x243f6a8885a308d3), UINT64_C(0x13198a2e03707344)};
  for (uint32_t i = 0; i < k->n; i++) tpu_hash_mix(&h, k->words[i]);
  h.lo = tpu_hash_u64(h.lo);
  h.hi = tpu_hash_u64(h.hi);
  return h;
}

static tpu_signature *find(tpu_hash hash, const key *k) {
  for (tpu_signature *s = tpu_map_get(&table, hash.lo); s; s = s->next)
    if (s->hash.hi == hash.hi && s->n_words == k->n && memcmp(s->words, k->words, k->n * sizeof *k->words) == 0) return s;
  return NULL;
}

/* Copies the call's arguments into the immortal arena; operands lose their storages. */
static bool copy_args(tpu_signature *s, const tpu_call *call) {
  tpu_arg *args = tpu_arena_copy(&memory, call->args, sizeof *args * (size_t)call->n_args);
  tpu_operand *ops = TPU_ARENA_ARRAY(&memory, tpu_operand, call->n_tensors);
  s->operand_bytes = TPU_ARENA_ARRAY(&memory, int64_t, call->n_tensors);
  if (!args || !ops || !s->operand_bytes) return false;
  for (int i = 0; i < call->n_args; i++) {
    if (args[i].kind == TPU_ARG_INTS || args[i].kind == TPU_ARG_BOOLS)
      args[i].ints = tpu_arena_copy(&memory, args[i].ints, sizeof(int64_t) * args[i].n);
    if (args[i].kind == TPU_ARG_NUMBERS && args[i].numbers)
      args[i].numbers = tpu_arena_copy(&memory, args[i].numbers, sizeof *args[i].numbers * args[i].n);
    if (args[i].kind == TPU_ARG_STRING) args[i].str = tpu_arena_strdup(&memory, args[i].str);
  }
  for (int i = 0; i < call->n_tensors; i++) {
    const tpu_tensor *t = &call->tensors[i];
    if (!t->storage) {
      ops[i] = (tpu_operand){.dtype = TPU_DTYPE_NONE};
      s->operand_bytes[i] = -1;
      continue;
    }
    size_t bytes = sizeof(int64_t) * (size_t)t->rank;
    ops[i] = (tpu_operand){.dtype = t->dtype, .rank = t->rank};
    ops[i].sizes = tpu_arena_copy(&memory, t->sizes, bytes);
    int64_t plain[TPU_MAX_RANK];
    ops[i].strides = tpu_arena_copy(&memory, key_strides(call->row, t, plain), bytes);
    if (memory.failed) return false;
    int perm[TPU_MAX_RANK];
    s->operand_bytes[i] = -1;
    if (tpu_memory_order(t->rank, t->sizes, t->strides, perm))
      s->operand_bytes[i] = tpu_type_numel((tpu_type){t->dtype, t->rank, t->sizes}) * tpu_dtype_bytes(t->dtype);
  }
  s->args = (tpu_args){.row = call->row,
                       .n = call->n_args,
                       .arg = args,
                       .n_operands = call->n_tensors,
                       .operands = ops,
                       .n_slots = call->n_numbers,
                       .n_returns = call->n_returns,
                       .default_dtype = call->default_dtype};
  return !memory.failed;
}

static tpu_status out_of_memory(void) { return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

static tpu_status set_result(tpu_signature *s, int k, tpu_dtype dtype, int rank, const int64_t *sizes, const int64_t *strides) {
  bool dense;
  const tpu_place *place = tpu_place_intern(dtype, rank, sizes, strides, &dense);
  int64_t plain[TPU_MAX_RANK];
  if (!place && !dense) { /* a rule asked for gaps: results of our own are always dense */
    strides_contiguous(rank, sizes, plain);
    strides = plain;
    place = tpu_place_intern(dtype, rank, sizes, plain, &dense);
  }
  if (!place) return out_of_memory();
  s->places[k] = place;
  const int64_t *shown; /* a place's are plain */
  if (memcmp(strides, place->strides, sizeof *strides * (size_t)rank) == 0)
    shown = place->strides;
  else
    shown = tpu_arena_copy(&memory, strides, sizeof *strides * (size_t)rank);
  if (!shown) return out_of_memory();
  s->results[k] = (tpu_result){.dtype = dtype, .rank = rank, .sizes = place->sizes, .strides = shown};
  return NULL;
}

static tpu_status prepare_outs(tpu_signature *s, int n) {
  s->n_out = n;
  s->results = tpu_arena_calloc(&memory, (size_t)n, sizeof *s->results);
  s->places = tpu_arena_calloc(&memory, (size_t)n, sizeof *s->places);
  return s->results && s->places ? NULL : out_of_memory();
}

/* Is the result one number everywhere, whatever the operands? */
static void find_fill(const tpu_build *b, tpu_signature *s, tpu_val v) {
  s->fill_slot = NO_SLOT;
  for (;;) {
    uint32_t result;
    const tpu_node *node = tpu_graph_producer(b->graph, v, &result);
    double number;
    if (!node) return;
    if (node->op == TPU_HLO_SLOT) {
      /* Converted on the way, the number would be rounded twice: only a slot of the result's own dtype counts. */
      if (tpu_type_of(b, v).dtype != s->results[0].dtype) return;
      for (int i = 0; i < s->args.n; i++)
        if (s->args.arg[i].kind == TPU_ARG_NUMBER && (uint32_t)tpu_node_attr(node, 0) == s->args.arg[i].first) {
          s->fill_slot = s->args.arg[i].first;
          s->is_fill = true;
        }
      return;
    }
    if (tpu_is_splat(b, v, &number)) {
      tpu_dtype t = tpu_type_of(b, v).dtype;
      if (tpu_is_complex(t) || t != s->results[0].dtype ||
          (tpu_dtype_bytes(t) == 8 && !tpu_is_float(t) && (number > 1e15 || number < -1e15)))
        return; /* a double cannot say it */
      s->fill = (tpu_number){.dtype = TPU_F64, .f = number};
      s->is_fill = true;
      return;
    }
    if (node->op != TPU_HLO_BROADCAST_IN_DIM && node->op != TPU_HLO_RESHAPE && node->op != TPU_HLO_TRANSPOSE) return;
    v = node->operands[0];
  }
}

/* Lowers the call into a scratch graph to learn its results. */
static tpu_status learn(tpu_signature *s) {
  if (!scratch && !(scratch = tpu_graph_create())) return out_of_memory();
  tpu_graph_reset(scratch);
  tpu_target target = tpu_rt.target;
  target.precision = tpu_precision_get();
  tpu_build b;
  tpu_build_init(&b, scratch, &target);
  tpu_args args = s->args;
  tpu_operand *ops = tpu_build_alloc(&b, sizeof *ops * (size_t)(args.n_operands + 1));
  if (ops) {
    for (int i = 0; i < args.n_operands; i++) {
      ops[i] = s->args.operands[i];
      if (ops[i].dtype != TPU_DTYPE_NONE) ops[i].val = tpu_param(&b, ops[i].dtype, ops[i].rank, ops[i].sizes);
    }
    args.operands = ops;
    tpu_outs outs = {.n = args.n_returns};
    tpu_lower_call(&b, &args, &outs);
    if (!tpu_build_failed(&b)) {
      tpu_status status = prepare_outs(s, outs.n);
      for (int k = 0; !status && k < outs.n; k++) {
        if (outs.out[k].undefined) {
          s->results[k].undefined = true;
          continue;
        }
        tpu_type t = tpu_type_of(&b, outs.out[k].val);
        status = set_result(s, k, t.dtype, t.rank, t.dims, outs.out[k].strides);
      }
      s->random_blocks = outs.random_blocks;
      if (!status && outs.n == 1 && !outs.out[0].undefined && !args.row->random) find_fill(&b, s, outs.out[0].val);
      s->n_numbers = (uint32_t)args.n_slots + (s->args.row->random ? 2u : 0u);
      tpu_status_release(tpu_build_status(&b));
      return status;
    }
  }
  tpu_status status = tpu_build_status(&b);
  return status ? status : out_of_memory();
}

static tpu_status create(tpu_hash hash, const key *k, const tpu_call *call, tpu_sig_kind kind, tpu_dtype dtype,
                         const tpu_signature **out) {
  tpu_arena_mark mark = tpu_arena_save(&memory);
  tpu_signature *s = tpu_arena_calloc(&memory, 1, sizeof *s);
  tpu_status status = NULL;
  if (!s || !copy_args(s, call)) {
    status = out_of_memory();
  } else {
    s->hash = hash;
    s->kind = kind;
    s->n_words = k->n;
    s->words = tpu_arena_copy(&memory, k->words, k->n * sizeof *k->words);
    if (!s->words)
      status = out_of_memory();
    else if (kind == SIG_CALL)
      status = learn(s);
    else if (kind == SIG_CONVERT) {
      status = prepare_outs(s, 1);
      const tpu_tensor *t = call->tensors;
      int64_t strides[TPU_MAX_RANK];
      int perm[TPU_MAX_RANK];
      if (tpu_memory_order(t->rank, t->sizes, t->strides, perm))
        memcpy(strides, t->strides, sizeof(int64_t) * (size_t)t->rank);
      else
        strides_contiguous(t->rank, t->sizes, strides);
      if (!status) status = set_result(s, 0, dtype, t->rank, t->sizes, strides);
    } else {
      status = prepare_outs(s, 1);
    }
    if (!status) {
      s->next = tpu_map_get(&table, hash.lo);
      if (!tpu_map_put(&table, hash.lo, s)) status = out_of_memory();
    }
  }
  if (status) {
    memory.failed = false;
    tpu_arena_restore(&memory, mark);
    return status;
  }
  *out = s;
  return NULL;
}

static tpu_status get(key *k, const tpu_call *call, tpu_sig_kind kind, tpu_dtype dtype, const tpu_signature **out) {
  if (k->failed) {
    if (k->words != k->inline_words) tpu_free(k->words);
    return out_of_memory();
  }
  tpu_hash hash = key_hash(k);
  tpu_status status = NULL;
  pthread_mutex_lock(&table_lock);
  const tpu_signature *s = find(hash, k);
  if (s)
    *out = s;
  else
    status = create(hash, k, call, kind, dtype, out);
  pthread_mutex_unlock(&table_lock);
  if (!s && !status) {
    tpu_rt_lock();
    tpu_rt.stats.signatures++;
    tpu_rt_unlock();
  }
  if (k->words != k->inline_words) tpu_free(k->words);
  return status;
}

static tpu_status check_numbers(const tpu_call *call) {
  double v[TPU_CHECKED_ARGS] = {0};
  for (int i = 0; i < call->n_args && i < TPU_CHECKED_ARGS; i++) {
    if (call->args[i].kind != TPU_ARG_NUMBER) continue;
    const tpu_number *n = &call->numbers[call->args[i].first];
    v[i] = tpu_number_real(n);
  }
  return call->row->check(v, call->n_tensors ? call->tensors[0].dtype : TPU_DTYPE_NONE);
}

tpu_status tpu_signature_get(const tpu_call *call, const tpu_signature **out) {
  TPU_TRY(tpu_rt_enter());
  if (call->row->check) TPU_TRY(check_numbers(call));
  key k;
  k.words = k.inline_words;
  k.n = 0;
  k.capacity = INLINE_WORDS;
  k.failed = false;
  key_word(&k, (uint64_t)(uintptr_t)call->row ^ (uint64_t)call->default_dtype << 48 ^ (uint64_t)call->n_args << 56);
  for (int i = 0; i < call->n_args; i++) key_arg(&k, &call->args[i]);
  for (int i = 0; i < call->n_tensors; i++) key_tensor(&k, call->row, &call->tensors[i]);
  TPU_TRY(get(&k, call, SIG_CALL, TPU_DTYPE_NONE, out));
  return call->row->fits ? tpu_numbers_fit(call, (*out)->results[0].dtype) : NULL;
}

tpu_status tpu_signature_internal(tpu_sig_kind kind, int n_tensors, const tpu_tensor *tensors, tpu_dtype dtype,
                                  const tpu_signature **out) {
  tpu_call call = {.n_tensors = n_tensors, .tensors = tensors, .n_returns = 1};
  key k;
  k.words = k.inline_words;
  k.n = 0;
  k.capacity = INLINE_WORDS;
  k.failed = false;
  key_word(&k, (uint64_t)kind << 8 | (uint64_t)dtype);
  for (int i = 0; i < n_tensors; i++) key_tensor(&k, NULL, &tensors[i]);
  return get(&k, &call, kind, dtype, out);
}

int tpu_signature_outputs(const tpu_signature *s) { return s->n_out; }
const tpu_result *tpu_signature_output(const tpu_signature *s, int k) { return &s->results[k]; }
