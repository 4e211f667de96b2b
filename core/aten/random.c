#include "aten/lower.h"
#include "base/alloc.h"

/* One draw of `words` 32-bit words an element; PyTorch advances its Philox offset in the same units of whole blocks. */
static tpu_val draw(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_dtype dtype, int rank, const int64_t *dims) {
  if (!a->row->random) return tpu_fail(b, TPU_INTERNAL, "%s: the row draws but is not marked random", a->row->aten);
  int64_t numel = 1, words;
  for (int d = 0; d < rank; d++)
    if (!tpu_size_mul(numel, dims[d], &numel)) return tpu_fail(b, TPU_INVALID_ARGUMENT, "a random tensor is too large");
  if (!tpu_size_mul(numel, tpu_dtype_bytes(dtype) / 4, &words))
    return tpu_fail(b, TPU_INVALID_ARGUMENT, "a random tensor is too large");
  uint32_t slot = (uint32_t)a->n_slots;
  tpu_val seed = tpu_slot(b, slot, TPU_U64), offset = tpu_slot(b, slot + 1, TPU_U64);
  if (o->random_blocks) offset = tpu_add(b, offset, tpu_scalar_i(b, TPU_U64, o->random_blocks));
  const int64_t one = 1;
  tpu_val state[2] = {tpu_reshape(b, seed, 1, &one), tpu_reshape(b, offset, 1, &one)};
  o->random_blocks += words / 4 + (words % 4 != 0);
  return tpu_random_bits(b, tpu_concat(b, 2, state, 0), dtype, rank, dims);
}

tpu_val random_u32(tpu_build *b, const tpu_args *a, tpu_outs *o, int rank, const int64_t *dims) {
  return draw(b, a, o, TPU_U32, rank, dims);
}

tpu_val random_u64(tpu_build *b, const tpu_args *a, tpu_outs *o, int rank, const int64_t *dims) {
  return draw(b, a, o, TPU_U64, rank, dims);
}

/* As many bits as the dtype's significand holds, so that no value rounds up to 1 (at::transformation::uniform_real). */
static int significand_bits(tpu_dtype dtype) { return dtype == TPU_BF16 ? 8 : dtype == TPU_F16 ? 11 : 24; }

tpu_val random_unit(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_dtype dtype, int rank, const int64_t *dims) {
  if (dtype == TPU_F64) {
    tpu_val bits = random_u64(b, a, o, rank, dims);
    bits = tpu_binary(b, TPU_HLO_SHIFT_RIGHT_LOGIC, bits, tpu_full_like(b, bits, 11));
    return binary_c(b, TPU_HLO_MULTIPLY, tpu_convert(b, bits, TPU_F64), 0x1p-53);
  }
  int digits = significand_bits(dtype);
  tpu_val bits = random_u32(b, a, o, rank, dims);
  bits = tpu_binary(b, TPU_HLO_SHIFT_RIGHT_LOGIC, bits, tpu_full_like(b, bits, 32 - digits));
  tpu_val unit = binary_c(b, TPU_HLO_MULTIPLY, tpu_convert(b, bits, TPU_F32), 1.0 / (double)(1 << digits));
  return tpu_convert(b, unit, dtype);
}
