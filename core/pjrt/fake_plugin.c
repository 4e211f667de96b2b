#include "pjrt/fake_plugin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "pjrt/fake_program.h"
#include "pjrt/pjrt_abi.h"

#define EXPORT __attribute__((visibility("default")))

#ifndef FAKE_PJRT_MINOR
#define FAKE_PJRT_MINOR 106
#endif
enum { ALIGN = 64, MAX_DEVICES = 64 };

struct PJRT_Error {
  int code;
  char message[256];
};

/* State shared by the events that tell of one thing, and by the buffer they tell of. */
typedef struct signal_state {
  int refs;
  bool fired;
  int code;
} signal_state;
struct PJRT_Event {
  signal_state *state;
};

struct PJRT_DeviceDescription {
  int id;
};
struct PJRT_Device {
  PJRT_DeviceDescription description;
  int64_t bytes, peak;
};
struct PJRT_Client {
  PJRT_Device devices[MAX_DEVICES];
  PJRT_Device *list[MAX_DEVICES];
  size_t device_count;
  char platform[32];
};

typedef struct memory {
  int refs;
  void *data;
  size_t bytes;
  PJRT_Device *device;
  signal_state *host_done; /* of aliased host memory */
} memory;
struct PJRT_Buffer {
  memory *memory; /* NULL: deleted */
  fake_type type;
  PJRT_Device *device;
  signal_state *ready;
};

struct PJRT_Executable {
  int refs;
  fake_program program;
  char *text;
  size_t text_size;
};
struct PJRT_LoadedExecutable {
  PJRT_Executable *executable;
  PJRT_Client *client;
};
struct PJRT_TopologyDescription {
  int unused;
};
struct PJRT_SerializedExecutable {
  char bytes[1];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t fired = PTHREAD_COND_INITIALIZER;

static _Atomic int64_t live[FAKE_PJRT_KINDS];
static _Atomic int64_t fail_after = -1;
static atomic_int fail_code, poison;
static _Atomic uint64_t call_count, execute_count;
static _Atomic int64_t memory_limit = -1, memory_used;
static char platform[32];

static void born(fake_pjrt_kind kind) { atomic_fetch_add(&live[kind], 1); }
static void died(fake_pjrt_kind kind) { atomic_fetch_sub(&live[kind], 1); }

__attribute__((format(printf, 2, 3))) static PJRT_Error *error(int code, const char *format, ...) {
  PJRT_Error *e = calloc(1, sizeof *e);
  if (!e) abort();
  e->code = code;
  va_list args;
  va_start(args, format);
  (void)vsnprintf(e->message, sizeof e->message, format, args);
  va_end(args);
  born(FAKE_PJRT_ERRORS);
  return e;
}

static PJRT_Error *begin(void) {
  atomic_fetch_add(&call_count, 1);
  if (atomic_load(&fail_after) < 0 || atomic_fetch_sub(&fail_after, 1) != 0) return NULL;
  return error(atomic_load(&fail_code), "the fake plugin was told to fail");
}
/* Every function that may fail starts with this. */
#define BEGIN(name, args)           \
  tpu_abi_##name *(args) = untyped; \
  do {                              \
    PJRT_Error *told_ = begin();    \
    if (told_) return told_;        \
  } while (0)

/* --- errors */
static void error_destroy(void *untyped) {
  tpu_abi_Error_Destroy *args = untyped;
  free(args->error);
  died(FAKE_PJRT_ERRORS);
}
static void error_message(void *untyped) {
  tpu_abi_Error_Message *args = untyped;
  args->message = args->error->message;
  args->message_size = strlen(args->error->message);
}
static PJRT_Error *error_get_code(void *untyped) {
  tpu_abi_Error_GetCode *args = untyped;
  args->code = args->error->code;
  return NULL;
}

/* --- signals and events */
static signal_state *signal_new(bool is_fired, int code) {
  signal_state *s = calloc(1, sizeof *s);
  if (!s) abort();
  *s = (signal_state){.refs = 1, .fired = is_fired, .code = code};
  return s;
}
static void signal_release(signal_state *s) {
  if (!s) return;
  pthread_mutex_lock(&lock);
  bool last = --s->refs == 0;
  pthread_mutex_unlock(&lock);
  if (last) free(s);
}
static void signal_fire(signal_state *s) {
  pthread_mutex_lock(&lock);
  s->fired = true;
  pthread_cond_broadcast(&fired);
  pthread_mutex_unlock(&lock);
}
static PJRT_Event *event_of(signal_state *s) {
  PJRT_Event *e = calloc(1, sizeof *e);
  if (!e) abort();
  pthread_mutex_lock(&lock);
  s->refs++;
  pthread_mutex_unlock(&lock);
  e->state = s;
  born(FAKE_PJRT_EVENTS);
  return e;
}
static PJRT_Error *event_result(const signal_state *s) {
  return s->code ? error(s->code, "the fake plugin was told to poison this") : NULL;
}

static PJRT_Error *event_destroy(void *untyped) {
  tpu_abi_Event_Destroy *args = untyped;
  signal_release(args->event->state);
  free(args->event);
  died(FAKE_PJRT_EVENTS);
  return NULL;
}
static PJRT_Error *event_is_ready(void *untyped) {
  BEGIN(Event_IsReady, args);
  pthread_mutex_lock(&lock);
  args->is_ready = args->event->state->fired;
  pthread_mutex_unlock(&lock);
  return NULL;
}
static PJRT_Error *event_await(void *untyped) {
  BEGIN(Event_Await, args);
  signal_state *s = args->event->state;
  pthread_mutex_lock(&lock);
  while (!s->fired) pthread_cond_wait(&fired, &lock);
  pthread_mutex_unlock(&lock);
  return event_result(s);
}
static PJRT_Error *event_error(void *untyped) {
  BEGIN(Event_Error, args);
  return event_result(args->event->state);
}

/* --- plugin and client */
static PJRT_Error *plugin_initialize(void *untyped) {
  BEGIN(Plugin_Initialize, args);
  (void)args;
  const char *name = getenv("FAKE_PJRT_PLATFORM");
  if (!platform[0]) fake_pjrt_set_platform(name && *name ? name : "cpu");
  return NULL;
}
static PJRT_Error *plugin_attributes(void *untyped) {
  BEGIN(Plugin_Attributes, args);
  static const int64_t current[] = {1, 16, 1}, minimum[] = {0, 9, 0};
  static const tpu_abi_named_value values[] = {
      {.name = "xla_version", .name_size = 11, .type = TPU_VALUE_INT64, .value.int64_value = 2, .value_size = 1},
      {.name = "stablehlo_current_version",
       .name_size = 25,
       .type = TPU_VALUE_INT64_LIST,
       .value.int64_array_value = current,
       .value_size = 3},
      {.name = "stablehlo_minimum_version",
       .name_size = 25,
       .type = TPU_VALUE_INT64_LIST,
       .value.int64_array_value = minimum,
       .value_size = 3},
  };
  args->attributes = values;
  args->num_attributes = sizeof values / sizeof *values;
  return NULL;
}

static PJRT_Error *client_create(void *untyped) {
  BEGIN(Client_Create, args);
  int64_t count = 4;
  for (size_t i = 0; i < args->num_options; i++) {
    const tpu_abi_named_value *o = &args->create_options[i];
    if (o->name_size != 16 || memcmp(o->name, "cpu_device_count", 16) != 0 || o->type != TPU_VALUE_INT64 ||
        strcmp(platform, "cpu") != 0)
      return error(TPU_INVALID_ARGUMENT, "unexpected option %.*s", (int)o->name_size, o->name);
    count = o->value.int64_value;
  }
  if (count < 1 || count > MAX_DEVICES) return error(TPU_INVALID_ARGUMENT, "bad number of devices");
  PJRT_Client *client = calloc(1, sizeof *client);
  if (!client) abort();
  client->device_count = (size_t)count;
  for (size_t i = 0; i < client->device_count; i++) {
    client->devices[i].description.id = (int)i;
    client->list[i] = &client->devices[i];
  }
  memcpy(client->platform, platform, sizeof platform);
  born(FAKE_PJRT_CLIENTS);
  args->client = client;
  return NULL;
}
static PJRT_Error *client_destroy(void *untyped) {
  tpu_abi_Client_Destroy *args = untyped;
  free(args->client);
  died(FAKE_PJRT_CLIENTS);
  return NULL;
}
static PJRT_Error *client_platform_name(void *untyped) {
  BEGIN(Client_PlatformName, args);
  args->platform_name = args->client->platform;
  args->platform_name_size = strlen(args->client->platform);
  return NULL;
}
static PJRT_Error *client_platform_version(void *untyped) {
  BEGIN(Client_PlatformVersion, args);
  args->platform_version = "fake";
  args->platform_version_size = 4;
  return NULL;
}
static PJRT_Error *client_addressable_devices(void *untyped) {
  BEGIN(Client_AddressableDevices, args);
  args->addressable_devices = args->client->list;
  args->num_addressable_devices = args->client->device_count;
  return NULL;
}
static PJRT_Error *device_get_description(void *untyped) {
  BEGIN(Device_GetDescription, args);
  args->device_description = &args->device->description;
  return NULL;
}
static PJRT_Error *device_description_id(void *untyped) {
  BEGIN(DeviceDescription_Id, args);
  args->id = args->device_description->id;
  return NULL;
}
static PJRT_Error *device_description_kind(void *untyped) {
  BEGIN(DeviceDescription_Kind, args);
  args->device_kind = "fake";
  args->device_kind_size = 4;
  return NULL;
}
static PJRT_Error *device_memory_stats(void *untyped) {
  BEGIN(Device_MemoryStats, args);
  pthread_mutex_lock(&lock);
  args->bytes_in_use = args->device->bytes;
  args->peak_bytes_in_use = args->device->peak;
  pthread_mutex_unlock(&lock);
  args->peak_bytes_in_use_is_set = true;
  args->bytes_limit = atomic_load(&memory_limit);
  args->bytes_limit_is_set = args->bytes_limit >= 0;
  return NULL;
}

/* --- memory and buffers */
static memory *memory_new(PJRT_Device *device, size_t bytes) {
  int64_t limit = atomic_load(&memory_limit);
  pthread_mutex_lock(&lock);
  bool fits = limit < 0 || device->bytes + (int64_t)bytes <= limit;
  if (fits) device->bytes += (int64_t)bytes;
  if (device->bytes > device->peak) device->peak = device->bytes;
  pthread_mutex_unlock(&lock);
  if (!fits) return NULL;
  memory *m = calloc(1, sizeof *m);
  if (!m || posix_memalign(&m->data, ALIGN, bytes ? bytes : 1) != 0) abort();
  memset(m->data, 0, bytes);
  m->refs = 1;
  m->bytes = bytes;
  m->device = device;
  atomic_fetch_add(&memory_used, (int64_t)bytes);
  return m;
}
static void memory_release(memory *m) {
  if (!m) return;
  pthread_mutex_lock(&lock);
  bool last = --m->refs == 0;
  if (last && !m->host_done) m->device->bytes -= (int64_t)m->bytes;
  pthread_mutex_unlock(&lock);
  if (!last) return;
  if (m->host_done) {
    signal_fire(m->host_done);
    signal_release(m->host_done);
  } else {
    free(m->data);
    atomic_fetch_sub(&memory_used, (int64_t)m->bytes);
  }
  free(m);
}

static PJRT_Buffer *buffer_new(memory *m, const fake_type *type, PJRT_Device *device, int code) {
  PJRT_Buffer *b = calloc(1, sizeof *b);
  if (!b) abort();
  b->memory = m;
  b->type = *type;
  b->device = device;
  b->ready = signal_new(true, code);
  born(FAKE_PJRT_BUFFERS);
  return b;
}
static PJRT_Error *out_of_memory(size_t bytes) {
  return error(TPU_RESOURCE_EXHAUSTED, "out of memory allocating %zu bytes", bytes);
}
static PJRT_Error *deleted(void) { return error(TPU_INVALID_ARGUMENT, "buffer has been deleted or donated"); }

static PJRT_Error *client_buffer_from_host_buffer(void *untyped) {
  BEGIN(Client_BufferFromHostBuffer, args);
  fake_type type = {.type = args->type, .rank = args->num_dims, .bytes = fake_element_bytes(args->type)};
  if (!type.bytes || type.rank > FAKE_MAX_RANK || args->byte_strides || args->device_layout)
    return error(TPU_UNIMPLEMENTED, "the fake plugin takes dense buffers of known types only");
  for (size_t i = 0; i < type.rank; i++) {
    type.dims[i] = args->dims[i];
    type.bytes *= (size_t)args->dims[i];
  }
  signal_state *done = signal_new(false, 0);
  memory *m;
  if (args->host_buffer_semantics == TPU_HOST_IMMUTABLE_ZERO_COPY && (uintptr_t)args->data % ALIGN == 0) {
    m = calloc(1, sizeof *m);
    if (!m) abort();
    union {
      const void *in;
      void *out;
    } data = {args->data};
    *m = (memory){.refs = 1, .data = data.out, .bytes = type.bytes, .device = args->device, .host_done = done};
    done->refs++;
  } else {
    m = memory_new(args->device, type.bytes);
    if (!m) {
      signal_release(done);
      return out_of_memory(type.bytes);
    }
    memcpy(m->data, args->data, type.bytes);
    signal_fire(done);
  }
  args->done_with_host_buffer = event_of(done);
  signal_release(done);
  args->buffer = buffer_new(m, &type, args->device, 0);
  return NULL;
}
static PJRT_Error *buffer_destroy(void *untyped) {
  tpu_abi_Buffer_Destroy *args = untyped;
  memory_release(args->buffer->memory);
  signal_release(args->buffer->ready);
  free(args->buffer);
  died(FAKE_PJRT_BUFFERS);
  return NULL;
}
static PJRT_Error *buffer_dimensions(void *untyped) {
  BEGIN(Buffer_Dimensions, args);
  args->dims = args->buffer->type.dims;
  args->num_dims = args->buffer->type.rank;
  return NULL;
}
static PJRT_Error *buffer_element_type(void *untyped) {
  BEGIN(Buffer_ElementType, args);
  args->type = args->buffer->type.type;
  return NULL;
}
static PJRT_Error *buffer_size(void *untyped) {
  BEGIN(Buffer_OnDeviceSizeInBytes, args);
  args->on_device_size_in_bytes = args->buffer->type.bytes;
  return NULL;
}
static PJRT_Error *buffer_is_deleted(void *untyped) {
  BEGIN(Buffer_IsDeleted, args);
  args->is_deleted = !args->buffer->memory;
  return NULL;
}
static PJRT_Error *buffer_ready_event(void *untyped) {
  BEGIN(Buffer_ReadyEvent, args);
  if (!args->buffer->memory) return deleted();
  args->event = event_of(args->buffer->ready);
  return NULL;
}
static PJRT_Error *buffer_unsafe_pointer(void *untyped) {
  BEGIN(Buffer_UnsafePointer, args);
  if (!args->buffer->memory) return deleted();
  args->buffer_pointer = (uintptr_t)args->buffer->memory->data;
  return NULL;
}
static PJRT_Error *buffer_to_host(void *untyped) {
  BEGIN(Buffer_ToHostBuffer, args);
  if (!args->src->memory) return deleted();
  if (args->src->ready->code) return event_result(args->src->ready);
  if (args->dst_size < args->src->type.bytes) return error(TPU_INVALID_ARGUMENT, "the host buffer is too small");
  memcpy(args->dst, args->src->memory->data, args->src->type.bytes);
  args->event = event_of(args->src->ready);
  return NULL;
}
static PJRT_Error *buffer_copy_to_device(void *untyped) {
  BEGIN(Buffer_CopyToDevice, args);
  if (!args->buffer->memory) return deleted();
  size_t bytes = args->buffer->type.bytes;
  memory *m = memory_new(args->dst_device, bytes);
  if (!m) return out_of_memory(bytes);
  memcpy(m->data, args->buffer->memory->data, bytes);
  args->dst_buffer = buffer_new(m, &args->buffer->type, args->dst_device, args->buffer->ready->code);
  return NULL;
}

/* --- executables */
static PJRT_Error *executable_new(const char *text, size_t size, PJRT_Executable **out) {
  PJRT_Executable *e = calloc(1, sizeof *e);
  if (!e) abort();
  const char *why = "";
  if (!fake_program_parse(text, size, &e->program, &why)) {
    free(e);
    return error(TPU_INVALID_ARGUMENT, "cannot parse the program: %s", why);
  }
  e->text = malloc(size + 1);
  if (!e->text) abort();
  memcpy(e->text, text, size);
  e->text_size = size;
  e->refs = 1;
  born(FAKE_PJRT_EXECUTABLES);
  *out = e;
  return NULL;
}
static void executable_release(PJRT_Executable *e) {
  pthread_mutex_lock(&lock);
  bool last = --e->refs == 0;
  pthread_mutex_unlock(&lock);
  if (!last) return;
  fake_program_destroy(&e->program);
  free(e->text);
  free(e);
  died(FAKE_PJRT_EXECUTABLES);
}
static PJRT_Error *load(PJRT_Client *client, const char *text, size_t size, PJRT_LoadedExecutable **out) {
  PJRT_Executable *executable;
  PJRT_Error *e = executable_new(text, size, &executable);
  if (e) return e;
  PJRT_LoadedExecutable *loaded = calloc(1, sizeof *loaded);
  if (!loaded) abort();
  *loaded = (PJRT_LoadedExecutable){executable, client};
  born(FAKE_PJRT_EXECUTABLES);
  *out = loaded;
  return NULL;
}

static PJRT_Error *client_compile(void *untyped) {
  BEGIN(Client_Compile, args);
  if (!args->compile_options_size) return error(TPU_INVALID_ARGUMENT, "no compile options");
  return load(args->client, args->program->code, args->program->code_size, &args->executable);
}
static PJRT_Error *compile(void *untyped) {
  BEGIN(Compile, args);
  return executable_new(args->program->code, args->program->code_size, &args->executable);
}
static PJRT_Error *executable_destroy(void *untyped) {
  tpu_abi_Executable_Destroy *args = untyped;
  executable_release(args->executable);
  return NULL;
}
static PJRT_Error *loaded_executable_destroy(void *untyped) {
  tpu_abi_LoadedExecutable_Destroy *args = untyped;
  executable_release(args->executable->executable);
  free(args->executable);
  died(FAKE_PJRT_EXECUTABLES);
  return NULL;
}
static PJRT_Error *loaded_executable_get_executable(void *untyped) {
  BEGIN(LoadedExecutable_GetExecutable, args);
  PJRT_Executable *e = args->loaded_executable->executable;
  pthread_mutex_lock(&lock);
  e->refs++;
  pthread_mutex_unlock(&lock);
  args->executable = e;
  return NULL;
}
static PJRT_Error *executable_num_outputs(void *untyped) {
  BEGIN(Executable_NumOutputs, args);
  args->num_outputs = args->executable->program.result_count;
  return NULL;
}
static PJRT_Error *executable_memory_stats(void *untyped) {
  BEGIN(Executable_GetCompiledMemoryStats, args);
  const fake_program *p = &args->executable->program;
  for (size_t i = 0; i < p->argument_count; i++) {
    args->argument_size_in_bytes += (int64_t)p->arguments[i].type.bytes;
    if (p->arguments[i].alias >= 0) args->alias_size_in_bytes += (int64_t)p->arguments[i].type.bytes;
  }
  for (size_t i = 0; i < p->result_count; i++) args->output_size_in_bytes += (int64_t)p->results[i].bytes;
  args->peak_memory_in_bytes = args->argument_size_in_bytes + args->output_size_in_bytes - args->alias_size_in_bytes;
  return NULL;
}
static PJRT_Error *executable_cost_analysis(void *untyped) {
  BEGIN(Executable_GetCostAnalysis, args);
  args->num_properties = 0;
  return error(TPU_UNIMPLEMENTED, "no cost analysis");
}

static const char serialized_mark[] = "fake program\n";
static void serialized_delete(PJRT_SerializedExecutable *s) { free(s); }
static PJRT_Error *executable_serialize(void *untyped) {
  BEGIN(Executable_Serialize, args);
  size_t mark = sizeof serialized_mark - 1;
  char *bytes = malloc(mark + args->executable->text_size);
  if (!bytes) abort();
  memcpy(bytes, serialized_mark, mark);
  memcpy(bytes + mark, args->executable->text, args->executable->text_size);
  args->serialized_bytes = bytes;
  args->serialized_bytes_size = mark + args->executable->text_size;
  args->serialized_executable = (PJRT_SerializedExecutable *)bytes;
  args->serialized_executable_deleter = serialized_delete;
  return NULL;
}
static PJRT_Error *executable_deserialize(void *untyped) {
  BEGIN(Executable_DeserializeAndLoad, args);
  size_t mark = sizeof serialized_mark - 1, size = args->serialized_executable_size;
  if (size < mark || memcmp(args->serialized_executable, serialized_mark, mark) != 0)
    return error(TPU_INTERNAL, "not a serialised program of the fake plugin");
  return load(args->client, args->serialized_executable + mark, size - mark, &args->loaded_executable);
}

/* --- execution */
static bool kept(const tpu_abi_execute_options *options, size_t index) {
  for (size_t i = 0; i < options->num_non_donatable_input_indices; i++)
    if ((size_t)options->non_donatable_input_indices[i] == index) return true;
  return false;
}

static PJRT_Error *check_arguments(const tpu_abi_LoadedExecutable_Execute *args, const fake_program *p) {
  PJRT_Buffer *const *in = args->argument_lists[0];
  if (args->num_args != p->argument_count)
    return error(TPU_INVALID_ARGUMENT, "the program takes %zu arguments, not %zu", p->argument_count, args->num_args);
  if (!args->options->launch_id) return error(TPU_INVALID_ARGUMENT, "launch_id is 0");
  if (!args->execute_device) return error(TPU_INVALID_ARGUMENT, "a portable program needs a device");
  for (size_t i = 0; i < args->num_args; i++) {
    if (!in[i]->memory) return deleted();
    if (in[i]->device != args->execute_device) return error(TPU_INVALID_ARGUMENT, "argument %zu is elsewhere", i);
    if (in[i]->type.bytes != p->arguments[i].type.bytes)
      return error(TPU_INVALID_ARGUMENT, "argument %zu has %zu bytes, not %zu", i, in[i]->type.bytes, p->arguments[i].type.bytes);
    if (!p->arguments[i].donated || kept(args->options, i)) continue;
    for (size_t j = 0; j < args->num_args; j++)
      if (j != i && in[j] == in[i]) return error(TPU_INVALID_ARGUMENT, "argument %zu is donated and passed twice", i);
  }
  return NULL;
}

static PJRT_Error *execute(void *untyped) {
  BEGIN(LoadedExecutable_Execute, args);
  atomic_fetch_add(&execute_count, 1);
  const fake_program *p = &args->executable->executable->program;
  if (args->num_devices != 1) return error(TPU_UNIMPLEMENTED, "the fake plugin runs on one device at a time");
  PJRT_Error *wrong = check_arguments(args, p);
  if (wrong) return wrong;
  PJRT_Buffer *const *in = args->argument_lists[0];
  PJRT_Buffer **out = args->output_lists[0];
  memory **memories = calloc(p->result_count + 1, sizeof(memory *));
  if (!memories) abort();
  for (size_t i = 0; i < p->argument_count; i++)
    if (p->arguments[i].alias >= 0 && !kept(args->options, i) && !in[i]->memory->host_done)
      memories[p->arguments[i].alias] = in[i]->memory;
  for (size_t i = 0; i < p->result_count; i++) {
    if (memories[i]) {
      pthread_mutex_lock(&lock);
      memories[i]->refs++;
      pthread_mutex_unlock(&lock);
      continue;
    }
    memories[i] = memory_new(args->execute_device, p->results[i].bytes);
    if (memories[i]) continue;
    for (size_t j = 0; j < i; j++) memory_release(memories[j]);
    free(memories);
    return out_of_memory(p->results[i].bytes);
  }
  int code = atomic_exchange(&poison, 0);
  for (size_t i = 0; i < p->argument_count; i++) { /* an error of an input is one of all outputs */
    if (!code) code = in[i]->ready->code;
    if (!p->arguments[i].donated || kept(args->options, i)) continue;
    memory_release(in[i]->memory);
    in[i]->memory = NULL;
  }
  for (size_t i = 0; i < p->result_count; i++) {
    memset(memories[i]->data, 0, memories[i]->bytes);
    out[i] = buffer_new(memories[i], &p->results[i], args->execute_device, code);
  }
  free(memories);
  if (args->device_complete_events) {
    signal_state *done = signal_new(true, code);
    args->device_complete_events[0] = event_of(done);
    signal_release(done);
  }
  return NULL;
}

/* --- topologies */
static PJRT_Error *topology_create(void *untyped) {
  BEGIN(TopologyDescription_Create, args);
  if (args->topology_name_size < 4 || memcmp(args->topology_name, "fake", 4) != 0)
    return error(TPU_INVALID_ARGUMENT, "unknown topology");
  args->topology = calloc(1, sizeof *args->topology);
  if (!args->topology) abort();
  born(FAKE_PJRT_TOPOLOGIES);
  return NULL;
}
static PJRT_Error *topology_destroy(void *untyped) {
  tpu_abi_TopologyDescription_Destroy *args = untyped;
  free(args->topology);
  died(FAKE_PJRT_TOPOLOGIES);
  return NULL;
}

/* --- exports */
static const tpu_abi api = {
    .struct_size = sizeof(tpu_abi),
    .version = {.struct_size = sizeof(tpu_abi_version), .major = 0, .minor = FAKE_PJRT_MINOR},
    .slots =
        {
            [TPU_SLOT_Error_Destroy] = (tpu_abi_function)error_destroy,
            [TPU_SLOT_Error_Message] = (tpu_abi_function)error_message,
            [TPU_SLOT_Error_GetCode] = (tpu_abi_function)error_get_code,
            [TPU_SLOT_Plugin_Initialize] = (tpu_abi_function)plugin_initialize,
            [TPU_SLOT_Plugin_Attributes] = (tpu_abi_function)plugin_attributes,
            [TPU_SLOT_Event_Destroy] = (tpu_abi_function)event_destroy,
            [TPU_SLOT_Event_IsReady] = (tpu_abi_function)event_is_ready,
            [TPU_SLOT_Event_Error] = (tpu_abi_function)event_error,
            [TPU_SLOT_Event_Await] = (tpu_abi_function)event_await,
            [TPU_SLOT_Client_Create] = (tpu_abi_function)client_create,
            [TPU_SLOT_Client_Destroy] = (tpu_abi_function)client_destroy,
            [TPU_SLOT_Client_PlatformName] = (tpu_abi_function)client_platform_name,
            [TPU_SLOT_Client_PlatformVersion] = (tpu_abi_function)client_platform_version,
            [TPU_SLOT_Client_AddressableDevices] = (tpu_abi_function)client_addressable_devices,
            [TPU_SLOT_Client_Compile] = (tpu_abi_function)client_compile,
            [TPU_SLOT_Client_BufferFromHostBuffer] = (tpu_abi_function)client_buffer_from_host_buffer,
            [TPU_SLOT_DeviceDescription_Id] = (tpu_abi_function)device_description_id,
            [TPU_SLOT_DeviceDescription_Kind] = (tpu_abi_function)device_description_kind,
            [TPU_SLOT_Device_GetDescription] = (tpu_abi_function)device_get_description,
            [TPU_SLOT_Device_MemoryStats] = (tpu_abi_function)device_memory_stats,
            [TPU_SLOT_Executable_Destroy] = (tpu_abi_function)executable_destroy,
            [TPU_SLOT_Executable_NumOutputs] = (tpu_abi_function)executable_num_outputs,
            [TPU_SLOT_Executable_GetCostAnalysis] = (tpu_abi_function)executable_cost_analysis,
            [TPU_SLOT_Executable_GetCompiledMemoryStats] = (tpu_abi_function)executable_memory_stats,
            [TPU_SLOT_Executable_Serialize] = (tpu_abi_function)executable_serialize,
            [TPU_SLOT_Executable_DeserializeAndLoad] = (tpu_abi_function)executable_deserialize,
            [TPU_SLOT_LoadedExecutable_Destroy] = (tpu_abi_function)loaded_executable_destroy,
            [TPU_SLOT_LoadedExecutable_GetExecutable] = (tpu_abi_function)loaded_executable_get_executable,
            [TPU_SLOT_LoadedExecutable_Execute] = (tpu_abi_function)execute,
            [TPU_SLOT_Buffer_Destroy] = (tpu_abi_function)buffer_destroy,
            [TPU_SLOT_Buffer_Dimensions] = (tpu_abi_function)buffer_dimensions,
            [TPU_SLOT_Buffer_ElementType] = (tpu_abi_function)buffer_element_type,
            [TPU_SLOT_Buffer_OnDeviceSizeInBytes] = (tpu_abi_function)buffer_size,
            [TPU_SLOT_Buffer_IsDeleted] = (tpu_abi_function)buffer_is_deleted,
            [TPU_SLOT_Buffer_CopyToDevice] = (tpu_abi_function)buffer_copy_to_device,
            [TPU_SLOT_Buffer_ToHostBuffer] = (tpu_abi_function)buffer_to_host,
            [TPU_SLOT_Buffer_ReadyEvent] = (tpu_abi_function)buffer_ready_event,
            [TPU_SLOT_Buffer_UnsafePointer] = (tpu_abi_function)buffer_unsafe_pointer,
            [TPU_SLOT_TopologyDescription_Create] = (tpu_abi_function)topology_create,
            [TPU_SLOT_TopologyDescription_Destroy] = (tpu_abi_function)topology_destroy,
            [TPU_SLOT_Compile] = (tpu_abi_function)compile,
        },
};
const tpu_abi *GetPjrtApi(void);
EXPORT const tpu_abi *GetPjrtApi(void) { return &api; }

EXPORT int64_t fake_pjrt_live(int kind) {
  int64_t sum = 0;
  for (int i = 0; i < FAKE_PJRT_KINDS; i++)
    if (kind < 0 || kind == i) sum += atomic_load(&live[i]);
  return sum;
}
EXPORT void fake_pjrt_fail_after(int64_t n, int code) {
  atomic_store(&fail_code, code);
  atomic_store(&fail_after, n);
}
EXPORT void fake_pjrt_poison_next(int code) { atomic_store(&poison, code); }
EXPORT uint64_t fake_pjrt_calls(void) { return atomic_load(&call_count); }
EXPORT uint64_t fake_pjrt_executes(void) { return atomic_load(&execute_count); }
EXPORT void fake_pjrt_set_platform(const char *name) { (void)snprintf(platform, sizeof platform, "%s", name); }
EXPORT void fake_pjrt_set_memory_limit(int64_t bytes) { atomic_store(&memory_limit, bytes); }
EXPORT int64_t fake_pjrt_bytes_in_use(void) { return atomic_load(&memory_used); }

EXPORT const fake_pjrt_control *fake_pjrt_control_get(void) {
  static const fake_pjrt_control control = {
      fake_pjrt_live,     fake_pjrt_fail_after,   fake_pjrt_poison_next,      fake_pjrt_calls,
      fake_pjrt_executes, fake_pjrt_set_platform, fake_pjrt_set_memory_limit, fake_pjrt_bytes_in_use,
  };
  return &control;
}
