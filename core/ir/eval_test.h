/* Evaluates what fuzz_test.h makes: interp_test.h and integer dot_general. */
#ifndef TPU_IR_EVAL_TEST_H
#define TPU_IR_EVAL_TEST_H

#include "ir/graph_private.h"
#include "ir/interp_test.h"

/* Integer dot_general, which interp_test.h does not know. */
static void fuzz_eval_dot(interp *in, const tpu_node *node) {
  const interp_value *x = &in->values[node->operands[0].id], *y = &in->values[node->operands[1].id];
  interp_value *out = &in->values[node->first_result];
  tpu_dot_dims d = tpu_attrs_dot(tpu_node_attrs(node));
  out->type = tpu_graph_type(in->graph, (tpu_val){node->first_result});
  out->data = tpu_arena_calloc(in->arena, 1, interp_bytes(out->type) + 16);
  int64_t sizes[TPU_MAX_RANK];
  for (int i = 0; i < d.n_contract; i++) sizes[i] = x->type.dims[d.lhs_contract[i]];
  tpu_type inner = {TPU_I64, d.n_contract, sizes};
  for (int64_t e = 0; e < tpu_type_numel(out->type); e++) {
    int64_t at[TPU_MAX_RANK], xa[TPU_MAX_RANK], ya[TPU_MAX_RANK], ka[TPU_MAX_RANK], sum = 0;
    bool xt[TPU_MAX_RANK] = {false}, yt[TPU_MAX_RANK] = {false};
    interp_unravel(out->type, e, at);
    int next = d.n_batch;
    for (int i = 0; i < d.n_batch; i++) {
      xa[d.lhs_batch[i]] = ya[d.rhs_batch[i]] = at[i];
      xt[d.lhs_batch[i]] = yt[d.rhs_batch[i]] = true;
    }
    for (int i = 0; i < d.n_contract; i++) xt[d.lhs_contract[i]] = yt[d.rhs_contract[i]] = true;
    for (int i = 0; i < x->type.rank; i++)
      if (!xt[i]) xa[i] = at[next++];
    for (int i = 0; i < y->type.rank; i++)
      if (!yt[i]) ya[i] = at[next++];
    for (int64_t k = 0; k < tpu_type_numel(inner); k++) {
      interp_unravel(inner, k, ka);
      for (int i = 0; i < d.n_contract; i++) xa[d.lhs_contract[i]] = ya[d.rhs_contract[i]] = ka[i];
      sum = (int64_t)((uint64_t)sum +
                      (uint64_t)interp_get(x, interp_ravel(x->type, xa)) * (uint64_t)interp_get(y, interp_ravel(y->type, ya)));
    }
    interp_put(out, e, sum);
  }
}

static bool fuzz_eval(interp *in) {
  (void)interp_run; /* its loop knows no dot_general */
  uint32_t n = tpu_graph_node_count(in->graph);
  in->values = tpu_arena_calloc(in->arena, in->graph->n_values, sizeof *in->values);
  in->refused = NULL;
  for (uint32_t i = 0; i < n && !in->refused; i++) {
    const tpu_node *node = tpu_graph_node(in->graph, i);
    if (node->op == TPU_HLO_DOT_GENERAL)
      fuzz_eval_dot(in, node);
    else
      interp_node(in, node);
  }
  return !in->refused;
}

#endif
