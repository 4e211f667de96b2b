#include <inttypes.h>
#include <string.h>

#include "aten/lower.h"

tpu_dtype default_dtype(const tpu_args *a) { return a->default_dtype == TPU_BOOL ? TPU_F32 : (tpu_dtype)a->default_dtype; }

static tpu_dtype promote_pair(tpu_build *b, tpu_dtype x, tpu_dtype y) {
  if (x == TPU_DTYPE_NONE) return y;
  if (y == TPU_DTYPE_NONE) return x;
  tpu_dtype t = tpu_dtype_promote(x, y);
  if (t != TPU_DTYPE_NONE) return t;
  bool float8 = (tpu_is_float(x) && tpu_dtype_bytes(x) == 1) || (tpu_is_float(y) && tpu_dtype_bytes(y) == 1);
  tpu_fail(b, TPU_INVALID_ARGUMENT, "Promotion for %s is not supported, attempted to promote %s and %s",
           float8 ? "Float8 Types" : "uint16, uint32, uint64 types", tpu_dtype_scalar_name(x), tpu_dtype_scalar_name(y));
  return x;
}

/* at::native::combine_categories (aten/src/ATen/native/TypeProperties.cpp) */
static tpu_dtype combine(tpu_build *b, tpu_dtype higher, tpu_dtype lower) {
  if (higher == TPU_DTYPE_NONE) return lower;
  if (tpu_is_complex(higher)) return higher;
  if (tpu_is_float(higher)) return lower != TPU_DTYPE_NONE && tpu_is_complex(lower) ? tpu_dtype_complex(higher) : higher;
  if (lower == TPU_DTYPE_NONE) return higher;
  if (higher == TPU_BOOL || tpu_is_float(lower) || tpu_is_complex(lower)) return promote_pair(b, higher, lower);
  return higher;
}

typedef struct categories {
  tpu_dtype dims, zero_dim, wrapped;
} categories;

static tpu_dtype wrapped_dtype(const tpu_args *a, tpu_dtype t) {
  if (tpu_is_complex(t)) return tpu_dtype_complex(default_dtype(a));
  return tpu_is_float(t) ? default_dtype(a) : t;
}

static void add_operand(tpu_build *b, categories *c, const tpu_operand *operand) {
  tpu_dtype *category = operand->rank ? &c->dims : &c->zero_dim;
  *category = promote_pair(b, *category, operand->dtype);
}

static void add_argument(tpu_build *b, const tpu_args *a, int i, categories *c) {
  if (i >= a->n) return;
  const tpu_arg *arg = &a->arg[i];
  switch ((tpu_arg_kind)arg->kind) {
    case TPU_ARG_TENSOR: add_operand(b, c, &a->operands[arg->first]); break;
    case TPU_ARG_TENSORS:
      for (uint32_t k = 0; k < arg->n; k++)
        if (a->operands[arg->first + k].dtype != TPU_DTYPE_NONE) add_operand(b, c, &a->operands[arg->first + k]);
      break;
    case TPU_ARG_NUMBER:
      if (arg->flags & TPU_ARG_ZERO_DIM)
        c->zero_dim = promote_pair(b, c->zero_dim, (tpu_dtype)arg->dtype);
      else
        c->wrapped = promote_pair(b, c->wrapped, wrapped_dtype(a, (tpu_dtype)arg->dtype));
      break;
    case TPU_ARG_INT: c->wrapped = promote_pair(b, c->wrapped, TPU_I64); break;
    case TPU_ARG_BOOL: c->wrapped = promote_pair(b, c->wrapped, TPU_BOOL); break;
    default: break;
  }
}

static tpu_dtype category_result(tpu_build *b, const categories *c) {
  return combine(b, c->dims, combine(b, c->zero_dim, c->wrapped));
}

tpu_dtype promote_args(tpu_build *b, const tpu_args *a, int i, int n) {
  categories c = {TPU_DTYPE_NONE, TPU_DTYPE_NONE, TPU_DTYPE_NONE};
  for (int k = i; k < i + n; k++) add_argument(b, a, k, &c);
  return category_result(b, &c);
}

tpu_dtype promote_list(tpu_build *b, const tpu_args *a, int i) { return promote_args(b, a, i, 1); }

tpu_dtype promote_operand_number(tpu_build *b, const tpu_args *a, const tpu_operand *operand, tpu_dtype number) {
  categories c = {TPU_DTYPE_NONE, TPU_DTYPE_NONE, wrapped_dtype(a, number)};
  add_operand(b, &c, operand);
  return category_result(b, &c);
}

tpu_dtype promote_operands(tpu_build *b, int n, const tpu_operand *const *operands) {
  categories c = {TPU_DTYPE_NONE, TPU_DTYPE_NONE, TPU_DTYPE_NONE};
  for (int k = 0; k < n; k++) add_operand(b, &c, operands[k]);
  return category_result(b, &c);
}

tpu_val arg_as(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype) {
  if (i < a->n && a->arg[i].kind == TPU_ARG_TENSOR) return tpu_convert(b, arg_tensor(b, a, i), dtype);
  return arg_number(b, a, i, dtype);
}

tpu_val arg_math(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype) {
  tpu_dtype math = tpu_dtype_opmath(dtype);
  if (i < a->n && a->arg[i].kind == TPU_ARG_TENSOR) return tpu_convert(b, tpu_convert(b, arg_tensor(b, a, i), dtype), math);
  return arg_number(b, a, i, math);
}

tpu_dtype promote_float(tpu_dtype t) { return tpu_is_float(t) || tpu_is_complex(t) ? t : TPU_F32; }

tpu_dtype promote_float_default(const tpu_args *a, tpu_dtype t) {
  return tpu_is_float(t) || tpu_is_complex(t) ? t : default_dtype(a);
}

int broadcast_dims(tpu_build *b, int n, const tpu_val *xs, int64_t *out_dims) {
  int rank = 0;
  for (int i = 0; i < n; i++) {
    tpu_type type = tpu_type_of(b, xs[i]);
    if (type.rank > rank) {
      memmove(out_dims + (type.rank - rank), out_dims, sizeof *out_dims * (size_t)rank);
      for (int d = 0; d < type.rank - rank; d++) out_dims[d] = 1;
      rank = type.rank;
    }
    for (int d = type.rank - 1; d >= 0; d--) {
      int at = rank - type.rank + d;
      int64_t size = type.dims[d], have = out_dims[at];
      if (size == have || size == 1) continue;
      if (have != 1) {
        tpu_fail(b, TPU_INVALID_ARGUMENT,
                 "The size of tensor a (%" PRId64 ") must match the size of tensor b (%" PRId64 ") at non-singleton dimension %d",
                 have, size, at);
        return 0;
      }
      out_dims[at] = size;
    }
  }
  return rank;
}

void broadcast_all(tpu_build *b, int n, tpu_val *xs) {
  int64_t dims[TPU_MAX_RANK];
  int rank = broadcast_dims(b, n, xs, dims);
  for (int i = 0; i < n; i++) xs[i] = tpu_broadcast_to(b, xs[i], rank, dims);
}

tpu_val bcast_binary(tpu_build *b, tpu_hlo op, tpu_val x, tpu_val y) {
  tpu_val xs[2] = {x, y};
  broadcast_all(b, 2, xs);
  return tpu_binary(b, op, xs[0], xs[1]);
}

tpu_val bcast_select(tpu_build *b, tpu_val pred, tpu_val x, tpu_val y) {
  tpu_val xs[3] = {pred, x, y};
  broadcast_all(b, 3, xs);
  return tpu_select(b, xs[0], xs[1], xs[2]);
}

tpu_val binary_c(tpu_build *b, tpu_hlo op, tpu_val x, double c) { return tpu_binary(b, op, x, tpu_full_like(b, x, c)); }
