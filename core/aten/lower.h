/* The door from ATen to the IR: what a row of the op table is, and what a lowering sees.
 *
 * A lowering is a pure function from arguments to nodes: the same row serves eager recording, torch.compile,
 * ahead-of-time compilation and the C tests. It is called once per new signature to learn the result's types (its
 * nodes are then dropped) and again for each program that is compiled. It must depend only on its arguments' kinds, static values
 * and operand types, never on a number's value unless the row declares that argument static.
 *
 * May include: base, ir. Thread-compatible.
 */
#ifndef TPU_ATEN_LOWER_H
#define TPU_ATEN_LOWER_H

#include "ir/build.h"

/* --- arguments, in the schema's order */
typedef enum tpu_arg_kind {
  TPU_ARG_NONE,    /* None, or an undefined tensor */
  TPU_ARG_TENSOR,  /* .first = operand index */
  TPU_ARG_TENSORS, /* Tensor[] / Tensor?[]: .n operands from .first; an absent one has operand dtype NONE */
  TPU_ARG_NUMBER,  /* Scalar, float, or a CPU scalar where the schema says Tensor: .first = slot, .dtype = its type */
  TPU_ARG_NUMBERS, /* Scalar[] / float[]: .n slots from .first, .numbers has each one's dtype (and value if STATIC) */
  TPU_ARG_INT,     /* int, SymInt: .i (static) */
  TPU_ARG_INTS,    /* int[]: .ints, .n (static) */
  TPU_ARG_BOOL,    /* .i */
  TPU_ARG_BOOLS,   /* bool[]: .ints, .n */
  TPU_ARG_DTYPE,   /* ScalarType: .dtype */
  TPU_ARG_STRING,  /* .str */
  TPU_ARG_OTHER    /* Layout, Device, MemoryFormat (.i = c10 number), Generator: no influence, or read with arg_int */
} tpu_arg_kind;

enum {
  TPU_ARG_WRAPPED = 1,   /* NUMBER in a Tensor position that came from a Python number: weakest in type promotion */
  TPU_ARG_ZERO_DIM = 2,  /* NUMBER in a Tensor position that is a 0-dim CPU tensor of .dtype */
  TPU_ARG_STATIC = 4,    /* NUMBER whose value is part of the signature: .f / .i hold it */
  TPU_ARG_UNIFORM = 16,  /* NUMBERS that are all the same: one slot, .first, serves them all */
  TPU_ARG_IS_DEFAULT = 8 /* NUMBER that equals the schema's default (alpha=1): part of the signature */
};

typedef struct tpu_list_number { /* an element of NUMBERS */
  uint8_t dtype;
  union { /* with TPU_ARG_STATIC only */
    int64_t i;
    double f;
  };
} tpu_list_number;

typedef struct tpu_arg {
  uint8_t kind;  /* tpu_arg_kind */
  uint8_t dtype; /* tpu_dtype */
  uint16_t flags;
  uint32_t n;
  uint32_t first;
  union {
    int64_t i;
    double f;
    const int64_t *ints;
    const tpu_list_number *numbers; /* NUMBERS; NULL: all have .dtype, none is static */
    const char *str;
  };
} tpu_arg;

/* A tensor operand as the lowering sees it. Sizes and strides are PyTorch's (logical); val has dims = sizes. */
typedef struct tpu_operand {
  tpu_val val;
  tpu_dtype dtype; /* TPU_DTYPE_NONE: absent (in a Tensor?[]) */
  int rank;
  const int64_t *sizes, *strides;
} tpu_operand;

typedef struct tpu_row tpu_row;
typedef struct tpu_args {
  const tpu_row *row;
  int n;
  const tpu_arg *arg;
  int n_operands;
  const tpu_operand *operands;
  int n_slots;           /* numbers; two more follow for random rows: seed, offset */
  int n_returns;         /* of the schema */
  uint8_t default_dtype; /* tpu_dtype of torch.get_default_dtype(), part of the signature; 0: float32 */
} tpu_args;

/* --- results */
typedef struct tpu_out {
  tpu_val val;            /* logical [sizes]; poison with `undefined`: an undefined tensor */
  const int64_t *strides; /* NULL: by the row's stride rule */
  bool undefined;
  int64_t number; /* of a return that is an int: its value, with `undefined` set */
} tpu_out;
#define TPU_MAX_OUTS 4096
typedef struct tpu_outs {
  int n;        /* set by the builder of the call to n_returns; rows that return Tensor[] set it with outs_resize */
  tpu_out *out; /* out[n] */
  /* 32-bit Philox blocks of four words this call draws; the caller advances the generator by it. */
  int64_t random_blocks;
} tpu_outs;
/* Makes room for n results (all outputs of all returned lists, in order). */
void outs_resize(tpu_build *b, tpu_outs *o, int n);

typedef void (*tpu_lower_fn)(tpu_build *b, const tpu_args *a, tpu_outs *o);

/* How the result's strides follow from the operands' (stride.c). */
typedef enum tpu_stride_rule {
  TPU_STRIDES_CONTIGUOUS,         /* row-major */
  TPU_STRIDES_ELEMENTWISE,        /* TensorIterator's: the operands' common memory order */
  TPU_STRIDES_PRESERVE,           /* operand 0's, if dense and non-overlapping (at::empty_like, preserve_format) */
  TPU_STRIDES_ELEMENTWISE_SCALAR, /* likewise, where a number is a 0-dim operand (binary .Scalar overloads) */
  TPU_STRIDES_CHANNELS_LAST,      /* channels_last if operand 0 (or 1, a kernel) suggests it, else row-major */
} tpu_stride_rule;

enum { TPU_CHECKED_ARGS = 4 };
#define TPU_FITS_LOOSE_HALF (1u << 31) /* half precision takes any real number (infinite, then) */
struct tpu_row {
  const char *aten; /* "add.Tensor": a functional overload's name */
  tpu_lower_fn lower;
  int32_t hlo; /* parameters of family functions; meaning by family */
  int32_t rule;
  uint8_t strides;    /* tpu_stride_rule */
  uint8_t exact;      /* an out= tensor must have the result's dtype: nothing is cast */
  uint8_t random;     /* draws random numbers: two implicit slots (seed, offset) after the call's own */
  uint32_t statics;   /* bit i: a number in argument i is static */
  uint32_t defaults;  /* bit i: whether argument i equals its schema default is part of the signature */
  uint32_t fits;      /* bit i: a number in argument i must be one that the result's dtype holds */
  const char *single; /* foreach rows: the row that computes one element */
  /* Judges each call's numbers (args[i]: argument i; dtype: of the first tensor); NULL: any will do. */
  tpu_status (*check)(const double *args, tpu_dtype dtype);
  const char *file;
  int line;
};
const tpu_row *tpu_op_rows(int *out_n);
const tpu_row *tpu_op_find(const char *aten); /* NULL: none */

/* --- reading arguments. A wrong kind is INTERNAL: a fault of the row. */
bool arg_present(const tpu_args *a, int i); /* not NONE */
bool arg_is_number(const tpu_args *a, int i);
const tpu_operand *arg_operand(tpu_build *b, const tpu_args *a, int i); /* TENSOR; NULL sets the failure */
tpu_val arg_tensor(tpu_build *b, const tpu_args *a, int i); /* TENSOR's value; a NUMBER as a scalar of its own dtype */
int arg_list_size(const tpu_args *a, int i);                /* TENSORS, NUMBERS, INTS, BOOLS; NONE: 0 */
tpu_val arg_list_tensor(tpu_build *b, const tpu_args *a, int i, int k);
const tpu_operand *arg_list_operand(tpu_build *b, const tpu_args *a, int i, int k); /* NULL: absent */
/* A number as a scalar of dtype: a run-time slot (constant if static). NONE gives poison without failure: test first. */
tpu_val arg_number(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype);
tpu_val arg_list_number(tpu_build *b, const tpu_args *a, int i, int k, tpu_dtype dtype);
tpu_dtype arg_number_dtype(const tpu_args *a, int i); /* a number's own type; TPU_DTYPE_NONE: no number */
tpu_dtype arg_list_number_dtype(const tpu_args *a, int i, int k);
bool arg_is_default(const tpu_args *a, int i);                              /* the row must list i in `defaults` */
double arg_static(tpu_build *b, const tpu_args *a, int i);                  /* the row must list i in `statics` */
double arg_list_static(tpu_build *b, const tpu_args *a, int i, int k);      /* of NUMBERS or INTS */
int64_t arg_int(tpu_build *b, const tpu_args *a, int i, int64_t otherwise); /* NONE: otherwise */
bool arg_bool(tpu_build *b, const tpu_args *a, int i);
const int64_t *arg_ints(const tpu_args *a, int i, int *out_n); /* INTS, or INT as one; NONE: n = 0 */
tpu_dtype arg_dtype(const tpu_args *a, int i, tpu_dtype otherwise);
const char *arg_str(const tpu_args *a, int i);
/* A dim in [-rank, rank) made non-negative (rank 0 counts as 1); OUT_OF_RANGE (IndexError) in PyTorch's words. */
int arg_dim(tpu_build *b, const tpu_args *a, int i, int rank);
int wrap_dim(tpu_build *b, int64_t dim, int rank);
/* Dims of a reduction: sorted, unique, non-negative; none given (NONE or empty) = all. Returns their number; out_axes[rank]. */
int arg_axes(tpu_build *b, const tpu_args *a, int i, int rank, int64_t *out_axes);

/* --- type promotion and broadcasting (promote.c) */
/* at::result_type of arguments i .. i+n-1 that are tensors or numbers (three categories: dims, zero-dim, wrapped). */
tpu_dtype promote_args(tpu_build *b, const tpu_args *a, int i, int n);
tpu_dtype promote_list(tpu_build *b, const tpu_args *a, int i);
/* Argument i (tensor or number) converted to dtype. */
tpu_val arg_as(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype);
/* The same for operands that are not arguments of their own (elements of lists). */
tpu_dtype promote_operands(tpu_build *b, int n, const tpu_operand *const *operands);
tpu_dtype promote_operand_number(tpu_build *b, const tpu_args *a, const tpu_operand *operand, tpu_dtype number);
/* Argument i for arithmetic whose result is of dtype: a tensor converted to dtype and then to its opmath type, a number
 * straight to the opmath type. */
tpu_val arg_math(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype);
/* Float result for integral inputs: float32, or torch's default dtype (at::native int-to-float promotion). */
tpu_dtype promote_float(tpu_dtype t);
tpu_dtype promote_float_default(const tpu_args *a, tpu_dtype t);
tpu_dtype default_dtype(const tpu_args *a);
/* Common broadcast dims of n values; INVALID_ARGUMENT in PyTorch's words ("The size of tensor a (3) must match ..."). Returns the
 * rank; out_dims[TPU_MAX_RANK]. */
int broadcast_dims(tpu_build *b, int n, const tpu_val *xs, int64_t *out_dims);
/* Broadcasts xs in place to their common dims. */
void broadcast_all(tpu_build *b, int n, tpu_val *xs);
/* op over x, y broadcast to each other (equal dtypes). */
tpu_val bcast_binary(tpu_build *b, tpu_hlo op, tpu_val x, tpu_val y);
tpu_val bcast_select(tpu_build *b, tpu_val pred, tpu_val x, tpu_val y);
/* op in x's opmath type, rounded once back to x's dtype. */
tpu_val unary_math(tpu_build *b, tpu_hlo op, tpu_val x);
/* op over operands from arg_math, broadcast to each other; the result rounded to dtype. */
tpu_val binary_math(tpu_build *b, tpu_hlo op, tpu_dtype dtype, tpu_val x, tpu_val y);
/* x op scalar constant of x's dtype. */
tpu_val binary_c(tpu_build *b, tpu_hlo op, tpu_val x, double c);

/* NotImplementedError in PyTorch's words: "exp" not implemented for 'Bool'. */
tpu_val fail_not_implemented(tpu_build *b, const tpu_args *a, tpu_dtype dtype);

/* --- random numbers (random.c) */
/* Bits for dims from the generator of this call; advances the draw within the call. Row must be `random`. */
tpu_val random_u32(tpu_build *b, const tpu_args *a, tpu_outs *o, int rank, const int64_t *dims);
tpu_val random_u64(tpu_build *b, const tpu_args *a, tpu_outs *o, int rank, const int64_t *dims);
/* [0, 1) as PyTorch's uniform: as many random bits as the significand has (8 bf16, 11 f16, 24 f32, 53 f64). */
tpu_val random_unit(tpu_build *b, const tpu_args *a, tpu_outs *o, tpu_dtype dtype, int rank, const int64_t *dims);

/* .check of rows, mostly of those that draw from a distribution (sample.c): INVALID_ARGUMENT in PyTorch's words. */
tpu_status check_bernoulli(const double *args, tpu_dtype dtype) TPU_MUST_USE;
tpu_status check_cauchy(const double *args, tpu_dtype dtype) TPU_MUST_USE;
tpu_status check_exponential(const double *args, tpu_dtype dtype) TPU_MUST_USE;
tpu_status check_geometric(const double *args, tpu_dtype dtype) TPU_MUST_USE;
tpu_status check_log_normal(const double *args, tpu_dtype dtype) TPU_MUST_USE;
tpu_status check_normal(const double *args, tpu_dtype dtype) TPU_MUST_USE;
tpu_status check_normal_std(const double *args, tpu_dtype dtype) TPU_MUST_USE;
tpu_status check_softshrink(const double *args, tpu_dtype dtype) TPU_MUST_USE;
tpu_status check_uniform(const double *args, tpu_dtype dtype) TPU_MUST_USE;
/* The first of "from" and "to - 1" that a tensor of dtype cannot hold; NULL: random() may draw from [from, to). */
const char *random_out_of_bounds(tpu_dtype dtype, int64_t from, int64_t to);

/* --- strides (stride.c) */
/* Fills out_strides[rank] for a result of `sizes` by the row's rule and its operands. */
void stride_rule_apply(tpu_stride_rule rule, const tpu_args *a, int rank, const int64_t *sizes, int64_t *out_strides);
/* TensorIterator's strides for a result of `sizes` from these operands. with_scalars: a 0-dim operand takes part besides. */
void strides_elementwise(int n, const tpu_operand *const *operands, bool with_scalars, int rank, const int64_t *sizes,
                         int64_t *out_strides);
/* Likewise after operands (those with casts[i]; NULL: all) were converted to their common dtype (NONE: no conversion). */
void strides_promoted(int n, const tpu_operand *const *operands, const bool *casts, tpu_dtype common, bool with_scalars, int rank,
                      const int64_t *sizes, int64_t *out_strides);
/* at::empty_like(preserve_format) of a tensor of (sizes, strides). */
void strides_preserve(int rank, const int64_t *sizes, const int64_t *strides, int64_t *out_strides);
void strides_contiguous(int rank, const int64_t *sizes, int64_t *out_strides);
void strides_channels_last(int rank, const int64_t *sizes, int64_t *out_strides); /* rank 4 or 5 (3: row-major) */
/* at::suggest_memory_format == channels_last (4-d) / channels_last_3d (5-d). */
bool strides_are_channels_last(int rank, const int64_t *sizes, const int64_t *strides);

/* --- running a row (lower.c) */
/* Lowers one call into b's graph. On failure the status is in b. Fills o with n results in the builder's arena, with strides for
 * all. */
void tpu_lower_call(tpu_build *b, const tpu_args *a, tpu_outs *o);

/* Prototypes of all rows' functions. */
#define ROW(name, fn, ...) void fn(tpu_build *b, const tpu_args *a, tpu_outs *o);
#include "aten/ops.inc"

#endif
