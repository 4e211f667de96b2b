/* Types of contractions, reductions over dimensions and windows, and dense linear algebra. */
#include <inttypes.h>
#include <string.h>

#include "ir/shape.h"

#define BAD(...) tpu_error(TPU_INVALID_ARGUMENT, __VA_ARGS__)
#define TEXT(t) tpu_type_print(&(tpu_type_text){{0}}, (t))

/* The dims of a result that are neither in a nor in b, appended at *at. */
static void free_dims(tpu_type t, int n_a, const int64_t *a, int n_b, const int64_t *b, int64_t *out, int *at) {
  uint64_t taken = 0;
  for (int i = 0; i < n_a; i++) taken |= UINT64_C(1) << a[i];
  for (int i = 0; i < n_b; i++) taken |= UINT64_C(1) << b[i];
  for (int i = 0; i < t.rank; i++)
    if (!(taken >> i & 1)) out[(*at)++] = t.dims[i];
}

static tpu_status check_split(const char *what, tpu_type t, int n_a, const int64_t *a, int n_b, const int64_t *b) {
  int64_t both[TPU_MAX_RANK];
  if (n_a < 0 || n_b < 0 || n_a + n_b > t.rank) return BAD("%d batch and %d contracting dims of %s", n_a, n_b, TEXT(t));
  if (n_a) memcpy(both, a, sizeof *a * (size_t)n_a);
  if (n_b) memcpy(both + n_a, b, sizeof *b * (size_t)n_b);
  return tpu_infer_dims_distinct(what, n_a + n_b, both, t.rank);
}

tpu_status tpu_rule_dot_general(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0), y = tpu_infer_operand(in, 1);
  if (!in->attrs || in->attrs->n < 3) return tpu_error(TPU_INTERNAL, "no dimension numbers");
  tpu_dot_dims d = tpu_attrs_dot(in->attrs);
  TPU_TRY(tpu_infer_attr_count(in, 3 + 2 * (uint32_t)(d.n_batch + d.n_contract)));
  if (x.dtype != y.dtype) return BAD("operands %s and %s differ in type", TEXT(x), TEXT(y));
  if (x.dtype == TPU_BOOL) return BAD("i1 operands are not supported");
  TPU_TRY(check_split("lhs dim", x, d.n_batch, d.lhs_batch, d.n_contract, d.lhs_contract));
  TPU_TRY(check_split("rhs dim", y, d.n_batch, d.rhs_batch, d.n_contract, d.rhs_contract));
  int rank = 0;
  if (x.rank + y.rank - d.n_batch - 2 * d.n_contract > TPU_MAX_RANK)
    return BAD("%s times %s has too many dims", TEXT(x), TEXT(y));
  for (int i = 0; i < d.n_batch; i++) {
    int64_t m = x.dims[d.lhs_batch[i]], n = y.dims[d.rhs_batch[i]];
    if (m != n) return BAD("batch dims %" PRId64 " and %" PRId64 " differ (%s times %s)", m, n, TEXT(x), TEXT(y));
    in->dims[rank++] = m;
  }
  for (int i = 0; i < d.n_contract; i++) {
    int64_t m = x.dims[d.lhs_contract[i]], n = y.dims[d.rhs_contract[i]];
    if (m != n) return BAD("contracting dims %" PRId64 " and %" PRId64 " differ (%s times %s)", m, n, TEXT(x), TEXT(y));
  }
  free_dims(x, d.n_batch, d.lhs_batch, d.n_contract, d.lhs_contract, in->dims, &rank);
  free_dims(y, d.n_batch, d.rhs_batch, d.n_contract, d.rhs_contract, in->dims, &rank);
  in->types[0] = (tpu_type){in->types[0].dtype, rank, in->dims};
  return NULL;
}

/* Places of a window over a dim; -1: wrong parameters. */
static int64_t window_count(int64_t size, int64_t base_dilation, int64_t lo, int64_t hi, int64_t window, int64_t dilation,
                            int64_t stride) {
  if (base_dilation < 1 || dilation < 1 || stride < 1 || window < 0) return -1;
  int64_t base = (size ? (size - 1) * base_dilation + 1 : 0) + lo + hi;
  int64_t reach = window ? (window - 1) * dilation + 1 : 0;
  if (base < 0) return -1;
  return base < reach || base == 0 ? 0 : (base - reach) / stride + 1;
}

tpu_status tpu_rule_convolution(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0), k = tpu_infer_operand(in, 1);
  if (!in->attrs || in->attrs->n < TPU_CONV_ARRAYS) return tpu_error(TPU_INTERNAL, "no dimension numbers");
  const int64_t *v = in->attrs->v;
  tpu_conv_view d = tpu_attrs_conv(in->attrs);
  int s = d.spatial;
  if (s < 0 || s > TPU_MAX_RANK - 2) return BAD("%d spatial dims", s);
  TPU_TRY(tpu_infer_attr_count(in, TPU_CONV_ARRAYS + 9 * (uint32_t)s));
  if (x.dtype != k.dtype) return BAD("operand %s and kernel %s differ in type", TEXT(x), TEXT(k));
  if (x.dtype == TPU_BOOL) return BAD("i1 operands are not supported");
  if (x.rank != s + 2 || k.rank != s + 2) return BAD("%d spatial dims for %s and kernel %s", s, TEXT(x), TEXT(k));
  int64_t all[TPU_MAX_RANK];
  const int64_t *spatial[3] = {d.lhs_spatial, d.rhs_spatial, d.out_spatial};
  static const int others[3][2] = {{TPU_CONV_LHS_BATCH, TPU_CONV_LHS_FEATURE},
                                   {TPU_CONV_RHS_IN, TPU_CONV_RHS_OUT},
                                   {TPU_CONV_OUT_BATCH, TPU_CONV_OUT_FEATURE}};
  for (int i = 0; i < 3; i++) {
    all[0] = v[others[i][0]];
    all[1] = v[others[i][1]];
    if (s) memcpy(all + 2, spatial[i], sizeof *all * (size_t)s);
    TPU_TRY(tpu_infer_dims_distinct("dim", s + 2, all, s + 2));
  }
  int64_t groups = v[TPU_CONV_FEATURE_GROUPS], batch_groups = v[TPU_CONV_BATCH_GROUPS];
  int64_t batch = x.dims[v[TPU_CONV_LHS_BATCH]], features = x.dims[v[TPU_CONV_LHS_FEATURE]];
  int64_t kernel_in = k.dims[v[TPU_CONV_RHS_IN]], kernel_out = k.dims[v[TPU_CONV_RHS_OUT]];
  if (groups < 1 || batch_groups < 1 || (groups > 1 && batch_groups > 1))
    return BAD("%" PRId64 " feature and %" PRId64 " batch groups", groups, batch_groups);
  if (batch % batch_groups) return BAD("batch of %" PRId64 " in %" PRId64 " groups", batch, batch_groups);
  if (features != kernel_in * groups)
    return BAD("%" PRId64 " features in %" PRId64 " groups do not fit the kernel's %" PRId64 " (%s, kernel %s)", features, groups,
               kernel_in, TEXT(x), TEXT(k));
  if (kernel_out % groups || kernel_out % batch_groups) return BAD("%" PRId64 " results do not fit the groups", kernel_out);
  in->dims[v[TPU_CONV_OUT_BATCH]] = batch / batch_groups;
  in->dims[v[TPU_CONV_OUT_FEATURE]] = kernel_out;
  for (int i = 0; i < s; i++) {
    int64_t count = window_count(x.dims[d.lhs_spatial[i]], d.lhs_dilation[i], d.pad_lo[i], d.pad_hi[i], k.dims[d.rhs_spatial[i]],
                                 d.rhs_dilation[i], d.strides[i]);
    if (count < 0) return BAD("spatial dim %d: the window does not fit (%s, kernel %s)", i, TEXT(x), TEXT(k));
    in->dims[d.out_spatial[i]] = count;
  }
  in->types[0] = (tpu_type){in->types[0].dtype, s + 2, in->dims};
  return NULL;
}

tpu_status tpu_rule_fft(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0);
  int n = in->attrs ? (int)in->attrs->n - 1 : 0;
  if (n < 1 || n > 3 || n > x.rank) return BAD("%d dims of %s", n, TEXT(x));
  tpu_fft_kind kind = (tpu_fft_kind)in->attrs->v[0];
  const int64_t *lengths = in->attrs->v + 1;
  bool takes_real = kind == TPU_RFFT;
  tpu_dtype complex = takes_real ? tpu_dtype_complex(x.dtype) : x.dtype;
  if (takes_real ? x.dtype != TPU_F32 && x.dtype != TPU_F64 : !tpu_is_complex(x.dtype))
    return BAD("%s operands are not supported", tpu_dtype_hlo(x.dtype));
  memcpy(in->dims, x.dims, sizeof *in->dims * (size_t)x.rank);
  for (int i = 0; i < n; i++) {
    int dim = x.rank - n + i;
    int64_t want = kind == TPU_IRFFT && i == n - 1 ? lengths[i] / 2 + 1 : lengths[i];
    if (x.dims[dim] != want) return BAD("length %" PRId64 " does not fit dim %d of %s", lengths[i], dim, TEXT(x));
  }
  if (kind == TPU_RFFT) in->dims[x.rank - 1] = lengths[n - 1] / 2 + 1;
  if (kind == TPU_IRFFT) in->dims[x.rank - 1] = lengths[n - 1];
  in->types[0] = (tpu_type){kind == TPU_IRFFT ? tpu_dtype_real(complex) : complex, x.rank, in->dims};
  return NULL;
}

/* n operands of equal dims, then as many scalars of their types; a region over both. */
static tpu_status check_reduction(const tpu_infer *in) {
  uint32_t n = in->n_operands / 2;
  if (!n || in->n_operands % 2 || in->n_results != n || in->n_regions != 1)
    return tpu_error(TPU_INTERNAL, "%u operands, %u results, %u regions", in->n_operands, in->n_results, in->n_regions);
  tpu_type x = tpu_infer_operand(in, 0);
  tpu_dtype few[16];
  if (2 * n > 16) return BAD("at most 8 operands are supported");
  for (uint32_t i = 0; i < n; i++) {
    tpu_type y = tpu_infer_operand(in, i), init = tpu_infer_operand(in, n + i);
    if (y.rank != x.rank || !tpu_dims_equal(x.rank, x.dims, y.dims)) return BAD("operands %s and %s differ", TEXT(x), TEXT(y));
    if (init.rank || init.dtype != y.dtype) return BAD("initial value %s for %s", TEXT(init), TEXT(y));
    few[i] = few[n + i] = y.dtype;
  }
  return tpu_infer_scalar_region(in, 0, 2 * n, few, n, few);
}

tpu_status tpu_rule_reduce(tpu_infer *in) {
  TPU_TRY(check_reduction(in));
  tpu_type x = tpu_infer_operand(in, 0);
  int n = in->attrs ? (int)in->attrs->n : 0, rank = 0;
  const int64_t *axes = n ? in->attrs->v : NULL;
  TPU_TRY(tpu_infer_dims_distinct("axis", n, axes, x.rank));
  free_dims(x, n, axes, 0, NULL, in->dims, &rank);
  for (uint32_t i = 0; i < in->n_results; i++) in->types[i] = (tpu_type){tpu_infer_operand(in, i).dtype, rank, in->dims};
  return NULL;
}

static tpu_status window_dims(tpu_infer *in, tpu_type x) {
  TPU_TRY(tpu_infer_attr_count(in, 6 * (uint32_t)x.rank));
  if (!x.rank) return NULL;
  tpu_window w = tpu_attrs_window(in->attrs, x.rank);
  for (int i = 0; i < x.rank; i++) {
    int64_t count = window_count(x.dims[i], w.base_dilation[i], w.pad_lo[i], w.pad_hi[i], w.dims[i], w.dilation[i], w.strides[i]);
    if (count < 0 || w.dims[i] < 1) return BAD("the window of dim %d does not fit %s", i, TEXT(x));
    in->dims[i] = count;
  }
  return NULL;
}

tpu_status tpu_rule_reduce_window(tpu_infer *in) {
  TPU_TRY(check_reduction(in));
  tpu_type x = tpu_infer_operand(in, 0);
  TPU_TRY(window_dims(in, x));
  for (uint32_t i = 0; i < in->n_results; i++) in->types[i] = (tpu_type){tpu_infer_operand(in, i).dtype, x.rank, in->dims};
  return NULL;
}

tpu_status tpu_rule_select_and_scatter(tpu_infer *in) {
  tpu_type x = tpu_infer_operand(in, 0), source = tpu_infer_operand(in, 1), init = tpu_infer_operand(in, 2);
  if (in->n_regions != 2) return tpu_error(TPU_INTERNAL, "%u regions", in->n_regions);
  TPU_TRY(window_dims(in, x));
  tpu_window w = tpu_attrs_window(in->attrs, x.rank);
  for (int i = 0; i < x.rank; i++)
    if (w.base_dilation[i] != 1 || w.dilation[i] != 1) return BAD("dilations are not supported");
  tpu_type want = {x.dtype, x.rank, in->dims};
  if (!tpu_type_equal(source, want)) return BAD("source is %s, wanted %s", TEXT(source), TEXT(want));
  if (init.rank || init.dtype != x.dtype) return BAD("initial value %s for %s", TEXT(init), TEXT(x));
  tpu_dtype params[2] = {x.dtype, x.dtype}, pred = TPU_BOOL;
  TPU_TRY(tpu_infer_scalar_region(in, 0, 2, params, 1, &pred));
  TPU_TRY(tpu_infer_scalar_region(in, 1, 2, params, 1, params));
  in->types[0] = x;
  return NULL;
}

static tpu_status check_square(tpu_type a) {
  if (a.rank < 2 || a.dims[a.rank - 1] != a.dims[a.rank - 2]) return BAD("%s is no batch of square matrices", TEXT(a));
  return NULL;
}

tpu_status tpu_rule_cholesky(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 1));
  return check_square(tpu_infer_operand(in, 0));
}

tpu_status tpu_rule_triangular_solve(tpu_infer *in) {
  TPU_TRY(tpu_infer_attr_count(in, 4));
  tpu_type a = tpu_infer_operand(in, 0), y = tpu_infer_operand(in, 1);
  TPU_TRY(check_square(a));
  bool left = in->attrs->v[0] != 0;
  if (a.dtype != y.dtype || a.rank != y.rank || !tpu_dims_equal(a.rank - 2, a.dims, y.dims) ||
      y.dims[y.rank - (left ? 2 : 1)] != a.dims[a.rank - 1])
    return BAD("%s does not fit %s", TEXT(a), TEXT(y));
  if (in->attrs->v[3] < 0 || in->attrs->v[3] > 2) return tpu_error(TPU_INTERNAL, "transpose %" PRId64, in->attrs->v[3]);
  in->types[0] = y;
  return NULL;
}
