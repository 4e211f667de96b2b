#include "base/alloc.h"
#include "rt/private.h"

tpu_flag tpu_flag_create(tpu_buffer *buffer, const tpu_exe *exe, const tpu_segment *seg) {
  tpu_flag flag = {buffer, exe->n_checks, exe->check_rows, tpu_malloc(exe->n_checks * sizeof *flag.sources)};
  for (uint32_t i = 0; flag.sources && i < exe->n_checks; i++) flag.sources[i] = seg->records[exe->check_records[i]].source;
  return flag;
}

tpu_status tpu_flag_read(tpu_flag flag) {
  int32_t code = 0;
  tpu_event *done = NULL;
  tpu_status status = tpu_buffer_to_host(tpu_rt.client, flag.buffer, &code, sizeof code, &done);
  if (!status && done) status = tpu_event_await(tpu_rt.client, done);
  tpu_event_destroy(tpu_rt.client, done);
  tpu_buffer_destroy(tpu_rt.client, flag.buffer);
  bool failed = code > 0 && (uint32_t)code <= flag.n_checks;
  uint64_t source = failed && flag.sources ? flag.sources[code - 1] : 0;
  tpu_free(flag.sources);
  if (status) { /* the program failed: its values tell */
    tpu_status_release(status);
    return NULL;
  }
  if (!failed) return NULL;
  status = tpu_error(TPU_OUT_OF_RANGE,
                     "index out of range in self. This was found when the program had run; TORCH_TPU_LAUNCH_BLOCKING=1 raises at "
                     "the call itself");
  return tpu_blame_call(status, flag.rows[code - 1]->aten, source);
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
