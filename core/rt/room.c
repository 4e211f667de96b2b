#include <string.h>

#include "base/alloc.h"
#include "rt/private.h"

/* A buffer of a bounded program is larger than its value: the elements lie in a room, row-major, from its first corner on. */

static tpu_status out_of_memory(void) { return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

/* Copies the elements of `layout` between rooms. */
static void move(const tpu_layout *layout, const tpu_layout *from, const char *src, const tpu_layout *to, char *dst) {
  int64_t a[TPU_MAX_RANK], b[TPU_MAX_RANK];
  strides_contiguous(layout->rank, from->dims, a);
  strides_contiguous(layout->rank, to->dims, b);
  tpu_copy_elements(layout->dtype, layout->rank, layout->dims, dst, b, src, a);
}

/* The buffer's bytes; *out_copy (tpu_free) is where they are if the platform has no host pointers. Waits. */
static tpu_status bytes_of(tpu_value *v, const tpu_layout *room, const char **out, char **out_copy) {
  *out_copy = NULL;
  TPU_TRY(tpu_blame_value(tpu_buffer_await(tpu_rt.client, v->buffer), v));
  if (tpu_rt.quirks->host_pointers) {
    void *p;
    TPU_TRY(tpu_buffer_pointer(tpu_rt.client, v->buffer, &p));
    *out = p;
    return NULL;
  }
  size_t size = (size_t)room->nbytes;
  if (!(*out_copy = tpu_malloc(size ? size : 1))) return out_of_memory();
  tpu_event *done = NULL;
  tpu_status status = tpu_buffer_to_host(tpu_rt.client, v->buffer, *out_copy, size, &done);
  if (!status && done) status = tpu_event_await(tpu_rt.client, done);
  tpu_event_destroy(tpu_rt.client, done);
  *out = *out_copy;
  return status;
}

tpu_status tpu_room_leave(tpu_value *v) {
  if (!v->room || atomic_load_explicit(&v->host, memory_order_acquire)) return NULL;
  const char *bytes;
  char *copy, *plain = tpu_malloc(v->layout->nbytes ? (size_t)v->layout->nbytes : 1);
  if (!plain) return out_of_memory();
  tpu_status status = bytes_of(v, v->room, &bytes, &copy);
  if (!status) move(v->layout, v->room, bytes, v->layout, plain);
  tpu_free(copy);
  void *none = NULL;
  if (status || !atomic_compare_exchange_strong(&v->host, &none, plain)) tpu_free(plain);
  return status;
}

tpu_status tpu_room_change(tpu_value *v, const tpu_layout *to, tpu_buffer **out) {
  const tpu_layout *from = v->room ? v->room : v->layout;
  if (!to) to = v->layout;
  const char *bytes;
  char *copy, *wide = tpu_calloc(to->nbytes ? (size_t)to->nbytes : 1, 1);
  if (!wide) return out_of_memory();
  tpu_status status = bytes_of(v, from, &bytes, &copy);
  if (!status) move(v->layout, from, bytes, to, wide);
  if (!status)
    status = tpu_buffer_from_host(tpu_rt.client, v->device, to->dtype, to->rank, to->dims, wide, TPU_HOST_COPY, out, NULL);
  tpu_free(copy);
  tpu_free(wide);
  return tpu_blame_memory(status, v->device, to->nbytes);
}
