#include "base/status.h"

#include "base/alloc.h"
#include "base/test.h"

TEST(create) {
  tpu_status s = tpu_error(TPU_NOT_FOUND, "no %s in %d", "x", 7);
  CHECK_INT(tpu_status_code(s), TPU_NOT_FOUND);
  CHECK_STR(tpu_status_message(s), "no x in 7");
  CHECK(strstr(tpu_status_file(s), "status_test.c"));
  CHECK(tpu_status_line(s) > 0);
  tpu_status again = tpu_status_retain(s);
  tpu_status_release(s);
  CHECK_STR(tpu_status_message(again), "no x in 7");
  again = tpu_status_prefix(again, "while %s: ", "testing");
  CHECK_STR(tpu_status_message(again), "while testing: no x in 7");
  CHECK_INT(tpu_status_code(again), TPU_NOT_FOUND);
  tpu_status_release(again);
  CHECK_INT(tpu_alloc_live(), 0);
}

TEST(null_is_success) {
  CHECK_INT(tpu_status_code(NULL), TPU_OK);
  CHECK_STR(tpu_status_message(NULL), "");
  CHECK_STR(tpu_code_name(TPU_RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED");
  CHECK(!tpu_status_prefix(NULL, "x"));
  CHECK(!tpu_status_join(NULL, NULL));
  CHECK(!tpu_status_retain(NULL));
  tpu_status_release(NULL);
}

TEST(out_of_memory) {
  tpu_alloc_fail_after(0);
  tpu_status s = tpu_error(TPU_INTERNAL, "lost");
  CHECK_INT(tpu_status_code(s), TPU_RESOURCE_EXHAUSTED);
  tpu_status kept = tpu_status_retain(s);
  tpu_status_release(s);
  tpu_status_release(kept);
  CHECK_STR(tpu_status_message(kept), "out of host memory"); /* static: alive after its releases */
  s = tpu_error(TPU_INTERNAL, "first");
  tpu_alloc_fail_after(0);
  s = tpu_status_prefix(s, "before: ");
  CHECK_STR(tpu_status_message(s), "first");
  tpu_status_release(s);
  CHECK_INT(tpu_alloc_live(), 0);
}

TEST(join) {
  tpu_status s = tpu_status_join(tpu_error(TPU_ABORTED, "a"), tpu_error(TPU_INTERNAL, "b"));
  CHECK_STR(tpu_status_message(s), "a");
  tpu_status_release(s);
  s = tpu_status_join(NULL, tpu_error(TPU_INTERNAL, "b"));
  CHECK_STR(tpu_status_message(s), "b");
  tpu_status_release(s);
  CHECK_INT(tpu_alloc_live(), 0);
}

TEST_MAIN(TEST_CASE(create), TEST_CASE(null_is_success), TEST_CASE(out_of_memory), TEST_CASE(join));
