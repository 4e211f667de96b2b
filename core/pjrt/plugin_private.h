/* Private to this folder and its tests. */
#ifndef TPU_PJRT_PLUGIN_PRIVATE_H
#define TPU_PJRT_PLUGIN_PRIVATE_H

#include <stddef.h>

#include "pjrt/plugin.h"

/* tpu_plugin_choose with <root>/sys and <root>/dev in place of /sys and /dev. */
tpu_status tpu_plugin_choose_at(const char *root, const char *libtpu, const char *embedded, char *out_path, size_t path_size,
                                bool *out_is_tpu) TPU_MUST_USE;

#endif
