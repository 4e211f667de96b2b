/* Attributes and constants as MLIR text. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/emit_private.h"
#include "ir/number.h"

void tpu_emit_type(tpu_strbuf *s, tpu_type t) {
  EMIT(s, "tensor<");
  for (int i = 0; i < t.rank; i++) {
    tpu_strbuf_put_i64(s, t.dims[i]);
    EMIT(s, "x");
  }
  tpu_strbuf_put(s, tpu_dtype_hlo(t.dtype));
  EMIT(s, ">");
}

/* --- constants */

static void put_hex(tpu_strbuf *s, uint64_t bits, int bytes) {
  char text[2 + 16];
  int at = 0;
  text[at++] = '0';
  text[at++] = 'x';
  for (int i = 2 * bytes; i-- > 0;) text[at++] = "0123456789ABCDEF"[bits >> (4 * i) & 15];
  tpu_strbuf_put_n(s, text, (size_t)at);
}

/* Small whole numbers as people write them, everything else as bits: always exact, never dependent on the locale. */
static void put_float(tpu_strbuf *s, tpu_dtype t, const void *element) {
  double v = tpu_number_to_double(t, element);
  if (fabs(v) < 1e6 && v == floor(v) && !(v == 0 && signbit(v))) {
    tpu_strbuf_put_i64(s, (int64_t)v);
    EMIT(s, ".0");
    return;
  }
  int bytes = (int)tpu_dtype_bytes(t);
  put_hex(s, tpu_number_bits(element, bytes), bytes);
}

static void put_element(tpu_strbuf *s, tpu_dtype t, const void *element) {
  switch (tpu_dtype_kind(t)) {
    case TPU_KIND_BOOL:
      if (tpu_number_to_int(t, element))
        EMIT(s, "true");
      else
        EMIT(s, "false");
      return;
    case TPU_KIND_INT: tpu_strbuf_put_i64(s, tpu_number_to_int(t, element)); return;
    case TPU_KIND_UINT: tpu_strbuf_put_u64(s, (uint64_t)tpu_number_to_int(t, element)); return;
    case TPU_KIND_FLOAT: put_float(s, t, element); return;
    case TPU_KIND_COMPLEX: {
      tpu_dtype part = tpu_dtype_real(t);
      EMIT(s, "(");
      put_float(s, part, element);
      EMIT(s, ", ");
      put_float(s, part, (const char *)element + tpu_dtype_bytes(part));
      EMIT(s, ")");
      return;
    }
  }
}

static const char *put_nested(tpu_strbuf *s, tpu_type t, int dim, const char *data) {
  if (dim == t.rank) {
    put_element(s, t.dtype, data);
    return data + tpu_dtype_bytes(t.dtype);
  }
  EMIT(s, "[");
  for (int64_t i = 0; i < t.dims[dim]; i++) {
    if (i) EMIT(s, ", ");
    data = put_nested(s, t, dim + 1, data);
  }
  EMIT(s, "]");
  return data;
}

static void put_bytes(tpu_strbuf *s, const uint8_t *data, uint32_t bytes) {
  char text[512];
  EMIT(s, "\"0x");
  while (bytes) {
    uint32_t n = bytes < 256 ? bytes : 256;
    for (uint32_t i = 0; i < n; i++) {
      text[2 * i] = "0123456789ABCDEF"[data[i] >> 4];
      text[2 * i + 1] = "0123456789ABCDEF"[data[i] & 15];
    }
    tpu_strbuf_put_n(s, text, 2 * n);
    data += n;
    bytes -= n;
  }
  EMIT(s, "\"");
}

void tpu_emit_dense(tpu_strbuf *s, tpu_type t, const void *data, uint32_t bytes) {
  enum { READABLE = 64 };
  int64_t numel = tpu_type_numel(t);
  EMIT(s, "dense<");
  if (numel == 0) {
    /* no elements */
  } else if (bytes == (uint32_t)tpu_dtype_bytes(t.dtype)) {
    put_element(s, t.dtype, data);
  } else if (numel <= READABLE || t.dtype == TPU_BOOL) { /* raw i1 is bits in some MLIR versions and bytes in others */
    (void)put_nested(s, t, 0, data);
  } else {
    put_bytes(s, data, bytes);
  }
  EMIT(s, "> : ");
  tpu_emit_type(s, t);
}

/* --- attributes */

static void put_list(tpu_strbuf *s, int64_t n, const int64_t *v) {
  for (int64_t i = 0; i < n; i++) {
    if (i) EMIT(s, ", ");
    tpu_strbuf_put_i64(s, v[i]);
  }
}

static void put_array(tpu_strbuf *s, const char *name, int64_t n, const int64_t *v) {
  tpu_strbuf_put(s, name);
  EMIT(s, " = array<i64");
  if (n) EMIT(s, ": ");
  put_list(s, n, v);
  EMIT(s, ">");
}

static void put_dims(tpu_strbuf *s, const char *name, int64_t n, const int64_t *v) {
  tpu_strbuf_put(s, name);
  EMIT(s, " = [");
  put_list(s, n, v);
  EMIT(s, "]");
}

static void put_int(tpu_strbuf *s, const char *name, int64_t v, const char *type) {
  tpu_strbuf_put(s, name);
  EMIT(s, " = ");
  tpu_strbuf_put_i64(s, v);
  EMIT(s, " : ");
  tpu_strbuf_put(s, type);
}

static void put_bool(tpu_strbuf *s, const char *name, int64_t v) {
  tpu_strbuf_put(s, name);
  if (v)
    EMIT(s, " = true");
  else
    EMIT(s, " = false");
}

static void put_enum(tpu_strbuf *s, const char *name, const char *type, const char *value) {
  tpu_strbuf_put(s, name);
  EMIT(s, " = #stablehlo<");
  tpu_strbuf_put(s, type);
  EMIT(s, " ");
  tpu_strbuf_put(s, value);
  EMIT(s, ">");
}

static void put_padding(tpu_strbuf *s, int n, const int64_t *lo, const int64_t *hi) {
  EMIT(s, "padding = dense<");
  if (n) EMIT(s, "[");
  for (int i = 0; i < n; i++) {
    if (i) EMIT(s, ", ");
    EMIT(s, "[");
    tpu_strbuf_put_i64(s, lo[i]);
    EMIT(s, ", ");
    tpu_strbuf_put_i64(s, hi[i]);
    EMIT(s, "]");
  }
  if (n) EMIT(s, "]");
  EMIT(s, "> : tensor<");
  tpu_strbuf_put_i64(s, n);
  EMIT(s, "x2xi64>");
}

static void put_precision(tpu_strbuf *s, int64_t precision) {
  if (precision == TPU_PRECISION_DEFAULT) return;
  const char *name = precision == TPU_PRECISION_HIGH ? "HIGH" : "HIGHEST";
  EMIT(s, ", precision_config = [#stablehlo<precision ");
  tpu_strbuf_put(s, name);
  EMIT(s, ">, #stablehlo<precision ");
  tpu_strbuf_put(s, name);
  EMIT(s, ">]");
}

static void put_compare(tpu_strbuf *s, tpu_dtype t, const int64_t *v) {
  static const char *const directions[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};
  put_enum(s, "comparison_direction", "comparison_direction", directions[v[0]]);
  tpu_kind kind = tpu_dtype_kind(t);
  EMIT(s, ", ");
  put_enum(s, "compare_type", "comparison_type",
           v[1]                                                 ? "TOTALORDER"
           : kind == TPU_KIND_FLOAT || kind == TPU_KIND_COMPLEX ? "FLOAT"
           : kind == TPU_KIND_INT                               ? "SIGNED"
                                                                : "UNSIGNED");
}

static void put_dot(tpu_strbuf *s, const tpu_attrs *a) {
  tpu_dot_dims d = tpu_attrs_dot(a);
  EMIT(s, "dot_dimension_numbers = #stablehlo.dot<");
  if (d.n_batch) {
    put_dims(s, "lhs_batching_dimensions", d.n_batch, d.lhs_batch);
    EMIT(s, ", ");
    put_dims(s, "rhs_batching_dimensions", d.n_batch, d.rhs_batch);
    EMIT(s, ", ");
  }
  put_dims(s, "lhs_contracting_dimensions", d.n_contract, d.lhs_contract);
  EMIT(s, ", ");
  put_dims(s, "rhs_contracting_dimensions", d.n_contract, d.rhs_contract);
  EMIT(s, ">");
  put_precision(s, a->v[2]);
}

/* "[b, f, 0, 1]": which dim is what. */
static void put_layout(tpu_strbuf *s, int spatial, char first, int64_t first_dim, char second, int64_t second_dim,
                       const int64_t *dims) {
  EMIT(s, "[");
  for (int i = 0; i < spatial + 2; i++) {
    if (i) EMIT(s, ", ");
    if (i == first_dim)
      tpu_strbuf_put_n(s, &first, 1);
    else if (i == second_dim)
      tpu_strbuf_put_n(s, &second, 1);
    else
      for (int k = 0; k < spatial; k++)
        if (dims[k] == i) tpu_strbuf_put_i64(s, k);
  }
  EMIT(s, "]");
}

static void put_convolution(tpu_strbuf *s, const tpu_attrs *a) {
  const int64_t *v = a->v;
  tpu_conv_view d = tpu_attrs_conv(a);
  int n = d.spatial;
  EMIT(s, "dimension_numbers = #stablehlo.conv<");
  put_layout(s, n, 'b', v[TPU_CONV_LHS_BATCH], 'f', v[TPU_CONV_LHS_FEATURE], d.lhs_spatial);
  EMIT(s, "x");
  put_layout(s, n, 'i', v[TPU_CONV_RHS_IN], 'o', v[TPU_CONV_RHS_OUT], d.rhs_spatial);
  EMIT(s, "->");
  put_layout(s, n, 'b', v[TPU_CONV_OUT_BATCH], 'f', v[TPU_CONV_OUT_FEATURE], d.out_spatial);
  EMIT(s, ">, ");
  put_array(s, "window_strides", n, d.strides);
  EMIT(s, ", ");
  put_padding(s, n, d.pad_lo, d.pad_hi);
  EMIT(s, ", ");
  put_array(s, "lhs_dilation", n, d.lhs_dilation);
  EMIT(s, ", ");
  put_array(s, "rhs_dilation", n, d.rhs_dilation);
  bool reversed = false;
  for (int i = 0; i < n; i++) reversed = reversed || d.reversal[i];
  if (reversed) {
    EMIT(s, ", window_reversal = array<i1");
    for (int i = 0; i < n; i++) tpu_strbuf_printf(s, "%s%s", i ? ", " : ": ", d.reversal[i] ? "true" : "false");
    EMIT(s, ">");
  }
  EMIT(s, ", ");
  put_int(s, "feature_group_count", v[TPU_CONV_FEATURE_GROUPS], "i64");
  EMIT(s, ", ");
  put_int(s, "batch_group_count", v[TPU_CONV_BATCH_GROUPS], "i64");
  put_precision(s, v[TPU_CONV_PRECISION]);
}

static void put_gather(tpu_strbuf *s, const tpu_attrs *a, int rank) {
  const int64_t *sizes;
  tpu_gather_dims d = tpu_attrs_gather(a, &sizes);
  EMIT(s, "dimension_numbers = #stablehlo.gather<");
  put_dims(s, "offset_dims", d.n_offset, d.offset);
  EMIT(s, ", ");
  put_dims(s, "collapsed_slice_dims", d.n_collapsed, d.collapsed);
  EMIT(s, ", ");
  if (d.n_batch) {
    put_dims(s, "operand_batching_dims", d.n_batch, d.operand_batch);
    EMIT(s, ", ");
    put_dims(s, "start_indices_batching_dims", d.n_batch, d.indices_batch);
    EMIT(s, ", ");
  }
  put_dims(s, "start_index_map", d.n_map, d.start_index_map);
  EMIT(s, ", index_vector_dim = ");
  tpu_strbuf_put_i64(s, d.index_vector_dim);
  EMIT(s, ">, ");
  put_bool(s, "indices_are_sorted", d.sorted);
  EMIT(s, ", ");
  put_array(s, "slice_sizes", rank, sizes);
}

static void put_scatter(tpu_strbuf *s, const tpu_attrs *a) {
  tpu_scatter_dims d = tpu_attrs_scatter(a);
  EMIT(s, "scatter_dimension_numbers = #stablehlo.scatter<");
  put_dims(s, "update_window_dims", d.n_window, d.window);
  EMIT(s, ", ");
  put_dims(s, "inserted_window_dims", d.n_inserted, d.inserted);
  EMIT(s, ", ");
  if (d.n_batch) {
    put_dims(s, "input_batching_dims", d.n_batch, d.operand_batch);
    EMIT(s, ", ");
    put_dims(s, "scatter_indices_batching_dims", d.n_batch, d.indices_batch);
    EMIT(s, ", ");
  }
  put_dims(s, "scatter_dims_to_operand_dims", d.n_map, d.scatter_map);
  EMIT(s, ", index_vector_dim = ");
  tpu_strbuf_put_i64(s, d.index_vector_dim);
  EMIT(s, ">, ");
  put_bool(s, "indices_are_sorted", d.sorted);
  EMIT(s, ", ");
  put_bool(s, "unique_indices", d.unique);
}

static void put_window(tpu_strbuf *s, const tpu_attrs *a, int rank, bool dilations) {
  tpu_window w = tpu_attrs_window(a, rank);
  put_array(s, "window_dimensions", rank, w.dims);
  EMIT(s, ", ");
  put_array(s, "window_strides", rank, w.strides);
  EMIT(s, ", ");
  if (dilations) {
    put_array(s, "base_dilations", rank, w.base_dilation);
    EMIT(s, ", ");
    put_array(s, "window_dilations", rank, w.dilation);
    EMIT(s, ", ");
  }
  put_padding(s, rank, w.pad_lo, w.pad_hi);
}

/* A string literal: MLIR escapes are a backslash and two hexadecimal digits. */
static void put_string(tpu_strbuf *s, const char *name, const char *text, int64_t n) {
  tpu_strbuf_put(s, name);
  EMIT(s, " = \"");
  for (int64_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
      tpu_strbuf_printf(s, "\\%02X", c);
    else
      tpu_strbuf_put_n(s, text + i, 1);
  }
  EMIT(s, "\"");
}

void tpu_emit_attrs(tpu_strbuf *s, const tpu_graph *g, const tpu_node *node) {
  static const char *const transposes[] = {"NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"};
  static const char *const ffts[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  static const char *const rngs[] = {"DEFAULT", "THREE_FRY", "PHILOX"};
  const tpu_attrs *a = tpu_node_attrs(node);
  tpu_type x = node->n_operands ? tpu_value_at(g, node->operands[0].id)->type : (tpu_type){TPU_F32, 0, NULL};
  int64_t r = x.rank;
  const int64_t *v = a ? a->v : NULL;
  size_t before = s->size;
  EMIT(s, " {");
  size_t empty = s->size;
  switch ((tpu_hlo)node->op) {
    case TPU_HLO_CONSTANT:
      EMIT(s, "value = ");
      tpu_emit_dense(s, tpu_value_at(g, node->first_result)->type, a->data, a->bytes);
      break;
    case TPU_HLO_IOTA: put_int(s, "iota_dimension", v[0], "i64"); break;
    case TPU_HLO_COMPARE: put_compare(s, x.dtype, v); break;
    case TPU_HLO_REDUCE_PRECISION:
      put_int(s, "exponent_bits", v[0], "i32");
      EMIT(s, ", ");
      put_int(s, "mantissa_bits", v[1], "i32");
      break;
    case TPU_HLO_BROADCAST_IN_DIM: put_array(s, "broadcast_dimensions", r, v); break;
    case TPU_HLO_CONCATENATE: put_int(s, "dimension", v[0], "i64"); break;
    case TPU_HLO_DYNAMIC_SLICE: put_array(s, "slice_sizes", r, v); break;
    case TPU_HLO_PAD:
      put_array(s, "edge_padding_low", r, v);
      EMIT(s, ", ");
      put_array(s, "edge_padding_high", r, v ? v + r : v);
      EMIT(s, ", ");
      put_array(s, "interior_padding", r, v ? v + 2 * r : v);
      break;
    case TPU_HLO_REVERSE: put_array(s, "dimensions", a ? a->n : 0, v); break;
    case TPU_HLO_SLICE:
      put_array(s, "start_indices", r, v);
      EMIT(s, ", ");
      put_array(s, "limit_indices", r, v ? v + r : v);
      EMIT(s, ", ");
      put_array(s, "strides", r, v ? v + 2 * r : v);
      break;
    case TPU_HLO_TRANSPOSE: put_array(s, "permutation", r, v); break;
    case TPU_HLO_CHOLESKY: put_bool(s, "lower", v[0]); break;
    case TPU_HLO_CONVOLUTION: put_convolution(s, a); break;
    case TPU_HLO_DOT_GENERAL: put_dot(s, a); break;
    case TPU_HLO_FFT:
      put_enum(s, "fft_type", "fft_type", ffts[v[0]]);
      EMIT(s, ", ");
      put_array(s, "fft_length", (int64_t)a->n - 1, v + 1);
      break;
    case TPU_HLO_GATHER: put_gather(s, a, x.rank); break;
    case TPU_HLO_REDUCE: put_array(s, "dimensions", a ? a->n : 0, v); break;
    case TPU_HLO_REDUCE_WINDOW: put_window(s, a, x.rank, true); break;
    case TPU_HLO_SCATTER: put_scatter(s, a); break;
    case TPU_HLO_SELECT_AND_SCATTER: put_window(s, a, x.rank, false); break;
    case TPU_HLO_SORT:
      put_int(s, "dimension", v[0], "i64");
      EMIT(s, ", ");
      put_bool(s, "is_stable", v[1]);
      break;
    case TPU_HLO_TRIANGULAR_SOLVE:
      put_bool(s, "left_side", v[0]);
      EMIT(s, ", ");
      put_bool(s, "lower", v[1]);
      EMIT(s, ", ");
      put_bool(s, "unit_diagonal", v[2]);
      EMIT(s, ", ");
      put_enum(s, "transpose_a", "transpose", transposes[v[3]]);
      break;
    case TPU_HLO_RNG_BIT_GENERATOR: put_enum(s, "rng_algorithm", "rng_algorithm", rngs[v[0]]); break;
    case TPU_HLO_CUSTOM_CALL:
      put_string(s, "call_target_name", a->data, v[0]);
      EMIT(s, ", ");
      put_string(s, "backend_config", (const char *)a->data + v[0], v[1]);
      EMIT(s, ", api_version = 2 : i32, has_side_effect = false");
      break;
    default: break;
  }
  if (s->size == empty && !s->failed) {
    s->size = before;
    s->data[before] = 0;
  } else {
    EMIT(s, "}");
  }
}
