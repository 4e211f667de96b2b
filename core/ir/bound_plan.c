#include "base/alloc.h"
#include "ir/bound.h"
#include "ir/graph_private.h"

static bool vary_together(const tpu_plan *p, uint32_t i, uint32_t k) {
  for (uint32_t s = 0; s < p->n_samples; s++)
    if (p->samples[s][i] != p->samples[s][k]) return false;
  return true;
}

static bool varies(const tpu_plan *p, uint32_t i) {
  for (uint32_t s = 1; s < p->n_samples; s++)
    if (p->samples[s][i] != p->samples[0][i]) return true;
  return false;
}

static int32_t class_find(const tpu_plan *p, uint32_t i, tpu_dtype dtype) {
  for (uint32_t c = 0; c < p->n_classes; c++) {
    if (p->classes[c].dtype != dtype) continue;
    if (vary_together(p, i, p->classes[c].number)) return (int32_t)c;
  }
  return -1;
}

static bool plan_number(tpu_plan *p, const tpu_numbers_of *numbers, uint32_t i, tpu_dtype dtype) {
  p->class_of[i] = -1;
  if (!varies(p, i)) return true;
  if (numbers->kind[i] == TPU_NUMBER_ELEMENTS) return false;
  int32_t c = class_find(p, i, dtype);
  if (c < 0) {
    if (p->n_classes == TPU_MOST_CLASSES) return false;
    c = (int32_t)p->n_classes++;
    p->classes[c] = (tpu_class){.number = i, .dtype = dtype};
  }
  p->class_of[i] = c;
  if (numbers->kind[i] == TPU_NUMBER_DIM) p->classes[c].is_dim = true;
  return true;
}

static bool plan_numbers(tpu_plan *p, const tpu_graph *g, const tpu_numbers_of *numbers) {
  for (uint32_t i = 0; i < numbers->n; i++)
    if (numbers->kind[i] < TPU_NUMBER_ELEMENT && !plan_number(p, numbers, i, TPU_DTYPE_NONE)) return false;
  for (uint32_t k = 0; k < g->n_nodes; k++) { /* elements need their constant's dtype */
    const tpu_node *node = tpu_node_at(g, k);
    if (node->op != TPU_HLO_CONSTANT || node->block || !tpu_node_is_live(g, node)) continue;
    uint32_t at = numbers->at[k];
    tpu_dtype dtype = tpu_value_at(g, node->first_result)->type.dtype;
    if (!plan_number(p, numbers, at, dtype) || varies(p, at + 1)) return false;
    p->class_of[at + 1] = -1;
    if (p->class_of[at] >= 0 && tpu_is_complex(dtype)) return false;
  }
  return true;
}

tpu_plan *tpu_plan_create(const tpu_graph *graph, const tpu_numbers_of *numbers, uint32_t n_samples,
                          const int64_t *const *samples) {
  tpu_plan *p = tpu_calloc(1, sizeof *p);
  if (!p) return NULL;
  p->n = numbers->n;
  p->n_samples = n_samples;
  p->samples = samples;
  p->class_of = tpu_malloc((numbers->n + 1) * sizeof *p->class_of);
  p->classes = tpu_calloc(TPU_MOST_CLASSES, sizeof *p->classes);
  if (p->class_of && p->classes && plan_numbers(p, graph, numbers)) return p;
  tpu_plan_destroy(p);
  return NULL;
}

void tpu_plan_destroy(tpu_plan *p) {
  if (!p) return;
  tpu_free(p->class_of);
  tpu_free(p->classes);
  tpu_free(p);
}

bool tpu_plan_fits(const tpu_plan *p, const int64_t *numbers, const int64_t *base) {
  for (uint32_t i = 0; i < p->n; i++) {
    int32_t c = p->class_of[i];
    if (numbers[i] != (c < 0 ? base[i] : numbers[p->classes[c].number])) return false;
  }
  return true;
}
