#include "ir/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BAD(...) tpu_error(TPU_INVALID_ARGUMENT, __VA_ARGS__)
#define TEXT(t) tpu_type_print(&(tpu_type_text){{0}}, (t))

/* Which kinds of elements an op takes (of operand 0). */
enum {
  B = 1 << TPU_KIND_BOOL,
  U = 1 << TPU_KIND_UINT,
  I = 1 << TPU_KIND_INT,
  F = 1 << TPU_KIND_FLOAT,
  C = 1 << TPU_KIND_COMPLEX,
};
static const uint8_t kinds[TPU_HLO_COUNT] = {
    /* 0: all, or the rule says */
    [TPU_HLO_ABS] = I | F | C,
    [TPU_HLO_CBRT] = F,
    [TPU_HLO_CEIL] = F,
    [TPU_HLO_COSINE] = F | C,
    [TPU_HLO_COUNT_LEADING_ZEROS] = U | I,
    [TPU_HLO_EXPONENTIAL] = F | C,
    [TPU_HLO_EXPM1] = F | C,
    [TPU_HLO_FLOOR] = F,
    [TPU_HLO_IMAG] = F | C,
    [TPU_HLO_IS_FINITE] = F,
    [TPU_HLO_LOG] = F | C,
    [TPU_HLO_LOG1P] = F | C,
    [TPU_HLO_LOGISTIC] = F | C,
    [TPU_HLO_NEGATE] = U | I | F | C,
    [TPU_HLO_NOT] = B | U | I,
    [TPU_HLO_POPCNT] = U | I,
    [TPU_HLO_REAL] = F | C,
    [TPU_HLO_ROUND_AFZ] = F,
    [TPU_HLO_ROUND_EVEN] = F,
    [TPU_HLO_RSQRT] = F | C,
    [TPU_HLO_SIGN] = I | F | C,
    [TPU_HLO_SINE] = F | C,
    [TPU_HLO_SQRT] = F | C,
    [TPU_HLO_TAN] = F | C,
    [TPU_HLO_TANH] = F | C,
    [TPU_HLO_CHLO_ACOS] = F | C,
    [TPU_HLO_CHLO_ACOSH] = F | C,
    [TPU_HLO_CHLO_ASIN] = F | C,
    [TPU_HLO_CHLO_ASINH] = F | C,
    [TPU_HLO_CHLO_ATAN] = F | C,
    [TPU_HLO_CHLO_ATANH] = F | C,
    [TPU_HLO_CHLO_BESSEL_I1E] = F,
    [TPU_HLO_CHLO_COSH] = F | C,
    [TPU_HLO_CHLO_SINH] = F | C,
    [TPU_HLO_CHLO_DIGAMMA] = F,
    [TPU_HLO_CHLO_ERF] = F,
    [TPU_HLO_CHLO_ERF_INV] = F,
    [TPU_HLO_CHLO_ERFC] = F,
    [TPU_HLO_CHLO_LGAMMA] = F,
    [TPU_HLO_AND] = B | U | I,
    [TPU_HLO_ATAN2] = F | C,
    [TPU_HLO_DIVIDE] = U | I | F | C,
    [TPU_HLO_MAXIMUM] = B | U | I | F,
    [TPU_HLO_MINIMUM] = B | U | I | F,
    [TPU_HLO_OR] = B | U | I,
    [TPU_HLO_POWER] = U | I | F | C,
    [TPU_HLO_REMAINDER] = U | I | F,
    [TPU_HLO_SHIFT_LEFT] = U | I,
    [TPU_HLO_SHIFT_RIGHT_ARITH] = U | I,
    [TPU_HLO_SHIFT_RIGHT_LOGIC] = U | I,
    [TPU_HLO_SUBTRACT] = U | I | F | C,
    [TPU_HLO_XOR] = B | U | I,
    [TPU_HLO_CHLO_NEXT_AFTER] = F,
    [TPU_HLO_CHLO_POLYGAMMA] = F,
    [TPU_HLO_CHLO_ZETA] = F,
    [TPU_HLO_REDUCE_PRECISION] = F,
    [TPU_HLO_CHOLESKY] = F | C,
    [TPU_HLO_TRIANGULAR_SOLVE] = F | C,
    [TPU_HLO_TOP_K] = B | U | I | F,
};

const char *tpu_type_print(tpu_type_text *buffer, tpu_type type) {
  char *p = buffer->text, *end = buffer->text + sizeof buffer->text;
  p += snprintf(p, (size_t)(end - p), "%s[", tpu_dtype_hlo(type.dtype));
  for (int i = 0; i < type.rank; i++) {
    if (end - p < 32) {
      p += snprintf(p, (size_t)(end - p), ",...");
      break;
    }
    p += snprintf(p, (size_t)(end - p), "%s%" PRId64, i ? "," : "", type.dims[i]);
  }
  (void)snprintf(p, (size_t)(end - p), "]");
  return buffer->text;
}

tpu_status tpu_infer_attr_count(const tpu_infer *in, uint32_t n) {
  uint32_t have = in->attrs ? in->attrs->n : 0;
  return have == n ? NULL : tpu_error(TPU_INTERNAL, "%u attribute numbers, wanted %u", have, n);
}

tpu_status tpu_infer_dims_distinct(const char *what, int n, const int64_t *dims, int rank) {
  uint64_t seen = 0;
  for (int i = 0; i < n; i++) {
    if (dims[i] < 0 || dims[i] >= rank) return BAD("%s %" PRId64 " is not a dimension of rank %d", what, dims[i], rank);
    if (seen >> dims[i] & 1) return BAD("%s %" PRId64 " is given twice", what, dims[i]);
    seen |= UINT64_C(1) << dims[i];
  }
  return NULL;
}

tpu_status tpu_infer_scalar_region(const tpu_infer *in, uint32_t index, uint32_t n_params, const tpu_dtype *params,
                                   uint32_t n_returns, const tpu_dtype *returns) {
  const tpu_region *region = &in->regions[index];
  if (region->n_params != n_params || region->n_returns != n_returns)
    return BAD("region %u takes %u and returns %u values, wanted %u and %u", index, region->n_params, region->n_returns, n_params,
               n_returns);
  for (uint32_t i = 0; i < n_params; i++) {
    tpu_type t = tpu_value_at(in->graph, region->params[i].id)->type;
    if (t.rank || t.dtype != params[i])
      return BAD("parameter %u of region %u is %s, wanted %s[]", i, index, TEXT(t), tpu_dtype_hlo(params[i]));
  }
  for (uint32_t i = 0; i < n_returns; i++) {
    tpu_type t = tpu_value_at(in->graph, region->returns[i].id)->type;
    if (t.rank || t.dtype != returns[i])
      return BAD("result %u of region %u is %s, wanted %s[]", i, index, TEXT(t), tpu_dtype_hlo(returns[i]));
  }
  return NULL;
}

/* --- inputs, elementwise */

static tpu_status rule_numbered(tpu_infer *in) { return tpu_infer_attr_count(in, 1); }

static tpu_status rule_constant(tpu_infer *in) {
  int64_t bytes = tpu_dtype_bytes(in->types[0].dtype), have = in->attrs ? in->attrs->bytes : 0;
  if (have != bytes && have != bytes * tpu_type_numel(in->types[0]))
    return BAD("%" PRId64 " bytes of data for %s", have, TEXT(in->types[0]));
  return NULL;
}

static tpu_status rule_iota(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 1));
  int64_t dim = in->attrs->v[0];
  if (dim < 0 || dim >= in->types[0].rank) return BAD("dim %" PRId64 " of %s", dim, TEXT(in->types[0]));
  if (in->types[0].dtype == TPU_BOOL) return BAD("i1 is not supported");
  return NULL;
}

static tpu_status rule_complex(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0), y = tpu_infer_operand(in, 1);
  if (!tpu_type_equal(x, y)) return BAD("operands %s and %s differ", TEXT(x), TEXT(y));
  if (x.dtype != TPU_F32 && x.dtype != TPU_F64) return BAD("operands are %s, wanted f32 or f64", TEXT(x));
  in->types[0] = x;
  in->types[0].dtype = tpu_dtype_complex(x.dtype);
  return NULL;
}

static tpu_status rule_compare(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 2));
  int64_t dir = in->attrs->v[0];
  tpu_dtype t = tpu_infer_operand(in, 0).dtype;
  if (dir < TPU_EQ || dir > TPU_LT) return tpu_error(TPU_INTERNAL, "direction %" PRId64, dir);
  if (tpu_is_complex(t) && dir != TPU_EQ && dir != TPU_NE) return BAD("complex numbers have no order");
  if (in->attrs->v[1] && !tpu_is_float(t)) return BAD("total order is of floats, not %s", tpu_dtype_hlo(t));
  return NULL;
}

static tpu_status rule_convert(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0);
  if (x.rank != in->types[0].rank || !tpu_dims_equal(x.rank, x.dims, in->types[0].dims))
    return BAD("%s to %s changes dimensions", TEXT(x), TEXT(in->types[0]));
  in->types[0].dims = x.dims;
  return NULL;
}

static tpu_status rule_select(tpu_infer *in) {
  tpu_type p = tpu_infer_operand(in, 0), x = tpu_infer_operand(in, 1), y = tpu_infer_operand(in, 2);
  if (!tpu_type_equal(x, y)) return BAD("branches %s and %s differ", TEXT(x), TEXT(y));
  if (p.dtype != TPU_BOOL || (p.rank && (p.rank != x.rank || !tpu_dims_equal(p.rank, p.dims, x.dims))))
    return BAD("predicate %s does not fit %s", TEXT(p), TEXT(x));
  in->types[0] = x;
  return NULL;
}

static tpu_status rule_clamp(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 1);
  for (uint32_t i = 0; i < 3; i += 2) {
    tpu_type bound = tpu_infer_operand(in, i);
    if (bound.dtype != x.dtype || (bound.rank && !tpu_type_equal(bound, x)))
      return BAD("bound %s does not fit %s", TEXT(bound), TEXT(x));
  }
  if (tpu_is_complex(x.dtype)) return BAD("complex numbers have no order");
  in->types[0] = x;
  return NULL;
}

static tpu_status rule_reduce_precision(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 2));
  if (in->attrs->v[0] < 1 || in->attrs->v[1] < 0)
    return BAD("%" PRId64 " exponent and %" PRId64 " mantissa bits", in->attrs->v[0], in->attrs->v[1]);
  return NULL;
}

/* --- shape */

static tpu_status rule_bitcast(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0), *out = &in->types[0];
  int64_t from = tpu_dtype_bytes(x.dtype), to = tpu_dtype_bytes(out->dtype);
  bool fits = false;
  if (from == to) {
    fits = x.rank == out->rank && tpu_dims_equal(x.rank, x.dims, out->dims);
  } else if (from > to) {
    fits = out->rank == x.rank + 1 && tpu_dims_equal(x.rank, x.dims, out->dims) && out->dims[x.rank] == from / to;
  } else {
    fits = x.rank == out->rank + 1 && tpu_dims_equal(out->rank, x.dims, out->dims) && x.dims[out->rank] == to / from;
  }
  if ((tpu_is_complex(x.dtype) || tpu_is_complex(out->dtype)) && x.dtype != out->dtype)
    return BAD("%s to %s: complex numbers have no bits of their own", TEXT(x), TEXT(*out));
  if ((x.dtype == TPU_BOOL) != (out->dtype == TPU_BOOL)) return BAD("%s to %s: i1 is one bit", TEXT(x), TEXT(*out));
  return fits ? NULL : BAD("%s does not fit %s", TEXT(x), TEXT(*out));
}

static tpu_status rule_broadcast(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0), *out = &in->types[0];
  TPU_TRY(tpu_infer_attr_count(in, (uint32_t)x.rank));
  out->dtype = x.dtype;
  const int64_t *map = x.rank ? in->attrs->v : NULL;
  TPU_TRY(tpu_infer_dims_distinct("result dim", x.rank, map, out->rank));
  for (int i = 0; i < x.rank; i++)
    if (x.dims[i] != 1 && x.dims[i] != out->dims[map[i]])
      return BAD("dim %d of %s does not fit dim %" PRId64 " of %s", i, TEXT(x), map[i], TEXT(*out));
  return NULL;
}

static tpu_status rule_concatenate(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 1));
  if (!in->n_operands) return BAD("no operands");
  tpu_type out = tpu_infer_operand(in, 0);
  int64_t dim = in->attrs->v[0], size = 0;
  if (dim < 0 || dim >= out.rank) return BAD("dim %" PRId64 " of %s", dim, TEXT(out));
  for (uint32_t k = 0; k < in->n_operands; k++) {
    tpu_type x = tpu_infer_operand(in, k);
    bool fits = x.dtype == out.dtype && x.rank == out.rank;
    for (int i = 0; i < out.rank && fits; i++) fits = i == dim || x.dims[i] == out.dims[i];
    if (!fits) return BAD("operand %u, %s, does not fit %s along dim %" PRId64, k, TEXT(x), TEXT(out), dim);
    size += x.dims[dim];
  }
  memcpy(in->dims, out.dims, sizeof *in->dims * (size_t)out.rank);
  in->dims[dim] = size;
  in->types[0] = (tpu_type){out.dtype, out.rank, in->dims};
  return NULL;
}

static tpu_status check_starts(const tpu_infer *in, uint32_t first, int rank) {
  if (in->n_operands != first + (uint32_t)rank) return BAD("%u start indices for %d dimensions", in->n_operands - first, rank);
  for (uint32_t i = first; i < in->n_operands; i++) {
    tpu_type t = tpu_infer_operand(in, i);
    if (t.rank || !tpu_is_integral(t.dtype) || t.dtype != tpu_infer_operand(in, first).dtype)
      return BAD("start index %u is %s, wanted integer scalars of one type", i - first, TEXT(t));
  }
  return NULL;
}

static tpu_status rule_dynamic_slice(tpu_infer *in) {
  if (!in->n_operands) return BAD("no operands");
  tpu_type x = tpu_infer_operand(in, 0);
  TPU_TRY(tpu_infer_attr_count(in, (uint32_t)x.rank));
  TPU_TRY(check_starts(in, 1, x.rank));
  for (int i = 0; i < x.rank; i++) {
    in->dims[i] = in->attrs->v[i];
    if (in->dims[i] < 0 || in->dims[i] > x.dims[i]) return BAD("size %" PRId64 " of dim %d of %s", in->dims[i], i, TEXT(x));
  }
  in->types[0] = (tpu_type){x.dtype, x.rank, in->dims};
  return NULL;
}

static tpu_status rule_dynamic_update_slice(tpu_infer *in) {
  if (in->n_operands < 2) return BAD("no update");
  tpu_type x = tpu_infer_operand(in, 0), update = tpu_infer_operand(in, 1);
  TPU_TRY(check_starts(in, 2, x.rank));
  bool fits = x.dtype == update.dtype && x.rank == update.rank;
  for (int i = 0; i < x.rank && fits; i++) fits = update.dims[i] <= x.dims[i];
  if (!fits) return BAD("update %s does not fit %s", TEXT(update), TEXT(x));
  in->types[0] = x;
  return NULL;
}

static tpu_status rule_pad(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0), value = tpu_infer_operand(in, 1);
  TPU_TRY(tpu_infer_attr_count(in, 3 * (uint32_t)x.rank));
  if (value.rank || value.dtype != x.dtype) return BAD("padding value %s for %s", TEXT(value), TEXT(x));
  for (int i = 0; i < x.rank; i++) {
    int64_t lo = in->attrs->v[i], hi = in->attrs->v[i + x.rank], interior = in->attrs->v[i + 2 * x.rank];
    if (interior < 0) return BAD("interior padding %" PRId64 " of dim %d is negative", interior, i);
    int64_t size = x.dims[i] + (x.dims[i] ? (x.dims[i] - 1) * interior : 0) + lo + hi;
    if (size < 0) return BAD("padding (%" PRId64 ", %" PRId64 ") leaves %" PRId64 " of dim %d of %s", lo, hi, size, i, TEXT(x));
    in->dims[i] = size;
  }
  in->types[0] = (tpu_type){x.dtype, x.rank, in->dims};
  return NULL;
}

static tpu_status rule_reshape(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0);
  in->types[0].dtype = x.dtype;
  if (tpu_type_numel(x) != tpu_type_numel(in->types[0]))
    return BAD("%s has not as many elements as %s", TEXT(x), TEXT(in->types[0]));
  return NULL;
}

static tpu_status rule_reverse(tpu_infer *in) {
  return tpu_infer_dims_distinct("dim", in->attrs ? (int)in->attrs->n : 0, in->attrs ? in->attrs->v : NULL,
                                 tpu_infer_operand(in, 0).rank);
}

static tpu_status rule_slice(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0);
  TPU_TRY(tpu_infer_attr_count(in, 3 * (uint32_t)x.rank));
  for (int i = 0; i < x.rank; i++) {
    int64_t start = in->attrs->v[i], limit = in->attrs->v[i + x.rank], stride = in->attrs->v[i + 2 * x.rank];
    if (start < 0 || limit < start || limit > x.dims[i] || stride < 1)
      return BAD("[%" PRId64 ":%" PRId64 ":%" PRId64 "] of dim %d of %s", start, limit, stride, i, TEXT(x));
    in->dims[i] = (limit - start + stride - 1) / stride;
  }
  in->types[0] = (tpu_type){x.dtype, x.rank, in->dims};
  return NULL;
}

static tpu_status rule_transpose(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0);
  TPU_TRY(tpu_infer_attr_count(in, (uint32_t)x.rank));
  const int64_t *perm = x.rank ? in->attrs->v : NULL;
  TPU_TRY(tpu_infer_dims_distinct("dim", x.rank, perm, x.rank));
  for (int i = 0; i < x.rank; i++) in->dims[i] = x.dims[perm[i]];
  in->types[0] = (tpu_type){x.dtype, x.rank, in->dims};
  return NULL;
}

static const tpu_rule rules[TPU_HLO_COUNT] = {
    [TPU_HLO_PARAM] = rule_numbered,
    [TPU_HLO_SLOT] = rule_numbered,
    [TPU_HLO_CONSTANT] = rule_constant,
    [TPU_HLO_IOTA] = rule_iota,
    [TPU_HLO_COMPLEX] = rule_complex,
    [TPU_HLO_CLAMP] = rule_clamp,
    [TPU_HLO_COMPARE] = rule_compare,
    [TPU_HLO_CONVERT] = rule_convert,
    [TPU_HLO_SELECT] = rule_select,
    [TPU_HLO_REDUCE_PRECISION] = rule_reduce_precision,
    [TPU_HLO_BITCAST_CONVERT] = rule_bitcast,
    [TPU_HLO_BROADCAST_IN_DIM] = rule_broadcast,
    [TPU_HLO_CONCATENATE] = rule_concatenate,
    [TPU_HLO_DYNAMIC_SLICE] = rule_dynamic_slice,
    [TPU_HLO_DYNAMIC_UPDATE_SLICE] = rule_dynamic_update_slice,
    [TPU_HLO_PAD] = rule_pad,
    [TPU_HLO_RESHAPE] = rule_reshape,
    [TPU_HLO_REVERSE] = rule_reverse,
    [TPU_HLO_SLICE] = rule_slice,
    [TPU_HLO_TRANSPOSE] = rule_transpose,
    [TPU_HLO_CHOLESKY] = tpu_rule_cholesky,
    [TPU_HLO_CONVOLUTION] = tpu_rule_convolution,
    [TPU_HLO_DOT_GENERAL] = tpu_rule_dot_general,
    [TPU_HLO_FFT] = tpu_rule_fft,
    [TPU_HLO_GATHER] = tpu_rule_gather,
    [TPU_HLO_REDUCE] = tpu_rule_reduce,
    [TPU_HLO_REDUCE_WINDOW] = tpu_rule_reduce_window,
    [TPU_HLO_SCATTER] = tpu_rule_scatter,
    [TPU_HLO_SELECT_AND_SCATTER] = tpu_rule_select_and_scatter,
    [TPU_HLO_SORT] = tpu_rule_sort,
    [TPU_HLO_TRIANGULAR_SOLVE] = tpu_rule_triangular_solve,
    [TPU_HLO_CUSTOM_CALL] = tpu_rule_custom_call,
    [TPU_HLO_OPTIMIZATION_BARRIER] = tpu_rule_optimization_barrier,
    [TPU_HLO_RNG_BIT_GENERATOR] = tpu_rule_rng_bit_generator,
    [TPU_HLO_WHILE] = tpu_rule_while,
    [TPU_HLO_IF] = tpu_rule_if,
    [TPU_HLO_CUMULATIVE] = tpu_rule_cumulative,
    [TPU_HLO_TOP_K] = tpu_rule_top_k,
    [TPU_HLO_RANDOM_BITS] = tpu_rule_random_bits,
};

/* The column of the table. */
static tpu_status apply_column(tpu_infer *in, int rule) {
  tpu_type x = tpu_infer_operand(in, 0);
  for (uint32_t i = 1; i < in->n_operands; i++) {
    tpu_type y = tpu_infer_operand(in, i);
    if (!tpu_type_equal(x, y)) return BAD("operand types %s and %s differ", TEXT(x), TEXT(y));
  }
  if (rule == TPU_RULE_SAME_FLOAT && !tpu_is_float(x.dtype)) return BAD("%s operands are not supported", tpu_dtype_hlo(x.dtype));
  if (rule == TPU_RULE_REAL) x.dtype = tpu_dtype_real(x.dtype);
  if (rule == TPU_RULE_PRED) x.dtype = TPU_BOOL;
  in->types[0] = x;
  return NULL;
}

tpu_status tpu_infer_types(tpu_infer *in) {
  const tpu_hlo_info *info = tpu_hlo_info_get(in->op);
  if ((info->operands >= 0 && in->n_operands != (uint32_t)info->operands) ||
      (info->results >= 0 && in->n_results != (uint32_t)info->results))
    return tpu_error(TPU_INTERNAL, "%u operands and %u results", in->n_operands, in->n_results);
  if (kinds[in->op]) {
    tpu_dtype t = tpu_infer_operand(in, 0).dtype;
    if (!(kinds[in->op] >> tpu_dtype_kind(t) & 1)) return BAD("%s operands are not supported", tpu_dtype_hlo(t));
  }
  if (info->rule != TPU_RULE_NODE) TPU_TRY(apply_column(in, info->rule));
  tpu_rule rule = rules[in->op];
  if (rule) return rule(in);
  return info->rule == TPU_RULE_NODE ? tpu_error(TPU_INTERNAL, "no rule") : NULL;
}
