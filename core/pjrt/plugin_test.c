#include "pjrt/plugin.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/test.h"
#include "pjrt/hardware.h"
#include "pjrt/plugin_private.h"

static void put_file(const char *root, const char *path, const char *text) {
  char full[512];
  (void)snprintf(full, sizeof full, "%s/%s", root, path);
  for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); at++) {
    *at = 0;
    (void)mkdir(full, 0700);
    *at = '/';
  }
  FILE *f = fopen(full, "w");
  if (f) {
    (void)fputs(text, f);
    (void)fclose(f);
  }
}

static const char *put_machine(void) {
  static char root[64];
  (void)snprintf(root, sizeof root, "/tmp/tpu_hardware_XXXXXX");
  return mkdtemp(root);
}

TEST(hardware) {
  const char *root = put_machine();
  CHECK(root);
  CHECK_INT(tpu_hardware_count_at(root), 0);
  put_file(root, "sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n");
  put_file(root, "sys/bus/pci/devices/0000:00:01.0/device", "0x0063\n");
  put_file(root, "sys/bus/pci/devices/0000:00:02.0/vendor", "0x1ae0\n");
  put_file(root, "sys/bus/pci/devices/0000:00:02.0/device", "0x0042\n"); /* a network card of the same maker */
  put_file(root, "dev/vfio/0", "");
  CHECK_INT(tpu_hardware_count_at(root), 0);
  for (int i = 0; i < 4; i++) {
    char path[128];
    (void)snprintf(path, sizeof path, "sys/bus/pci/devices/0000:01:0%d.0/vendor", i);
    put_file(root, path, "0x1ae0\n");
    (void)snprintf(path, sizeof path, "sys/bus/pci/devices/0000:01:0%d.0/device", i);
    put_file(root, path, "0x0063\n");
  }
  CHECK_INT(tpu_hardware_count_at(root), 1); /* one node of four chips */
  put_file(root, "dev/vfio/vfio", "");       /* the control node is no chip */
  CHECK_INT(tpu_hardware_count_at(root), 1);
  put_file(root, "dev/vfio/1", "");
  put_file(root, "dev/accel0", "");
  put_file(root, "dev/accel_other", "");
  CHECK_INT(tpu_hardware_count_at(root), 3);

  char path[64];
  bool is_tpu = false;
  unsetenv("TPU_LIBRARY_PATH");
  CHECK_OK(tpu_plugin_choose_at(root, "/x/libtpu.so", "/x/cpu.so", path, sizeof path, &is_tpu));
  CHECK_STR(path, "/x/libtpu.so");
  CHECK(is_tpu);
  CHECK_ERROR(tpu_plugin_choose_at(root, NULL, NULL, path, sizeof path, &is_tpu), TPU_NOT_FOUND,
              "a TPU is attached but libtpu is not installed");
  CHECK_OK(tpu_plugin_choose_at(root, "", "/x/cpu.so", path, sizeof path, &is_tpu));
  CHECK_STR(path, "/x/cpu.so");
  CHECK(!is_tpu);
}

TEST(choose) {
  const char *root = put_machine();
  CHECK(root);
  char path[16];
  bool is_tpu = true;
  unsetenv("TPU_LIBRARY_PATH");
  CHECK_OK(tpu_plugin_choose_at(root, "/x/libtpu.so", "/x/cpu.so", path, sizeof path, &is_tpu));
  CHECK_STR(path, "/x/cpu.so");
  CHECK(!is_tpu);
  CHECK_ERROR(tpu_plugin_choose_at(root, "/x/libtpu.so", NULL, path, sizeof path, &is_tpu), TPU_NOT_FOUND,
              "no TPU is attached to this machine");
  CHECK_ERROR(tpu_plugin_choose_at(root, NULL, "/a/path/that/is/long", path, sizeof path, &is_tpu), TPU_INVALID_ARGUMENT,
              "too long");
  setenv("TPU_LIBRARY_PATH", "/y/p.so", 1);
  CHECK_OK(tpu_plugin_choose_at(root, "/x/libtpu.so", "/x/cpu.so", path, sizeof path, &is_tpu));
  CHECK_STR(path, "/y/p.so");
  unsetenv("TPU_LIBRARY_PATH");
}

TEST(wrong_files) {
  tpu_plugin *plugin;
  CHECK_ERROR(tpu_plugin_load("", false, &plugin), TPU_NOT_FOUND, "no PJRT plugin is given");
  CHECK_ERROR(tpu_plugin_load("/nowhere/p.so", false, &plugin), TPU_NOT_FOUND,
              "there is no PJRT plugin at /nowhere/p.so: No such file or directory");
  const char *root = put_machine();
  char path[128];
  put_file(root, "text.so", "no library\n");
  (void)snprintf(path, sizeof path, "%s/text.so", root);
  CHECK_ERROR(tpu_plugin_load(path, false, &plugin), TPU_FAILED_PRECONDITION, "cannot load the PJRT plugin");
  Dl_info libc;
  CHECK(dladdr(stdout, &libc));
  CHECK_ERROR(tpu_plugin_load(libc.dli_fname, false, &plugin), TPU_FAILED_PRECONDITION,
              "is no PJRT plugin: it does not export GetPjrtApi");
  CHECK(!plugin);
}

TEST(old_plugin) {
  const char *old = getenv("TPU_TEST_OLD_PLUGIN");
  if (!old) SKIP("TPU_TEST_OLD_PLUGIN is not set");
  tpu_plugin *plugin;
  CHECK_ERROR(tpu_plugin_load(old, false, &plugin), TPU_FAILED_PRECONDITION,
              "speaks PJRT API 0.80, but 0.81 or a later 0.x is needed");
}

TEST(fake) {
  const char *path = getenv("TPU_TEST_FAKE_PLUGIN");
  if (!path) SKIP("TPU_TEST_FAKE_PLUGIN is not set");
  tpu_plugin *plugin, *again;
  CHECK(!getenv("TF_CPP_MIN_LOG_LEVEL"));
  CHECK_OK(tpu_plugin_load(path, false, &plugin));
  CHECK(!getenv("TF_CPP_MIN_LOG_LEVEL")); /* set during the load only */
  CHECK_OK(tpu_plugin_load(path, false, &again));
  CHECK(plugin == again);
  CHECK_INT(tpu_plugin_api_minor(plugin), 106);
  int64_t version[3] = {0};
  CHECK(tpu_plugin_version(plugin, "stablehlo_current_version", version));
  CHECK(version[0] == 1 && version[1] == 16 && version[2] == 1);
  CHECK(tpu_plugin_version(plugin, "xla_version", version) && version[0] == 2 && version[1] == 0);
  CHECK(!tpu_plugin_version(plugin, "nothing", version));

  char command[1024], line[128] = "";
  (void)snprintf(command, sizeof command, "sha256sum '%s' 2>/dev/null", path);
  FILE *f = popen(command, "r");
  CHECK(f);
  bool got = fgets(line, sizeof line, f) != NULL;
  (void)pclose(f);
  const char *digest = tpu_plugin_digest(plugin);
  CHECK_INT(strlen(digest), 64);
  if (got) CHECK(strncmp(digest, line, 64) == 0);
  CHECK(digest == tpu_plugin_digest(plugin));
}

TEST_MAIN(TEST_CASE(hardware), TEST_CASE(choose), TEST_CASE(wrong_files), TEST_CASE(old_plugin), TEST_CASE(fake));
