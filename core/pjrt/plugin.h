/* tpu_plugin: a loaded PJRT plugin (a shared library that exports GetPjrtApi). Thread-safe.
 * Plugins are loaded once per path and never unloaded.
 */
#ifndef TPU_PJRT_PLUGIN_H
#define TPU_PJRT_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tpu_plugin tpu_plugin;

/* Loads and initialises the plugin at `path`.
 * NOT_FOUND: no such file. FAILED_PRECONDITION: no PJRT plugin, or its API is older than 0.81.
 * `for_aot`: only its compiler is wanted (libtpu without hardware: sets what keeps it from probing). */
tpu_status tpu_plugin_load(const char *path, bool for_aot, tpu_plugin **out_plugin) TPU_MUST_USE;

/* The plugin this process should use. In this order: TPU_LIBRARY_PATH; libtpu if TPU hardware is attached
 * (PCI vendor 0x1ae0 with a vfio or accel device; no network probe); `embedded` (the CPU plugin
 * that the package found installed; may be NULL). NOT_FOUND names what was tried. */
tpu_status tpu_plugin_choose(const char *libtpu, const char *embedded, char *out_path, size_t path_size,
                             bool *out_is_tpu) TPU_MUST_USE;
/* Number of TPU chips on the PCI bus that this process could open. Never blocks on the network. */
int tpu_hardware_count(void);

const char *tpu_plugin_path(const tpu_plugin *plugin);
int tpu_plugin_api_minor(const tpu_plugin *plugin);
/* SHA-256 of the plugin's file, hex; computed once, on first use. "" if it cannot be read. */
const char *tpu_plugin_digest(tpu_plugin *plugin);
/* Attributes such as "stablehlo_current_version"; NULL/false if absent. */
bool tpu_plugin_version(const tpu_plugin *plugin, const char *name, int64_t out_version[3]);

#endif
