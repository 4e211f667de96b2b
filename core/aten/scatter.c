/* gather, scatter and their kin. Source: aten/src/ATen/native/ScatterGatherChecks.h, TensorAdvancedIndexing.cpp. */
#include <inttypes.h>
#include <string.h>

#include "aten/indexing.h"

bool index_reduction_parse(const char *name, index_reduction *out) {
  static const char *const names[] = {"sum", "prod", "mean", "amax", "amin"};
  for (int i = 0; i < 5; i++)
    if (strcmp(name, names[i]) == 0) {
      *out = (index_reduction)i;
      return true;
    }
  return false;
}

static tpu_val identity_of(tpu_build *b, index_reduction op, tpu_dtype dtype) {
  switch (op) {
    case INDEX_PROD: return tpu_scalar(b, dtype, 1);
    case INDEX_AMAX: return tpu_lowest(b, dtype);
    case INDEX_AMIN: return tpu_highest(b, dtype);
    default: return tpu_scalar(b, dtype, 0);
  }
}

/* Towards minus infinity, as at::div(rounding_mode="floor"); y > 0. */
static tpu_val floor_divide(tpu_build *b, tpu_val x, tpu_val y) {
  tpu_val zero = tpu_full_like(b, x, 0), one = tpu_full_like(b, x, 1), q = tpu_div(b, x, y);
  if (tpu_dtype_kind(tpu_dtype_of(b, x)) != TPU_KIND_INT) return q;
  tpu_val down =
      tpu_and(b, tpu_compare(b, TPU_LT, x, zero), tpu_compare(b, TPU_NE, tpu_binary(b, TPU_HLO_REMAINDER, x, y), zero));
  return tpu_select(b, down, tpu_sub(b, q, one), q);
}

tpu_val index_scatter_reduce(tpu_build *b, index_reduction op, tpu_val x, int dim, tpu_val index, const int64_t *strides,
                             tpu_val src, bool include_self) {
  static const tpu_monoid monoids[] = {TPU_MONOID_ADD, TPU_MONOID_MUL, TPU_MONOID_ADD, TPU_MONOID_MAX, TPU_MONOID_MIN};
  tpu_dtype dtype = tpu_dtype_of(b, x), math = dtype;
  if (op == INDEX_MEAN) math = tpu_dtype_opmath(dtype);
  x = tpu_convert(b, x, math);
  src = tpu_convert(b, src, math);
  if (!include_self) {
    tpu_val start = tpu_broadcast_like(b, identity_of(b, op, math), src);
    x = index_scatter(b, TPU_MONOID_ASSIGN, x, dim, index, strides, start);
  }
  tpu_val y = index_scatter(b, monoids[op], x, dim, index, strides, src);
  if (op != INDEX_MEAN || dtype == TPU_BOOL) return tpu_convert(b, y, dtype);
  tpu_dtype count_dtype = tpu_is_complex(math) ? tpu_dtype_real(math) : math;
  if (tpu_dtype_bytes(count_dtype) < 4) count_dtype = TPU_I32; /* int8 could not count */
  tpu_type type = tpu_type_of(b, x);
  tpu_val count = tpu_full(b, count_dtype, type.rank, type.dims, include_self ? 1 : 0);
  tpu_type src_type = tpu_type_of(b, src);
  count = index_scatter(b, TPU_MONOID_ADD, count, dim, index, strides, tpu_full(b, count_dtype, src_type.rank, src_type.dims, 1));
  count = tpu_convert(b, tpu_max(b, count, tpu_full_like(b, count, 1)), math);
  y = tpu_is_float(math) || tpu_is_complex(math) ? tpu_div(b, y, count) : floor_divide(b, y, count);
  return tpu_convert(b, y, dtype);
}

/* --- rows */

typedef struct along_dim {
  const tpu_operand *self, *index, *src;
  int dim;
  tpu_val position;
} along_dim;

static bool no_larger(const tpu_operand *index, const tpu_operand *than, int but_dim) {
  for (int d = 0; d < index->rank; d++)
    if (d != but_dim && index->sizes[d] > than->sizes[d]) return false;
  return true;
}

static int rank_or_one(const tpu_operand *x) { return x->rank ? x->rank : 1; }

/* Scalars count as vectors: all operands of a lowering get rank 1 then. */
static tpu_val as_vector(tpu_build *b, tpu_val x) { return tpu_rank_of(b, x) ? x : index_flatten(b, x); }

static bool read_along(tpu_build *b, const tpu_args *a, const char *name, along_dim *out) {
  *out = (along_dim){.self = arg_operand(b, a, 0), .index = arg_operand(b, a, 2)};
  if (!out->self || !out->index) return false;
  out->dim = arg_dim(b, a, 1, out->self->rank);
  if (tpu_build_failed(b)) return false;
  if (!index_is_integer(out->index->dtype) && tpu_numel_of(b, out->index->val) != 0)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "%s(): Expected dtype int32/int64 for index", name);
  int64_t size = out->self->rank ? out->self->sizes[out->dim] : 1;
  out->position = as_vector(b, index_prepare(b, out->index->val, size, false));
  return !tpu_build_failed(b);
}

/* gather(self, dim, index, *, sparse_grad=False) */
void lower_gather(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  along_dim s;
  if (!read_along(b, a, "gather", &s)) return;
  tpu_type type = tpu_type_of(b, s.index->val);
  if (tpu_type_numel(type) == 0) {
    o->out[0].val = tpu_full(b, s.self->dtype, type.rank, type.dims, 0);
    return;
  }
  if (rank_or_one(s.self) != rank_or_one(s.index)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Index tensor must have the same number of dimensions as input tensor");
    return;
  }
  for (int d = 0; d < s.index->rank && s.self->rank; d++) {
    if (d == s.dim || s.index->sizes[d] <= s.self->sizes[d]) continue;
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Size does not match at dimension %d expected index %s to be no larger than self %s apart from dimension %d", d,
             index_dims_text(b, type.rank, type.dims), index_dims_text(b, s.self->rank, s.self->sizes), s.dim);
    return;
  }
  tpu_val y = index_gather(b, as_vector(b, s.self->val), s.dim, s.position, s.index->rank ? s.index->strides : NULL);
  o->out[0].val = tpu_reshape(b, y, type.rank, type.dims);
}

static bool check_scatter(tpu_build *b, const along_dim *s, const tpu_operand *src) {
  const tpu_operand *self = s->self, *index = s->index;
  if (rank_or_one(self) != rank_or_one(index)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Index tensor must have the same number of dimensions as self tensor");
    return false;
  }
  if (src && rank_or_one(src) != rank_or_one(index)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Index tensor must have the same number of dimensions as src tensor");
    return false;
  }
  bool fits = self->rank == 0 || index->rank == 0 || no_larger(index, self, s->dim);
  bool src_fits = !src || src->rank == 0 || index->rank == 0 || no_larger(index, src, -1);
  if (fits && src_fits) return true;
  const char *index_text = index_dims_text(b, index->rank, index->sizes);
  const char *self_text = index_dims_text(b, self->rank, self->sizes);
  if (src)
    tpu_fail(b, TPU_INVALID_ARGUMENT,
             "Expected index %s to be no larger than self %s apart from dimension %d and to be no larger size than src %s",
             index_text, self_text, s->dim, index_dims_text(b, src->rank, src->sizes));
  else
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected index %s to be no larger than self %s apart from dimension %d", index_text,
             self_text, s->dim);
  return false;
}

/* The operands of a scatter; updates: src cut to the index, or the number repeated. */
static bool read_scatter(tpu_build *b, const tpu_args *a, along_dim *s, tpu_val *out_updates) {
  if (!read_along(b, a, "scatter", s)) return false;
  tpu_type type = tpu_type_of(b, s->position);
  const tpu_operand *src = a->arg[3].kind == TPU_ARG_TENSOR ? arg_operand(b, a, 3) : NULL;
  if (src && src->dtype != s->self->dtype) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "scatter(): Expected self.dtype to be equal to src.dtype");
    return false;
  }
  if (tpu_type_numel(type) == 0) {
    *out_updates = tpu_full(b, s->self->dtype, type.rank, type.dims, 0);
    return true;
  }
  if (!check_scatter(b, s, src)) return false;
  if (src) {
    int64_t start[TPU_MAX_RANK] = {0};
    *out_updates = tpu_slice(b, as_vector(b, src->val), start, type.dims, NULL);
  } else {
    *out_updates = tpu_broadcast_like(b, arg_number(b, a, 3, s->self->dtype), s->position);
  }
  return !tpu_build_failed(b);
}

static const int64_t *index_strides(const along_dim *s) { return s->index->rank ? s->index->strides : NULL; }

static void scatter_row(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_monoid op) {
  along_dim s;
  tpu_val updates;
  if (!read_scatter(b, a, &s, &updates)) return;
  if (tpu_numel_of(b, updates) == 0) {
    o->out[0].val = s.self->val;
    return;
  }
  tpu_val y = index_scatter(b, op, as_vector(b, s.self->val), s.dim, s.position, index_strides(&s), updates);
  o->out[0].val = tpu_reshape(b, y, s.self->rank, s.self->sizes);
}

/* scatter.src, scatter.value, scatter_add; row->rule is the tpu_monoid */
void lower_scatter(tpu_build *b, const tpu_args *a, tpu_outs *o) { scatter_row(b, a, o, (tpu_monoid)a->row->rule); }

/* scatter.reduce, scatter.value_reduce: (self, dim, index, src, *, reduce) */
void lower_scatter_with(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const char *reduce = arg_str(a, 4);
  bool add = strcmp(reduce, "add") == 0;
  if (!add && strcmp(reduce, "multiply") != 0) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "reduce argument must be either add or multiply.");
    return;
  }
  scatter_row(b, a, o, add ? TPU_MONOID_ADD : TPU_MONOID_MUL);
}

/* scatter_reduce.two(self, dim, index, src, reduce, *, include_self=True) */
void lower_scatter_reduce(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const char *reduce = arg_str(a, 4);
  index_reduction op;
  along_dim s;
  tpu_val updates;
  if (!index_reduction_parse(reduce, &op)) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "reduce argument must be either sum, prod, mean, amax or amin, got %s", reduce);
    return;
  }
  if (!read_scatter(b, a, &s, &updates)) return;
  bool ordered = op == INDEX_AMAX || op == INDEX_AMIN;
  if ((tpu_is_complex(s.self->dtype) && ordered) || (s.self->dtype == TPU_BOOL && op == INDEX_MEAN)) {
    fail_not_implemented(b, a, s.self->dtype);
    return;
  }
  if (tpu_numel_of(b, updates) == 0) {
    o->out[0].val = s.self->val;
    return;
  }
  bool include_self = !arg_present(a, 5) || arg_bool(b, a, 5);
  tpu_val y = index_scatter_reduce(b, op, as_vector(b, s.self->val), s.dim, s.position, index_strides(&s), updates, include_self);
  o->out[0].val = tpu_reshape(b, y, s.self->rank, s.self->sizes);
}
