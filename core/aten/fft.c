/* Fourier transforms. Source: aten/src/ATen/native/SpectralOps.cpp, mkl/SpectralOps.cpp (whose strides the results have). */
#include <math.h>
#include <string.h>

#include "aten/lower.h"

enum { MOST_DIMS = 3 }; /* of one stablehlo.fft */

/* One transform over `dims` of x (n <= MOST_DIMS), moved to the end and back. */
static tpu_val transform(tpu_build *b, tpu_val x, tpu_fft_kind kind, int n, const int64_t *dims, const int64_t *lengths) {
  int rank = tpu_rank_of(b, x), at = 0;
  int64_t perm[TPU_MAX_RANK], back[TPU_MAX_RANK];
  for (int d = 0; d < rank; d++) {
    bool moved = false;
    for (int i = 0; i < n; i++) moved = moved || dims[i] == d;
    if (!moved) perm[at++] = d;
  }
  memcpy(perm + at, dims, sizeof *dims * (size_t)n);
  for (int d = 0; d < rank; d++) back[perm[d]] = d;
  return tpu_transpose(b, tpu_fft(b, tpu_transpose(b, x, perm), kind, n, lengths), back);
}

static tpu_val transform_complex(tpu_build *b, tpu_val x, bool forward, int n, const int64_t *dims) {
  int64_t lengths[MOST_DIMS];
  while (n > 0) {
    int count = n < MOST_DIMS ? n : MOST_DIMS;
    n -= count;
    for (int i = 0; i < count; i++) lengths[i] = tpu_dim_of(b, x, (int)dims[n + i]);
    x = transform(b, x, forward ? TPU_FFT : TPU_IFFT, count, dims + n, lengths);
  }
  return x;
}

/* at::native::fft_norm_mode: none, by_root_n, by_n. StableHLO's inverse transforms divide by n themselves. */
static tpu_val normalize(tpu_build *b, tpu_val x, int64_t mode, double n, bool inverse) {
  double factor = mode == 0 ? 1 : mode == 1 ? 1 / sqrt(n) : 1 / n;
  if (inverse) factor = mode == 0 ? n : mode == 1 ? sqrt(n) : 1;
  if (factor == 1) return x;
  if (!tpu_is_complex(tpu_dtype_of(b, x))) return binary_c(b, TPU_HLO_MULTIPLY, x, factor);
  tpu_val re = tpu_unary(b, TPU_HLO_REAL, x), im = tpu_unary(b, TPU_HLO_IMAG, x);
  return tpu_complex(b, binary_c(b, TPU_HLO_MULTIPLY, re, factor), binary_c(b, TPU_HLO_MULTIPLY, im, factor));
}

typedef struct fft_call {
  const tpu_operand *self;
  int n;
  int64_t dims[TPU_MAX_RANK];
  int64_t mode;
} fft_call;

static bool read_call(tpu_build *b, const tpu_args *a, bool complex_input, fft_call *out) {
  int n;
  const tpu_operand *self = arg_operand(b, a, 0);
  const int64_t *dims = arg_ints(a, 1, &n);
  if (!self) return false;
  *out = (fft_call){.self = self, .n = n, .mode = arg_int(b, a, 2, 0)};
  for (int i = 0; i < n; i++) out->dims[i] = wrap_dim(b, dims[i], self->rank);
  if (complex_input && !tpu_is_complex(self->dtype))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Only supports complex dtypes, but found: %s", tpu_dtype_scalar_name(self->dtype));
  else if (!complex_input && !tpu_is_float(self->dtype))
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Only supports floating-point dtypes, but found: %s", tpu_dtype_scalar_name(self->dtype));
  else if (!complex_input && tpu_dtype_bytes(self->dtype) < 4)
    tpu_fail(b, TPU_INVALID_ARGUMENT, "FFT doesn't support tensors of type: %s", tpu_dtype_scalar_name(self->dtype));
  else if (b->target->platform == TPU_TARGET_TPU && tpu_dtype_bytes(tpu_dtype_real(self->dtype)) > 4)
    tpu_fail(b, TPU_UNIMPLEMENTED, "TPUs have no Fourier transform of float64"); /* libtpu refuses c128 */
  return !tpu_build_failed(b);
}

/* Insertion sort by stride, descending, keeping order: as in _sort_dims and _exec_fft. */
static void sort_by_stride(int n, int64_t *dims, const int64_t *strides) {
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && strides[dims[j - 1]] < strides[dims[j]]; j--) {
      int64_t t = dims[j];
      dims[j] = dims[j - 1];
      dims[j - 1] = t;
    }
}

/* at::native::_exec_fft: batch dims in the order of the input's strides, then the transformed dims in the given order. */
static void exec_strides(int rank, const int64_t *in_strides, const int64_t *sizes, int n, const int64_t *dims,
                         int64_t *out_strides) {
  int64_t order[TPU_MAX_RANK], stride = 1;
  int n_batch = 0;
  for (int d = 0; d < rank; d++) {
    bool transformed = false;
    for (int i = 0; i < n; i++) transformed = transformed || dims[i] == d;
    if (!transformed) order[n_batch++] = d;
  }
  sort_by_stride(n_batch, order, in_strides);
  memcpy(order + n_batch, dims, sizeof *dims * (size_t)n);
  for (int i = rank - 1; i >= 0; i--) {
    out_strides[order[i]] = stride;
    stride *= sizes[order[i]] > 1 ? sizes[order[i]] : 1;
  }
}

static void set_strides(tpu_build *b, const fft_call *c, const int64_t *in_strides, int n, const int64_t *dims, int n_sorted,
                        tpu_out *out) {
  tpu_type type = tpu_type_of(b, out->val);
  int64_t sorted[TPU_MAX_RANK], *strides = tpu_build_alloc(b, sizeof *strides * (size_t)(type.rank ? type.rank : 1));
  if (!strides) return;
  memcpy(sorted, dims, sizeof *dims * (size_t)n);
  sort_by_stride(n_sorted, sorted, c->self->strides);
  exec_strides(type.rank, in_strides, type.dims, n, sorted, strides);
  out->strides = strides;
}

static double product(tpu_build *b, tpu_val x, int n, const int64_t *dims) {
  double p = 1;
  for (int i = 0; i < n; i++) p *= (double)tpu_dim_of(b, x, (int)dims[i]);
  return p;
}

/* _fft_c2c(self, dim, normalization, forward) */
void lower_fft_c2c(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  fft_call c;
  if (!read_call(b, a, true, &c)) return;
  bool forward = arg_bool(b, a, 3);
  tpu_val x = c.self->val;
  if (tpu_numel_of(b, x) && c.n) {
    x = transform_complex(b, x, forward, c.n, c.dims);
    x = normalize(b, x, c.mode, product(b, x, c.n, c.dims), !forward);
  }
  o->out[0].val = x;
  if (c.n) set_strides(b, &c, c.self->strides, c.n, c.dims, c.n, &o->out[0]);
}

/* _fft_r2c(self, dim, normalization, onesided): the last of `dim` is the one that keeps n / 2 + 1 */
void lower_fft_r2c(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  fft_call c;
  if (!read_call(b, a, false, &c)) return;
  bool onesided = arg_bool(b, a, 3);
  tpu_val x = c.self->val, y;
  if (c.n == 0) {
    o->out[0].val = tpu_complex(b, x, tpu_full_like(b, x, 0));
    return;
  }
  if (tpu_numel_of(b, x) == 0) {
    tpu_type type = tpu_type_of(b, x);
    int64_t dims[TPU_MAX_RANK], last = c.dims[c.n - 1];
    memcpy(dims, type.dims, sizeof *dims * (size_t)type.rank);
    if (onesided) dims[last] = dims[last] / 2 + 1;
    y = tpu_full(b, tpu_dtype_complex(type.dtype), type.rank, dims, 0);
  } else if (onesided) {
    int count = c.n < MOST_DIMS ? c.n : MOST_DIMS;
    int64_t lengths[MOST_DIMS];
    const int64_t *dims = c.dims + c.n - count;
    for (int i = 0; i < count; i++) lengths[i] = tpu_dim_of(b, x, (int)dims[i]);
    y = transform(b, x, TPU_RFFT, count, dims, lengths);
    y = transform_complex(b, y, true, c.n - count, c.dims);
    y = normalize(b, y, c.mode, product(b, x, c.n, c.dims), false);
  } else {
    y = transform_complex(b, tpu_complex(b, x, tpu_full_like(b, x, 0)), true, c.n, c.dims);
    y = normalize(b, y, c.mode, product(b, x, c.n, c.dims), false);
  }
  o->out[0].val = y;
  set_strides(b, &c, c.self->strides, c.n, c.dims, c.n - 1, &o->out[0]);
}

/* x's dim cut or filled with zeros to `size`. */
static tpu_val resize_dim(tpu_build *b, tpu_val x, int dim, int64_t size) {
  int64_t have = tpu_dim_of(b, x, dim), lo[TPU_MAX_RANK] = {0}, hi[TPU_MAX_RANK] = {0};
  if (have == size) return x;
  hi[dim] = size - have;
  return tpu_pad(b, x, tpu_scalar(b, tpu_dtype_of(b, x), 0), lo, hi, NULL);
}

/* _fft_c2r(self, dim, normalization, last_dim_size) */
void lower_fft_c2r(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  fft_call c;
  if (!read_call(b, a, true, &c)) return;
  int64_t size = arg_int(b, a, 3, 0);
  if (c.n == 0 || size < 1) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Invalid number of data points (%lld) specified", (long long)size);
    return;
  }
  tpu_val x = c.self->val;
  int last = (int)c.dims[c.n - 1];
  int64_t dims[TPU_MAX_RANK];
  tpu_type type = tpu_type_of(b, x);
  memcpy(dims, type.dims, sizeof *dims * (size_t)type.rank);
  dims[last] = size;
  if (tpu_numel_of(b, x) == 0) {
    o->out[0].val = tpu_full(b, tpu_dtype_real(type.dtype), type.rank, dims, 0);
  } else {
    tpu_val y = transform_complex(b, x, false, c.n - 1, c.dims);
    y = transform(b, resize_dim(b, y, last, size / 2 + 1), TPU_IRFFT, 1, &c.dims[c.n - 1], &size);
    o->out[0].val = normalize(b, y, c.mode, product(b, y, c.n, c.dims), true);
  }
  int64_t middle[TPU_MAX_RANK], sorted[TPU_MAX_RANK];
  const int64_t *in_strides = c.self->strides;
  if (c.n > 1) { /* the strides that the complex transforms leave */
    memcpy(sorted, c.dims, sizeof *sorted * (size_t)(c.n - 1));
    sort_by_stride(c.n - 1, sorted, c.self->strides);
    exec_strides(type.rank, c.self->strides, type.dims, c.n - 1, sorted, middle);
    in_strides = middle;
  }
  set_strides(b, &c, in_strides, 1, &c.dims[c.n - 1], 0, &o->out[0]);
}
