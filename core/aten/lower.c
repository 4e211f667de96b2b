#include "aten/lower.h"

#include <inttypes.h>
#include <string.h>

static const tpu_arg *get(const tpu_args *a, int i) {
  static const tpu_arg none = {.kind = TPU_ARG_NONE};
  return i >= 0 && i < a->n ? &a->arg[i] : &none;
}

static tpu_val wrong_kind(tpu_build *b, const tpu_args *a, int i, const char *wanted) {
  return tpu_fail(b, TPU_INTERNAL, "%s: argument %d has kind %d where the row reads %s", a->row ? a->row->aten : "?", i,
                  (int)get(a, i)->kind, wanted);
}

tpu_val fail_not_implemented(tpu_build *b, const tpu_args *a, tpu_dtype dtype) {
  const char *name = a->row->aten;
  return tpu_fail(b, TPU_UNIMPLEMENTED, "\"%.*s\" not implemented for '%s'", (int)strcspn(name, "."), name,
                  tpu_dtype_scalar_name(dtype));
}

bool arg_present(const tpu_args *a, int i) { return get(a, i)->kind != TPU_ARG_NONE; }
bool arg_is_number(const tpu_args *a, int i) { return get(a, i)->kind == TPU_ARG_NUMBER; }

const tpu_operand *arg_operand(tpu_build *b, const tpu_args *a, int i) {
  const tpu_arg *arg = get(a, i);
  if (arg->kind == TPU_ARG_TENSOR && arg->first < (uint32_t)a->n_operands) return &a->operands[arg->first];
  wrong_kind(b, a, i, "a tensor");
  return NULL;
}

tpu_val arg_tensor(tpu_build *b, const tpu_args *a, int i) {
  const tpu_arg *arg = get(a, i);
  if (arg->kind == TPU_ARG_NUMBER) return arg_number(b, a, i, (tpu_dtype)arg->dtype);
  const tpu_operand *operand = arg_operand(b, a, i);
  return operand ? operand->val : TPU_POISON;
}

int arg_list_size(const tpu_args *a, int i) {
  const tpu_arg *arg = get(a, i);
  switch ((tpu_arg_kind)arg->kind) {
    case TPU_ARG_TENSORS:
    case TPU_ARG_NUMBERS:
    case TPU_ARG_INTS:
    case TPU_ARG_BOOLS: return (int)arg->n;
    case TPU_ARG_INT: return 1;
    default: return 0;
  }
}

const tpu_operand *arg_list_operand(tpu_build *b, const tpu_args *a, int i, int k) {
  const tpu_arg *arg = get(a, i);
  if (arg->kind != TPU_ARG_TENSORS || k < 0 || (uint32_t)k >= arg->n) {
    wrong_kind(b, a, i, "a list of tensors");
    return NULL;
  }
  const tpu_operand *operand = &a->operands[arg->first + (uint32_t)k];
  return operand->dtype == TPU_DTYPE_NONE ? NULL : operand;
}

tpu_val arg_list_tensor(tpu_build *b, const tpu_args *a, int i, int k) {
  const tpu_operand *operand = arg_list_operand(b, a, i, k);
  return operand ? operand->val : TPU_POISON;
}

static bool is_floating_number(tpu_dtype t) { return tpu_is_float(t) || tpu_is_complex(t); }

tpu_val arg_number(tpu_build *b, const tpu_args *a, int i, tpu_dtype dtype) {
  const tpu_arg *arg = get(a, i);
  switch ((tpu_arg_kind)arg->kind) {
    case TPU_ARG_NONE: return TPU_POISON;
    case TPU_ARG_INT:
    case TPU_ARG_BOOL: return tpu_scalar_i(b, dtype, arg->i);
    case TPU_ARG_NUMBER: break;
    default: return wrong_kind(b, a, i, "a number");
  }
  if (!(arg->flags & TPU_ARG_STATIC)) return tpu_slot(b, arg->first, dtype);
  if (is_floating_number((tpu_dtype)arg->dtype)) return tpu_scalar(b, dtype, arg->f);
  return tpu_scalar_i(b, dtype, arg->i);
}

tpu_val arg_list_number(tpu_build *b, const tpu_args *a, int i, int k, tpu_dtype dtype) {
  const tpu_arg *arg = get(a, i);
  if (arg->kind != TPU_ARG_NUMBERS || k < 0 || (uint32_t)k >= arg->n) return wrong_kind(b, a, i, "a list of numbers");
  if (!(arg->flags & TPU_ARG_STATIC)) return tpu_slot(b, arg->first + (arg->flags & TPU_ARG_UNIFORM ? 0 : (uint32_t)k), dtype);
  const tpu_list_number *number = &arg->numbers[k];
  if (is_floating_number((tpu_dtype)number->dtype)) return tpu_scalar(b, dtype, number->f);
  return tpu_scalar_i(b, dtype, number->i);
}

tpu_dtype arg_list_number_dtype(const tpu_args *a, int i, int k) {
  const tpu_arg *arg = get(a, i);
  return (tpu_dtype)(arg->numbers ? arg->numbers[k].dtype : arg->dtype);
}

tpu_dtype arg_number_dtype(const tpu_args *a, int i) {
  const tpu_arg *arg = get(a, i);
  switch ((tpu_arg_kind)arg->kind) {
    case TPU_ARG_NUMBER: return (tpu_dtype)arg->dtype;
    case TPU_ARG_INT: return TPU_I64;
    case TPU_ARG_BOOL: return TPU_BOOL;
    default: return TPU_DTYPE_NONE;
  }
}

bool arg_is_default(const tpu_args *a, int i) { return (get(a, i)->flags & TPU_ARG_IS_DEFAULT) != 0; }

double arg_static(tpu_build *b, const tpu_args *a, int i) {
  const tpu_arg *arg = get(a, i);
  if (arg->kind == TPU_ARG_INT || arg->kind == TPU_ARG_BOOL) return (double)arg->i;
  if (arg->kind == TPU_ARG_NUMBER && (arg->flags & TPU_ARG_STATIC))
    return is_floating_number((tpu_dtype)arg->dtype) ? arg->f : (double)arg->i;
  wrong_kind(b, a, i, "a static number");
  return 0;
}

double arg_list_static(tpu_build *b, const tpu_args *a, int i, int k) {
  const tpu_arg *arg = get(a, i);
  if (arg->kind == TPU_ARG_INTS) return (double)arg->ints[k];
  if (arg->kind == TPU_ARG_NUMBERS && (arg->flags & TPU_ARG_STATIC) && k >= 0 && (uint32_t)k < arg->n) {
    const tpu_list_number *number = &arg->numbers[k];
    return is_floating_number((tpu_dtype)number->dtype) ? number->f : (double)number->i;
  }
  wrong_kind(b, a, i, "a list of static numbers");
  return 0;
}

int64_t arg_int(tpu_build *b, const tpu_args *a, int i, int64_t otherwise) {
  const tpu_arg *arg = get(a, i);
  switch ((tpu_arg_kind)arg->kind) {
    case TPU_ARG_NONE: return otherwise;
    case TPU_ARG_INT:
    case TPU_ARG_BOOL:
    case TPU_ARG_OTHER: return arg->i;
    case TPU_ARG_NUMBER:
      if (arg->flags & TPU_ARG_STATIC) return is_floating_number((tpu_dtype)arg->dtype) ? (int64_t)arg->f : arg->i;
      break;
    default: break;
  }
  wrong_kind(b, a, i, "an int");
  return otherwise;
}

bool arg_bool(tpu_build *b, const tpu_args *a, int i) { return arg_int(b, a, i, 0) != 0; }

const int64_t *arg_ints(const tpu_args *a, int i, int *out_n) {
  const tpu_arg *arg = get(a, i);
  switch ((tpu_arg_kind)arg->kind) {
    case TPU_ARG_INT: *out_n = 1; return &arg->i;
    case TPU_ARG_INTS:
    case TPU_ARG_BOOLS: *out_n = (int)arg->n; return arg->ints;
    default: *out_n = 0; return NULL;
  }
}

tpu_dtype arg_dtype(const tpu_args *a, int i, tpu_dtype otherwise) {
  const tpu_arg *arg = get(a, i);
  return arg->kind == TPU_ARG_DTYPE ? (tpu_dtype)arg->dtype : otherwise;
}

const char *arg_str(const tpu_args *a, int i) {
  const tpu_arg *arg = get(a, i);
  return arg->kind == TPU_ARG_STRING && arg->str ? arg->str : "";
}

int wrap_dim(tpu_build *b, int64_t dim, int rank) {
  int64_t n = rank ? rank : 1;
  if (dim < -n || dim >= n) {
    tpu_fail(b, TPU_OUT_OF_RANGE,
             "Dimension out of range (expected to be in range of [%" PRId64 ", %" PRId64 "], but got %" PRId64 ")", -n, n - 1,
             dim);
    return 0;
  }
  return (int)(dim < 0 ? dim + n : dim);
}

int arg_dim(tpu_build *b, const tpu_args *a, int i, int rank) { return wrap_dim(b, arg_int(b, a, i, 0), rank); }

int arg_axes(tpu_build *b, const tpu_args *a, int i, int rank, int64_t *out_axes) {
  int n;
  const int64_t *dims = arg_ints(a, i, &n);
  bool seen[TPU_MAX_RANK] = {false};
  for (int k = 0; k < n; k++) {
    int dim = wrap_dim(b, dims[k], rank);
    if (tpu_build_failed(b)) return 0;
    if (seen[dim]) {
      tpu_fail(b, TPU_INVALID_ARGUMENT, "dim %d appears multiple times in the list of dims", dim);
      return 0;
    }
    seen[dim] = true;
  }
  int count = 0;
  for (int d = 0; d < rank; d++)
    if (n == 0 || seen[d]) out_axes[count++] = d;
  return count;
}

void outs_resize(tpu_build *b, tpu_outs *o, int n) {
  o->n = 0;
  o->out = NULL;
  if (n < 0 || n > TPU_MAX_OUTS) {
    tpu_fail(b, TPU_UNIMPLEMENTED, "a call returns %d tensors; at most %d are supported", n, TPU_MAX_OUTS);
    return;
  }
  tpu_out *out = tpu_build_alloc(b, sizeof *out * (size_t)(n ? n : 1));
  if (!out) return;
  memset(out, 0, sizeof *out * (size_t)(n ? n : 1));
  o->out = out;
  o->n = n;
}

static void finish_strides(tpu_build *b, const tpu_args *a, tpu_out *out) {
  tpu_type type = tpu_type_of(b, out->val);
  int64_t *strides = tpu_build_alloc(b, sizeof *strides * (size_t)(type.rank ? type.rank : 1));
  if (!strides) return;
  stride_rule_apply((tpu_stride_rule)a->row->strides, a, type.rank, type.dims, strides);
  out->strides = strides;
}

void tpu_lower_call(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  o->random_blocks = 0;
  outs_resize(b, o, a->n_returns);
  if (tpu_build_failed(b)) return;
  a->row->lower(b, a, o);
  for (int i = 0; i < o->n && !tpu_build_failed(b); i++) {
    tpu_out *out = &o->out[i];
    if (out->undefined) continue;
    if (!out->val.id) {
      tpu_fail(b, TPU_INTERNAL, "%s (%s:%d): result %d was not set", a->row->aten, a->row->file, a->row->line, i);
      return;
    }
    if (!out->strides) finish_strides(b, a, out);
  }
}
