#include "base/alloc.h"
#include "rt/private.h"

tpu_status tpu_flag_read(tpu_flag flag) {
  int32_t code = 0;
  tpu_event *done = NULL;
  tpu_status status = tpu_buffer_to_host(tpu_rt.client, flag.buffer, &code, sizeof code, &done);
  if (!status && done) status = tpu_event_await(tpu_rt.client, done);
  tpu_event_destroy(tpu_rt.client, done);
  tpu_buffer_destroy(tpu_rt.client, flag.buffer);
  if (status) { /* the program failed: its values tell */
    tpu_status_release(status);
    return NULL;
  }
  if (code <= 0 || (uint32_t)code > flag.n_checks) return NULL;
  return tpu_error(TPU_OUT_OF_RANGE,
                   "index out of range in self: aten::%s was given an index outside its tensor. This was found when its program had "
                   "run; TORCH_TPU_LAUNCH_BLOCKING=1 raises at the call itself",
                   flag.rows[code - 1]->aten);
}

#define MOST_FLAGS 256
bool tpu_flag_push(int device, tpu_flag flag) {
  tpu_device_state *d = &tpu_rt.devices[device];
  if (d->n_flags == d->cap_flags) {
    if (d->cap_flags >= MOST_FLAGS) return false;
    uint32_t capacity = d->cap_flags ? d->cap_flags * 2 : 16;
    tpu_flag *p = tpu_realloc(d->flags, capacity * sizeof *p);
    if (!p) return false;
    d->flags = p;
    d->cap_flags = capacity;
  }
  d->flags[d->n_flags++] = flag;
  return true;
}

tpu_status tpu_flags_settle(int device) {
  tpu_device_state *d = &tpu_rt.devices[device];
  tpu_status status = NULL;
  while (d->n_flags) {
    tpu_flag flag = d->flags[--d->n_flags];
    tpu_rt_unlock();
    status = tpu_status_join(tpu_flag_read(flag), status); /* the earliest program's counts */
    tpu_rt_lock();
  }
  return status;
}
