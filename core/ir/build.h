/* tpu_build: makes nodes. Each function checks its operands, infers the result's type, appends a node (or folds
 * what is trivially known) and returns its value.
 *
 * Errors are sticky: the first failure is kept in the builder with the message, its function returns poison, and
 * every function given poison returns poison and does nothing. So a lowering is written as expressions and its
 * caller asks once, with tpu_build_status.
 *
 * The builder folds: identity reshape / transpose / convert / slice / broadcast, reshape of reshape, transpose of transpose,
 * splat arithmetic, transposes into dot_general, so that views cost nothing in the program.
 *
 * Array arguments are copied; callers may pass stack memory. Negative dims are NOT accepted here. Thread-compatible.
 * May include: base, ir.
 */
#ifndef TPU_IR_BUILD_H
#define TPU_IR_BUILD_H

#include "ir/graph.h"

/* What a program is compiled for. A parameter of lowering and expansion, never a global. */
typedef enum tpu_target_platform { TPU_TARGET_CPU, TPU_TARGET_TPU, TPU_TARGET_OTHER } tpu_target_platform;
typedef struct tpu_target {
  tpu_target_platform platform;
  tpu_precision precision; /* of float32 contractions */
  bool atan_is_broken;     /* emit atan(x) as atan2(2x, 2) */
  bool host_custom_calls;  /* @Qr, @Eigh, ... exist as on XLA:CPU */
  bool widens_half_dots;   /* contract half-precision operands with batch or several dims as float32 */
} tpu_target;

/* What a program shall report when it runs: where a user's data is not what an op allows, such as an index out of range. */
typedef struct tpu_checks {
  uint32_t n, capacity;
  tpu_val *bad;    /* i1 scalars */
  uint32_t *scope; /* of the builder when the check was made */
} tpu_checks;

typedef struct tpu_build {
  tpu_graph *graph;
  const tpu_target *target;
  tpu_status status;       /* owned; the first failure */
  uint32_t slot_base;      /* added to slot indices by tpu_slot */
  uint32_t scope;          /* given to new nodes */
  tpu_checks *checks;      /* NULL: nobody asks */
  struct tpu_block *block; /* the region being built; private */
} tpu_build;

void tpu_build_init(tpu_build *b, tpu_graph *graph, const tpu_target *target);
/* Takes the failure out of the builder; NULL if there was none. */
tpu_status tpu_build_status(tpu_build *b) TPU_MUST_USE;
/* Records a failure (if it is the first) and returns poison: `return tpu_fail(b, TPU_INVALID_ARGUMENT, "...")`. */
tpu_val tpu_fail(tpu_build *b, tpu_code code, const char *format, ...) TPU_PRINTF(3, 4);
static inline bool tpu_build_failed(const tpu_build *b) { return b->status != 0; }

/* Types of values; poison gives {TPU_F32, 0}. */
tpu_type tpu_type_of(const tpu_build *b, tpu_val v);
tpu_dtype tpu_dtype_of(const tpu_build *b, tpu_val v);
int tpu_rank_of(const tpu_build *b, tpu_val v);
const int64_t *tpu_dims_of(const tpu_build *b, tpu_val v);
int64_t tpu_dim_of(const tpu_build *b, tpu_val v, int dim);
int64_t tpu_numel_of(const tpu_build *b, tpu_val v);
/* Memory of the graph's arena, for arrays a lowering needs; NULL sets the failure. */
void *tpu_build_alloc(tpu_build *b, size_t bytes);

/* --- inputs and constants */
tpu_val tpu_param(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims); /* the next graph input */
/* Run-time number `index` (plus slot_base), as a scalar of dtype. The same (index, dtype) gives the same value. */
tpu_val tpu_slot(tpu_build *b, uint32_t index, tpu_dtype dtype);
/* Splat constants: dims filled with one number, converted to dtype (complex: real part). */
tpu_val tpu_full(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, double value);
tpu_val tpu_full_i(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, int64_t value);
static inline tpu_val tpu_scalar(tpu_build *b, tpu_dtype dtype, double v) { return tpu_full(b, dtype, 0, 0, v); }
static inline tpu_val tpu_scalar_i(tpu_build *b, tpu_dtype dtype, int64_t v) { return tpu_full_i(b, dtype, 0, 0, v); }
tpu_val tpu_full_like(tpu_build *b, tpu_val like, double value); /* dtype and dims of `like` */
/* Dense constant; data: row-major elements as in host memory. */
tpu_val tpu_dense(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, const void *data);
tpu_val tpu_dense_i64(tpu_build *b, int64_t n, const int64_t *data); /* 1-d i64 */
tpu_val tpu_iota(tpu_build *b, tpu_dtype dtype, int rank, const int64_t *dims, int dim);
/* The least and greatest value of a dtype, for reductions (-inf/inf for floats; false/true for bool). */
tpu_val tpu_lowest(tpu_build *b, tpu_dtype dtype);
tpu_val tpu_highest(tpu_build *b, tpu_dtype dtype);
/* Notes that `bad` (i1, any dims) must nowhere be true. Nothing where checks == NULL or inside a region. */
void tpu_build_check(tpu_build *b, tpu_val bad);
/* If v is a splat constant: its number. */
bool tpu_is_splat(const tpu_build *b, tpu_val v, double *out_value);

/* --- elementwise; operands have equal types (see broadcast.h functions below for others) */
tpu_val tpu_unary(tpu_build *b, tpu_hlo op, tpu_val x);
tpu_val tpu_binary(tpu_build *b, tpu_hlo op, tpu_val x, tpu_val y);
tpu_val tpu_compare(tpu_build *b, tpu_compare_dir dir, tpu_val x, tpu_val y);       /* floats: IEEE, NaN unordered */
tpu_val tpu_compare_total(tpu_build *b, tpu_compare_dir dir, tpu_val x, tpu_val y); /* floats: TOTALORDER */
tpu_val tpu_select(tpu_build *b, tpu_val pred, tpu_val on_true, tpu_val on_false);  /* pred: same dims or scalar */
tpu_val tpu_clamp(tpu_build *b, tpu_val lo, tpu_val x, tpu_val hi);                 /* lo, hi: same type or scalar */
/* PyTorch's conversion: float -> int truncates, anything -> bool is != 0, complex -> real takes the real part. */
tpu_val tpu_convert(tpu_build *b, tpu_val x, tpu_dtype dtype);
tpu_val tpu_complex(tpu_build *b, tpu_val re, tpu_val im);
tpu_val tpu_reduce_precision(tpu_build *b, tpu_val x, int exponent_bits, int mantissa_bits);

static inline tpu_val tpu_add(tpu_build *b, tpu_val x, tpu_val y) { return tpu_binary(b, TPU_HLO_ADD, x, y); }
static inline tpu_val tpu_sub(tpu_build *b, tpu_val x, tpu_val y) { return tpu_binary(b, TPU_HLO_SUBTRACT, x, y); }
static inline tpu_val tpu_mul(tpu_build *b, tpu_val x, tpu_val y) { return tpu_binary(b, TPU_HLO_MULTIPLY, x, y); }
static inline tpu_val tpu_div(tpu_build *b, tpu_val x, tpu_val y) { return tpu_binary(b, TPU_HLO_DIVIDE, x, y); }
static inline tpu_val tpu_max(tpu_build *b, tpu_val x, tpu_val y) { return tpu_binary(b, TPU_HLO_MAXIMUM, x, y); }
static inline tpu_val tpu_min(tpu_build *b, tpu_val x, tpu_val y) { return tpu_binary(b, TPU_HLO_MINIMUM, x, y); }
static inline tpu_val tpu_and(tpu_build *b, tpu_val x, tpu_val y) { return tpu_binary(b, TPU_HLO_AND, x, y); }
static inline tpu_val tpu_or(tpu_build *b, tpu_val x, tpu_val y) { return tpu_binary(b, TPU_HLO_OR, x, y); }
static inline tpu_val tpu_neg(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_NEGATE, x); }
static inline tpu_val tpu_not(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_NOT, x); }
static inline tpu_val tpu_exp(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_EXPONENTIAL, x); }
static inline tpu_val tpu_log(tpu_build *b, tpu_val x) { return tpu_unary(b, TPU_HLO_LOG, x); }
static inline tpu_val tpu_is_nan(tpu_build *b, tpu_val x) { return tpu_compare(b, TPU_NE, x, x); }

/* --- shape */
tpu_val tpu_reshape(tpu_build *b, tpu_val x, int rank, const int64_t *dims);
tpu_val tpu_transpose(tpu_build *b, tpu_val x, const int64_t *perm); /* out dim i is x's dim perm[i] */
/* map[i]: the result dim that x's dim i becomes; x's dims of size 1 are repeated. */
tpu_val tpu_broadcast_in_dim(tpu_build *b, tpu_val x, int rank, const int64_t *dims, const int64_t *map);
/* NumPy/PyTorch broadcast of x to dims: aligned at the last dim. */
tpu_val tpu_broadcast_to(tpu_build *b, tpu_val x, int rank, const int64_t *dims);
tpu_val tpu_broadcast_like(tpu_build *b, tpu_val x, tpu_val like);
tpu_val tpu_slice(tpu_build *b, tpu_val x, const int64_t *start, const int64_t *limit,
                  const int64_t *stride); /* stride NULL: 1 */
tpu_val tpu_slice_dim(tpu_build *b, tpu_val x, int dim, int64_t start, int64_t limit, int64_t stride);
tpu_val tpu_pad(tpu_build *b, tpu_val x, tpu_val value, const int64_t *lo, const int64_t *hi,
                const int64_t *interior); /* lo, hi may be negative; interior NULL: 0 */
tpu_val tpu_concat(tpu_build *b, int n, const tpu_val *xs, int dim);
tpu_val tpu_reverse(tpu_build *b, tpu_val x, int n, const int64_t *dims);
tpu_val tpu_unsqueeze(tpu_build *b, tpu_val x, int dim); /* 0 <= dim <= rank */
tpu_val tpu_squeeze(tpu_build *b, tpu_val x, int dim);
tpu_val tpu_bitcast(tpu_build *b, tpu_val x, tpu_dtype dtype, int rank, const int64_t *dims);
/* starts: one scalar of an integer dtype per dim (all of one dtype); clamped by the op. */
tpu_val tpu_dynamic_slice(tpu_build *b, tpu_val x, const tpu_val *starts, const int64_t *sizes);
tpu_val tpu_dynamic_update_slice(tpu_build *b, tpu_val x, tpu_val update, const tpu_val *starts);

/* --- contractions and reductions */
/* Result dims: batch, lhs free, rhs free. out_dtype: TPU_DTYPE_NONE takes the operands'. The precision is the target's
 * for f32 (and f64 HIGHEST). */
tpu_val tpu_dot_general(tpu_build *b, tpu_val x, tpu_val y, const tpu_dot_dims *dims, tpu_dtype out_dtype);
/* [.., M, K] x [.., K, N] -> [.., M, N]; equal batch dims. */
tpu_val tpu_matmul(tpu_build *b, tpu_val x, tpu_val y);
tpu_val tpu_convolution(tpu_build *b, tpu_val x, tpu_val kernel, const tpu_conv_dims *dims, tpu_dtype out_dtype);
/* Reduces `axes` (ascending); they leave the result. init: a scalar of x's dtype. */
tpu_val tpu_reduce(tpu_build *b, tpu_monoid op, tpu_val x, tpu_val init, int n_axes, const int64_t *axes);
/* n operands (at most 8) at once; the region is built between begin and end with 2n scalar params (accumulators first). */
void tpu_reduce_n(tpu_build *b, int n, const tpu_val *xs, const tpu_val *inits, int n_axes, const int64_t *axes,
                  void (*body)(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg), void *arg, tpu_val *out);
tpu_val tpu_reduce_window(tpu_build *b, tpu_monoid op, tpu_val x, tpu_val init, const tpu_window *window);
void tpu_reduce_window_n(tpu_build *b, int n, const tpu_val *xs, const tpu_val *inits, const tpu_window *window,
                         void (*body)(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg), void *arg,
                         tpu_val *out);
/* Routes each source value to the window's selected element (select: TPU_GE for max pooling), adding up. */
tpu_val tpu_select_and_scatter(tpu_build *b, tpu_val x, tpu_val source, tpu_val init, tpu_compare_dir select,
                               const tpu_window *window);
tpu_val tpu_gather(tpu_build *b, tpu_val x, tpu_val indices, const tpu_gather_dims *dims, const int64_t *slice_sizes);
tpu_val tpu_scatter(tpu_build *b, tpu_monoid op, tpu_val x, tpu_val indices, tpu_val updates, const tpu_scatter_dims *dims);
/* Sorts n values (at most 8) along dim together; `less(params)` gets 2n scalars (a0, b0, a1, b1, ...) and returns i1. */
void tpu_sort(tpu_build *b, int n, const tpu_val *xs, int dim, bool stable,
              tpu_val (*less)(tpu_build *b, const tpu_val *params, void *arg), void *arg, tpu_val *out);
tpu_val tpu_cholesky(tpu_build *b, tpu_val x, bool lower);
tpu_val tpu_triangular_solve(tpu_build *b, tpu_val a, tpu_val y, bool left, bool lower, bool unit,
                             int transpose);                                                /* 0 no, 1 T, 2 H */
tpu_val tpu_fft(tpu_build *b, tpu_val x, tpu_fft_kind kind, int n, const int64_t *lengths); /* the last n dims */

/* --- control flow and others */
/* while (cond(v)) v = body(v), over n values. */
void tpu_while(tpu_build *b, int n, const tpu_val *init, tpu_val (*cond)(tpu_build *b, const tpu_val *params, void *arg),
               void (*body)(tpu_build *b, const tpu_val *params, tpu_val *out_returns, void *arg), void *arg, tpu_val *out);
/* n results of one of two branches, which see the values around them. */
void tpu_if(tpu_build *b, tpu_val pred, int n, void (*on_true)(tpu_build *b, tpu_val *out_returns, void *arg),
            void (*on_false)(tpu_build *b, tpu_val *out_returns, void *arg), void *arg, tpu_val *out);
/* The plugin's own Philox: out[0] the next state, out[1] bits of an unsigned dtype. state: ui64[2] or [3]. */
void tpu_rng_bits(tpu_build *b, tpu_val state, tpu_dtype dtype, int rank, const int64_t *dims, tpu_val out[2]);
void tpu_barrier(tpu_build *b, int n, const tpu_val *xs, tpu_val *out);
void tpu_custom_call(tpu_build *b, const char *target, const char *backend_config, int n, const tpu_val *xs, int n_results,
                     const tpu_type *types, tpu_val *out);

/* --- composites: expanded per target before emission (expand.c) */
/* Inclusive scan along dim: ADD, MUL, MAX, MIN, OR, AND. */
tpu_val tpu_cumulative(tpu_build *b, tpu_monoid op, tpu_val x, int dim, bool reverse);
/* Along the last dim: k largest (or smallest), values in order and their i32 indices. NaN counts as largest; equal values
 * keep index order. */
void tpu_top_k(tpu_build *b, tpu_val x, int64_t k, bool largest, tpu_val out[2]);
/* [dims] of U32 or U64 from state ui64[2] = (seed, offset): Philox 4x32-10, counter = offset + block, four words a block. Of n
 * elements in m = ceil(n / 4) blocks (U64: ceil(n / 2)), element e is word e / m of block e % m (U64: words 2 (e / m), low,
 * and 2 (e / m) + 1, high): the same bits in every program, on every platform. */
tpu_val tpu_random_bits(tpu_build *b, tpu_val state, tpu_dtype dtype, int rank, const int64_t *dims);

#endif
