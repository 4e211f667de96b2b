/* A small test harness. A test file holds TEST(name) { ... } functions and ends with
 * TEST_MAIN(TEST_CASE(a), TEST_CASE(b)). A failed CHECK prints where and what, and ends its test;
 * main then returns 1. Single-threaded: CHECK only on the thread that runs the test.
 */
#ifndef TPU_BASE_TEST_H
#define TPU_BASE_TEST_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

typedef struct tpu_test {
  const char *name;
  void (*run)(void);
} tpu_test;

static bool tpu_test_failed;

#define TEST(name) static void test_##name(void)
#define TEST_CASE(name) {#name, test_##name}

#define CHECK_FAIL(...)                             \
  do {                                              \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
    fprintf(stderr, __VA_ARGS__);                   \
    fputc('\n', stderr);                            \
    tpu_test_failed = true;                         \
    return;                                         \
  } while (0)

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) CHECK_FAIL("not true: %s", #condition); \
  } while (0)

#define CHECK_INT(a, b)                                                                            \
  do {                                                                                             \
    long long check_a_ = (long long)(a), check_b_ = (long long)(b);                                \
    if (check_a_ != check_b_) CHECK_FAIL("%s is %lld, not %s = %lld", #a, check_a_, #b, check_b_); \
  } while (0)

#define CHECK_STR(a, b)                                                                                  \
  do {                                                                                                   \
    const char *check_a_ = (a), *check_b_ = (b);                                                         \
    if (strcmp(check_a_, check_b_) != 0) CHECK_FAIL("%s is \"%s\", not \"%s\"", #a, check_a_, check_b_); \
  } while (0)

#define CHECK_OK(expr)                                                                                                 \
  do {                                                                                                                 \
    tpu_status check_status_ = (expr);                                                                                 \
    if (check_status_) {                                                                                               \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #expr, tpu_code_name(tpu_status_code(check_status_)), \
              tpu_status_message(check_status_));                                                                      \
      tpu_status_release(check_status_);                                                                               \
      tpu_test_failed = true;                                                                                          \
      return;                                                                                                          \
    }                                                                                                                  \
  } while (0)

/* Fails with `code`, and the message holds `text`. */
#define CHECK_ERROR(expr, code, text)                                                                                         \
  do {                                                                                                                        \
    tpu_status check_status_ = (expr);                                                                                        \
    if (tpu_status_code(check_status_) != (code) || !strstr(tpu_status_message(check_status_), (text))) {                     \
      fprintf(stderr, "%s:%d: %s: %s \"%s\", wanted %s \"%s\"\n", __FILE__, __LINE__, #expr,                                  \
              tpu_code_name(tpu_status_code(check_status_)), tpu_status_message(check_status_), tpu_code_name(code), (text)); \
      tpu_status_release(check_status_);                                                                                      \
      tpu_test_failed = true;                                                                                                 \
      return;                                                                                                                 \
    }                                                                                                                         \
    tpu_status_release(check_status_);                                                                                        \
  } while (0)

/* For tests that cannot run here. Says why. */
#define SKIP(...)                 \
  do {                            \
    fprintf(stderr, "skipped: "); \
    fprintf(stderr, __VA_ARGS__); \
    fputc('\n', stderr);          \
    return;                       \
  } while (0)

/* argv[1], if given, is the name of the one test to run. */
#define TEST_MAIN(...)                                                                \
  int main(int argc, char **argv) {                                                   \
    static const tpu_test tests[] = {__VA_ARGS__};                                    \
    int failures = 0;                                                                 \
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {                       \
      if (argc > 1 && strcmp(argv[1], tests[i].name) != 0) continue;                  \
      tpu_test_failed = false;                                                        \
      tests[i].run();                                                                 \
      if (tpu_test_failed) fprintf(stderr, "FAILED %s\n", tests[i].name), failures++; \
    }                                                                                 \
    return failures ? 1 : 0;                                                          \
  }                                                                                   \
  struct tpu_test_end_ /* takes the semicolon */

#endif
