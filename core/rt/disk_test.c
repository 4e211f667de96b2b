/* The disk cache, across processes: each scenario starts this program again as workers, on the fake plugin. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/hash.h"
#include "rt/runtime_test.h"

/* --- a worker: runs `count` programs from number `first`, and tells what that took */
typedef struct outcome {
  unsigned long compiles, hits, writes;
} outcome;

static bool open_worker(void) {
  setenv("TORCH_TPU_BOUNDED_PROGRAMS", "0", 1); /* a program per size */
  configure(getenv("TPU_TEST_FAKE_PLUGIN"), getenv("TPU_TEST_DISK_DIR"), atoll(getenv("TPU_TEST_DISK_BYTES")));
  return open_fake(); /* whose configuration comes too late */
}
static tpu_status run_program(int k) {
  tensor a = {0}, b = {0};
  tpu_status s = floats(1, 1 + k, 1, &a);
  if (!s) s = scale(lane, &a, 2, &b);
  if (!s) s = tpu_cut(lane, -1);
  drop(&a), drop(&b);
  return s;
}
TEST(worker) {
  if (!getenv("TPU_TEST_DISK_DIR")) return;
  CHECK(open_worker());
  int first = atoi(getenv("TPU_TEST_DISK_FIRST")), count = atoi(getenv("TPU_TEST_DISK_COUNT"));
  for (int i = 0; i < count; i++) CHECK_OK(run_program(first + i));
  tpu_stats s = stats_now();
  printf("%lu %lu %lu\n", (unsigned long)s.compiles, (unsigned long)s.disk_hits, (unsigned long)s.disk_writes);
  CHECK_NOTHING_LIVES();
}
/* The same with each allocation and each call failing in turn. */
TEST(failing_worker) {
  if (!getenv("TPU_TEST_DISK_DIR")) return;
  CHECK(open_worker());
  CHECK_OK(tpu_initialize()); /* which does not fail twice in different ways */
  for (int how = 0; how < 2; how++)
    for (int k = 0, n = 0, clean = 0; clean < 8; k++) {
      if (k % 2) tpu_cache_clear(); /* every second run finds the program on disk */
      if (how)
        fake->fail_after(n, TPU_ABORTED);
      else
        tpu_alloc_fail_after(n);
      tpu_status s = run_program(100 + k / 2 + how * 1000);
      fake->fail_after(-1, 0);
      tpu_alloc_fail_after(-1);
      if (s && getenv("TPU_TEST_VERBOSE"))
        fprintf(stderr, "%d %s:%d %s\n", n, tpu_status_file(s), tpu_status_line(s), tpu_status_message(s));
      if (s) CHECK_INT(tpu_status_code(s), how ? TPU_ABORTED : TPU_RESOURCE_EXHAUSTED);
      clean = s ? 0 : clean + 1;
      tpu_status_release(s);
      n += k % 2;
      CHECK(n < 1000);
    }
  tpu_cache_clear();
  CHECK_INT(fake->live(FAKE_PJRT_EXECUTABLES), 0);
  CHECK_NOTHING_LIVES();
}

/* --- starting workers */
static char self[4096], dir[4096];
typedef struct worker {
  pid_t pid;
  int out;
} worker;
typedef struct setting {
  const char *dir, *test;
  long bytes, file_limit;
  int first, count;
} setting;

static worker start(setting s) {
  int ends[2];
  if (pipe(ends)) return (worker){-1, -1};
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    char number[64];
    setenv("TPU_TEST_DISK_DIR", s.dir ? s.dir : dir, 1);
    snprintf(number, sizeof number, "%ld", s.bytes);
    setenv("TPU_TEST_DISK_BYTES", number, 1);
    snprintf(number, sizeof number, "%d", s.first);
    setenv("TPU_TEST_DISK_FIRST", number, 1);
    snprintf(number, sizeof number, "%d", s.count);
    setenv("TPU_TEST_DISK_COUNT", number, 1);
    if (s.file_limit) {
      struct rlimit limit = {(rlim_t)s.file_limit, (rlim_t)s.file_limit};
      setrlimit(RLIMIT_FSIZE, &limit);
      signal(SIGXFSZ, SIG_IGN);
    }
    dup2(ends[1], 1);
    close(ends[0]), close(ends[1]);
    execl(self, self, s.test ? s.test : "worker", (char *)NULL);
    _exit(127);
  }
  close(ends[1]);
  return (worker){pid, ends[0]};
}
static bool finish(worker w, outcome *out) {
  char text[256] = "";
  size_t n = 0;
  for (ssize_t got; n < sizeof text - 1 && (got = read(w.out, text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
  close(w.out);
  int rc;
  *out = (outcome){0};
  if (waitpid(w.pid, &rc, 0) != w.pid || !WIFEXITED(rc) || WEXITSTATUS(rc) != 0) return false;
  return sscanf(text, "%lu %lu %lu", &out->compiles, &out->hits, &out->writes) == 3;
}
static outcome run(setting s) {
  outcome o;
  if (!finish(start(s), &o)) o = (outcome){999, 999, 999};
  return o;
}
#define CHECK_OUTCOME(o, c, h, w) \
  do {                            \
    outcome o_ = (o);             \
    CHECK_INT(o_.compiles, c);    \
    CHECK_INT(o_.hits, h);        \
    CHECK_INT(o_.writes, w);      \
  } while (0)

/* --- the folder */
typedef void visitor(const char *path, const struct stat *st, void *arg);
static void each_file(const char *root, visitor *visit, void *arg) {
  DIR *d = opendir(root);
  for (struct dirent *e; d && (e = readdir(d));) {
    char path[8192];
    struct stat st;
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    snprintf(path, sizeof path, "%s/%s", root, e->d_name);
    if (lstat(path, &st)) continue;
    if (S_ISDIR(st.st_mode)) each_file(path, visit, arg);
    visit(path, &st, arg);
  }
  if (d) closedir(d);
}
static void remove_one(const char *path, const struct stat *st, void *arg) {
  (void)arg;
  if (S_ISDIR(st->st_mode))
    rmdir(path);
  else
    unlink(path);
}
static bool ends_with(const char *s, const char *end) {
  size_t n = strlen(s), m = strlen(end);
  return n >= m && strcmp(s + n - m, end) == 0;
}
typedef struct sum {
  int programs, temporaries;
  int64_t bytes;
} sum;
static void add_one(const char *path, const struct stat *st, void *arg) {
  sum *s = arg;
  if (ends_with(path, ".tmp")) s->temporaries++;
  if (!ends_with(path, ".bin")) return;
  s->programs++;
  s->bytes += st->st_size;
}
static sum folder(void) {
  sum s = {0};
  each_file(dir, add_one, &s);
  return s;
}

static bool begin(void) {
  if (!getenv("TPU_TEST_FAKE_PLUGIN") || getenv("TPU_TEST_DISK_DIR")) return false;
  const char *temp = getenv("TMPDIR");
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return false;
  snprintf(dir, sizeof dir, "%s/tpu-disk-test-XXXXXX", temp && *temp ? temp : "/tmp");
  return mkdtemp(dir) != NULL;
}
static void end(void) {
  each_file(dir, remove_one, NULL);
  rmdir(dir);
}
#define NEED_FOLDER() \
  if (!begin()) SKIP("TPU_TEST_FAKE_PLUGIN is not set, or this is a worker")

TEST(second_process) {
  NEED_FOLDER();
  CHECK_OUTCOME(run((setting){.count = 3}), 3, 0, 3);
  CHECK_OUTCOME(run((setting){.count = 4}), 1, 3, 1);
  CHECK_INT(folder().programs, 4);
  CHECK_INT(folder().temporaries, 0);
  end();
}

/* --- damage */
static void truncate_one(const char *path, const struct stat *st, void *arg) {
  (void)arg;
  if (ends_with(path, ".bin") && truncate(path, st->st_size - 1)) tpu_test_failed = true;
}
static void empty_one(const char *path, const struct stat *st, void *arg) {
  (void)arg, (void)st;
  if (ends_with(path, ".bin") && truncate(path, 0)) tpu_test_failed = true;
}
static void flip_one(const char *path, const struct stat *st, void *arg) {
  if (!ends_with(path, ".bin")) return;
  long at = *(const long *)arg;
  int fd = open(path, O_RDWR);
  char c = 0;
  off_t where = at >= 0 ? at : st->st_size + at;
  if (pread(fd, &c, 1, where) != 1) tpu_test_failed = true;
  c = (char)(c ^ 0x20);
  if (pwrite(fd, &c, 1, where) != 1) tpu_test_failed = true;
  close(fd);
}
/* Sound as a file, but nothing that the plugin knows. */
static void foreign_one(const char *path, const struct stat *st, void *arg) {
  (void)arg, (void)st;
  if (!ends_with(path, ".bin")) return;
  struct {
    char format[24];
    uint64_t size;
    uint8_t digest[32];
    char payload[8];
  } file = {.format = "torch_tpu program 2\n", .size = 8, .payload = "foreign"};
  tpu_sha256 h;
  tpu_sha256_init(&h);
  tpu_sha256_update(&h, strrchr(path, '/') + 1, 64);
  tpu_sha256_update(&h, file.payload, 8);
  tpu_sha256_final(&h, file.digest);
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(&file, sizeof file, 1, f) != 1) tpu_test_failed = true;
  if (f) fclose(f);
}
static void folder_one(const char *path, const struct stat *st, void *arg) {
  (void)arg, (void)st;
  if (ends_with(path, ".bin") && (unlink(path) || mkdir(path, 0777))) tpu_test_failed = true;
}
static void flip_digest(const char *path, const struct stat *st, void *arg) {
  (void)arg, (void)st;
  if (!strstr(path, "/plugin-")) return;
  if (truncate(path, 12)) tpu_test_failed = true;
}

TEST(damaged_files_are_misses) {
  NEED_FOLDER();
  CHECK_OUTCOME(run((setting){.count = 3}), 3, 0, 3);
  static const long places[] = {0, 25, 40, 64, -1};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    each_file(dir, flip_one, (void *)(uintptr_t)&places[i]);
    CHECK_OUTCOME(run((setting){.count = 3}), 3, 0, 3);
    CHECK_OUTCOME(run((setting){.count = 3}), 0, 3, 0);
  }
  visitor *const damages[] = {truncate_one, empty_one, foreign_one};
  for (size_t i = 0; i < 3; i++) {
    each_file(dir, damages[i], NULL);
    CHECK_OUTCOME(run((setting){.count = 3}), 3, 0, 3);
    CHECK_OUTCOME(run((setting){.count = 3}), 0, 3, 0);
  }
  each_file(dir, flip_digest, NULL);
  CHECK_OUTCOME(run((setting){.count = 3}), 0, 3, 0);
  each_file(dir, folder_one, NULL);
  CHECK_OUTCOME(run((setting){.count = 3}), 3, 0, 0);
  CHECK_INT(folder().temporaries, 0);
  end();
}

TEST(no_folder_no_harm) {
  NEED_FOLDER();
  char path[8192];
  snprintf(path, sizeof path, "%s/file", dir);
  FILE *f = fopen(path, "w");
  CHECK(f);
  fclose(f);
  CHECK_OUTCOME(run((setting){.dir = path, .count = 2}), 2, 0, 0); /* a file is in the way */
  CHECK_OUTCOME(run((setting){.dir = "/proc/tpu/none", .count = 2}), 2, 0, 0);
  memset(path, 'x', 5000);
  memcpy(path, dir, strlen(dir));
  path[strlen(dir)] = '/';
  path[5000] = 0;
  CHECK_OUTCOME(run((setting){.dir = path, .count = 2}), 2, 0, 0);
  CHECK_OUTCOME(run((setting){.dir = "", .count = 2}), 2, 0, 0);
  end();
}

TEST(full_disk) {
  NEED_FOLDER();
  CHECK_OUTCOME(run((setting){.count = 3, .file_limit = 100}), 3, 0, 0);
  CHECK_INT(folder().programs, 0);
  CHECK_INT(folder().temporaries, 0);
  CHECK_OUTCOME(run((setting){.count = 3}), 3, 0, 3);
  CHECK_OUTCOME(run((setting){.count = 3, .file_limit = 100}), 0, 3, 0);
  end();
}

static void make_old(const char *path, const struct stat *st, void *arg) {
  (void)st, (void)arg;
  struct timespec old[2] = {{1000000, 0}, {1000000, 0}};
  if (ends_with(path, ".bin")) (void)utimensat(AT_FDCWD, path, old, 0);
}
TEST(eviction) {
  NEED_FOLDER();
  CHECK_OUTCOME(run((setting){.count = 20}), 20, 0, 20);
  int64_t each = folder().bytes / 20, bound = each * 25;
  each_file(dir, make_old, NULL);
  CHECK_OUTCOME(run((setting){.count = 5, .bytes = (long)bound}), 0, 5, 0); /* so the first five are in use */
  CHECK_OUTCOME(run((setting){.first = 100, .count = 60, .bytes = (long)bound}), 60, 0, 60);
  CHECK(folder().bytes <= bound + bound / 8);
  CHECK(folder().programs >= 15);
  CHECK_OUTCOME(run((setting){.first = 15, .count = 5, .bytes = (long)bound}), 5, 0, 5); /* the old ones went first */
  end();
}

TEST(one_compiles_the_others_wait) {
  NEED_FOLDER();
  enum { WORKERS = 4, PROGRAMS = 12 };
  worker w[WORKERS];
  for (int i = 0; i < WORKERS; i++) w[i] = start((setting){.count = PROGRAMS});
  unsigned long compiles = 0, writes = 0, hits = 0;
  bool good = true;
  for (int i = 0; i < WORKERS; i++) {
    outcome o;
    if (!finish(w[i], &o)) good = false;
    compiles += o.compiles, writes += o.writes, hits += o.hits;
  }
  CHECK(good);
  CHECK_INT(compiles, PROGRAMS);
  CHECK_INT(writes, PROGRAMS);
  CHECK_INT(hits, (WORKERS - 1) * PROGRAMS);
  end();
}

TEST(failures_are_misses) {
  NEED_FOLDER();
  worker w = start((setting){.test = "failing_worker"});
  int rc;
  close(w.out);
  CHECK(waitpid(w.pid, &rc, 0) == w.pid && WIFEXITED(rc) && WEXITSTATUS(rc) == 0);
  CHECK_INT(folder().temporaries, 0);
  CHECK(folder().programs > 10);
  end();
}

TEST_MAIN(TEST_CASE(worker), TEST_CASE(failing_worker), TEST_CASE(second_process), TEST_CASE(damaged_files_are_misses),
          TEST_CASE(no_folder_no_harm), TEST_CASE(full_disk), TEST_CASE(eviction), TEST_CASE(one_compiles_the_others_wait),
          TEST_CASE(failures_are_misses));
