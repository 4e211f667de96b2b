#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "rt/private.h"

/* One file a program: <dir>/<first two digits>/<key>.bin = header, payload. The key is a SHA-256 over everything that decides
 * what the payload is, so a file that parses is the right one; anything else is a miss. */
#define FORMAT "torch_tpu program 2\n"
typedef struct header {
  char format[24];
  uint64_t size;
  uint8_t digest[32]; /* of the key and the payload: a file under another's name is a miss too */
} header;

/* Executables hold machine code: another processor must not load them. */
static void cpu_features(tpu_sha256 *h) {
  FILE *f = fopen("/proc/cpuinfo", "r");
  char *line = NULL;
  size_t room = 0;
  while (f && getline(&line, &room, f) > 0)
    if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0 || strncmp(line, "model name", 10) == 0) {
      tpu_sha256_update(h, line, strlen(line));
      if (line[0] != 'm') break;
    }
  free(line);
  if (f) fclose(f);
}

static void make_dirs(const char *path) {
  char part[4096];
  for (size_t i = 1; path[i] && i < sizeof part; i++)
    if (path[i] == '/') {
      memcpy(part, path, i);
      part[i] = 0;
      (void)mkdir(part, 0777);
    }
}

/* The SHA-256 of the plugin's file takes 0.2 s: it is remembered in the cache folder under what identifies the file. */
static const char *plugin_digest(char out_hex[65]) {
  tpu_plugin *plugin = tpu_client_plugin(tpu_rt.client);
  const char *path = tpu_plugin_path(plugin);
  struct stat st;
  char name[4096], memo[65];
  if (stat(path, &st)) return tpu_plugin_digest(plugin);
  int64_t id[6] = {(int64_t)st.st_dev,         (int64_t)st.st_ino,          (int64_t)st.st_size,
                   (int64_t)st.st_mtim.tv_sec, (int64_t)st.st_mtim.tv_nsec, (int64_t)st.st_ctim.tv_nsec};
  tpu_sha256 h;
  uint8_t digest[32];
  tpu_sha256_init(&h);
  tpu_sha256_update(&h, path, strlen(path) + 1);
  tpu_sha256_update(&h, id, sizeof id);
  tpu_sha256_final(&h, digest);
  tpu_sha256_hex(digest, memo);
  int n = snprintf(name, sizeof name, "%s/plugin-%.16s", tpu_rt_config()->cache_dir, memo);
  if (n <= 0 || (size_t)n >= sizeof name) return tpu_plugin_digest(plugin);
  FILE *f = fopen(name, "r");
  bool known = f && fread(out_hex, 1, 64, f) == 64 && strspn(out_hex, "0123456789abcdef") >= 64;
  if (f) fclose(f);
  out_hex[64] = 0;
  if (known) return out_hex;
  const char *fresh = tpu_plugin_digest(plugin);
  make_dirs(name);
  f = strlen(fresh) == 64 ? fopen(name, "w") : NULL;
  if (f) {
    fputs(fresh, f);
    fclose(f);
  }
  return fresh;
}

static char prefix[65]; /* of all that does not change in a process */
static pthread_once_t prefix_once = PTHREAD_ONCE_INIT;
static void prefix_make(void) {
  tpu_sha256 h;
  uint8_t digest[32];
  tpu_sha256_init(&h);
  char hex[65] = "";
  const char *plugin = plugin_digest(hex);
  const char *version = tpu_client_platform_version(tpu_rt.client), *kind = tpu_client_device_kind(tpu_rt.client, 0);
  tpu_sha256_update(&h, FORMAT, sizeof FORMAT);
  tpu_sha256_update(&h, plugin, strlen(plugin) + 1);
  tpu_sha256_update(&h, version, strlen(version) + 1);
  tpu_sha256_update(&h, kind, strlen(kind) + 1);
  const char *flags = getenv("XLA_FLAGS");
  if (flags) tpu_sha256_update(&h, flags, strlen(flags) + 1);
  cpu_features(&h);
  tpu_sha256_final(&h, digest);
  tpu_sha256_hex(digest, prefix);
}

void tpu_disk_key(const char *text, size_t size, const tpu_options *options, char out_hex[65]) {
  pthread_once(&prefix_once, prefix_make);
  tpu_sha256 h;
  uint8_t digest[32];
  tpu_sha256_init(&h);
  tpu_sha256_update(&h, prefix, 64);
  if (options) tpu_sha256_update(&h, options->text, options->size);
  tpu_sha256_update(&h, "", 1);
  tpu_sha256_update(&h, text, size);
  tpu_sha256_final(&h, digest);
  tpu_sha256_hex(digest, out_hex);
}

static bool file_path(const char *key, char *out, size_t size) {
  int n = snprintf(out, size, "%s/%.2s/%s.bin", tpu_rt_config()->cache_dir, key, key);
  return n > 0 && (size_t)n < size;
}

char *tpu_disk_read(const char *key, size_t *out_size) {
  char path[4096];
  if (!file_path(key, path, sizeof path)) return NULL;
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  header h;
  char *data = NULL;
  struct stat st;
  bool ok = fread(&h, sizeof h, 1, f) == 1 && memcmp(h.format, FORMAT, sizeof FORMAT) == 0 && fstat(fileno(f), &st) == 0 &&
            (uint64_t)st.st_size == sizeof h + h.size && (data = tpu_malloc(h.size ? h.size : 1)) != NULL &&
            fread(data, 1, h.size, f) == h.size;
  fclose(f);
  if (ok) {
    tpu_sha256 s;
    uint8_t digest[32];
    tpu_sha256_init(&s);
    tpu_sha256_update(&s, key, 64);
    tpu_sha256_update(&s, data, h.size);
    tpu_sha256_final(&s, digest);
    ok = memcmp(digest, h.digest, sizeof digest) == 0;
  }
  if (!ok) {
    tpu_free(data);
    return NULL;
  }
  (void)utimensat(AT_FDCWD, path, NULL, 0); /* recently used: the last to be evicted */
  *out_size = h.size;
  return data;
}

/* --- keeping the folder within its bound: the least recently used files go */
typedef struct entry {
  char *path;
  int64_t size, used;
} entry;
static int by_use(const void *a, const void *b) {
  const entry *x = a, *y = b;
  return (x->used > y->used) - (x->used < y->used);
}

static void evict(void) {
  const tpu_config *c = tpu_rt_config();
  entry *list = NULL;
  size_t n = 0, room = 0;
  int64_t total = 0;
  for (int d = 0; d < 256; d++) {
    char dir[4096];
    if (snprintf(dir, sizeof dir, "%s/%02x", c->cache_dir, (unsigned)d) >= (int)sizeof dir) break;
    DIR *at = opendir(dir);
    for (struct dirent *e; at && (e = readdir(at));) {
      char path[4400];
      struct stat st;
      snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
      if (e->d_name[0] == '.' || stat(path, &st) || !S_ISREG(st.st_mode)) continue;
      if (n == room) {
        entry *p = tpu_realloc(list, (room ? room * 2 : 256) * sizeof *p);
        if (!p) break;
        list = p;
        room = room ? room * 2 : 256;
      }
      char *copy = tpu_strdup(path);
      if (!copy) break;
      list[n++] = (entry){copy, st.st_size, (int64_t)st.st_mtim.tv_sec};
      total += st.st_size;
    }
    if (at) closedir(at);
  }
  if (total > c->cache_bytes) {
    qsort(list, n, sizeof *list, by_use);
    for (size_t i = 0; i < n && total > c->cache_bytes - c->cache_bytes / 8; i++) {
      if (unlink(list[i].path) == 0) total -= list[i].size;
    }
  }
  for (size_t i = 0; i < n; i++) tpu_free(list[i].path);
  tpu_free(list);
}

bool tpu_disk_write(const char *key, const char *data, size_t size) {
  static _Atomic int64_t written; /* by this process since the folder was last measured */
  char path[4096], temp[4200];
  if (!file_path(key, path, sizeof path)) return false;
  make_dirs(path);
  struct timespec now; /* process numbers come again, in containers at once */
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(temp, sizeof temp, "%s.%ld.%ld.tmp", path, (long)getpid(), now.tv_nsec);
  int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  header h = {.format = FORMAT, .size = size};
  tpu_sha256 s;
  tpu_sha256_init(&s);
  tpu_sha256_update(&s, key, 64);
  tpu_sha256_update(&s, data, size);
  tpu_sha256_final(&s, h.digest);
  FILE *f = fdopen(fd, "wb");
  bool ok = f && fwrite(&h, sizeof h, 1, f) == 1 && fwrite(data, 1, size, f) == size;
  if (f)
    ok = fclose(f) == 0 && ok;
  else
    close(fd);
  if (!ok || rename(temp, path)) {
    unlink(temp);
    return false;
  }
  int64_t before = atomic_fetch_add(&written, (int64_t)(size + sizeof h));
  int64_t step = tpu_rt_config()->cache_bytes / 16 + 1;
  if (before == 0 || before / step != (before + (int64_t)size) / step) evict();
  return true;
}

int tpu_disk_lock(const char *key) {
  char path[4096];
  int n = snprintf(path, sizeof path, "%s/%.2s/.lock", tpu_rt_config()->cache_dir, key); /* one for all keys of a folder */
  if (n <= 0 || (size_t)n >= sizeof path) return -1;
  make_dirs(path);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return -1;
  /* The kernel drops the lock of a process that dies, so waiting ends; a bound all the same. */
  for (int i = 0; i < 6000; i++) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    struct timespec t = {0, 50000000};
    nanosleep(&t, NULL);
  }
  close(fd);
  return -1;
}

void tpu_disk_unlock(int fd) {
  if (fd >= 0) close(fd);
}
