/* What the runtime's tests share: tensors that own their storage, calls by row, the fake plugin. */
#ifndef TPU_RT_RUNTIME_TEST_H
#define TPU_RT_RUNTIME_TEST_H

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/test.h"
#include "pjrt/fake_plugin.h"
#include "rt/private.h"

#define MAYBE_UNUSED __attribute__((unused))

/* --- the plugin */
static const fake_pjrt_control *fake;
static tpu_lane *lane;

MAYBE_UNUSED static void configure(const char *plugin, const char *cache_dir, int64_t cache_bytes) {
  tpu_config config = {.embedded = plugin, .cache_dir = cache_dir, .cache_bytes = cache_bytes, .devices = 2};
  tpu_configure(&config);
}

MAYBE_UNUSED static bool open_fake(void) {
  const char *path = getenv("TPU_TEST_FAKE_PLUGIN");
  if (!path) return false;
  if (!fake) {
    void *library = dlopen(path, RTLD_NOW);
    const fake_pjrt_control *(*get)(void);
    *(void **)&get = library ? dlsym(library, "fake_pjrt_control_get") : NULL;
    if (!get) return false;
    fake = get();
    configure(path, NULL, 0);
  }
  if (!lane) lane = tpu_lane_create();
  return lane != NULL;
}
#define NEED_FAKE() \
  if (!open_fake()) SKIP("TPU_TEST_FAKE_PLUGIN is not set or cannot be loaded")

/* --- tensors */
typedef struct tensor {
  tpu_storage *s;
  tpu_dtype dtype;
  int rank;
  int64_t sizes[4], strides[4], offset;
} tensor;

MAYBE_UNUSED static tpu_tensor as_view(const tensor *t) {
  return (tpu_tensor){t->s, t->dtype, t->rank, t->sizes, t->strides, t->offset};
}
static int64_t numel(const tensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->rank; i++) n *= t->sizes[i];
  return n;
}
/* A row-major tensor without contents on a device; -1 ends the sizes. */
MAYBE_UNUSED static tpu_status empty_on(int device, tpu_dtype dtype, int rank, const int64_t *sizes, tensor *out) {
  *out = (tensor){.dtype = dtype, .rank = rank};
  for (int i = 0; i < rank; i++) out->sizes[i] = sizes[i];
  strides_contiguous(rank, out->sizes, out->strides);
  TPU_TRY(tpu_storage_create(device, numel(out) * tpu_dtype_bytes(dtype), &out->s));
  tpu_tensor v = as_view(out);
  tpu_storage_hint(out->s, &v);
  return NULL;
}
MAYBE_UNUSED static void drop(tensor *t) {
  tpu_storage_release(t->s);
  t->s = NULL;
}
MAYBE_UNUSED static tpu_status write_to(tpu_lane *l, const tensor *t, const void *data) {
  tpu_tensor v = as_view(t);
  return tpu_write(l, &v, data);
}
MAYBE_UNUSED static tpu_status read_from(tpu_lane *l, const tensor *t, void *data) {
  tpu_tensor v = as_view(t);
  return tpu_read(l, &v, data);
}
MAYBE_UNUSED static tpu_status copy_to(tpu_lane *l, const tensor *src, const tensor *dst) {
  tpu_tensor a = as_view(src), b = as_view(dst);
  return tpu_copy(l, &a, &b);
}
/* float32 [n, m], element i being first + i. Fails without leaving anything. */
MAYBE_UNUSED static tpu_status floats_on(int device, int64_t n, int64_t m, float first, tensor *out) {
  float data[4096];
  const int64_t sizes[2] = {n, m};
  for (int64_t i = 0; i < n * m; i++) data[i] = first + (float)i;
  TPU_TRY(empty_on(device, TPU_F32, 2, sizes, out));
  tpu_status status = write_to(lane, out, data);
  if (status) drop(out);
  return status;
}
MAYBE_UNUSED static tpu_status floats(int64_t n, int64_t m, float first, tensor *out) { return floats_on(0, n, m, first, out); }
/* A view of the same storage; borrows it. */
MAYBE_UNUSED static tensor rows_of(const tensor *t, int64_t from, int64_t to) {
  tensor v = *t;
  v.sizes[0] = to - from;
  v.offset += from * t->strides[0];
  return v;
}
MAYBE_UNUSED static tensor columns_of(const tensor *t, int64_t from, int64_t to) {
  tensor v = *t;
  v.sizes[1] = to - from;
  v.offset += from * t->strides[1];
  return v;
}
MAYBE_UNUSED static tensor turned(const tensor *t) {
  tensor v = *t;
  v.sizes[0] = t->sizes[1], v.sizes[1] = t->sizes[0];
  v.strides[0] = t->strides[1], v.strides[1] = t->strides[0];
  return v;
}

/* --- calls: tensors come first, then numbers */
typedef struct spec {
  const char *aten;
  const tpu_row *row; /* if not by name */
  int n_tensors;
  const tensor *t[4];
  int n_numbers, n_returns;
  double x[4];
  tpu_generator *generator;
  const tensor *dst; /* of output 0 */
  tpu_lane *lane;    /* NULL: the test's */
} spec;

static tpu_status call(const spec *c, tensor *out) {
  tpu_arg args[8] = {{0}};
  tpu_tensor tensors[4];
  tpu_number numbers[4];
  int n = 0;
  for (int i = 0; i < c->n_tensors; i++) {
    tensors[i] = as_view(c->t[i]);
    args[n++] = (tpu_arg){.kind = TPU_ARG_TENSOR, .first = (uint32_t)i};
  }
  for (int i = 0; i < c->n_numbers; i++) {
    numbers[i] = (tpu_number){.dtype = TPU_F64, .f = c->x[i]};
    args[n++] = (tpu_arg){.kind = TPU_ARG_NUMBER, .dtype = TPU_F64, .flags = TPU_ARG_WRAPPED, .first = (uint32_t)i};
  }
  tpu_call k = {.row = c->row ? c->row : tpu_op_find(c->aten),
                .device = c->n_tensors ? tpu_storage_device(c->t[0]->s) : 0,
                .n_args = n,
                .n_tensors = c->n_tensors,
                .n_numbers = c->n_numbers,
                .n_returns = c->n_returns ? c->n_returns : 1,
                .args = args,
                .tensors = tensors,
                .numbers = numbers,
                .generator = c->generator};
  const tpu_signature *sig;
  if (!k.row) return tpu_error(TPU_NOT_FOUND, "no row %s", c->aten);
  TPU_TRY(tpu_signature_get(&k, &sig));
  tpu_tensor dst[4] = {{0}};
  tpu_storage *made[4];
  if (c->dst) dst[0] = as_view(c->dst);
  TPU_TRY(tpu_record(c->lane ? c->lane : lane, &k, sig, c->dst ? dst : NULL, made));
  for (int i = 0; i < tpu_signature_outputs(sig); i++) {
    if (i == 0 && c->dst) continue;
    const tpu_result *r = tpu_signature_output(sig, i);
    out[i] = (tensor){.s = made[i], .dtype = r->dtype, .rank = r->rank};
    for (int d = 0; d < r->rank; d++) out[i].sizes[d] = r->sizes[d], out[i].strides[d] = r->strides[d];
  }
  return NULL;
}

MAYBE_UNUSED static tpu_status add(tpu_lane *l, const tensor *a, const tensor *b, double alpha, tensor *out) {
  return call(&(spec){.aten = "add.Tensor", .n_tensors = 2, .t = {a, b}, .n_numbers = 1, .x = {alpha}, .lane = l}, out);
}
MAYBE_UNUSED static tpu_status add_into(tpu_lane *l, const tensor *a, const tensor *b, double alpha, const tensor *dst) {
  return call(&(spec){.aten = "add.Tensor", .n_tensors = 2, .t = {a, b}, .n_numbers = 1, .x = {alpha}, .dst = dst, .lane = l},
              NULL);
}
MAYBE_UNUSED static tpu_status mul(tpu_lane *l, const tensor *a, const tensor *b, tensor *out) {
  return call(&(spec){.aten = "mul.Tensor", .n_tensors = 2, .t = {a, b}, .lane = l}, out);
}
MAYBE_UNUSED static tpu_status mul_into(tpu_lane *l, const tensor *a, const tensor *b, const tensor *dst) {
  return call(&(spec){.aten = "mul.Tensor", .n_tensors = 2, .t = {a, b}, .dst = dst, .lane = l}, NULL);
}
MAYBE_UNUSED static tpu_status mm(tpu_lane *l, const tensor *a, const tensor *b, tensor *out) {
  return call(&(spec){.aten = "mm", .n_tensors = 2, .t = {a, b}, .lane = l}, out);
}
MAYBE_UNUSED static tpu_status zeros(tpu_lane *l, const tensor *like, tensor *out) {
  return call(&(spec){.aten = "zero", .n_tensors = 1, .t = {like}, .lane = l}, out);
}
MAYBE_UNUSED static tpu_status scale(tpu_lane *l, const tensor *a, double by, tensor *out) {
  return call(&(spec){.aten = "mul.Scalar", .n_tensors = 1, .t = {a}, .n_numbers = 1, .x = {by}, .lane = l}, out);
}
MAYBE_UNUSED static tpu_status scale_into(tpu_lane *l, const tensor *a, double by, const tensor *dst) {
  return call(&(spec){.aten = "mul.Scalar", .n_tensors = 1, .t = {a}, .n_numbers = 1, .x = {by}, .dst = dst, .lane = l}, NULL);
}

/* --- rows of the tests' own */
static void lower_test_uniform(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  const tpu_operand *like = arg_operand(b, a, 0);
  if (like) o->out[0].val = random_unit(b, a, o, TPU_F32, like->rank, like->sizes);
}
static void lower_test_three(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  tpu_val x = arg_tensor(b, a, 0);
  o->out[0].val = binary_c(b, TPU_HLO_ADD, x, 1);
  o->out[1].undefined = true;
  o->out[2].val = binary_c(b, TPU_HLO_MULTIPLY, x, 2);
}
static void lower_test_refuse(tpu_build *b, const tpu_args *a, tpu_outs *o) {
  (void)a, (void)o;
  tpu_fail(b, TPU_VALUE_ERROR, "refused");
}
MAYBE_UNUSED static const tpu_row uniform_row = {
    .aten = "test_uniform", .lower = lower_test_uniform, .random = 1, .file = "", .line = 0};
MAYBE_UNUSED static const tpu_row three_row = {.aten = "test_three", .lower = lower_test_three, .file = "", .line = 0};
MAYBE_UNUSED static const tpu_row refuse_row = {.aten = "test_refuse", .lower = lower_test_refuse, .file = "", .line = 0};

/* --- asking */
MAYBE_UNUSED static tpu_stats stats_now(void) {
  tpu_stats s;
  tpu_stats_get(&s);
  return s;
}
MAYBE_UNUSED static const char *const mode_names[] = {"fuse", "never", "blocking"};
/* Nothing is left: to be called when everything was dropped. */
#define CHECK_NOTHING_LIVES()                                     \
  do {                                                            \
    for (int d_ = 0; d_ < 2; d_++) CHECK_OK(tpu_synchronize(d_)); \
    CHECK_INT(tpu_live_storages(), 0);                            \
    CHECK_INT(tpu_live_values(), 0);                              \
    CHECK_INT(fake->live(FAKE_PJRT_BUFFERS), 0);                  \
    CHECK_INT(fake->live(FAKE_PJRT_EVENTS), 0);                   \
    CHECK_INT(fake->live(FAKE_PJRT_ERRORS), 0);                   \
  } while (0)

#endif
