#include <string.h>

#include "base/alloc.h"
#include "pjrt/client_private.h"

static tpu_status count_bytes(tpu_dtype dtype, int rank, const int64_t *dims, int64_t *out_bytes) {
  int64_t bytes = tpu_dtype_bytes(dtype);
  if (!bytes) return tpu_error(TPU_INVALID_ARGUMENT, "a buffer needs a dtype");
  if (rank < 0) return tpu_error(TPU_INVALID_ARGUMENT, "a buffer cannot have rank %d", rank);
  for (int i = 0; i < rank; i++)
    if (!tpu_size_mul(bytes, dims[i], &bytes))
      return tpu_error(TPU_INVALID_ARGUMENT, "a buffer cannot have size %lld at dimension %d", (long long)dims[i], i);
  *out_bytes = bytes;
  return NULL;
}

tpu_status tpu_buffer_from_host(const tpu_client *client, int device, tpu_dtype dtype, int rank, const int64_t *dims,
                                const void *data, tpu_host_semantics semantics, tpu_buffer **out_buffer, tpu_event **out_done) {
  static const char nothing[64];
  *out_buffer = NULL;
  if (out_done) *out_done = NULL;
  TPU_TRY(tpu_client_check_device(client, device));
  int64_t bytes = 0;
  TPU_TRY(count_bytes(dtype, rank, dims, &bytes));
  if (!data && bytes) return tpu_error(TPU_INVALID_ARGUMENT, "a buffer of %lld bytes needs data", (long long)bytes);
  if (semantics == TPU_HOST_ALIAS && !out_done)
    return tpu_error(TPU_INVALID_ARGUMENT, "aliased host memory needs an event that tells its end");
  tpu_abi_Client_BufferFromHostBuffer args = {
      .client = client->handle,
      .data = data ? data : nothing,
      .type = tpu_dtype_pjrt(dtype),
      .dims = dims,
      .num_dims = (size_t)rank,
      .host_buffer_semantics = TPU_HOST_IMMUTABLE_ONLY_DURING_CALL,
      .device = client->devices[device].handle,
  };
  if (semantics == TPU_HOST_ALIAS)
    args.host_buffer_semantics =
        client->quirks.zero_copy_h2d ? TPU_HOST_IMMUTABLE_ZERO_COPY : TPU_HOST_IMMUTABLE_UNTIL_TRANSFER_COMPLETES;
  uint64_t start = tpu_count_start();
  tpu_status status = TPU_CALL(client->plugin, Client_BufferFromHostBuffer, &args);
  tpu_count_end(client, TPU_COUNTED_from_host, start);
  if (status) return status;
  if (semantics == TPU_HOST_ALIAS) {
    *out_done = args.done_with_host_buffer;
  } else {
    tpu_event_destroy(client, args.done_with_host_buffer); /* the copy is over */
  }
  *out_buffer = args.buffer;
  return NULL;
}

tpu_status tpu_buffer_pointer(const tpu_client *client, tpu_buffer *buffer, void **out_pointer) {
  *out_pointer = NULL;
  if (!client->quirks.host_pointers)
    return tpu_error(TPU_UNIMPLEMENTED, "buffers of the platform %s have no host address", client->platform_name);
  tpu_abi_Buffer_UnsafePointer args = {.buffer = buffer};
  TPU_TRY(TPU_CALL(client->plugin, Buffer_UnsafePointer, &args));
  *out_pointer = (void *)args.buffer_pointer;
  return NULL;
}

static tpu_status copy_from_pointer(const tpu_client *client, tpu_buffer *buffer, void *dst, size_t size) {
  TPU_TRY(tpu_buffer_await(client, buffer));
  if (!size) return NULL;
  tpu_abi_Buffer_OnDeviceSizeInBytes args = {.buffer = buffer};
  TPU_TRY(TPU_CALL(client->plugin, Buffer_OnDeviceSizeInBytes, &args));
  if (size > args.on_device_size_in_bytes)
    return tpu_error(TPU_INVALID_ARGUMENT, "cannot read %zu bytes of a buffer of %zu", size, args.on_device_size_in_bytes);
  void *src;
  TPU_TRY(tpu_buffer_pointer(client, buffer, &src));
  memcpy(dst, src, size);
  return NULL;
}

/* Asks for row-major order, since by itself a device gives the order of its own layout. */
static tpu_status start_copy(const tpu_client *client, tpu_buffer *buffer, void *dst, size_t size, tpu_event **out_event) {
  enum { MAX_RANK = 64 };
  int64_t minor_to_major[MAX_RANK];
  tpu_abi_Buffer_Dimensions dims = {.buffer = buffer};
  TPU_TRY(TPU_CALL(client->plugin, Buffer_Dimensions, &dims));
  if (dims.num_dims > MAX_RANK) return tpu_error(TPU_UNIMPLEMENTED, "a tensor of %zu dimensions cannot be read", dims.num_dims);
  for (size_t i = 0; i < dims.num_dims; i++) minor_to_major[i] = (int64_t)(dims.num_dims - 1 - i);
  tpu_abi_layout layout = {.struct_size = sizeof layout, .type = TPU_LAYOUT_TILED};
  layout.tiled.struct_size = sizeof layout.tiled;
  layout.tiled.minor_to_major = minor_to_major;
  layout.tiled.minor_to_major_size = dims.num_dims;
  tpu_abi_Buffer_ToHostBuffer args = {.src = buffer, .host_layout = &layout, .dst = dst, .dst_size = size};
  TPU_TRY(TPU_CALL(client->plugin, Buffer_ToHostBuffer, &args));
  *out_event = args.event;
  return NULL;
}

tpu_status tpu_buffer_to_host(const tpu_client *client, tpu_buffer *buffer, void *dst, size_t size, tpu_event **out_done) {
  if (out_done) *out_done = NULL;
  uint64_t start = tpu_count_start();
  tpu_status status;
  if (client->quirks.host_pointers) {
    status = copy_from_pointer(client, buffer, dst, size);
  } else {
    tpu_event *event = NULL;
    status = start_copy(client, buffer, dst, size, &event);
    if (!status && out_done) {
      *out_done = event;
    } else if (!status) {
      status = tpu_event_await(client, event);
      tpu_event_destroy(client, event);
    }
  }
  tpu_count_end(client, TPU_COUNTED_to_host, start);
  return status;
}

static tpu_status ready_event(const tpu_client *client, tpu_buffer *buffer, tpu_event **out_event) {
  tpu_abi_Buffer_ReadyEvent args = {.buffer = buffer};
  TPU_TRY(TPU_CALL(client->plugin, Buffer_ReadyEvent, &args));
  *out_event = args.event;
  return NULL;
}

tpu_status tpu_buffer_await(const tpu_client *client, tpu_buffer *buffer) {
  tpu_event *event;
  TPU_TRY(ready_event(client, buffer, &event));
  tpu_status status = tpu_event_await(client, event);
  tpu_event_destroy(client, event);
  return status;
}

bool tpu_buffer_is_ready(const tpu_client *client, tpu_buffer *buffer) {
  tpu_event *event;
  tpu_status status = ready_event(client, buffer, &event);
  if (status) {
    tpu_status_release(status);
    return true; /* who then awaits it is told */
  }
  bool ready = tpu_event_ready(client, event);
  tpu_event_destroy(client, event);
  return ready;
}

bool tpu_buffer_is_deleted(const tpu_client *client, tpu_buffer *buffer) {
  tpu_abi_Buffer_IsDeleted args = {.buffer = buffer};
  tpu_status status = TPU_CALL(client->plugin, Buffer_IsDeleted, &args);
  if (!status) return args.is_deleted;
  tpu_status_release(status);
  return true; /* not known: not to be used again */
}

tpu_status tpu_buffer_copy_to_device(const tpu_client *client, tpu_buffer *buffer, int device, tpu_buffer **out_buffer) {
  *out_buffer = NULL;
  TPU_TRY(tpu_client_check_device(client, device));
  tpu_abi_Buffer_CopyToDevice args = {.buffer = buffer, .dst_device = client->devices[device].handle};
  uint64_t start = tpu_count_start();
  tpu_status status = TPU_CALL(client->plugin, Buffer_CopyToDevice, &args);
  tpu_count_end(client, TPU_COUNTED_copy_to_device, start);
  if (!status) *out_buffer = args.dst_buffer;
  return status;
}

void tpu_buffer_destroy(const tpu_client *client, tpu_buffer *buffer) {
  if (!buffer) return;
  tpu_abi_Buffer_Destroy args = {.buffer = buffer};
  TPU_CALL_IGNORE(client->plugin, Buffer_Destroy, &args);
  tpu_count_add(client, TPU_COUNTED_buffer_destroy, 0);
}
