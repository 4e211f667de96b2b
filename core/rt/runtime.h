/* The runtime: deferred execution on PJRT devices. This is all that the bridge (and the C API) sees of it.
 *
 *   storage   bytes plus, usually, one typed value in memory order: deferred, or a device buffer
 *   tensor    (storage, sizes, strides, offset): PyTorch's own description, borrowed for a call
 *   lane      one thread's recorder: a segment of pending calls per device
 *   signature what lowering a call once taught: the results' dtypes, sizes and strides
 *
 * A call is looked up (tpu_signature_get: nothing is recorded, errors are the user's and come back here), then recorded
 * (tpu_record). Nothing runs until a cut: a value the host asks for, tpu_synchronize, tpu_cut.
 *
 * Thread-safe unless said otherwise. One runtime per process, created on first use. In a forked child every release is a no-op
 * and every other function fails with FAILED_PRECONDITION before it takes a lock.
 *
 * May include: base, ir, aten, pjrt.
 */
#ifndef TPU_RT_RUNTIME_H
#define TPU_RT_RUNTIME_H

#include "aten/lower.h"
#include "pjrt/client.h"

/* --- process */
typedef struct tpu_config {
  const char *libtpu;    /* path of libtpu.so if installed, else NULL */
  const char *embedded;  /* path of the CPU plugin, or NULL */
  const char *cache_dir; /* disk cache of programs; NULL or "": none */
  int64_t cache_bytes;   /* its bound; 0: 4 GiB */
  int devices;           /* devices a CPU plugin shall offer; 0: 1 */
} tpu_config;
/* Remembers the configuration; loads nothing. Before the first other call; later calls have no effect. */
void tpu_configure(const tpu_config *config);
/* Loads the plugin and creates the client if that was not done yet. Fails the same way each time it fails. */
tpu_status tpu_initialize(void) TPU_MUST_USE;
bool tpu_is_initialized(void);
bool tpu_in_bad_fork(void);
void tpu_after_fork_child(void);      /* registered with pthread_atfork by tpu_initialize */
tpu_client *tpu_runtime_client(void); /* NULL before initialisation */
const tpu_target *tpu_runtime_target(void);
int tpu_device_count(void); /* without loading the plugin where possible (CPU: the configured number); 0 if there is no plugin */

/* --- modes and policy */
typedef enum tpu_mode { TPU_DEFER_AND_FUSE, TPU_DEFER_NEVER, TPU_DEFER_NEVER_AND_LAUNCH_BLOCKING } tpu_mode;
void tpu_mode_set(tpu_mode mode); /* process-wide */
tpu_mode tpu_mode_get(void);
void tpu_precision_set(tpu_precision precision); /* of float32 contractions; part of the key from then on */
tpu_precision tpu_precision_get(void);

/* --- lanes */
typedef struct tpu_lane tpu_lane;
tpu_lane *tpu_lane_create(void); /* NULL: out of memory */
tpu_lane *tpu_lane_retain(tpu_lane *lane);
/* The lane's own mode; -1: the process' one. It goes where the lane goes, so to the threads that run its backward too. */
void tpu_lane_mode_set(tpu_lane *lane, int mode);
int tpu_lane_mode_get(const tpu_lane *lane);
void tpu_lane_release(tpu_lane *lane); /* what is pending stays and runs when somebody needs it */

/* --- options of the compiler: immutable, immortal, one per content */
typedef struct tpu_options tpu_options;
/* Copies the list; equal lists, whatever their order, give the same pointer. NULL: out of memory. */
const tpu_options *tpu_options_get(const tpu_option *list, int n);
int tpu_options_list(const tpu_options *options, const tpu_option **out_list); /* options NULL: none */
/* Of what is recorded from now on, and part of its key: the process' (NULL: none), and a lane's own in its place (NULL: the
 * process'). */
void tpu_options_set(const tpu_options *options);
void tpu_lane_options_set(tpu_lane *lane, const tpu_options *options);
const tpu_options *tpu_lane_options_get(const tpu_lane *lane);

/* --- source lines: where in the user's program a call is made, a number that only the describer understands; 0: not known */
/* Of what the lane records from now on. */
void tpu_lane_source_set(tpu_lane *lane, uint64_t source);
/* The lane's call at `source` made the autograd node of that sequence number: what its backward records has the same source. */
void tpu_lane_node_note(tpu_lane *lane, uint64_t sequence, uint64_t source);
uint64_t tpu_lane_node_find(const tpu_lane *lane, uint64_t sequence); /* 0: not noted, or long ago */
/* The text of a source, for people (allocated by tpu_malloc); NULL: not known. Called from any thread, without a lock. */
typedef char *(*tpu_source_text_fn)(uint64_t source);
void tpu_source_describer_set(tpu_source_text_fn text);

/* --- storages */
typedef struct tpu_storage tpu_storage;
/* nbytes of undefined contents on a device. */
tpu_status tpu_storage_create(int device, int64_t nbytes, tpu_storage **out) TPU_MUST_USE;
void tpu_storage_retain(tpu_storage *storage);
void tpu_storage_release(tpu_storage *storage); /* NULL allowed; never blocks, takes no lock that is held across a plugin call */
int64_t tpu_storage_nbytes(const tpu_storage *storage);
int tpu_storage_device(const tpu_storage *storage);
/* A number that no other live storage's range [address, address + nbytes) overlaps; never dereferenceable; 0 if nbytes is 0. */
uint64_t tpu_storage_address(const tpu_storage *storage);
/* Grows (new bytes undefined) or shrinks, keeping the common prefix. */
tpu_status tpu_storage_resize(tpu_lane *lane, tpu_storage *storage, int64_t nbytes) TPU_MUST_USE;

/* A strided view, borrowed for the call. strides and offset in elements of dtype. */
typedef struct tpu_tensor {
  tpu_storage *storage;
  tpu_dtype dtype;
  int rank;
  const int64_t *sizes, *strides;
  int64_t offset;
} tpu_tensor;
/* Tells a storage without contents the shape it will be used in (torch.empty with these sizes and strides); optional, only helps.
 */
void tpu_storage_hint(tpu_storage *storage, const tpu_tensor *as);
/* Gives contents that came as plain bytes (a file that was loaded) the type of the tensor that is put over all of them, so that
 * programs see what they would see had the tensor been made in the ordinary way. Else nothing happens. May wait for the device.
 */
tpu_status tpu_storage_retype(const tpu_tensor *as) TPU_MUST_USE;

/* --- random generators */
typedef struct tpu_generator { /* thread-compatible; the caller locks */
  uint64_t seed, offset;       /* offset in Philox blocks */
} tpu_generator;

/* --- calls */
typedef struct tpu_number {
  tpu_dtype dtype; /* BOOL, I64, F64 or C128 (any integer type counts as I64; U64 as I64's bits) */
  union {
    int64_t i;
    double f;
    double c[2];
  };
} tpu_number;

typedef struct tpu_call {
  const tpu_row *row;
  int device;
  int n_args, n_tensors, n_numbers, n_returns;
  const tpu_arg *args;       /* .first of tensors and numbers index the arrays below */
  const tpu_tensor *tensors; /* storage NULL: absent (in a Tensor?[]); all on `device` */
  const tpu_number *numbers;
  tpu_generator *generator; /* random rows: advanced by what the call draws */
  uint8_t default_dtype;    /* tpu_dtype of torch.get_default_dtype(); 0: float32 */
} tpu_call;

/* Rows whose numbers decide the result's sizes or how it is drawn (arange, random) have a twin that takes those facts apart from
 * the numbers, which then are no part of the key: positions that move on with each token, or a buffer that grows, never compile.
 */
typedef struct tpu_call_room {
  tpu_arg args[5];
  tpu_number numbers[2];
} tpu_call_room;
bool tpu_row_loosens(const tpu_row *row);
/* Makes the call one of its twin, with arguments in `room`, which must live as long; not where the row itself has to refuse it.
 */
void tpu_call_loosen(tpu_call *call, tpu_call_room *room);

typedef struct tpu_result {
  tpu_dtype dtype;
  int rank;
  bool undefined;
  const int64_t *sizes, *strides; /* live as long as the process */
} tpu_result;

typedef struct tpu_signature tpu_signature; /* immutable, immortal */
/* The results a call will have. Fails with the user's error; nothing was recorded. */
tpu_status tpu_signature_get(const tpu_call *call, const tpu_signature **out) TPU_MUST_USE;
int tpu_signature_outputs(const tpu_signature *signature);
const tpu_result *tpu_signature_output(const tpu_signature *signature, int k);

/* Records the call. For output k: where dst != NULL and dst[k].storage != NULL the result, converted to dst's dtype, is stored
 * through that view (its sizes must be the result's); else out[k] becomes a new storage (owned by the caller) of the result's
 * sizes and strides, NULL if undefined. On failure nothing was recorded and nothing changed. In the per-op modes it has been
 * launched. */
tpu_status tpu_record(tpu_lane *lane, const tpu_call *call, const tpu_signature *signature, const tpu_tensor *dst,
                      tpu_storage **out) TPU_MUST_USE;

/* dst <- src, converting the dtype; equal sizes, same device or another one. */
tpu_status tpu_copy(tpu_lane *lane, const tpu_tensor *src, const tpu_tensor *dst) TPU_MUST_USE;

/* --- host memory */
/* dst <- data: row-major elements of dst's dtype, [sizes]. `data` may be reused when the call returns. */
tpu_status tpu_write(tpu_lane *lane, const tpu_tensor *dst, const void *data) TPU_MUST_USE;
/* data <- src, row-major elements of src's dtype. Cuts, waits. */
tpu_status tpu_read(tpu_lane *lane, const tpu_tensor *src, void *data) TPU_MUST_USE;
/* Like tpu_read, but returns before the data is there where the plugin can; *out_event (owned, may be NULL: done) fires then. */
tpu_status tpu_read_async(tpu_lane *lane, const tpu_tensor *src, void *data, tpu_event **out_event) TPU_MUST_USE;
/* One element (a "ready" scalar costs no plugin call where device memory is host memory). */
tpu_status tpu_read_scalar(tpu_lane *lane, const tpu_tensor *src, void *out_element) TPU_MUST_USE;

/* --- order and waiting */
/* Launches what is pending in the lane (all devices, or one). */
tpu_status tpu_cut(tpu_lane *lane, int device) TPU_MUST_USE; /* device -1: all */
/* A natural end of an iteration was reached (an optimizer stepped): the next recorded call starts a new program. */
void tpu_cut_later(tpu_lane *lane);
/* Launches everything pending on the device, in all lanes, and waits until it has run. Returns the first failure of programs
 * since the last call that no value carries. */
tpu_status tpu_synchronize(int device) TPU_MUST_USE;
/* Is all work launched so far finished (pending work is launched first)? */
tpu_status tpu_query(tpu_lane *lane, int device, bool *out_done) TPU_MUST_USE;

/* --- accounting */
typedef struct tpu_memory_info {  /* bytes */
  int64_t allocated, peak, limit; /* live buffers of this runtime; limit -1: not known */
  int64_t allocations, frees;     /* since start */
} tpu_memory_info;
void tpu_memory_info_get(int device, tpu_memory_info *out);
void tpu_memory_reset_peak(int device);

typedef struct tpu_stats { /* since start or tpu_stats_reset */
  uint64_t calls, signatures, segments, executes, cache_requests, cache_hits, compiles, disk_hits, disk_writes;
  uint64_t reads, writes, donated;
  uint64_t compile_peak_bytes; /* resident bytes of the process after a compile, the most */
  double compile_s;
} tpu_stats;
void tpu_stats_get(tpu_stats *out);
void tpu_stats_reset(void);
void tpu_cache_clear(void);       /* forgets compiled programs in memory */
typedef struct tpu_cache_policy { /* of programs compiled from now on */
  bool never;                     /* compile each time */
  bool only;                      /* a program that is neither in memory nor on disk fails with FAILED_PRECONDITION */
} tpu_cache_policy;
void tpu_cache_policy_set(tpu_cache_policy policy);
tpu_cache_policy tpu_cache_policy_get(void);
/* Called with the StableHLO of each program about to be compiled, on the thread that compiles it, without a lock. NULL: nobody.
 */
typedef void (*tpu_miss_fn)(const char *text, size_t size);
void tpu_miss_hook_set(tpu_miss_fn see);
typedef struct tpu_cache_entry {
  double compile_s, last_read; /* seconds; since the epoch */
  uint64_t reads;
} tpu_cache_entry;
/* Compiled programs in memory: fills the first n of out, returns how many there are. */
size_t tpu_cache_entries(tpu_cache_entry *out, size_t n);

/* Live values and storages, for leak tests. */
int64_t tpu_live_values(void);
int64_t tpu_live_storages(void);

/* The StableHLO text of what is pending in the lane on a device, for people; free with tpu_free. "" if nothing is. */
tpu_status tpu_pending_text(tpu_lane *lane, int device, char **out_text) TPU_MUST_USE;

#endif
