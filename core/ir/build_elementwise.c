#include <math.h>
#include <string.h>

#include "ir/graph_private.h"
#include "ir/number.h"

/* --- splat arithmetic */

/* Results that a machine without denormals, or with other NaNs, would give differently are not folded. */
static bool is_plain(double v, double tiniest) { return isfinite(v) && (v == 0 || fabs(v) >= tiniest); }

static bool fold_float(tpu_hlo op, tpu_dtype t, double x, double y, void *out) {
  double tiniest = t == TPU_F64 ? 0x1p-1022 : t == TPU_F16 ? 0x1p-14 : 0x1p-126;
  if ((t != TPU_F64 && t != TPU_F32 && t != TPU_F16 && t != TPU_BF16) || !is_plain(x, tiniest) || !is_plain(y, tiniest))
    return false;
  double v;
  bool narrow = t != TPU_F64; /* computed as float32 and rounded, as XLA does for half types */
  switch (op) {
    case TPU_HLO_ADD: v = narrow ? (double)((float)x + (float)y) : x + y; break;
    case TPU_HLO_SUBTRACT: v = narrow ? (double)((float)x - (float)y) : x - y; break;
    case TPU_HLO_MULTIPLY: v = narrow ? (double)((float)x * (float)y) : x * y; break;
    case TPU_HLO_DIVIDE:
      if (y == 0) return false;
      v = narrow ? (double)((float)x / (float)y) : x / y;
      break;
    case TPU_HLO_MAXIMUM:
      if (x == y) return false;
      v = x > y ? x : y;
      break;
    case TPU_HLO_MINIMUM:
      if (x == y) return false;
      v = x < y ? x : y;
      break;
    default: return false;
  }
  if (!is_plain(v, tiniest)) return false;
  tpu_number_from_double(t, v, out);
  return is_plain(tpu_number_to_double(t, out), tiniest);
}

static bool fold_int(tpu_hlo op, tpu_dtype t, int64_t x, int64_t y, void *out) {
  uint64_t a = (uint64_t)x, c = (uint64_t)y, v;
  bool less = tpu_dtype_kind(t) == TPU_KIND_INT ? x < y : a < c;
  switch (op) {
    case TPU_HLO_ADD: v = t == TPU_BOOL ? (a | c) : a + c; break;
    case TPU_HLO_SUBTRACT: v = a - c; break;
    case TPU_HLO_MULTIPLY: v = t == TPU_BOOL ? (a & c) : a * c; break;
    case TPU_HLO_MAXIMUM: v = less ? c : a; break;
    case TPU_HLO_MINIMUM: v = less ? a : c; break;
    case TPU_HLO_AND: v = a & c; break;
    case TPU_HLO_OR: v = a | c; break;
    case TPU_HLO_XOR: v = a ^ c; break;
    default: return false;
  }
  tpu_number_from_int(t, (int64_t)v, out);
  return true;
}

typedef enum splat_is { OTHER, ZERO, MINUS_ZERO, ONE, ALL_ONES } splat_is;

static splat_is classify(tpu_dtype t, const void *element) {
  if (tpu_is_complex(t)) return OTHER;
  if (tpu_is_float(t)) {
    double v = tpu_number_to_double(t, element);
    return v == 1 ? ONE : v != 0 ? OTHER : signbit(v) ? MINUS_ZERO : ZERO;
  }
  int64_t v = tpu_number_to_int(t, element);
  if (v == 0) return ZERO;
  if (t == TPU_BOOL) return ALL_ONES;
  uint64_t all = ~UINT64_C(0) >> (64 - 8 * tpu_dtype_bytes(t));
  return v == 1 ? ONE : ((uint64_t)v & all) == all ? ALL_ONES : OTHER;
}

/* The value of x op y if y is a splat that decides it; poison if not. swapped: y is the left operand. */
static tpu_val fold_neutral(tpu_hlo op, tpu_dtype t, tpu_val x, tpu_val y, const void *element, bool swapped) {
  splat_is is = classify(t, element);
  bool real = tpu_is_float(t);
  switch (op) {
    case TPU_HLO_ADD: return is == (real ? MINUS_ZERO : ZERO) ? x : TPU_POISON; /* -0.0 + 0.0 is 0.0 */
    case TPU_HLO_SUBTRACT: return is == ZERO && !swapped ? x : TPU_POISON;
    case TPU_HLO_MULTIPLY: return is == ONE || (t == TPU_BOOL && is == ALL_ONES) ? x : TPU_POISON;
    case TPU_HLO_DIVIDE: return is == ONE && !swapped ? x : TPU_POISON;
    case TPU_HLO_AND: return is == ALL_ONES ? x : is == ZERO ? y : TPU_POISON;
    case TPU_HLO_OR: return is == ZERO ? x : is == ALL_ONES ? y : TPU_POISON;
    case TPU_HLO_XOR: return is == ZERO ? x : TPU_POISON;
    default: return TPU_POISON;
  }
}

/* --- unary and binary */

tpu_val tpu_unary(tpu_build *b, tpu_hlo op, tpu_val x) {
  if (b->status || !x.id) return TPU_POISON;
  const tpu_graph *g = b->graph;
  tpu_type t = tpu_type_of(b, x);
  const tpu_node *node;
  switch (op) {
    case TPU_HLO_NEGATE: {
      if ((node = tpu_producer_is(g, x, op))) return node->operands[0];
      const void *element = tpu_splat_of(b, x);
      char out[TPU_ELEMENT_BYTES];
      if (element && tpu_is_float(t.dtype) && t.dtype != TPU_F8E8M0FNU) {
        double v = tpu_number_to_double(t.dtype, element);
        if (isnan(v)) break;
        tpu_number_from_double(t.dtype, -v, out);
        return tpu_splat_element(b, t.dtype, t.rank, t.dims, out);
      }
      if (element && tpu_is_integral(t.dtype)) {
        tpu_number_from_int(t.dtype, (int64_t)(0 - (uint64_t)tpu_number_to_int(t.dtype, element)), out);
        return tpu_splat_element(b, t.dtype, t.rank, t.dims, out);
      }
      break;
    }
    case TPU_HLO_NOT:
      if ((node = tpu_producer_is(g, x, op))) return node->operands[0];
      break;
    case TPU_HLO_ABS:
      if (tpu_dtype_kind(t.dtype) == TPU_KIND_UINT) return x;
      break;
    case TPU_HLO_REAL:
      if (tpu_is_float(t.dtype)) return x;
      if ((node = tpu_producer_is(g, x, TPU_HLO_COMPLEX))) return node->operands[0];
      break;
    case TPU_HLO_IMAG:
      if ((node = tpu_producer_is(g, x, TPU_HLO_COMPLEX))) return node->operands[1];
      break;
    case TPU_HLO_CHLO_ATAN:
      /* atan(x) = atan2(2x, 2): a plugin miscompiles atan2(x, 1). */
      if (b->target && b->target->atan_is_broken && tpu_is_float(t.dtype))
        return tpu_binary(b, TPU_HLO_ATAN2, tpu_add(b, x, x), tpu_full_like(b, x, 2));
      break;
    default: break;
  }
  return tpu_build_simple(b, op, 1, &x, NULL, 0, NULL);
}

tpu_val tpu_binary(tpu_build *b, tpu_hlo op, tpu_val x, tpu_val y) {
  if (b->status || !x.id || !y.id) return TPU_POISON;
  const void *left = tpu_splat_of(b, x), *right = tpu_splat_of(b, y);
  if (left || right) {
    tpu_type t = tpu_type_of(b, x);
    if (tpu_type_equal(t, tpu_type_of(b, y))) {
      char out[TPU_ELEMENT_BYTES];
      if (left && right &&
          (tpu_is_float(t.dtype)
               ? fold_float(op, t.dtype, tpu_number_to_double(t.dtype, left), tpu_number_to_double(t.dtype, right), out)
               : !tpu_is_complex(t.dtype) &&
                     fold_int(op, t.dtype, tpu_number_to_int(t.dtype, left), tpu_number_to_int(t.dtype, right), out)))
        return tpu_splat_element(b, t.dtype, t.rank, t.dims, out);
      tpu_val same = right ? fold_neutral(op, t.dtype, x, y, right, false) : TPU_POISON;
      if (!same.id && left) same = fold_neutral(op, t.dtype, y, x, left, true);
      if (same.id) return same;
    }
  }
  tpu_val operands[2] = {x, y};
  return tpu_build_simple(b, op, 2, operands, NULL, 0, NULL);
}

static bool decide(tpu_compare_dir dir, bool less, bool equal) {
  switch (dir) {
    case TPU_EQ: return equal;
    case TPU_NE: return !equal;
    case TPU_GE: return !less;
    case TPU_GT: return !less && !equal;
    case TPU_LE: return less || equal;
    case TPU_LT: return less;
  }
  return false;
}

tpu_val tpu_compare(tpu_build *b, tpu_compare_dir dir, tpu_val x, tpu_val y) {
  if (b->status || !x.id || !y.id) return TPU_POISON;
  const void *left = tpu_splat_of(b, x), *right = left ? tpu_splat_of(b, y) : NULL;
  tpu_type t = tpu_type_of(b, x);
  if (right && !tpu_is_complex(t.dtype) && tpu_type_equal(t, tpu_type_of(b, y))) {
    bool less, equal;
    if (tpu_is_float(t.dtype)) {
      double u = tpu_number_to_double(t.dtype, left), v = tpu_number_to_double(t.dtype, right);
      less = u < v;
      equal = u == v;
      if (isnan(u) || isnan(v)) return tpu_full_i(b, TPU_BOOL, t.rank, t.dims, dir == TPU_NE);
    } else {
      int64_t u = tpu_number_to_int(t.dtype, left), v = tpu_number_to_int(t.dtype, right);
      less = tpu_dtype_kind(t.dtype) == TPU_KIND_INT ? u < v : (uint64_t)u < (uint64_t)v;
      equal = u == v;
    }
    return tpu_full_i(b, TPU_BOOL, t.rank, t.dims, decide(dir, less, equal));
  }
  tpu_val operands[2] = {x, y};
  int64_t v[2] = {dir, 0};
  return tpu_build_simple(b, TPU_HLO_COMPARE, 2, operands, v, 2, NULL);
}

tpu_val tpu_compare_total(tpu_build *b, tpu_compare_dir dir, tpu_val x, tpu_val y) {
  tpu_val operands[2] = {x, y};
  int64_t v[2] = {dir, 1};
  return tpu_build_simple(b, TPU_HLO_COMPARE, 2, operands, v, 2, NULL);
}

tpu_val tpu_select(tpu_build *b, tpu_val pred, tpu_val on_true, tpu_val on_false) {
  if (b->status || !pred.id || !on_true.id || !on_false.id) return TPU_POISON;
  const tpu_node *inverted = tpu_producer_is(b->graph, pred, TPU_HLO_NOT);
  if (inverted && tpu_dtype_of(b, pred) == TPU_BOOL) {
    tpu_val swap = on_true;
    pred = inverted->operands[0];
    on_true = on_false;
    on_false = swap;
  }
  if (tpu_type_equal(tpu_type_of(b, on_true), tpu_type_of(b, on_false)) && tpu_dtype_of(b, pred) == TPU_BOOL) {
    const void *element = tpu_splat_of(b, pred);
    if (on_true.id == on_false.id) return on_true;
    if (element) return tpu_number_to_int(TPU_BOOL, element) ? on_true : on_false;
  }
  tpu_val operands[3] = {pred, on_true, on_false};
  return tpu_build_simple(b, TPU_HLO_SELECT, 3, operands, NULL, 0, NULL);
}

tpu_val tpu_clamp(tpu_build *b, tpu_val lo, tpu_val x, tpu_val hi) {
  tpu_val operands[3] = {lo, x, hi};
  return tpu_build_simple(b, TPU_HLO_CLAMP, 3, operands, NULL, 0, NULL);
}

tpu_val tpu_complex(tpu_build *b, tpu_val re, tpu_val im) {
  tpu_val operands[2] = {re, im};
  return tpu_build_simple(b, TPU_HLO_COMPLEX, 2, operands, NULL, 0, NULL);
}

tpu_val tpu_reduce_precision(tpu_build *b, tpu_val x, int exponent_bits, int mantissa_bits) {
  int64_t v[2] = {exponent_bits, mantissa_bits};
  return tpu_build_simple(b, TPU_HLO_REDUCE_PRECISION, 1, &x, v, 2, NULL);
}

/* --- conversion */

/* Bits of precision of the numbers of t, and whether all of them are exact in `to`. */
static int significant_bits(tpu_dtype t) {
  switch (t) {
    case TPU_F64: return 53;
    case TPU_F32: return 24;
    case TPU_F16: return 11;
    case TPU_BF16: return 8;
    default: return tpu_is_float(t) ? 0 : 8 * (int)tpu_dtype_bytes(t) - (tpu_dtype_kind(t) == TPU_KIND_INT);
  }
}

static bool is_exact(tpu_dtype from, tpu_dtype to) {
  if (from == to || from == TPU_BOOL) return to != TPU_F8E8M0FNU || from == to;
  if (tpu_is_complex(to)) return is_exact(tpu_dtype_real(from), tpu_dtype_real(to));
  if (tpu_is_complex(from) || to == TPU_BOOL) return false;
  int have = significant_bits(from), room = significant_bits(to);
  if (tpu_is_float(from)) {
    if (!tpu_is_float(to) || !room) return false;
    if (from == TPU_F8E8M0FNU) return to == TPU_F64; /* 2^-127 is a denormal of f32 */
    if (!have) return to == TPU_F32 || to == TPU_F64;
    return to == TPU_F64 || (to == TPU_F32 && from != TPU_F64);
  }
  if (tpu_is_float(to)) return room >= have;
  bool from_signed = tpu_dtype_kind(from) == TPU_KIND_INT, to_signed = tpu_dtype_kind(to) == TPU_KIND_INT;
  return room >= have && (!from_signed || to_signed);
}

/* What a conversion of float x to integers goes through: PyTorch on the CPU truncates to a wide integer and keeps the low bits,
 * while XLA saturates. */
static tpu_dtype float_to_int_through(tpu_dtype to) {
  if (to == TPU_I8 || to == TPU_I16 || to == TPU_U8 || to == TPU_U16) return TPU_I32;
  return to == TPU_U32 ? TPU_I64 : to;
}

static bool convert_element(tpu_dtype from, const void *element, tpu_dtype to, void *out) {
  if (tpu_is_complex(from)) return false;
  if (tpu_is_float(from)) {
    double v = tpu_number_to_double(from, element);
    if (tpu_is_integral(to)) {
      char wide[TPU_ELEMENT_BYTES];
      tpu_dtype through = float_to_int_through(to);
      tpu_number_from_double(through, v, wide);
      tpu_number_from_int(to, tpu_number_to_int(through, wide), out);
    } else {
      if (isnan(v) && to != TPU_BOOL) return false;
      tpu_number_from_double(to, v, out);
    }
    return true;
  }
  int64_t v = tpu_number_to_int(from, element);
  bool wide = from == TPU_U64 ? v < 0 || v > INT64_C(1) << 53 : v < -(INT64_C(1) << 53) || v > INT64_C(1) << 53;
  if (wide && !tpu_is_integral(to) && to != TPU_BOOL) return false; /* would round twice */
  tpu_number_from_int(to, v, out);
  return true;
}

static tpu_val raw_convert(tpu_build *b, tpu_val x, tpu_dtype dtype) {
  tpu_type t = tpu_type_of(b, x);
  if (t.dtype == dtype) return x;
  t.dtype = dtype;
  return tpu_build_simple(b, TPU_HLO_CONVERT, 1, &x, NULL, 0, &t);
}

tpu_val tpu_convert(tpu_build *b, tpu_val x, tpu_dtype dtype) {
  if (b->status || !x.id) return TPU_POISON;
  tpu_type t = tpu_type_of(b, x);
  if (t.dtype == dtype) return x;
  if ((unsigned)dtype >= TPU_DTYPE_COUNT) return tpu_fail(b, TPU_INTERNAL, "convert: %d is not a dtype", (int)dtype);
  char out[TPU_ELEMENT_BYTES];
  const void *element = tpu_splat_of(b, x);
  if (element && convert_element(t.dtype, element, dtype, out)) return tpu_splat_element(b, dtype, t.rank, t.dims, out);
  const tpu_node *inner = tpu_producer_is(b->graph, x, TPU_HLO_CONVERT);
  if (inner && is_exact(tpu_dtype_of(b, inner->operands[0]), t.dtype)) return tpu_convert(b, inner->operands[0], dtype);
  if (dtype == TPU_BOOL) {
    if (!tpu_is_complex(t.dtype)) return tpu_compare(b, TPU_NE, x, tpu_full_like(b, x, 0));
    tpu_val re = tpu_unary(b, TPU_HLO_REAL, x), im = tpu_unary(b, TPU_HLO_IMAG, x), zero = tpu_full_like(b, re, 0);
    return tpu_or(b, tpu_compare(b, TPU_NE, re, zero), tpu_compare(b, TPU_NE, im, zero));
  }
  if (tpu_is_complex(t.dtype) && !tpu_is_complex(dtype)) return tpu_convert(b, tpu_unary(b, TPU_HLO_REAL, x), dtype);
  if (tpu_is_complex(dtype) && !tpu_is_complex(t.dtype)) {
    tpu_val re = tpu_convert(b, x, tpu_dtype_real(dtype));
    return tpu_complex(b, re, tpu_full_like(b, re, 0));
  }
  if (tpu_is_float(t.dtype) && tpu_is_integral(dtype)) x = raw_convert(b, x, float_to_int_through(dtype));
  return raw_convert(b, x, dtype);
}
