#include "aten/lower.h"

#include "aten/elementwise.h"
#include "base/test.h"

/* One call's arguments, built up by hand. */
enum { MOST = 8 };
typedef struct fixture {
  tpu_graph *graph;
  tpu_target target;
  tpu_build b;
  tpu_arg args[MOST];
  tpu_operand operands[MOST];
  tpu_args a;
  tpu_outs o;
} fixture;

static void begin(fixture *f, const char *row) {
  *f = (fixture){.graph = tpu_graph_create()};
  tpu_build_init(&f->b, f->graph, &f->target);
  f->a = (tpu_args){.row = tpu_op_find(row), .arg = f->args, .operands = f->operands, .n_returns = 1};
}

static void tensor(fixture *f, tpu_dtype dtype, int rank, const int64_t *sizes, const int64_t *strides) {
  int i = f->a.n_operands++;
  f->operands[i] = (tpu_operand){tpu_param(&f->b, dtype, rank, sizes), dtype, rank, sizes, strides};
  f->args[f->a.n++] = (tpu_arg){.kind = TPU_ARG_TENSOR, .n = 1, .first = (uint32_t)i};
}

static void number(fixture *f, tpu_dtype dtype, unsigned flags) {
  f->args[f->a.n++] = (tpu_arg){
      .kind = TPU_ARG_NUMBER, .dtype = (uint8_t)dtype, .flags = (uint16_t)flags, .n = 1, .first = (uint32_t)f->a.n_slots++};
}

static tpu_status end(fixture *f) {
  tpu_status s = tpu_build_status(&f->b);
  tpu_graph_destroy(f->graph);
  return s;
}

TEST(table) {
  int n;
  const tpu_row *rows = tpu_op_rows(&n);
  CHECK(n > 200);
  for (int i = 0; i < n; i++) {
    CHECK(rows[i].lower != NULL);
    CHECK(tpu_op_find(rows[i].aten) == &rows[i]); /* also: no name twice */
    CHECK(rows[i].line > 0);
    if (rows[i].single) CHECK(tpu_op_find(rows[i].single) != NULL);
  }
  CHECK(tpu_op_find("add.Nothing") == NULL);
}

static const int64_t dims3[] = {3}, unit[] = {1};

/* Rank and flag of one argument of a promotion: a tensor with dims, a 0-dim tensor, a 0-dim CPU tensor, a Python number. */
typedef enum form { DIMS, ZERO, HOST, NUMBER } form;

static tpu_dtype promoted(tpu_dtype x, form x_form, tpu_dtype y, form y_form, tpu_dtype default_type) {
  fixture f;
  begin(&f, "add.Tensor");
  f.a.default_dtype = (uint8_t)default_type;
  tpu_dtype dtypes[2] = {x, y};
  form forms[2] = {x_form, y_form};
  for (int i = 0; i < 2; i++) {
    if (forms[i] == DIMS)
      tensor(&f, dtypes[i], 1, dims3, unit);
    else if (forms[i] == ZERO)
      tensor(&f, dtypes[i], 0, dims3, unit);
    else
      number(&f, dtypes[i], forms[i] == HOST ? TPU_ARG_ZERO_DIM : TPU_ARG_WRAPPED);
  }
  tpu_dtype result = promote_args(&f.b, &f.a, 0, 2);
  tpu_status s = end(&f);
  tpu_status_release(s);
  return s ? TPU_DTYPE_NONE : result;
}

TEST(promotion) {
  static const struct {
    tpu_dtype x;
    form x_form;
    tpu_dtype y;
    form y_form;
    tpu_dtype result;
  } cases[] = {
      {TPU_F32, DIMS, TPU_F64, DIMS, TPU_F64},      {TPU_F32, DIMS, TPU_F64, ZERO, TPU_F32},
      {TPU_F32, DIMS, TPU_F64, HOST, TPU_F32},      {TPU_F32, ZERO, TPU_F64, ZERO, TPU_F64},
      {TPU_I32, DIMS, TPU_F64, ZERO, TPU_F64},      {TPU_I32, DIMS, TPU_F64, NUMBER, TPU_F32},
      {TPU_I32, ZERO, TPU_F64, NUMBER, TPU_F32},    {TPU_I32, ZERO, TPU_F64, HOST, TPU_F64},
      {TPU_BF16, DIMS, TPU_F64, NUMBER, TPU_BF16},  {TPU_BF16, DIMS, TPU_F16, DIMS, TPU_F32},
      {TPU_BF16, DIMS, TPU_C128, NUMBER, TPU_C64},  {TPU_F64, DIMS, TPU_C128, NUMBER, TPU_C128},
      {TPU_U8, DIMS, TPU_I64, NUMBER, TPU_U8},      {TPU_U8, DIMS, TPU_I8, DIMS, TPU_I16},
      {TPU_BOOL, DIMS, TPU_I64, NUMBER, TPU_I64},   {TPU_BOOL, DIMS, TPU_U8, ZERO, TPU_U8},
      {TPU_BOOL, DIMS, TPU_BOOL, NUMBER, TPU_BOOL}, {TPU_I8, DIMS, TPU_I64, ZERO, TPU_I8},
      {TPU_U16, DIMS, TPU_I64, NUMBER, TPU_U16},    {TPU_U16, DIMS, TPU_I16, DIMS, TPU_DTYPE_NONE},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tpu_dtype got = promoted(cases[i].x, cases[i].x_form, cases[i].y, cases[i].y_form, TPU_BOOL);
    if (got != cases[i].result) CHECK_FAIL("case %zu: %s, not %s", i, tpu_dtype_name(got), tpu_dtype_name(cases[i].result));
  }
  CHECK_INT(promoted(TPU_I32, DIMS, TPU_F64, NUMBER, TPU_BF16), TPU_BF16);
  CHECK_INT(promoted(TPU_F32, DIMS, TPU_F64, NUMBER, TPU_F64), TPU_F32);
}

typedef struct shape_case {
  int rank;
  int64_t sizes[5], strides[5];
} shape_case;
typedef struct stride_case {
  int n;
  shape_case operands[3], result;
} stride_case;
static const stride_case stride_cases[] = {
#include "aten/stride_cases.inc"
};

TEST(strides) {
  for (size_t i = 0; i < sizeof stride_cases / sizeof *stride_cases; i++) {
    const stride_case *c = &stride_cases[i];
    tpu_operand operands[3];
    const tpu_operand *pointers[3];
    for (int k = 0; k < c->n; k++) {
      const shape_case *o = &c->operands[k];
      operands[k] = (tpu_operand){TPU_POISON, TPU_F32, o->rank, o->sizes, o->strides};
      pointers[k] = &operands[k];
    }
    int64_t got[5];
    strides_elementwise(c->n, pointers, false, c->result.rank, c->result.sizes, got);
    for (int d = 0; d < c->result.rank; d++)
      if (got[d] != c->result.strides[d])
        CHECK_FAIL("case %zu, dim %d: %lld, not %lld", i, d, (long long)got[d], (long long)c->result.strides[d]);
  }
}

TEST(memory_formats) {
  static const int64_t sizes[] = {2, 3, 4, 5}, last[] = {60, 1, 15, 3}, row[] = {60, 20, 5, 1};
  static const int64_t thin[] = {2, 1, 1, 1}, ones[] = {1, 1, 1, 1}, sizes5[] = {2, 3, 4, 5, 6};
  int64_t got[5];
  CHECK(strides_are_channels_last(4, sizes, last));
  CHECK(!strides_are_channels_last(4, sizes, row));
  CHECK(!strides_are_channels_last(4, thin, ones)); /* ambiguous: row-major */
  CHECK(!strides_are_channels_last(3, sizes, last));
  strides_channels_last(4, sizes, got);
  CHECK(memcmp(got, last, sizeof last) == 0);
  strides_channels_last(5, sizes5, got);
  CHECK(strides_are_channels_last(5, sizes5, got));
  static const int64_t gapped[] = {120, 1, 30, 6};
  strides_preserve(4, sizes, gapped, got);
  CHECK(memcmp(got, last, sizeof last) == 0);
}

TEST(lowering) {
  static const int64_t sizes[] = {2, 3}, strides[] = {1, 2};
  fixture f;
  begin(&f, "add.Tensor");
  tensor(&f, TPU_BF16, 2, sizes, strides);
  tensor(&f, TPU_BF16, 2, sizes, strides);
  number(&f, TPU_I64, TPU_ARG_IS_DEFAULT);
  tpu_lower_call(&f.b, &f.a, &f.o);
  CHECK_INT(f.o.n, 1);
  tpu_type type = tpu_type_of(&f.b, f.o.out[0].val);
  CHECK_INT(type.dtype, TPU_BF16);
  CHECK_INT(type.rank, 2);
  CHECK_INT(f.o.out[0].strides[0], 1);
  CHECK_INT(f.o.out[0].strides[1], 2);
  CHECK_INT(tpu_graph_slot_count(f.graph), 0); /* alpha = 1 is in the signature, not in the program */
  CHECK_OK(end(&f));
}

TEST(arange_of_known_length) {
  fixture f;
  begin(&f, "tpu::arange");
  f.args[f.a.n++] = (tpu_arg){.kind = TPU_ARG_INT, .i = 4};
  number(&f, TPU_I64, 0);
  number(&f, TPU_I64, 0);
  f.args[f.a.n++] = (tpu_arg){.kind = TPU_ARG_NONE};
  tpu_lower_call(&f.b, &f.a, &f.o);
  tpu_type type = tpu_type_of(&f.b, f.o.out[0].val);
  CHECK_INT(type.dtype, TPU_I64);
  CHECK_INT(type.dims[0], 4);
  CHECK_INT(tpu_graph_slot_count(f.graph), 2); /* start and step are numbers of the run */
  CHECK_OK(end(&f));
}

TEST(random_blocks) {
  static const int64_t sizes[] = {5}, strides[] = {1};
  fixture f;
  begin(&f, "uniform");
  tensor(&f, TPU_F32, 1, sizes, strides);
  number(&f, TPU_F64, 0);
  number(&f, TPU_F64, 0);
  tpu_lower_call(&f.b, &f.a, &f.o);
  CHECK_INT(f.o.random_blocks, 2);             /* five words in blocks of four */
  CHECK_INT(tpu_graph_slot_count(f.graph), 4); /* from, to, seed, offset */
  CHECK_OK(end(&f));
}

TEST(errors) {
  static const int64_t three[] = {3}, four[] = {4};
  fixture f;
  begin(&f, "add.Tensor");
  tensor(&f, TPU_F32, 1, three, unit);
  tensor(&f, TPU_F32, 1, four, unit);
  number(&f, TPU_I64, TPU_ARG_IS_DEFAULT);
  tpu_lower_call(&f.b, &f.a, &f.o);
  CHECK_ERROR(end(&f), TPU_INVALID_ARGUMENT,
              "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0");
  begin(&f, "add.Tensor");
  tensor(&f, TPU_I32, 1, three, unit);
  tensor(&f, TPU_I32, 1, three, unit);
  number(&f, TPU_F64, 0);
  tpu_lower_call(&f.b, &f.a, &f.o);
  CHECK_ERROR(end(&f), TPU_INVALID_ARGUMENT, "For integral input tensors, argument alpha must not be a floating point number.");
  begin(&f, "bitwise_not");
  tensor(&f, TPU_F32, 1, three, unit);
  tpu_lower_call(&f.b, &f.a, &f.o);
  CHECK_ERROR(end(&f), TPU_UNIMPLEMENTED, "\"bitwise_not\" not implemented for 'Float'");
  begin(&f, "add.Tensor");
  wrap_dim(&f.b, 2, 2);
  CHECK_ERROR(end(&f), TPU_OUT_OF_RANGE, "Dimension out of range (expected to be in range of [-2, 1], but got 2)");
  begin(&f, "exp"); /* a row that meets an argument it does not expect */
  f.args[f.a.n++] = (tpu_arg){.kind = TPU_ARG_STRING, .str = ""};
  tpu_lower_call(&f.b, &f.a, &f.o);
  CHECK_ERROR(end(&f), TPU_INTERNAL, "argument 0");
}

TEST_MAIN(TEST_CASE(table), TEST_CASE(promotion), TEST_CASE(strides), TEST_CASE(memory_formats), TEST_CASE(lowering),
          TEST_CASE(arange_of_known_length), TEST_CASE(random_blocks), TEST_CASE(errors));
