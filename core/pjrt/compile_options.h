/* CompileOptionsProto of XLA (xla/pjrt/proto/compile_options.proto), encoded by hand. Private to this folder.
 * Thread-safe.
 */
#ifndef TPU_PJRT_COMPILE_OPTIONS_H
#define TPU_PJRT_COMPILE_OPTIONS_H

#include "base/strbuf.h"
#include "pjrt/client.h"

/* Appends the message to out. `options` may be NULL. A program of one device is made portable over all devices.
 * quirks.cpu_overrides: adds what makes XLA's CPU compiler exact, unless the caller overrides the same key.
 * Failure is out->failed. */
void tpu_compile_options_encode(const tpu_compile_options *options, const tpu_quirks *quirks, tpu_strbuf *out);

#endif
