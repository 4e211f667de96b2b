/* Random calls of the builder over integers, for tests. A step is planned from its operands' types and can then be applied to any
 * graph with operands of these types.
 */
#ifndef TPU_IR_FUZZ_TEST_H
#define TPU_IR_FUZZ_TEST_H

#include <string.h>

#include "ir/graph_private.h"

enum { FUZZ_RANK = 4, FUZZ_NUMEL = 400, FUZZ_POOL = 64 };

typedef enum fuzz_kind {
  FUZZ_PARAM,
  FUZZ_FULL,
  FUZZ_RESHAPE,
  FUZZ_TRANSPOSE,
  FUZZ_BROADCAST,
  FUZZ_SLICE,
  FUZZ_PAD,
  FUZZ_CONCAT,
  FUZZ_REVERSE,
  FUZZ_BINARY,
  FUZZ_UNARY,
  FUZZ_CONVERT,
  FUZZ_SELECT,
  FUZZ_DYNAMIC_SLICE,
  FUZZ_UPDATE,
  FUZZ_DOT,
  FUZZ_KINDS
} fuzz_kind;

typedef struct fuzz_step {
  fuzz_kind kind;
  tpu_hlo op;
  tpu_dtype dtype;
  int rank, n_operands;
  int operands[2]; /* indices into the pool */
  int64_t a[FUZZ_RANK], b[FUZZ_RANK], c[FUZZ_RANK], number;
  int n_batch, n_contract;
} fuzz_step;

static uint64_t fuzz_next(uint64_t *state) {
  uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}
static int64_t fuzz_below(uint64_t *state, int64_t n) { return (int64_t)(fuzz_next(state) % (uint64_t)n); }

static tpu_dtype fuzz_dtype(uint64_t *r) {
  static const tpu_dtype types[] = {TPU_I32, TPU_I64, TPU_U8, TPU_I32, TPU_I8};
  return types[fuzz_below(r, 5)];
}

static int fuzz_dims(uint64_t *r, int64_t most, int64_t *out) {
  int rank = (int)fuzz_below(r, FUZZ_RANK + 1);
  for (int i = 0; i < rank; i++) out[i] = fuzz_below(r, 40) == 0 ? 0 : 1 + fuzz_below(r, most);
  return rank;
}

static void fuzz_permutation(uint64_t *r, int n, int64_t *out) {
  for (int i = 0; i < n; i++) {
    int k = (int)fuzz_below(r, i + 1);
    out[i] = out[k];
    out[k] = i;
  }
}

/* Dims of as many elements as x has: its dims merged or split at random. */
static int fuzz_refactor(uint64_t *r, tpu_type x, int64_t *out) {
  int64_t left = tpu_type_numel(x);
  int rank = 0;
  if (left == 0) {
    out[0] = 0;
    return 1;
  }
  while (rank < FUZZ_RANK - 1 && (left > 1 || fuzz_below(r, 2))) {
    int64_t d = 1 + fuzz_below(r, 6);
    if (left % d) d = 1;
    out[rank++] = d;
    left /= d;
  }
  if (left > 1 || rank == 0) out[rank++] = left;
  return rank;
}

static int fuzz_same_type(uint64_t *r, int n, const tpu_type *types, tpu_type want) {
  int at = (int)fuzz_below(r, n);
  for (int i = 0; i < n; i++)
    if (tpu_type_equal(types[(at + i) % n], want)) return (at + i) % n;
  return -1;
}

/* Plans a step over the pool's types; false: nothing of this kind is possible with what was drawn. */
static bool fuzz_plan(uint64_t *r, int64_t most, int n, const tpu_type *types, fuzz_step *s) {
  static const tpu_hlo binaries[] = {TPU_HLO_ADD, TPU_HLO_SUBTRACT, TPU_HLO_MULTIPLY, TPU_HLO_MAXIMUM, TPU_HLO_MINIMUM,
                                     TPU_HLO_AND, TPU_HLO_OR,       TPU_HLO_XOR,      TPU_HLO_DIVIDE};
  *s = (fuzz_step){.kind = n ? (fuzz_kind)fuzz_below(r, FUZZ_KINDS) : FUZZ_PARAM, .n_operands = 1};
  s->dtype = fuzz_dtype(r);
  if (s->kind == FUZZ_PARAM || s->kind == FUZZ_FULL) {
    s->n_operands = 0;
    s->rank = fuzz_dims(r, most, s->a);
    s->number = fuzz_below(r, 5) - 1;
    return true;
  }
  s->operands[0] = (int)fuzz_below(r, n);
  tpu_type x = types[s->operands[0]];
  switch (s->kind) {
    case FUZZ_RESHAPE: s->rank = fuzz_refactor(r, x, s->a); return true;
    case FUZZ_TRANSPOSE: fuzz_permutation(r, x.rank, s->a); return true;
    case FUZZ_BROADCAST: {
      int64_t perm[FUZZ_RANK], numel = 1;
      if (x.rank == 0 && fuzz_below(r, 2)) return false;
      s->rank = x.rank + (int)fuzz_below(r, FUZZ_RANK + 1 - x.rank);
      fuzz_permutation(r, s->rank, perm);
      for (int i = 0; i < s->rank; i++) s->a[i] = 1 + fuzz_below(r, 3);
      for (int i = 0; i < x.rank; i++) {
        s->b[i] = fuzz_below(r, 2) ? i : perm[i];
        for (int k = 0; k < i; k++)
          if (s->b[k] == s->b[i]) return false;
        if (x.dims[i] != 1) s->a[s->b[i]] = x.dims[i];
      }
      for (int i = 0; i < s->rank; i++) numel *= s->a[i];
      return numel <= FUZZ_NUMEL;
    }
    case FUZZ_SLICE:
      for (int i = 0; i < x.rank; i++) {
        s->a[i] = fuzz_below(r, 2) ? 0 : fuzz_below(r, x.dims[i] + 1);
        s->b[i] = fuzz_below(r, 2) ? x.dims[i] : s->a[i] + fuzz_below(r, x.dims[i] - s->a[i] + 1);
        s->c[i] = 1 + (fuzz_below(r, 3) == 0) * fuzz_below(r, 3);
      }
      return true;
    case FUZZ_PAD: {
      int64_t numel = 1;
      s->number = fuzz_below(r, 3);
      for (int i = 0; i < x.rank; i++) {
        s->a[i] = fuzz_below(r, 3) - 1;
        s->b[i] = fuzz_below(r, 3) - 1;
        s->c[i] = fuzz_below(r, 4) == 0;
        int64_t size = x.dims[i] + (x.dims[i] ? (x.dims[i] - 1) * s->c[i] : 0) + s->a[i] + s->b[i];
        if (size < 0) return false;
        numel *= size;
      }
      return numel <= FUZZ_NUMEL;
    }
    case FUZZ_CONCAT:
      if (!x.rank || tpu_type_numel(x) > FUZZ_NUMEL / 2) return false;
      s->number = fuzz_below(r, x.rank);
      s->operands[1] = fuzz_same_type(r, n, types, x);
      s->n_operands = 2;
      return true;
    case FUZZ_REVERSE:
      s->rank = (int)fuzz_below(r, x.rank + 1);
      fuzz_permutation(r, x.rank, s->a);
      return true;
    case FUZZ_BINARY:
      s->op = binaries[fuzz_below(r, x.dtype == TPU_BOOL ? 1 : 9)];
      if (x.dtype == TPU_BOOL) s->op = binaries[5 + fuzz_below(r, 3)];
      s->operands[1] = fuzz_same_type(r, n, types, x);
      s->n_operands = fuzz_below(r, 2) ? 2 : 1; /* one: the other is a splat */
      s->number = fuzz_below(r, 4) - 1;
      s->n_batch = (int)fuzz_below(r, 2); /* the splat's side */
      return true;
    case FUZZ_UNARY: s->op = fuzz_below(r, 2) && x.dtype != TPU_BOOL ? TPU_HLO_NEGATE : TPU_HLO_NOT; return true;
    case FUZZ_CONVERT: s->dtype = fuzz_below(r, 4) ? s->dtype : TPU_BOOL; return true;
    case FUZZ_SELECT:
      s->operands[1] = fuzz_same_type(r, n, types, x);
      s->n_operands = 2;
      s->number = fuzz_below(r, 4);
      return true;
    case FUZZ_DYNAMIC_SLICE:
    case FUZZ_UPDATE:
      for (int i = 0; i < x.rank; i++) {
        s->a[i] = fuzz_below(r, x.dims[i] + 2) - 1;
        s->b[i] = fuzz_below(r, 2) ? x.dims[i] : fuzz_below(r, x.dims[i] + 1);
      }
      return true;
    case FUZZ_DOT: {
      s->operands[1] = (int)fuzz_below(r, n);
      tpu_type y = types[s->operands[1]];
      s->n_operands = 2;
      if (x.dtype != y.dtype || x.dtype == TPU_BOOL) return false;
      bool used[FUZZ_RANK] = {false};
      int64_t numel = 1, work = 1, lhs[FUZZ_RANK];
      for (int i = 0; i < x.rank; i++) lhs[i] = 0;
      for (int i = 0; i < x.rank; i++) {
        int k = (int)fuzz_below(r, y.rank ? y.rank : 1), role = (int)fuzz_below(r, 3);
        if (k >= y.rank || used[k] || y.dims[k] != x.dims[i] || role == 0) continue;
        used[k] = true;
        lhs[i] = role;
        s->c[i] = k; /* its partner */
      }
      int rank = 0;
      for (int i = 0; i < x.rank; i++) {
        work *= x.dims[i];
        if (lhs[i] != 2) numel *= x.dims[i], rank++;
        s->a[i] = lhs[i];
      }
      for (int k = 0; k < y.rank; k++)
        if (!used[k]) numel *= y.dims[k], work *= y.dims[k], rank++;
      return rank <= FUZZ_RANK && numel <= FUZZ_NUMEL && work <= 4000;
    }
    default: return false;
  }
}

/* The step as the one node it stands for, past the builder's folds. */
static inline tpu_val fuzz_apply_plain(tpu_build *b, const fuzz_step *s, const tpu_val *x) {
  tpu_type t = tpu_type_of(b, x[0]), asked = {t.dtype, s->rank, s->a};
  uint32_t rank = (uint32_t)t.rank;
  int64_t v[3 * FUZZ_RANK];
  for (int i = 0; i < t.rank; i++) {
    v[i] = s->a[i];
    v[i + t.rank] = s->b[i];
    v[i + 2 * t.rank] = s->c[i];
  }
  tpu_val in[2 + FUZZ_RANK] = {x[0], s->n_operands > 1 ? x[1] : x[0]};
  switch (s->kind) {
    case FUZZ_RESHAPE: return tpu_build_simple(b, TPU_HLO_RESHAPE, 1, x, NULL, 0, &asked);
    case FUZZ_TRANSPOSE: return tpu_build_simple(b, TPU_HLO_TRANSPOSE, 1, x, s->a, rank, NULL);
    case FUZZ_BROADCAST: return tpu_build_simple(b, TPU_HLO_BROADCAST_IN_DIM, 1, x, s->b, rank, &asked);
    case FUZZ_SLICE: return tpu_build_simple(b, TPU_HLO_SLICE, 1, x, v, 3 * rank, NULL);
    case FUZZ_REVERSE: return s->rank ? tpu_build_simple(b, TPU_HLO_REVERSE, 1, x, s->a, (uint32_t)s->rank, NULL) : x[0];
    case FUZZ_PAD: in[1] = tpu_scalar_i(b, t.dtype, s->number); return tpu_build_simple(b, TPU_HLO_PAD, 2, in, v, 3 * rank, NULL);
    case FUZZ_BINARY:
      if (s->n_operands == 1) in[s->n_batch ? 0 : 1] = tpu_full_i(b, t.dtype, t.rank, t.dims, s->number);
      return tpu_build_simple(b, s->op, 2, in, NULL, 0, NULL);
    case FUZZ_UNARY: return tpu_build_simple(b, s->op, 1, x, NULL, 0, NULL);
    case FUZZ_SELECT: {
      tpu_val pred = s->number == 0   ? tpu_scalar_i(b, TPU_BOOL, 1)
                     : s->number == 1 ? tpu_full_i(b, TPU_BOOL, t.rank, t.dims, 0)
                                      : tpu_build_simple(b, TPU_HLO_COMPARE, 2, in, (int64_t[]){TPU_LT, 0}, 2, NULL);
      if (s->number == 3) pred = tpu_build_simple(b, TPU_HLO_NOT, 1, &pred, NULL, 0, NULL);
      return tpu_build_simple(b, TPU_HLO_SELECT, 3, (tpu_val[]){pred, in[0], in[1]}, NULL, 0, NULL);
    }
    case FUZZ_DYNAMIC_SLICE:
      for (int i = 0; i < t.rank; i++) in[1 + i] = tpu_scalar_i(b, TPU_I32, s->a[i]);
      return tpu_build_simple(b, TPU_HLO_DYNAMIC_SLICE, 1 + rank, in, s->b, rank, NULL);
    case FUZZ_UPDATE:
      in[1] = tpu_full_i(b, t.dtype, t.rank, s->b, 9);
      for (int i = 0; i < t.rank; i++) in[2 + i] = tpu_scalar_i(b, TPU_I64, s->a[i]);
      return tpu_build_simple(b, TPU_HLO_DYNAMIC_UPDATE_SLICE, 2 + rank, in, NULL, 0, NULL);
    default: return TPU_POISON;
  }
}

static tpu_val fuzz_apply(tpu_build *b, const fuzz_step *s, const tpu_val *x) {
  tpu_type t = s->n_operands ? tpu_type_of(b, x[0]) : (tpu_type){s->dtype, 0, NULL};
  switch (s->kind) {
    case FUZZ_PARAM: return tpu_param(b, s->dtype, s->rank, s->a);
    case FUZZ_FULL: return tpu_full_i(b, s->dtype, s->rank, s->a, s->number);
    case FUZZ_RESHAPE: return tpu_reshape(b, x[0], s->rank, s->a);
    case FUZZ_TRANSPOSE: return tpu_transpose(b, x[0], s->a);
    case FUZZ_BROADCAST: return tpu_broadcast_in_dim(b, x[0], s->rank, s->a, s->b);
    case FUZZ_SLICE: return tpu_slice(b, x[0], s->a, s->b, s->c);
    case FUZZ_PAD: return tpu_pad(b, x[0], tpu_scalar_i(b, t.dtype, s->number), s->a, s->b, s->c);
    case FUZZ_CONCAT: return tpu_concat(b, 2, x, (int)s->number);
    case FUZZ_REVERSE: return tpu_reverse(b, x[0], s->rank, s->a);
    case FUZZ_BINARY: {
      if (s->n_operands == 2) return tpu_binary(b, s->op, x[0], x[1]);
      tpu_val splat = tpu_full_i(b, t.dtype, t.rank, t.dims, s->number);
      return s->n_batch ? tpu_binary(b, s->op, splat, x[0]) : tpu_binary(b, s->op, x[0], splat);
    }
    case FUZZ_UNARY: return tpu_unary(b, s->op, x[0]);
    case FUZZ_CONVERT: return tpu_convert(b, x[0], s->dtype);
    case FUZZ_SELECT: {
      tpu_val pred = s->number == 0   ? tpu_scalar_i(b, TPU_BOOL, 1)
                     : s->number == 1 ? tpu_full_i(b, TPU_BOOL, t.rank, t.dims, 0)
                                      : tpu_compare(b, TPU_LT, x[0], x[1]);
      if (s->number == 3) pred = tpu_not(b, pred);
      return tpu_select(b, pred, x[0], x[1]);
    }
    case FUZZ_DYNAMIC_SLICE: {
      tpu_val starts[FUZZ_RANK];
      for (int i = 0; i < t.rank; i++) starts[i] = tpu_scalar_i(b, TPU_I32, s->a[i]);
      return tpu_dynamic_slice(b, x[0], starts, s->b);
    }
    case FUZZ_UPDATE: {
      tpu_val starts[FUZZ_RANK];
      for (int i = 0; i < t.rank; i++) starts[i] = tpu_scalar_i(b, TPU_I64, s->a[i]);
      return tpu_dynamic_update_slice(b, x[0], tpu_full_i(b, t.dtype, t.rank, s->b, 9), starts);
    }
    case FUZZ_DOT: {
      int64_t lhs_batch[FUZZ_RANK], rhs_batch[FUZZ_RANK], lhs[FUZZ_RANK], rhs[FUZZ_RANK];
      tpu_dot_dims d = {0, 0, lhs_batch, rhs_batch, lhs, rhs};
      for (int i = 0; i < t.rank; i++) {
        if (s->a[i] == 1) lhs_batch[d.n_batch] = i, rhs_batch[d.n_batch++] = s->c[i];
        if (s->a[i] == 2) lhs[d.n_contract] = i, rhs[d.n_contract++] = s->c[i];
      }
      return tpu_dot_general(b, x[0], x[1], &d, TPU_DTYPE_NONE);
    }
    default: return TPU_POISON;
  }
}

#endif
