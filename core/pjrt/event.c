#include "pjrt/client_private.h"

tpu_status tpu_event_await(const tpu_client *client, tpu_event *event) {
  if (!event) return NULL;
  tpu_abi_Event_Await args = {.event = event};
  uint64_t start = tpu_count_start();
  tpu_status status = TPU_CALL(client->plugin, Event_Await, &args);
  tpu_count_end(client, TPU_COUNTED_await, start);
  return status;
}

bool tpu_event_ready(const tpu_client *client, tpu_event *event) {
  if (!event) return true;
  tpu_abi_Event_IsReady args = {.event = event};
  tpu_status status = TPU_CALL(client->plugin, Event_IsReady, &args);
  if (!status) return args.is_ready;
  tpu_status_release(status);
  return true; /* who then awaits it is told */
}

void tpu_event_destroy(const tpu_client *client, tpu_event *event) {
  if (!event) return;
  tpu_abi_Event_Destroy args = {.event = event};
  TPU_CALL_IGNORE(client->plugin, Event_Destroy, &args);
}
