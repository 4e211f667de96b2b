#include <math.h>
#include <pthread.h>
#include <string.h>

#include "aten/lower.h"
#include "rt/private.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tpu_row *sized_arange, *bounded_random;

static void find_twins(void) {
  sized_arange = tpu_op_find("tpu::arange");
  bounded_random = tpu_op_find("tpu::random");
}

static bool is_range(const tpu_row *row) {
  return strcmp(row->aten, "arange.start") == 0 || strcmp(row->aten, "arange.start_step") == 0;
}
static bool is_random(const tpu_row *row) { return strcmp(row->aten, "random.to") == 0 || strcmp(row->aten, "random.from") == 0; }

bool tpu_row_loosens(const tpu_row *row) {
  pthread_once(&once, find_twins);
  return (is_range(row) && sized_arange) || (is_random(row) && bounded_random);
}

/* (start, end[, step], dtype, ...) -> (n, start, step, dtype). A range from 0 stays as it is: a constant is what folds best. */
static void loosen_range(tpu_call *call, tpu_call_room *room) {
  int n = call->n_numbers;
  if (n < 2 || n > 3 || call->n_args <= n) return;
  bool whole = true;
  for (int i = 0; i < n; i++) {
    if (call->args[i].kind != TPU_ARG_NUMBER || call->numbers[i].dtype == TPU_C128) return;
    whole = whole && call->numbers[i].dtype != TPU_F64;
  }
  const tpu_arg *wanted = &call->args[n];
  tpu_dtype dtype = whole ? TPU_I64 : call->default_dtype ? (tpu_dtype)call->default_dtype : TPU_F32;
  if (wanted->kind == TPU_ARG_DTYPE) dtype = (tpu_dtype)wanted->dtype;
  tpu_number step = {.dtype = TPU_I64, .i = 1};
  if (n == 3) step = call->numbers[2];
  double from = tpu_number_real(&call->numbers[0]), to = tpu_number_real(&call->numbers[1]), by = tpu_number_real(&step);
  if (from == 0 || !(fabs(from) < 0x1p53) || !(fabs(to) < 0x1p53) || (by > 0 ? to < from : to > from)) return;
  if (dtype == TPU_I64) from = trunc(from), to = trunc(to), by = trunc(by);
  double count = by == 0 ? -1 : ceil((to - from) / by);
  if (!(count >= 0 && count < 0x1p53)) return;
  room->numbers[0] = call->numbers[0];
  room->numbers[1] = step;
  room->args[0] = (tpu_arg){.kind = TPU_ARG_INT, .i = (int64_t)count};
  for (uint32_t i = 0; i < 2; i++)
    room->args[1 + i] = (tpu_arg){.kind = TPU_ARG_NUMBER, .dtype = (uint8_t)room->numbers[i].dtype, .first = i};
  room->args[3] = (tpu_arg){.kind = TPU_ARG_DTYPE, .dtype = (uint8_t)dtype};
  call->row = sized_arange;
  call->n_args = 4;
  call->n_numbers = 2;
  call->args = room->args;
  call->numbers = room->numbers;
}

/* (self, [from,] to, generator) -> (self, from, range, wide, generator) */
static void loosen_random(tpu_call *call, tpu_call_room *room) {
  int last = call->n_args - 2;
  if (last < 1 || call->args[last].kind != TPU_ARG_INT || call->args[0].kind != TPU_ARG_TENSOR || call->n_numbers) return;
  int64_t to = call->args[last].i, from = last == 2 ? call->args[1].i : 0;
  if (last == 2 && call->args[1].kind != TPU_ARG_INT) return;
  uint64_t range = (uint64_t)to - (uint64_t)from;
  const tpu_tensor *self = &call->tensors[call->args[0].first];
  if (from >= to || range > INT64_MAX || range == UINT64_C(1) << 32 || random_out_of_bounds(self->dtype, from, to)) return;
  room->numbers[0] = (tpu_number){.dtype = TPU_I64, .i = from};
  room->numbers[1] = (tpu_number){.dtype = TPU_I64, .i = (int64_t)range};
  room->args[0] = call->args[0];
  for (uint32_t i = 0; i < 2; i++) room->args[1 + i] = (tpu_arg){.kind = TPU_ARG_NUMBER, .dtype = TPU_I64, .first = i};
  room->args[3] = (tpu_arg){.kind = TPU_ARG_BOOL, .i = range > UINT64_C(1) << 32};
  room->args[4] = call->args[last + 1];
  call->row = bounded_random;
  call->n_args = 5;
  call->n_numbers = 2;
  call->args = room->args;
  call->numbers = room->numbers;
}

void tpu_call_loosen(tpu_call *call, tpu_call_room *room) {
  if (is_range(call->row))
    loosen_range(call, room);
  else
    loosen_random(call, room);
}
