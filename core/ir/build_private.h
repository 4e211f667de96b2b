/* Shared by the files of the builder. */
#ifndef TPU_IR_BUILD_PRIVATE_H
#define TPU_IR_BUILD_PRIVATE_H

#include "ir/graph_private.h"

/* Attribute numbers being collected on the stack. */
enum { TPU_NUMBERS = 10 * TPU_MAX_RANK };
typedef struct tpu_numbers {
  uint32_t n;
  bool overflow;
  int64_t v[TPU_NUMBERS];
} tpu_numbers;
void tpu_numbers_put(tpu_numbers *a, int64_t v);
void tpu_numbers_put_n(tpu_numbers *a, int n, const int64_t *v, int64_t otherwise); /* v NULL: n times `otherwise` */

/* tpu_build_node with collected numbers; regions are copied. */
bool tpu_build_with(tpu_build *b, tpu_hlo op, uint32_t n_operands, const tpu_val *operands, const tpu_numbers *numbers,
                    uint32_t n_regions, const tpu_region *regions, uint32_t n_results, const tpu_type *types, tpu_val *out);

tpu_hlo tpu_monoid_hlo(tpu_monoid op); /* not of ASSIGN */
/* (x, y) -> x op y on scalars; ASSIGN returns y. */
bool tpu_monoid_region(tpu_build *b, tpu_monoid op, tpu_dtype dtype, tpu_region *out);

#endif
