#include "pjrt/fake_program.h"

#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  int type;
  size_t bytes;
} elements[] = {
#define DTYPE(name, torch, hlo, pjrt, bytes, ...) {hlo, pjrt, bytes},
#include "base/dtype.inc"
};

size_t fake_element_bytes(int type) {
  for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
    if (elements[i].type == type) return elements[i].bytes;
  return 0;
}

typedef struct reader {
  const char *at, *end;
  const char *why;
} reader;

static void skip_space(reader *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) r->at++;
}

static bool take(reader *r, const char *word) {
  skip_space(r);
  size_t n = strlen(word);
  if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0) return false;
  r->at += n;
  return true;
}

static bool fail(reader *r, const char *why) {
  r->why = why;
  return false;
}

/* tensor<4x?...>: dims, then the element type; the closing > of the tensor is taken. */
static bool read_type(reader *r, fake_type *out) {
  if (!take(r, "tensor<")) return fail(r, "expected tensor<...>");
  *out = (fake_type){.bytes = 1};
  while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
    int64_t dim = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') dim = dim * 10 + (*r->at++ - '0');
    if (r->at == r->end || *r->at++ != 'x') return fail(r, "expected x after a dimension");
    if (out->rank == FAKE_MAX_RANK) return fail(r, "too many dimensions");
    out->dims[out->rank++] = dim;
    out->bytes *= (size_t)dim;
  }
  for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
    size_t n = strlen(elements[i].name);
    if ((size_t)(r->end - r->at) <= n || memcmp(r->at, elements[i].name, n) != 0 || r->at[n] != '>') continue;
    r->at += n + 1;
    out->type = elements[i].type;
    out->bytes *= elements[i].bytes;
    return true;
  }
  return fail(r, "unknown element type");
}

/* {...}, if there is one: nested and quoted as they come. */
static bool read_attributes(reader *r, const char **out_from, const char **out_to) {
  *out_from = *out_to = r->at;
  if (!take(r, "{")) return true;
  *out_from = r->at;
  int depth = 1;
  bool quoted = false;
  for (; r->at < r->end && depth; r->at++) {
    if (*r->at == '"') quoted = !quoted;
    if (quoted) continue;
    depth += (*r->at == '{') - (*r->at == '}');
  }
  *out_to = r->at - 1;
  return depth ? fail(r, "attributes are not closed") : true;
}

static const char *find(const char *from, const char *to, const char *word) {
  return to > from ? memmem(from, (size_t)(to - from), word, strlen(word)) : NULL;
}

static bool read_argument(reader *r, fake_argument *out) {
  skip_space(r);
  if (r->at < r->end && *r->at == '%') {
    while (r->at < r->end && *r->at != ':') r->at++;
    if (!take(r, ":")) return fail(r, "expected : after an argument's name");
  }
  out->alias = -1;
  if (!read_type(r, &out->type)) return false;
  const char *from, *to;
  if (!read_attributes(r, &from, &to)) return false;
  const char *alias = find(from, to, "tf.aliasing_output = ");
  if (alias) out->alias = strtoll(alias + strlen("tf.aliasing_output = "), NULL, 10);
  out->donated = alias || find(from, to, "jax.buffer_donor = true");
  return true;
}

static bool read_result(reader *r, fake_type *out) {
  const char *from, *to;
  return read_type(r, out) && read_attributes(r, &from, &to);
}

static bool read_main(reader *r, fake_program *out) {
  if (!take(r, "(")) return fail(r, "expected ( after @main");
  while (!take(r, ")")) {
    if (out->argument_count == FAKE_MAX_VALUES) return fail(r, "too many arguments");
    if (out->argument_count && !take(r, ",")) return fail(r, "expected , between arguments");
    if (!read_argument(r, &out->arguments[out->argument_count++])) return false;
  }
  if (!take(r, "->")) return true;
  if (!take(r, "(")) {
    out->result_count = 1;
    return read_result(r, &out->results[0]);
  }
  while (!take(r, ")")) {
    if (out->result_count == FAKE_MAX_VALUES) return fail(r, "too many results");
    if (out->result_count && !take(r, ",")) return fail(r, "expected , between results");
    if (!read_result(r, &out->results[out->result_count++])) return false;
  }
  return true;
}

bool fake_program_parse(const char *text, size_t size, fake_program *out, const char **out_why) {
  *out = (fake_program){0};
  const char *entry = find(text, text + size, "@main");
  if (!entry) {
    *out_why = "there is no @main";
    return false;
  }
  reader r = {.at = entry + strlen("@main"), .end = text + size};
  out->arguments = calloc(FAKE_MAX_VALUES, sizeof *out->arguments);
  out->results = calloc(FAKE_MAX_VALUES, sizeof *out->results);
  bool ok = out->arguments && out->results ? read_main(&r, out) : fail(&r, "out of memory");
  for (size_t i = 0; ok && i < out->argument_count; i++) {
    int64_t k = out->arguments[i].alias;
    if (k >= 0 && ((size_t)k >= out->result_count || out->results[k].bytes != out->arguments[i].type.bytes))
      ok = fail(&r, "an argument aliases a result of another size");
  }
  if (!ok) {
    *out_why = r.why;
    fake_program_destroy(out);
  }
  return ok;
}

void fake_program_destroy(fake_program *program) {
  free(program->arguments);
  free(program->results);
  *program = (fake_program){0};
}
