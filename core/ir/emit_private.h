/* Shared by the files of the emitter. */
#ifndef TPU_IR_EMIT_PRIVATE_H
#define TPU_IR_EMIT_PRIVATE_H

#include "ir/emit.h"
#include "ir/graph_private.h"

#define EMIT(s, literal) tpu_strbuf_put_n((s), literal, sizeof(literal) - 1)

void tpu_emit_type(tpu_strbuf *s, tpu_type type); /* tensor<2x3xf32> */
/* " {...}" with the attributes of a node, or nothing. */
void tpu_emit_attrs(tpu_strbuf *s, const tpu_graph *graph, const tpu_node *node);
/* dense<...> : tensor<...>, exactly. data: one element (splat) or all. */
void tpu_emit_dense(tpu_strbuf *s, tpu_type type, const void *data, uint32_t bytes);

#endif
