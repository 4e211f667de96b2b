/* What the files of rt/ share. Everything here is guarded by the runtime's lock unless it says otherwise. */
#ifndef TPU_RT_PRIVATE_H
#define TPU_RT_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/hash.h"
#include "base/map.h"
#include "ir/bound.h"
#include "ir/emit.h"
#include "ir/view.h"
#include "rt/runtime.h"

/* --- layouts and places: interned, immortal, compared by address */
typedef struct tpu_layout { /* the type of a value: dims in memory order */
  tpu_dtype dtype;
  int rank;
  const int64_t *dims;
  int64_t numel, nbytes;
  uint64_t hash;
} tpu_layout;
typedef struct tpu_place { /* how logical [sizes] with dense strides lie in memory */
  const tpu_layout *layout;
  const int64_t *sizes, *strides;
  const int64_t *perm; /* memory dim i is logical dim perm[i]; NULL: identity */
  uint64_t hash;
} tpu_place;
const tpu_layout *tpu_layout_intern(tpu_dtype dtype, int rank, const int64_t *dims); /* NULL: out of memory */
/* The strides, or row-major ones in `plain` if they differ from these only in leading dims of size 1, whose strides tell nothing
 * but the size of what the tensor was cut from: a program must not depend on it. */
const int64_t *tpu_strides_plain(int rank, const int64_t *sizes, const int64_t *strides, int64_t plain[TPU_MAX_RANK]);
/* NULL and *out_dense = false if (sizes, strides) is not dense and non-overlapping. */
const tpu_place *tpu_place_intern(tpu_dtype dtype, int rank, const int64_t *sizes, const int64_t *strides, bool *out_dense);

/* --- values */
typedef enum tpu_value_state {
  VALUE_DEFERRED,
  VALUE_LAUNCHING,
  VALUE_READY,
  VALUE_FAILED,
  VALUE_FILL /* one number everywhere: becomes a constant of the program that reads it, or a buffer where it is state that gets
                updated */
} tpu_value_state;
typedef struct tpu_segment tpu_segment;
typedef struct tpu_value {
  atomic_int refs; /* storages, plus one of the segment that will produce it or reads it */
  atomic_int state;
  const tpu_layout *layout;
  int device;
  uint32_t index;       /* DEFERRED: its number in its segment */
  tpu_segment *segment; /* DEFERRED */
  uint32_t replaces;    /* DEFERRED: the leaf whose storage it took over, or NO_VALUE */
  bool is_define;       /* DEFERRED: only stands for undefined contents */
  bool over_nothing;    /* DEFERRED: its storage had undefined contents before */
  tpu_storage *home;    /* not yet READY: the storage it was made for, while that holds it; gets its old value back on failure */
  uint64_t leaf_serial; /* the last segment that reads it as a leaf (FILL: that has a constant for it), and the number there */
  uint32_t leaf_index;
  tpu_buffer *buffer;                        /* READY */
  const tpu_layout *room;                    /* READY: the buffer's dims, where they are larger than the layout's; else NULL */
  _Atomic(void *) host;                      /* READY and finished on a platform with host pointers: its data. With a room: a
                                                copy without it, the value's */
  tpu_number fill;                           /* FILL */
  bool counted;                              /* its bytes are in the device's account */
  uint64_t source;                           /* where the user's program made it; 0: not known */
  struct tpu_value *large_next, *large_prev; /* blame.c's list */
  tpu_status error;                          /* FAILED */
} tpu_value;
#define NO_VALUE UINT32_MAX
tpu_value *tpu_value_create(int device, const tpu_layout *layout, tpu_value_state state); /* refs 1; NULL: out of memory */
void tpu_value_retain(tpu_value *v);
void tpu_value_release(tpu_value *v); /* NULL allowed; may destroy a buffer: not under the lock */
/* A FILL of the number; NULL: out of memory. */
tpu_value *tpu_value_fill(int device, const tpu_layout *layout, const tpu_number *number);
/* Gives a FILL its buffer. Lock held; dropped meanwhile. */
tpu_status tpu_value_upload_fill(tpu_value *v) TPU_MUST_USE;
void tpu_value_set_buffer(tpu_value *v, tpu_buffer *buffer); /* takes it; accounts for its bytes */
tpu_buffer *tpu_value_take_buffer(tpu_value *v);

uint64_t tpu_next_address(void);
/* Gives the storage another value (takes the reference); returns the old one, whose reference the caller drops without the lock.
 */
tpu_value *tpu_storage_swap(tpu_storage *s, tpu_value *v);
struct tpu_storage {
  atomic_int refs;
  bool is_home; /* some value's home: its release takes the lock */
  int device;
  int64_t nbytes;
  uint64_t address;
  tpu_value *value;       /* NULL: undefined contents */
  const tpu_layout *hint; /* of undefined contents */
};

/* --- signatures */
typedef enum tpu_sig_kind {
  SIG_CALL,    /* a row */
  SIG_CONVERT, /* out = operand 0 converted to the output's dtype */
  SIG_STORE,   /* out = operand 0's base with the view operand 0 replaced by operand 1 */
  SIG_ZERO,    /* out = zeros of its layout */
  SIG_ONE,     /* ones */
  SIG_FILL     /* its number everywhere */
} tpu_sig_kind;
struct tpu_signature {
  tpu_hash hash;
  uint32_t n_words; /* of the key it was found by */
  const uint64_t *words;
  struct tpu_signature *next; /* same hash.lo */
  tpu_sig_kind kind;
  tpu_args args; /* operands without values */
  int n_out;
  tpu_result *results;
  const tpu_place **places; /* natural place of each output; NULL: undefined */
  int64_t random_blocks;
  uint32_t n_numbers; /* with seed and offset */
  bool is_fill;       /* the only result is one number everywhere: fill, or number fill_slot of the call */
  uint32_t fill_slot; /* NO_SLOT: fill */
  tpu_number fill;
  int64_t *operand_bytes; /* numel * element bytes if the operand is dense, else -1 */
};
/* The call's numbers that its row wants to fit `dtype` do (fit.c). */
tpu_status tpu_numbers_fit(const tpu_call *call, tpu_dtype dtype) TPU_MUST_USE;
/* The signature of an internal kind over tensors; dtype: CONVERT's result. */
tpu_status tpu_signature_internal(tpu_sig_kind kind, int n_tensors, const tpu_tensor *tensors, tpu_dtype dtype,
                                  const tpu_signature **out) TPU_MUST_USE;

#define NO_SLOT UINT32_MAX

/* A number's real part. */
static inline double tpu_number_real(const tpu_number *n) {
  return n->dtype == TPU_F64 ? n->f : n->dtype == TPU_C128 ? n->c[0] : (double)n->i;
}

/* --- segments */
typedef struct tpu_record_out {
  uint32_t value;         /* NO_VALUE: undefined or not kept */
  const tpu_place *place; /* of the logical result; STORE and ZERO: only its layout counts */
  const tpu_layout *layout;
} tpu_record_out;
typedef struct tpu_rec {
  const tpu_signature *sig;
  uint32_t ref;    /* first operand in refs; NO_VALUE entries are absent operands */
  uint32_t out;    /* first in outs */
  uint32_t number; /* first in numbers */
  uint32_t offset; /* first in offsets; one per partial operand */
  uint64_t source;
} tpu_rec;
struct tpu_segment {
  int device;
  uint64_t serial;
  tpu_precision precision; /* of what is recorded here */
  const tpu_options *options;
  uint64_t first_address; /* storages made since then have higher addresses */
  tpu_hash key;           /* over all but offsets, numbers and liveness */
  uint32_t n_records, n_refs, n_outs, n_numbers, n_offsets, n_values;
  uint32_t cap_records, cap_refs, cap_outs, cap_numbers, cap_offsets, cap_values;
  tpu_rec *records;
  uint32_t *refs;
  tpu_record_out *outs;
  tpu_number *numbers;
  int64_t *offsets;
  tpu_value **values; /* each holds one reference */
  uint8_t *is_leaf;   /* per value */
  tpu_value **spare;  /* made ahead, so that recording itself cannot fail */
  uint32_t n_spare, cap_spare;
  bool shared;    /* another segment of the device is or was open meanwhile: leaf marks may be overwritten */
  tpu_map leaves; /* if shared: value -> its number + 1 */
  /* Looking for a loop, once the segment is long (loop.c). */
  uint64_t *prints;                                    /* a fingerprint per call, once there are many */
  uint32_t cap_prints, n_calls, n_prints, period, run; /* n_calls: since the segment's start */
  tpu_map last_seen;                                   /* fingerprint -> position + 1 */
  tpu_lane *lane;
  tpu_segment *next; /* in the pool of empty segments, or the list of orphans */
};
#define TPU_SEGMENT_MAX_RECORDS 8192
/* From this length on a segment that has not been cut looks for the loop it is in. */
#define TPU_LOOP_RECORDS 1024
typedef struct tpu_node_source tpu_node_source;
struct tpu_lane {
  atomic_int refs;
  atomic_ullong source;               /* of what is recorded next */
  tpu_node_source *nodes;             /* NULL: none noted yet */
  atomic_int mode;                    /* -1: the process' */
  const tpu_options *_Atomic options; /* NULL: the process' */
  bool cut_later;
  int n_segments;
  tpu_segment **segments; /* by device; NULL: nothing pending */
  struct tpu_lane *next, *prev;
};
bool tpu_is_partial(const tpu_signature *sig, int k, const tpu_layout *base);

/* Notes the call just appended (fingerprint: its signature and the storages older than the segment it reads). True: the calls
 * since the segment's start are whole iterations of a loop, so this is a good place to cut. */
bool tpu_loop_note(tpu_segment *seg, uint64_t fingerprint);
void tpu_loop_reset(tpu_segment *seg);

/* --- programs (program.c) */
/* So many executables are kept in memory (each takes 0.1 MB or more); then the least recently used quarter of the programs goes.
 */
#define TPU_MOST_EXECUTABLES 2048
typedef struct tpu_exe {
  tpu_executable *executable;
  uint32_t n_params, n_outputs, n_slots, n_aliases;
  uint32_t *params;    /* values, in argument order */
  uint32_t *outputs;   /* values */
  tpu_slot_use *slots; /* index >= the segment's number count: an offset */
  uint32_t pack_size[TPU_PACK_COUNT];
  int64_t input_bytes, output_bytes;
  tpu_alias *aliases;         /* param = position among the arguments, output = position among the outputs */
  uint64_t *output_set;       /* bit per value */
  uint32_t n_checks;          /* not 0: after the outputs comes a flag, an i32: 1 + the first check that failed, or 0 */
  const tpu_row **check_rows; /* whose they are; immortal, so that a flag may outlive its program */
  uint32_t *check_records;
  const tpu_layout **param_rooms, **output_rooms; /* the buffers' dims, of a bounded program; else NULL */
  tpu_cache_entry entry;
  struct tpu_exe *next;
} tpu_exe;
typedef struct tpu_program {
  tpu_hash key;
  const tpu_options *options;
  uint32_t n_records, n_refs, n_outs, n_offsets, n_values, n_numbers;
  tpu_rec *records;
  uint32_t *refs;
  tpu_record_out *outs;
  const tpu_layout **layouts; /* per value */
  uint32_t *replaces;         /* per value */
  int64_t *offsets;
  int64_t *multiple; /* per offset: 0 if it is static; else it is a run-time slot, of multiples of this */
  tpu_exe *exes;
  tpu_exe *bounded; /* its family's, with the values of the classes here; NULL: none */
  tpu_number *classes;
  uint32_t n_bounded;       /* how often that one was run */
  uint64_t used;            /* when it was looked up last */
  bool compiling;           /* by some thread; `settled` tells its end */
  struct tpu_program *next; /* same key */
} tpu_program;
/* --- families (family.c): one program at many sizes; a lock of its own */
typedef struct tpu_family tpu_family;
typedef struct tpu_bounded { /* the bounded program for a segment */
  tpu_family *family;
  const tpu_plan *plan;
  tpu_exe *exe; /* NULL: still to be compiled */
  uint32_t n;   /* classes */
  int64_t bounds[TPU_MOST_CLASSES];
  tpu_number values[TPU_MOST_CLASSES]; /* of this segment */
} tpu_bounded;
/* Notes the graph's numbers; true: a bounded program shall serve it. */
bool tpu_family_choose(const tpu_segment *seg, const uint64_t *live, const tpu_graph *graph, const tpu_numbers_of *numbers,
                       tpu_bounded *out);
void tpu_family_give_up(tpu_family *f);                        /* it has no bounded form */
bool tpu_family_add(const tpu_bounded *bounded, tpu_exe *exe); /* takes it; false: out of memory, it was not taken */
void tpu_family_clear(void);

/* --- rooms (room.c); lock not held, the value READY; they wait for it */
/* Gives a value in a room the host copy of its elements alone (v->host). */
tpu_status tpu_room_leave(tpu_value *v) TPU_MUST_USE;
/* A new buffer with the value's elements in room `to`; NULL: in none. */
tpu_status tpu_room_change(tpu_value *v, const tpu_layout *to, tpu_buffer **out) TPU_MUST_USE;
/* Copies elements; strides in elements. */
void tpu_copy_elements(tpu_dtype dtype, int rank, const int64_t *sizes, char *dst, const int64_t *dst_strides, const char *src,
                       const int64_t *src_strides);

/* Compiles a segment (program.c): its values in `live` are wanted; multiple: per offset, as a program's, NULL: all static.
 * bounded: NULL, or where a bounded program is noted if that is what serves; *out is it then, and its family's. Lock not held. */
tpu_status tpu_exe_compile(const tpu_segment *seg, const int64_t *multiple, const uint64_t *live, tpu_bounded *bounded,
                           tpu_exe **out) TPU_MUST_USE;
void tpu_exe_destroy(tpu_exe *e);              /* NULL allowed */
void *tpu_rt_copy(const void *p, size_t size); /* of a block; NULL: out of memory */
typedef struct tpu_ready {                     /* to run */
  const tpu_exe *exe;
  const tpu_number *classes; /* of a bounded one */
} tpu_ready;
/* The executable for a detached segment whose values in `live` (bit set) are wanted. Called with the lock held; drops it while it
 * compiles. The result stays valid until the cache is cleared. */
tpu_status tpu_program_get(tpu_segment *seg, const uint64_t *live, tpu_ready *out) TPU_MUST_USE;
tpu_status tpu_program_text(tpu_segment *seg, tpu_strbuf *out) TPU_MUST_USE;
void tpu_program_cache_clear(void);

/* --- disk cache (disk.c); no lock needed */
void tpu_disk_key(const char *text, size_t size, const tpu_options *options, char out_hex[65]);
/* NULL: a miss of any kind. Free with tpu_free. */
char *tpu_disk_read(const char *key, size_t *out_size);
bool tpu_disk_write(const char *key, const char *data, size_t size); /* best effort, atomic; false: not written */
/* Only one process compiles a key: true if this one holds the lock (release with _unlock), false if there is no cache or it timed
 * out. */
int tpu_disk_lock(const char *key); /* descriptor or -1 */
void tpu_disk_unlock(int descriptor);

/* --- launching (cut.c) */
void tpu_segment_detach(tpu_segment *seg); /* from its lane or the orphans; lock held */
/* Detaches and launches a segment; lock held on entry and exit, dropped in between. Failures are in the values; the returned
 * status is for who asked (retained). */
tpu_status tpu_segment_launch(tpu_segment *seg, bool wait) TPU_MUST_USE;
tpu_segment *tpu_segment_new(int device); /* from the pool; NULL: out of memory */
void tpu_segment_free(tpu_segment *seg);  /* drops its references; lock not held */
/* Runs a detached segment's program. Lock held; dropped meanwhile. On failure the values are as before. */
tpu_status tpu_segment_run(tpu_segment *seg, const tpu_ready *ready, bool wait) TPU_MUST_USE;
bool tpu_segment_reserve(tpu_segment *seg, uint32_t records, uint32_t refs, uint32_t outs, uint32_t numbers);
/* After a launching segment's program failed to compile or to start, of several calls: runs them one by one, so that only what
 * depends on the call at fault fails. Such values keep their state and carry the error. Takes the failure; returns that of the
 * first call, or NULL. Lock held; dropped meanwhile. */
tpu_status tpu_segment_salvage(tpu_segment *seg, tpu_status status) TPU_MUST_USE;
/* Makes `v` READY: launches its segment or waits for who launches it. Lock held; may be dropped. FAILED: its error. */
tpu_status tpu_value_settle(tpu_value *v) TPU_MUST_USE;

/* --- whose fault it was (blame.c); each takes the status, NULL stays NULL; lock not held */
/* Names a call and where it was made. */
tpu_status tpu_blame_call(tpu_status status, const char *aten, uint64_t source) TPU_MUST_USE;
/* Names the calls of a segment whose program failed. */
tpu_status tpu_blame_segment(tpu_status status, const tpu_segment *seg) TPU_MUST_USE;
/* Says where a value was made whose program failed while it ran. */
tpu_status tpu_blame_value(tpu_status status, const tpu_value *v) TPU_MUST_USE;
/* If memory ran out: says how much was asked for (0: not known), what is in use, and what the largest tensors are. */
tpu_status tpu_blame_memory(tpu_status status, int device, int64_t asked) TPU_MUST_USE;
/* A value got or lost its bytes. */
void tpu_blame_note(tpu_value *v, bool is_live);

/* --- flags of launched programs (flags.c) */
typedef struct tpu_flag {
  tpu_buffer *buffer;
  uint32_t n_checks;
  const tpu_row **rows;
  uint64_t *sources; /* of each check; NULL: not known; the flag's */
} tpu_flag;
/* The flag of a program that was launched for the segment. */
tpu_flag tpu_flag_create(tpu_buffer *buffer, const tpu_exe *exe, const tpu_segment *seg);
/* What the flag says; OUT_OF_RANGE names the op. Waits for the program; takes the buffer. Lock not held. */
tpu_status tpu_flag_read(tpu_flag flag) TPU_MUST_USE;
/* Keeps a flag for the next tpu_flags_settle. Lock held. False: no room, the caller reads it. */
bool tpu_flag_push(int device, tpu_flag flag);
/* Reads what is kept for the device; the first failure. Lock held; dropped meanwhile. */
tpu_status tpu_flags_settle(int device) TPU_MUST_USE;

/* --- the runtime */
/* A program's memory is taken when it is queued. So programs that need much wait until those before have ended, but for as many
 * (and in host memory, for as many bytes of operands and results) as keep the device busy. */
#define TPU_BIG_IN_FLIGHT 4
#define TPU_BIG_BYTES (INT64_C(1) << 20)
#define TPU_HOST_BYTES_IN_FLIGHT (INT64_C(32) << 20)
typedef struct tpu_device_state {
  atomic_llong bytes, peak, allocations, frees;
  tpu_event **pending; /* of launched programs */
  uint32_t n_pending, cap_pending;
  struct {
    tpu_event *done;
    int64_t bytes;
  } big[TPU_BIG_IN_FLIGHT]; /* launched programs that take much memory, oldest first */
  uint32_t n_big;
  tpu_status async_error;
  tpu_flag *flags;
  uint32_t n_flags, cap_flags;
  int open_segments, launching;
} tpu_device_state;
typedef struct tpu_runtime {
  pthread_mutex_t lock;
  pthread_cond_t settled; /* some LAUNCHING value or compile ended */
  tpu_client *client;
  tpu_target target;
  const tpu_quirks *quirks;
  int n_devices;
  const tpu_signature *zero, *one, *fill; /* of SIG_ZERO, SIG_ONE, SIG_FILL */
  tpu_device_state *devices;
  tpu_lane *lanes;
  tpu_segment *orphans;
  tpu_segment *pool;
  bool no_checks; /* TORCH_TPU_INDEX_CHECKS=0 */
  int busy;       /* launches under way: programs must stay */
  atomic_ullong next_serial;
  tpu_stats stats;
} tpu_runtime;
extern tpu_runtime tpu_rt;
tpu_status tpu_rt_enter(void) TPU_MUST_USE; /* initialised, not forked */
static inline void tpu_rt_lock(void) { pthread_mutex_lock(&tpu_rt.lock); }
static inline void tpu_rt_unlock(void) { pthread_mutex_unlock(&tpu_rt.lock); }
const tpu_config *tpu_rt_config(void);
/* Keeps the event of a launched program of so many bytes. Lock held; false: no room, the event is still the caller's. */
bool tpu_event_push(int device, tpu_event *event, int64_t bytes);
/* Waits until a program of so many bytes may be queued. Lock held; dropped meanwhile. */
void tpu_event_pace(int device, int64_t bytes);
tpu_mode tpu_mode_now(const tpu_lane *lane);

/* --- options (options.c) */
struct tpu_options {
  tpu_hash hash;
  int n;
  const tpu_option *list; /* by key */
  const char *text;       /* key, 0, value, 0, ... */
  size_t size;
  struct tpu_options *next;
};
const tpu_options *tpu_options_now(const tpu_lane *lane); /* NULL: none */

#endif
