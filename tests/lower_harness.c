/* Runs one row of the op table on a CPU plugin: lower, verify, expand, emit, compile, execute. For lower_harness.py.
 * Single-threaded. Memory of a result lives until the next call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aten/lower.h"
#include "base/alloc.h"
#include "ir/emit.h"
#include "pjrt/client.h"
#include "pjrt/topology.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct harness_operand {
  int32_t dtype; /* tpu_dtype; TPU_DTYPE_NONE: absent */
  int32_t rank;
  const int64_t *sizes, *strides;
  const void *data; /* row-major */
} harness_operand;

typedef struct harness_number {
  int64_t i;     /* integers and bool */
  double re, im; /* every number, as far as double holds it */
} harness_number;

typedef struct harness_call {
  const char *aten;
  int32_t n_args, n_operands, n_numbers, n_returns, default_dtype;
  int32_t run; /* 0: lower only; 1: run; 2: compile for the topology */
  const tpu_arg *args;
  const harness_operand *operands;
  const harness_number *numbers; /* slots; for random rows seed and offset follow as two more */
} harness_call;

typedef struct harness_result {
  int32_t undefined, dtype, rank, reserved;
  const int64_t *sizes, *strides;
  const void *data;
} harness_result;

typedef struct harness_reply {
  int32_t code, n_results; /* code: tpu_code */
  const char *message;     /* of a failure */
  const char *where;       /* "aten", "ir", "pjrt" */
  const char *text;        /* the program */
  const harness_result *results;
  int64_t random_blocks;
} harness_reply;

static tpu_client *client;
static tpu_topology *topology;
static tpu_graph *graph, *expanded;
static tpu_strbuf text, message;
static tpu_arena memory;
static const char *stage;

EXPORT const char *harness_open(const char *plugin_path);
EXPORT const char *harness_open_topology(const char *plugin_path, const char *name);
EXPORT int harness_row(const char *aten, uint32_t *statics, uint32_t *defaults, int32_t *random);
EXPORT int harness_row_count(void);
EXPORT const char *harness_row_name(int i);
EXPORT const char *harness_dtype_name(int i);
EXPORT void harness_set_platform(int platform);
EXPORT void harness_run(const harness_call *call, harness_reply *reply);

static tpu_target_platform platform = TPU_TARGET_CPU;

void harness_set_platform(int number) { platform = (tpu_target_platform)number; }

const char *harness_open(const char *plugin_path) {
  tpu_plugin *plugin;
  tpu_status s = tpu_plugin_load(plugin_path, false, &plugin);
  if (!s) s = tpu_client_create(plugin, 1, &client);
  if (!s) {
    graph = tpu_graph_create();
    expanded = tpu_graph_create();
    tpu_arena_init(&memory, 0);
    return NULL;
  }
  tpu_strbuf_put(&message, tpu_status_message(s));
  tpu_status_release(s);
  return message.data;
}

const char *harness_open_topology(const char *plugin_path, const char *name) {
  tpu_plugin *plugin;
  tpu_status s = tpu_plugin_load(plugin_path, true, &plugin);
  if (!s) s = tpu_topology_create(plugin, name, &topology);
  tpu_strbuf_clear(&message);
  if (s) tpu_strbuf_put(&message, tpu_status_message(s));
  tpu_status_release(s);
  return s ? message.data : NULL;
}

int harness_row(const char *aten, uint32_t *statics, uint32_t *defaults, int32_t *random) {
  const tpu_row *row = tpu_op_find(aten);
  if (!row) return 0;
  *statics = row->statics;
  *defaults = row->defaults;
  *random = row->random;
  return 1;
}

int harness_row_count(void) {
  int n;
  tpu_op_rows(&n);
  return n;
}

const char *harness_row_name(int i) {
  int n;
  return tpu_op_rows(&n)[i].aten;
}

const char *harness_dtype_name(int i) { return i < TPU_DTYPE_COUNT ? tpu_dtype_name((tpu_dtype)i) : NULL; }

static uint32_t float_word(double v) {
  float f = (float)v;
  uint32_t w;
  memcpy(&w, &f, sizeof w);
  return w;
}

/* A number as the slot's dtype, as at::Scalar::to converts it. is_int: whether number.i holds it. */
static void pack(const tpu_slot_use *use, const harness_number *number, bool is_int, uint32_t *words, double *doubles) {
  double re = is_int ? (double)number->i : number->re;
  int64_t i = is_int ? number->i : (int64_t)number->re;
  switch (use->dtype) {
    case TPU_F64: doubles[use->at] = re; return;
    case TPU_C128:
      doubles[use->at] = re;
      doubles[use->at + 1] = number->im;
      return;
    case TPU_C64:
      words[use->at] = float_word(re);
      words[use->at + 1] = float_word(number->im);
      return;
    case TPU_I64:
    case TPU_U64:
      words[use->at] = (uint32_t)((uint64_t)i & 0xffffffffu);
      words[use->at + 1] = (uint32_t)((uint64_t)i >> 32);
      return;
    case TPU_BOOL: words[use->at] = re != 0 || number->im != 0; return;
    case TPU_U8: words[use->at] = (uint8_t)i; return;
    case TPU_I8: words[use->at] = (uint32_t)(int32_t)(int8_t)i; return;
    case TPU_I16: words[use->at] = (uint32_t)(int32_t)(int16_t)i; return;
    case TPU_U16: words[use->at] = (uint16_t)i; return;
    case TPU_I32:
    case TPU_U32: words[use->at] = (uint32_t)((uint64_t)i & 0xffffffffu); return;
    default: words[use->at] = float_word(re); return;
  }
}

static tpu_status pack_slots(const harness_call *call, const tpu_module *module, uint32_t *words, double *doubles) {
  uint32_t n = (uint32_t)call->n_numbers;
  uint8_t *is_int = tpu_arena_calloc(&memory, (size_t)n + 1, 1);
  if (!is_int) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of memory");
  for (int i = 0; i < call->n_args; i++) {
    const tpu_arg *arg = &call->args[i];
    if (arg->kind != TPU_ARG_NUMBER && arg->kind != TPU_ARG_NUMBERS) continue;
    uint32_t count = arg->kind == TPU_ARG_NUMBERS ? arg->n : 1;
    for (uint32_t k = 0; k < count; k++) {
      tpu_dtype t = (tpu_dtype)(arg->kind == TPU_ARG_NUMBERS ? arg->numbers[k].dtype : arg->dtype);
      is_int[arg->first + k] = !tpu_is_float(t) && !tpu_is_complex(t);
    }
  }
  for (uint32_t i = 0; i < module->n_slots; i++) {
    const tpu_slot_use *use = &module->slots[i];
    if (use->index >= n + 2) return tpu_error(TPU_INTERNAL, "slot %u of %u", use->index, n);
    pack(use, &call->numbers[use->index], use->index >= n || is_int[use->index], words, doubles);
  }
  return NULL;
}

/* Params number the operands that are present. */
static const harness_operand *operand_of_param(const harness_call *call, uint32_t param) {
  const harness_operand *o = call->operands;
  for (;; o++)
    if (o->dtype != TPU_DTYPE_NONE && param-- == 0) return o;
}

/* The last programs: tests often run one again on other values. */
enum { KEPT = 32 };
static struct {
  char *text;
  size_t size;
  tpu_executable *executable;
} kept[KEPT];
static int oldest;

static tpu_status compile(tpu_executable **out) {
  for (int i = 0; i < KEPT; i++)
    if (kept[i].text && kept[i].size == text.size && memcmp(kept[i].text, text.data, text.size) == 0) {
      *out = kept[i].executable;
      return NULL;
    }
  /* Values are compared, not speed: compiling takes two thirds of the time so. What ships is compiled in the tests through
   * PyTorch. */
  tpu_option overrides[] = {{"xla_cpu_enable_fast_min_max", "false"}, {"xla_backend_optimization_level", "0"}};
  tpu_compile_options options = {.overrides = overrides, .override_count = tpu_client_quirks(client)->cpu_overrides ? 2 : 0};
  TPU_TRY(tpu_compile(client, text.data, text.size, &options, out));
  int i = oldest++ % KEPT;
  if (kept[i].text) tpu_executable_destroy(client, kept[i].executable);
  free(kept[i].text);
  kept[i].text = malloc(text.size);
  if (!kept[i].text) {
    tpu_executable_destroy(client, *out);
    return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of memory");
  }
  memcpy(kept[i].text, text.data, text.size);
  kept[i].size = text.size;
  kept[i].executable = *out;
  return NULL;
}

static tpu_status execute(const harness_call *call, const tpu_module *module, int n_outputs, tpu_buffer **outputs) {
  tpu_executable *executable;
  TPU_TRY(compile(&executable));
  size_t n_inputs = 0;
  uint32_t n_words = module->pack_size[TPU_PACK_WORDS], n_doubles = module->pack_size[TPU_PACK_F64];
  tpu_buffer **inputs = tpu_arena_calloc(&memory, module->n_params + 2u, sizeof *inputs);
  uint32_t *words = tpu_arena_calloc(&memory, n_words + 2u, sizeof *words);
  double *doubles = tpu_arena_calloc(&memory, n_doubles + 2u, sizeof *doubles);
  tpu_status s =
      inputs && words && doubles ? pack_slots(call, module, words, doubles) : tpu_error(TPU_RESOURCE_EXHAUSTED, "out of memory");
  for (uint32_t i = 0; i < module->n_params && !s; i++) {
    const harness_operand *o = operand_of_param(call, module->params[i]);
    s = tpu_buffer_from_host(client, 0, (tpu_dtype)o->dtype, o->rank, o->sizes, o->data, TPU_HOST_COPY, &inputs[n_inputs], NULL);
    if (!s) n_inputs++;
  }
  if (!s && n_words) {
    int64_t n = n_words;
    s = tpu_buffer_from_host(client, 0, TPU_U32, 1, &n, words, TPU_HOST_COPY, &inputs[n_inputs], NULL);
    if (!s) n_inputs++;
  }
  if (!s && n_doubles) {
    int64_t n = n_doubles;
    s = tpu_buffer_from_host(client, 0, TPU_F64, 1, &n, doubles, TPU_HOST_COPY, &inputs[n_inputs], NULL);
    if (!s) n_inputs++;
  }
  if (!s) s = tpu_execute(client, executable, 0, inputs, n_inputs, NULL, 0, outputs, (size_t)n_outputs, NULL);
  for (size_t i = 0; i < n_inputs; i++) tpu_buffer_destroy(client, inputs[i]);
  return s;
}

static tpu_status run(const harness_call *call, const tpu_args *args, harness_reply *reply) {
  tpu_target target = {.platform = platform,
                       .precision = TPU_PRECISION_HIGHEST,
                       .atan_is_broken = call->run != 2 && tpu_client_quirks(client)->atan_is_broken,
                       .host_custom_calls = platform == TPU_TARGET_CPU};
  tpu_build b;
  tpu_build_init(&b, graph, &target);
  tpu_operand *operands = tpu_arena_calloc(&memory, (size_t)call->n_operands + 1, sizeof *operands);
  if (!operands) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of memory");
  for (int i = 0; i < call->n_operands; i++) {
    const harness_operand *o = &call->operands[i];
    operands[i].dtype = (tpu_dtype)o->dtype;
    if (o->dtype == TPU_DTYPE_NONE) continue;
    operands[i].rank = o->rank;
    operands[i].sizes = o->sizes;
    operands[i].strides = o->strides;
    operands[i].val = tpu_param(&b, (tpu_dtype)o->dtype, o->rank, o->sizes);
  }
  tpu_args a = *args;
  a.operands = operands;
  tpu_outs outs = {0};
  stage = "aten";
  tpu_lower_call(&b, &a, &outs);
  TPU_TRY(tpu_build_status(&b));
  stage = "ir";
  harness_result *results = tpu_arena_calloc(&memory, (size_t)outs.n + 1, sizeof *results);
  tpu_val *vals = tpu_arena_calloc(&memory, (size_t)outs.n + 1, sizeof *vals);
  if (!results || !vals) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of memory");
  uint32_t n = 0;
  for (int i = 0; i < outs.n; i++) {
    results[i].undefined = outs.out[i].undefined;
    if (results[i].undefined) continue;
    tpu_type type = tpu_type_of(&b, outs.out[i].val);
    results[i].dtype = (int32_t)type.dtype;
    results[i].rank = type.rank;
    results[i].sizes = tpu_arena_copy(&memory, type.dims, sizeof *type.dims * (size_t)type.rank);
    results[i].strides = tpu_arena_copy(&memory, outs.out[i].strides, sizeof *type.dims * (size_t)type.rank);
    vals[n++] = outs.out[i].val;
  }
  reply->results = results;
  reply->n_results = outs.n;
  reply->random_blocks = outs.random_blocks;
  if (!call->run) return NULL;
  TPU_TRY(tpu_graph_set_outputs(graph, vals, n));
  TPU_TRY(tpu_graph_verify(graph));
  TPU_TRY(tpu_graph_expand(graph, &target, expanded));
  TPU_TRY(tpu_graph_verify(expanded));
  tpu_module module;
  TPU_TRY(tpu_graph_emit(expanded, &target, "harness", NULL, 0, &text, &module));
  reply->text = text.data;
  stage = "pjrt";
  if (call->run == 2) {
    tpu_program_stats stats;
    return tpu_topology_compile(topology, text.data, text.size, NULL, &stats);
  }
  tpu_buffer **outputs = tpu_arena_calloc(&memory, n + 1u, sizeof *outputs);
  if (!outputs) return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of memory");
  if (n == 0) return NULL;
  TPU_TRY(execute(call, &module, (int)n, outputs));
  tpu_status s = NULL;
  for (uint32_t i = 0, k = 0; i < (uint32_t)outs.n; i++) {
    if (results[i].undefined) continue;
    size_t bytes = (size_t)tpu_dtype_bytes((tpu_dtype)results[i].dtype);
    for (int d = 0; d < results[i].rank; d++) bytes *= (size_t)results[i].sizes[d];
    void *data = tpu_arena_calloc(&memory, bytes + 1, 1);
    tpu_event *done = NULL;
    if (!s && !data) s = tpu_error(TPU_RESOURCE_EXHAUSTED, "out of memory");
    if (!s) s = tpu_buffer_to_host(client, outputs[k], data, bytes, &done);
    if (!s) s = tpu_event_await(client, done);
    tpu_event_destroy(client, done);
    tpu_buffer_destroy(client, outputs[k++]);
    results[i].data = data;
  }
  return s;
}

void harness_run(const harness_call *call, harness_reply *reply) {
  memset(reply, 0, sizeof *reply);
  tpu_graph_reset(graph);
  tpu_graph_reset(expanded);
  tpu_arena_reset(&memory);
  tpu_strbuf_clear(&text);
  tpu_strbuf_clear(&message);
  stage = "harness";
  tpu_args args = {.row = tpu_op_find(call->aten),
                   .n = call->n_args,
                   .arg = call->args,
                   .n_operands = call->n_operands,
                   .n_slots = call->n_numbers,
                   .n_returns = call->n_returns,
                   .default_dtype = (uint8_t)call->default_dtype};
  tpu_status s = args.row ? run(call, &args, reply) : tpu_error(TPU_NOT_FOUND, "no row %s", call->aten);
  reply->where = stage;
  reply->code = (int32_t)tpu_status_code(s);
  if (s) {
    tpu_strbuf_printf(&message, "%s", tpu_status_message(s));
    if (tpu_status_code(s) == TPU_INTERNAL) tpu_strbuf_printf(&message, " [%s:%d]", tpu_status_file(s), tpu_status_line(s));
    reply->message = message.data;
  }
  tpu_status_release(s);
}
