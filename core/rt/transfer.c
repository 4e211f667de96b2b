#include <string.h>

#include "base/alloc.h"
#include "ir/number.h"
#include "rt/private.h"

static tpu_status out_of_memory(void) { return tpu_error(TPU_RESOURCE_EXHAUSTED, "out of host memory"); }

/* Copies a strided block of elements: dst and src strides in bytes. */
static void copy_block(int rank, const int64_t *sizes, char *dst, const int64_t *dst_strides, const char *src,
                       const int64_t *src_strides, size_t item) {
  if (rank == 0) {
    memcpy(dst, src, item);
    return;
  }
  if (rank == 1 && dst_strides[0] == (int64_t)item && src_strides[0] == (int64_t)item) {
    memcpy(dst, src, (size_t)sizes[0] * item);
    return;
  }
  for (int64_t i = 0; i < sizes[0]; i++)
    copy_block(rank - 1, sizes + 1, dst + i * dst_strides[0], dst_strides + 1, src + i * src_strides[0], src_strides + 1, item);
}

/* Merges dims that are contiguous in both, so that blocks are as long as possible. */
static int coalesce(int rank, int64_t *sizes, int64_t *a, int64_t *b) {
  int n = 0;
  for (int i = 0; i < rank; i++) {
    if (sizes[i] == 1) continue;
    if (n && a[n - 1] == a[i] * sizes[i] && b[n - 1] == b[i] * sizes[i]) {
      sizes[n - 1] *= sizes[i];
      a[n - 1] = a[i];
      b[n - 1] = b[i];
    } else {
      sizes[n] = sizes[i];
      a[n] = a[i];
      b[n++] = b[i];
    }
  }
  return n;
}

void tpu_copy_elements(tpu_dtype dtype, int rank, const int64_t *all_sizes, char *dst, const int64_t *dst_strides,
                       const char *src, const int64_t *src_strides) {
  int64_t item = tpu_dtype_bytes(dtype), sizes[TPU_MAX_RANK], a[TPU_MAX_RANK], b[TPU_MAX_RANK];
  for (int i = 0; i < rank; i++) {
    if (all_sizes[i] == 0) return;
    sizes[i] = all_sizes[i];
    a[i] = dst_strides[i] * item;
    b[i] = src_strides[i] * item;
  }
  int n = coalesce(rank, sizes, a, b);
  copy_block(n, sizes, dst, a, src, b, (size_t)item);
}

static void copy_strided(const tpu_tensor *t, char *dst, const int64_t *dst_strides, const char *src,
                         const int64_t *src_strides) {
  tpu_copy_elements(t->dtype, t->rank, t->sizes, dst, dst_strides, src, src_strides);
}

static int64_t tensor_bytes(const tpu_tensor *t) {
  return tpu_type_numel((tpu_type){t->dtype, t->rank, t->sizes}) * tpu_dtype_bytes(t->dtype);
}

/* --- host to device */
static tpu_status upload(const tpu_tensor *dst, const tpu_place *place, const void *data, tpu_value **out) {
  const tpu_layout *l = place->layout;
  void *ordered = NULL;
  if (place->perm && l->numel) { /* the buffer is in memory order */
    ordered = tpu_malloc((size_t)l->nbytes);
    if (!ordered) return out_of_memory();
    int64_t plain[TPU_MAX_RANK];
    strides_contiguous(dst->rank, dst->sizes, plain);
    copy_strided(dst, ordered, place->strides, data, plain);
  }
  tpu_buffer *buffer = NULL;
  tpu_status status = tpu_buffer_from_host(tpu_rt.client, dst->storage->device, l->dtype, l->rank, l->dims,
                                           ordered ? ordered : data, TPU_HOST_COPY, &buffer, NULL);
  tpu_free(ordered);
  if (status) return tpu_blame_memory(status, dst->storage->device, l->nbytes);
  tpu_value *v = tpu_value_create(dst->storage->device, l, VALUE_READY);
  if (!v) {
    tpu_buffer_destroy(tpu_rt.client, buffer);
    return out_of_memory();
  }
  tpu_value_set_buffer(v, buffer);
  *out = v;
  return NULL;
}

static void encode(const tpu_number *n, tpu_dtype dtype, uint8_t out[TPU_ELEMENT_BYTES]) {
  if (n->dtype == TPU_F64)
    tpu_number_from_double(dtype, n->f, out);
  else if (n->dtype != TPU_C128)
    tpu_number_from_int(dtype, n->i, out);
  else if (tpu_is_complex(dtype)) {
    tpu_dtype real = tpu_dtype_real(dtype);
    tpu_number_from_double(real, n->c[0], out);
    tpu_number_from_double(real, n->c[1], out + tpu_dtype_bytes(real));
  } else if (dtype == TPU_BOOL)
    tpu_number_from_int(dtype, n->c[0] != 0 || n->c[1] != 0, out);
  else
    tpu_number_from_double(dtype, n->c[0], out);
}

tpu_status tpu_value_upload_fill(tpu_value *v) {
  const tpu_layout *l = v->layout;
  tpu_number number = v->fill;
  int expected = VALUE_FILL;
  if (!atomic_compare_exchange_strong(&v->state, &expected, VALUE_LAUNCHING)) return NULL; /* somebody was faster */
  tpu_value_retain(v);
  tpu_rt_unlock();
  uint8_t element[TPU_ELEMENT_BYTES];
  size_t item = (size_t)tpu_dtype_bytes(l->dtype), size = (size_t)l->nbytes;
  encode(&number, l->dtype, element);
  char *data = tpu_calloc(size ? size : 1, 1);
  tpu_status status = data ? NULL : out_of_memory();
  bool zero = true;
  for (size_t i = 0; i < item; i++) zero = zero && !element[i];
  for (size_t done = 0; data && !zero && done < size;) { /* doubling */
    size_t n = done ? (done < size - done ? done : size - done) : item;
    memcpy(data + done, done ? data : (char *)element, n);
    done += n;
  }
  tpu_buffer *buffer = NULL;
  if (!status)
    status = tpu_buffer_from_host(tpu_rt.client, v->device, l->dtype, l->rank, l->dims, data, TPU_HOST_COPY, &buffer, NULL);
  tpu_free(data);
  status = tpu_blame_memory(status, v->device, l->nbytes);
  tpu_rt_lock();
  if (!status) {
    tpu_value_set_buffer(v, buffer);
    v->leaf_serial = 0; /* a constant is no leaf */
  }
  atomic_store_explicit(&v->state, status ? VALUE_FILL : VALUE_READY, memory_order_release);
  pthread_cond_broadcast(&tpu_rt.settled);
  atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel); /* the caller holds one too */
  return status;
}

static void assign(tpu_storage *s, tpu_value *v) { /* takes v's reference */
  tpu_rt_lock();
  tpu_value *old = tpu_storage_swap(s, v);
  s->hint = NULL;
  tpu_rt.stats.writes++;
  tpu_rt_unlock();
  tpu_value_release(old);
}

tpu_status tpu_write(tpu_lane *lane, const tpu_tensor *dst, const void *data) {
  TPU_TRY(tpu_rt_enter());
  if (!tensor_bytes(dst)) return NULL;
  bool dense;
  const tpu_place *place = tpu_place_intern(dst->dtype, dst->rank, dst->sizes, dst->strides, &dense);
  if (!place && dense) return out_of_memory();
  tpu_value *v = NULL;
  if (place && dst->offset == 0 && place->layout->nbytes == dst->storage->nbytes) {
    TPU_TRY(upload(dst, place, data, &v));
    assign(dst->storage, v);
    return NULL;
  }
  int64_t strides[TPU_MAX_RANK];
  strides_contiguous(dst->rank, dst->sizes, strides);
  tpu_tensor block = *dst;
  block.strides = strides;
  block.offset = 0;
  block.storage = NULL;
  TPU_TRY(tpu_storage_create(dst->storage->device, tensor_bytes(dst), &block.storage));
  tpu_status status = tpu_write(lane, &block, data);
  if (!status) status = tpu_copy(lane, &block, dst);
  tpu_storage_release(block.storage);
  return status;
}

/* --- device to host */
/* The value of a storage, settled and retained; NULL if its contents are undefined. */
static tpu_status take_value(tpu_storage *s, tpu_value **out) {
  tpu_status status = NULL;
  tpu_rt_lock();
  tpu_value *v = s->value;
  if (v) {
    tpu_value_retain(v);
    status = tpu_value_settle(v);
  }
  tpu_rt.stats.reads++;
  tpu_device_state *d = &tpu_rt.devices[s->device];
  if (!status && (d->n_flags || d->async_error)) {
    status = tpu_flags_settle(s->device);
    status = tpu_status_join(d->async_error, status);
    d->async_error = NULL;
  }
  tpu_rt_unlock();
  if (status) {
    tpu_value_release(v);
    return status;
  }
  *out = v;
  return NULL;
}

/* Waits for a READY value and gives the address of its bytes, on platforms with host pointers. */
static tpu_status host_pointer(tpu_value *v, const char **out) {
  TPU_TRY(tpu_room_leave(v));
  void *p = atomic_load_explicit(&v->host, memory_order_acquire);
  if (!p) {
    TPU_TRY(tpu_blame_value(tpu_buffer_await(tpu_rt.client, v->buffer), v));
    TPU_TRY(tpu_buffer_pointer(tpu_rt.client, v->buffer, &p));
    atomic_store_explicit(&v->host, p, memory_order_release);
  }
  *out = p;
  return NULL;
}

/* src in row-major order as a value of its own: src's if it is that already. Retained. */
static tpu_status plain_value(tpu_lane *lane, const tpu_tensor *src, tpu_value **out) {
  int64_t strides[TPU_MAX_RANK];
  strides_contiguous(src->rank, src->sizes, strides);
  tpu_tensor block = *src;
  block.strides = strides;
  block.offset = 0;
  TPU_TRY(tpu_storage_create(src->storage->device, tensor_bytes(src), &block.storage));
  tpu_status status = tpu_copy(lane, src, &block);
  if (!status) status = take_value(block.storage, out);
  tpu_storage_release(block.storage);
  return status;
}

tpu_status tpu_read_async(tpu_lane *lane, const tpu_tensor *src, void *data, tpu_event **out_event) {
  TPU_TRY(tpu_rt_enter());
  *out_event = NULL;
  int64_t bytes = tensor_bytes(src);
  if (!bytes) return NULL;
  tpu_value *v = NULL;
  tpu_status status;
  if (tpu_rt.quirks->host_pointers) {
    TPU_TRY(take_value(src->storage, &v));
    if (!v) {
      memset(data, 0, (size_t)bytes);
      return NULL;
    }
    const char *p;
    status = host_pointer(v, &p);
    if (!status) {
      int64_t plain[TPU_MAX_RANK];
      strides_contiguous(src->rank, src->sizes, plain);
      copy_strided(src, data, plain, p + src->offset * tpu_dtype_bytes(src->dtype), src->strides);
    }
  } else {
    TPU_TRY(plain_value(lane, src, &v));
    if (!v) {
      memset(data, 0, (size_t)bytes);
      return NULL;
    }
    if (v->room) {
      status = tpu_room_leave(v);
      if (!status) memcpy(data, atomic_load_explicit(&v->host, memory_order_acquire), (size_t)bytes);
    } else {
      status = tpu_buffer_to_host(tpu_rt.client, v->buffer, data, (size_t)bytes, out_event);
    }
  }
  tpu_value_release(v);
  return status;
}

tpu_status tpu_read(tpu_lane *lane, const tpu_tensor *src, void *data) {
  tpu_event *done;
  TPU_TRY(tpu_read_async(lane, src, data, &done));
  if (!done) return NULL;
  tpu_status status = tpu_event_await(tpu_rt.client, done);
  tpu_event_destroy(tpu_rt.client, done);
  return tpu_blame_memory(status, src->storage->device, 0);
}

tpu_status tpu_storage_retype(const tpu_tensor *as) {
  TPU_TRY(tpu_rt_enter());
  tpu_storage *s = as->storage;
  bool dense;
  const tpu_place *place = tpu_place_intern(as->dtype, as->rank, as->sizes, as->strides, &dense);
  if (!place && dense) return out_of_memory();
  if (!place || as->offset || !s->nbytes || place->layout->nbytes != s->nbytes) return NULL;
  tpu_rt_lock();
  tpu_value *v = s->value;
  bool plain = v && atomic_load_explicit(&v->state, memory_order_acquire) == VALUE_READY && v->layout->dtype == TPU_U8 &&
               v->layout->rank == 1 && !v->room && v->layout != place->layout;
  if (plain) tpu_value_retain(v);
  tpu_rt_unlock();
  if (!plain) return NULL;

  const char *bytes = NULL;
  char *copy = NULL;
  tpu_status status = NULL;
  if (tpu_rt.quirks->host_pointers) {
    status = host_pointer(v, &bytes);
  } else {
    tpu_event *done = NULL;
    bytes = copy = tpu_malloc((size_t)s->nbytes);
    status = copy ? tpu_buffer_to_host(tpu_rt.client, v->buffer, copy, (size_t)s->nbytes, &done) : out_of_memory();
    if (!status && done) {
      status = tpu_event_await(tpu_rt.client, done);
      tpu_event_destroy(tpu_rt.client, done);
    }
  }
  tpu_place ordered = {.layout = place->layout}; /* the bytes are in memory order already */
  tpu_value *w = NULL;
  if (!status) status = upload(as, &ordered, bytes, &w);
  tpu_free(copy);
  if (!status) {
    tpu_rt_lock();
    if (s->value == v) w = tpu_storage_swap(s, w);
    tpu_rt_unlock();
    tpu_value_release(w);
  }
  tpu_value_release(v);
  return status;
}

tpu_status tpu_read_scalar(tpu_lane *lane, const tpu_tensor *src, void *out_element) { return tpu_read(lane, src, out_element); }
