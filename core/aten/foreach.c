/* Rows: _foreach_*. Each list element goes through the row of the single op, so the math is in one place. */
#include <inttypes.h>
#include <string.h>

#include "aten/elementwise.h"

enum { MOST_ARGS = 16 };

static bool check_lists(tpu_build *b, const tpu_args *a, int n) {
  for (int i = 0; i < a->n; i++) {
    const tpu_arg *arg = &a->arg[i];
    if (arg->kind == TPU_ARG_TENSORS && arg->n != (uint32_t)n)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "Tensor lists must have the same number of tensors, got %d and %" PRIu32, n, arg->n);
    else if (arg->kind == TPU_ARG_NUMBERS && arg->n != (uint32_t)n)
      tpu_fail(b, TPU_INVALID_ARGUMENT, "Tensor list must have same number of elements as scalar list.");
    else
      continue;
    return false;
  }
  return true;
}

/* Argument `arg` of the list op as an argument of the k-th single op. */
static tpu_arg element(const tpu_arg *arg, uint32_t k) {
  tpu_arg e = *arg;
  if (arg->kind == TPU_ARG_TENSORS) {
    e = (tpu_arg){.kind = TPU_ARG_TENSOR, .n = 1, .first = arg->first + k};
  } else if (arg->kind == TPU_ARG_NUMBERS) {
    bool uniform = (arg->flags & TPU_ARG_UNIFORM) != 0;
    e = (tpu_arg){.kind = TPU_ARG_NUMBER, .dtype = arg->dtype, .n = 1, .first = arg->first + (uniform ? 0 : k)};
    e.flags = (uint16_t)(arg->flags & ~TPU_ARG_UNIFORM);
    if (arg->numbers) {
      e.dtype = arg->numbers[k].dtype;
      if (arg->flags & TPU_ARG_STATIC) e.i = arg->numbers[k].i; /* the union's bytes, float or not */
    }
  }
  return e;
}

static void lower_each(tpu_build *b, const tpu_args *a, int n_args, const tpu_arg *args, int n, tpu_outs *o) {
  const tpu_row *row = tpu_op_find(a->row->single);
  if (!row) {
    tpu_fail(b, TPU_INTERNAL, "%s: no row %s", a->row->aten, a->row->single);
    return;
  }
  outs_resize(b, o, n);
  for (int k = 0; k < n && !tpu_build_failed(b); k++) {
    tpu_arg single[MOST_ARGS];
    for (int i = 0; i < n_args; i++) single[i] = element(&args[i], (uint32_t)k);
    tpu_args call = *a;
    call.row = row;
    call.n = n_args;
    call.arg = single;
    call.n_returns = 1;
    tpu_outs out = {0};
    tpu_lower_call(b, &call, &out);
    if (!tpu_build_failed(b)) o->out[k] = out.out[0];
  }
}

/* The list whose length counts: the first. */
static int list_length(tpu_build *b, const tpu_args *a) {
  for (int i = 0; i < a->n; i++) {
    if (a->arg[i].kind != TPU_ARG_TENSORS) continue;
    if (a->arg[i].n == 0) tpu_fail(b, TPU_INVALID_ARGUMENT, "Tensor list must have at least one tensor.");
    return (int)a->arg[i].n;
  }
  tpu_fail(b, TPU_INTERNAL, "%s: no list", a->row->aten);
  return 0;
}

void lower_foreach(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int n = list_length(b, a);
  if (tpu_build_failed(b) || !check_lists(b, a, n)) return;
  lower_each(b, a, a->n < MOST_ARGS ? a->n : MOST_ARGS, a->arg, n, o);
}

/* _foreach_addcmul.Tensor and addcdiv.Tensor: the factors are the elements of a 1-d tensor. */
void lower_foreach_addc(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int n = list_length(b, a);
  const tpu_operand *scalars = arg_operand(b, a, 3);
  if (tpu_build_failed(b)) return;
  if (scalars->rank != 1) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected packed scalar Tensor to be of dimension 1. Got %d instead.", scalars->rank);
    return;
  }
  if (scalars->sizes[0] != n) {
    tpu_fail(b, TPU_INVALID_ARGUMENT, "Expected length of scalars to match input of length %d but got %" PRId64 " instead.", n,
             scalars->sizes[0]);
    return;
  }
  tpu_operand *operands = tpu_build_alloc(b, sizeof *operands * (size_t)(a->n_operands + n));
  if (!operands) return;
  memcpy(operands, a->operands, sizeof *operands * (size_t)a->n_operands);
  for (int k = 0; k < n; k++)
    operands[a->n_operands + k] =
        (tpu_operand){.val = tpu_reshape(b, tpu_slice_dim(b, scalars->val, 0, k, k + 1, 1), 0, NULL), .dtype = scalars->dtype};
  tpu_args call = *a;
  tpu_arg args[4] = {
      a->arg[0], a->arg[1], a->arg[2], {.kind = TPU_ARG_TENSORS, .n = (uint32_t)n, .first = (uint32_t)a->n_operands}};
  call.operands = operands;
  call.n_operands += n;
  call.n = 4;
  call.arg = args;
  if (check_lists(b, &call, n)) lower_each(b, &call, 4, args, n, o);
}

/* _foreach_norm.Scalar(self, ord, dtype): linalg_vector_norm(self, ord, dim, keepdim, dtype) */
void lower_foreach_norm(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  int n = list_length(b, a);
  if (tpu_build_failed(b)) return;
  tpu_arg args[5] = {a->arg[0],
                     a->arg[1],
                     {.kind = TPU_ARG_NONE},
                     {.kind = TPU_ARG_BOOL},
                     a->n > 2 ? a->arg[2] : (tpu_arg){.kind = TPU_ARG_NONE}};
  lower_each(b, a, 5, args, n, o);
}
