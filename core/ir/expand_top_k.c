#include <math.h>

#include "ir/expand.h"

/* x as numbers whose order is the wanted one, all zeros and all NaN alike. Types that F32 holds exactly become F32. */
static tpu_val sort_key(tpu_build *b, tpu_val x) {
  tpu_dtype t = tpu_dtype_of(b, x);
  if (t == TPU_BOOL || (tpu_dtype_bytes(t) < 4 && !tpu_is_complex(t))) x = tpu_convert(b, x, TPU_F32);
  if (!tpu_is_float(tpu_dtype_of(b, x))) return x;
  x = tpu_select(b, tpu_is_nan(b, x), tpu_full_like(b, x, NAN), x);
  return tpu_select(b, tpu_compare(b, TPU_EQ, x, tpu_full_like(b, x, 0)), tpu_full_like(b, x, 0), x);
}

/* --- XLA's CPU runtime function: orders F32 by its bits (sign and magnitude), equal ones by index. It selects instead of
 * sorting: f32[64, 32000], k 50 takes 8 ms, a sort of the same 1000. */
static bool runtime_takes(const tpu_build *b, tpu_dtype key) {
  return b->target->platform == TPU_TARGET_CPU && b->target->host_custom_calls &&
         (key == TPU_F32 || key == TPU_I32 || key == TPU_U32);
}

/* 32 bits that the runtime orders as the key is ordered, or the other way round. */
static tpu_val runtime_bits(tpu_build *b, tpu_val key, bool largest) {
  tpu_type t = tpu_type_of(b, key);
  tpu_val bits = tpu_bitcast(b, key, TPU_I32, t.rank, t.dims);
  tpu_val sign = tpu_full_i(b, TPU_I32, t.rank, t.dims, INT32_MIN);
  if (t.dtype == TPU_U32) bits = tpu_binary(b, TPU_HLO_XOR, bits, sign);
  if (t.dtype != TPU_F32) { /* two's complement to sign and magnitude */
    tpu_val negative = tpu_binary(b, TPU_HLO_SHIFT_RIGHT_ARITH, bits, tpu_full_i(b, TPU_I32, t.rank, t.dims, 31));
    negative = tpu_and(b, negative, tpu_full_i(b, TPU_I32, t.rank, t.dims, INT32_MAX));
    bits = tpu_binary(b, TPU_HLO_XOR, bits, negative);
  }
  if (!largest) bits = tpu_binary(b, TPU_HLO_XOR, bits, sign);
  return tpu_bitcast(b, bits, TPU_F32, t.rank, t.dims);
}

static tpu_val runtime_indices(tpu_build *b, tpu_val key, int64_t k, bool largest) {
  int64_t dims[2] = {tpu_dim_of(b, key, 0), k};
  tpu_type types[2] = {{TPU_F32, 2, dims}, {TPU_I32, 2, dims}};
  tpu_val bits = runtime_bits(b, key, largest), out[2];
  tpu_custom_call(b, "TopK", NULL, 1, &bits, 2, types, out);
  return out[1];
}

/* --- elsewhere: a stable sort, whose shape XLA knows as a top-k */
static tpu_val comes_first(tpu_build *b, const tpu_val *params, void *arg) {
  tpu_compare_dir dir = *(const bool *)arg ? TPU_GT : TPU_LT;
  return tpu_is_float(tpu_dtype_of(b, params[0])) ? tpu_compare_total(b, dir, params[0], params[1])
                                                  : tpu_compare(b, dir, params[0], params[1]);
}

static tpu_val sorted_indices(tpu_build *b, tpu_val key, int64_t k, bool largest) {
  tpu_val xs[2] = {key, tpu_iota(b, TPU_I32, 2, tpu_dims_of(b, key), 1)}, out[2];
  tpu_sort(b, 2, xs, 1, true, comes_first, &largest, out);
  return tpu_slice_dim(b, out[1], 1, 0, k, 1);
}

void tpu_expand_top_k(tpu_build *b, tpu_val x, int64_t k, bool largest, tpu_val out[2]) {
  out[0] = out[1] = TPU_POISON;
  if (tpu_build_failed(b) || !x.id) return;
  tpu_type t = tpu_type_of(b, x);
  int64_t dims[TPU_MAX_RANK], rows = 1, n = t.dims[t.rank - 1];
  for (int i = 0; i < t.rank; i++) dims[i] = t.dims[i];
  for (int i = 0; i + 1 < t.rank; i++) rows *= dims[i];
  dims[t.rank - 1] = k;
  if (rows == 0 || k == 0) {
    out[0] = tpu_full_i(b, t.dtype, t.rank, dims, 0);
    out[1] = tpu_full_i(b, TPU_I32, t.rank, dims, 0);
    return;
  }
  int64_t flat[2] = {rows, n}, top[2] = {rows, k}, one = 1, all = rows * n, list[2] = {rows * k, 1};
  tpu_val key = sort_key(b, tpu_reshape(b, x, 2, flat));
  tpu_val index =
      runtime_takes(b, tpu_dtype_of(b, key)) ? runtime_indices(b, key, k, largest) : sorted_indices(b, key, k, largest);
  /* The elements themselves: a key has lost signs of zeros and payloads of NaN. */
  tpu_dtype wide = all <= INT32_MAX ? TPU_I32 : TPU_I64;
  tpu_val row = tpu_mul(b, tpu_iota(b, wide, 2, top, 0), tpu_full_i(b, wide, 2, top, n));
  tpu_val at = tpu_reshape(b, tpu_add(b, row, tpu_convert(b, index, wide)), 2, list);
  static const int64_t zero = 0;
  tpu_gather_dims g = {.n_map = 1, .start_index_map = &zero, .n_collapsed = 1, .collapsed = &zero, .index_vector_dim = 1};
  out[0] = tpu_reshape(b, tpu_gather(b, tpu_reshape(b, x, 1, &all), at, &g, &one), t.rank, dims);
  out[1] = tpu_reshape(b, index, t.rank, dims);
}
