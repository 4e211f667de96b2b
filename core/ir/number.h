/* One element of any dtype as host bytes. Pure functions; thread-safe. May include: base. */
#ifndef TPU_IR_NUMBER_H
#define TPU_IR_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

enum { TPU_ELEMENT_BYTES = 16 }; /* the largest */

/* Rounds to nearest even; integers truncate and saturate, NaN gives 0; bool is v != 0; complex takes the real part. */
void tpu_number_from_double(tpu_dtype dtype, double v, void *out_element);
/* Integers wrap. */
void tpu_number_from_int(tpu_dtype dtype, int64_t v, void *out_element);
/* The real part; I64 and U64 round. */
double tpu_number_to_double(tpu_dtype dtype, const void *element);
/* Of an integer or bool element; U64 wraps. */
int64_t tpu_number_to_int(tpu_dtype dtype, const void *element);
/* Of a complex element: its imaginary part; others 0. */
double tpu_number_imag(tpu_dtype dtype, const void *element);
/* The element's bits, low byte first; at most 8 bytes. */
uint64_t tpu_number_bits(const void *element, int bytes);

#endif
