#include "pjrt/hardware.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pjrt/plugin.h"

enum { GOOGLE = 0x1ae0 };
static const long chips[] = {
    0x0027, /* v2, v3 */
    0x005e, /* v4 */
    0x0062, /* v5p */
    0x0063, /* v5e */
    0x006f, /* v6e */
    0x0076, /* v7 */
};

static long read_hex(const char *folder, const char *device, const char *name) {
  char path[512], text[32] = "";
  int size = snprintf(path, sizeof path, "%s/%s/%s", folder, device, name);
  if (size < 0 || (size_t)size >= sizeof path) return -1;
  FILE *f = fopen(path, "r");
  if (!f) return -1;
  bool got = fgets(text, sizeof text, f) != NULL;
  (void)fclose(f);
  return got ? strtol(text, NULL, 16) : -1;
}

static int count_chips(const char *folder) {
  int count = 0;
  DIR *dir = opendir(folder);
  if (!dir) return 0;
  for (struct dirent *e; (e = readdir(dir));) {
    if (e->d_name[0] == '.' || read_hex(folder, e->d_name, "vendor") != GOOGLE) continue;
    long id = read_hex(folder, e->d_name, "device");
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++) count += chips[i] == id;
  }
  closedir(dir);
  return count;
}

/* Files <folder>/<prefix><digit>... that this process may read and write. */
static int count_nodes(const char *folder, const char *prefix) {
  int count = 0;
  size_t length = strlen(prefix);
  DIR *dir = opendir(folder);
  if (!dir) return 0;
  for (struct dirent *e; (e = readdir(dir));) {
    char path[512];
    if (strncmp(e->d_name, prefix, length) != 0 || !isdigit((unsigned char)e->d_name[length])) continue;
    int size = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (size > 0 && (size_t)size < sizeof path && access(path, R_OK | W_OK) == 0) count++;
  }
  closedir(dir);
  return count;
}

int tpu_hardware_count_at(const char *root) {
  char pci[256], dev[256], vfio[256];
  int a = snprintf(pci, sizeof pci, "%s/sys/bus/pci/devices", root);
  int b = snprintf(dev, sizeof dev, "%s/dev", root);
  int c = snprintf(vfio, sizeof vfio, "%s/dev/vfio", root);
  if (a < 0 || b < 0 || c < 0 || a >= (int)sizeof pci || c >= (int)sizeof vfio) return 0;
  int count = count_chips(pci);
  if (!count) return 0;
  int nodes = count_nodes(dev, "accel") + count_nodes(vfio, ""); /* a container may hold some of the chips only */
  return nodes < count ? nodes : count;
}

int tpu_hardware_count(void) { return tpu_hardware_count_at(""); }
