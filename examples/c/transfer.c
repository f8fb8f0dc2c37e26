/* Two processes, or one that talks to itself:
 *
 *   transfer              starts two engines and moves a text from one to the other
 *   transfer HOST:PORT    writes the text into the first region of the engine at HOST:PORT
 */
#include <moonpool/moonpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kText[] = "the cache has moved";

static void check(moonpool_code code, const char* what) {
  if (code == MOONPOOL_OK) return;
  const moonpool_error* error = moonpool_last_error();
  fprintf(stderr, "%s: %s: %s (peer %s, transport %s, phase %s)\n", what, moonpool_code_name(code),
          error->message, error->peer, error->transport, error->phase);
  exit(1);
}

/* Writes the text into the first region that `peer` offers, and tells it. */
static void send_text(moonpool_engine* engine, const char* peer) {
  void* memory = NULL;
  check(moonpool_allocate(engine, sizeof(kText), 0, &memory), "allocate");
  memcpy(memory, kText, sizeof(kText));

  uint64_t segment = 0;
  check(moonpool_open(engine, peer, 10, &segment), "open");
  moonpool_region region;
  size_t count = 1;
  check(moonpool_segment_regions(engine, segment, &region, &count), "regions");
  if (count == 0) {
    fprintf(stderr, "%s offers no memory\n", peer);
    exit(1);
  }

  const uint64_t local = (uint64_t)(uintptr_t)memory;
  const uint64_t length = sizeof(kText);
  const moonpool_group group = {.segment = segment,
                                .write = 1,
                                .count = 1,
                                .local = &local,
                                .remote = &region.address,
                                .lengths = &length};
  const moonpool_batch_request request = {.struct_size = sizeof(request),
                                          .groups = &group,
                                          .group_count = 1,
                                          .limit = 10,
                                          .notify = 1,
                                          .payload = "sent",
                                          .payload_size = 4};
  uint64_t batch = 0;
  check(moonpool_submit(engine, &request, &batch), "submit");
  check(moonpool_wait(engine, batch, -1), "wait");
  moonpool_batch_status status;
  check(moonpool_poll(engine, batch, &status), "poll");
  printf("%llu bytes went to %s over %s\n", (unsigned long long)status.bytes_done, peer,
         status.transport);
  check(moonpool_release(engine, batch), "release");
  check(moonpool_free(engine, memory, 0), "free");
}

int main(int argc, char** argv) {
  moonpool_engine* sender = NULL;
  check(moonpool_engine_create(NULL, &sender), "create");
  if (argc > 1) {
    send_text(sender, argv[1]);
    moonpool_engine_destroy(sender);
    return 0;
  }

  moonpool_engine* receiver = NULL;
  check(moonpool_engine_create(NULL, &receiver), "create");
  void* memory = NULL;
  check(moonpool_allocate(receiver, 4096, MOONPOOL_READ | MOONPOOL_WRITE, &memory), "allocate");
  send_text(sender, moonpool_engine_address(receiver));

  char* payload = malloc(MOONPOOL_NOTIFICATION_BYTES_MAX);
  if (payload == NULL) return 1;
  moonpool_notification notification = {.payload = payload,
                                        .capacity = MOONPOOL_NOTIFICATION_BYTES_MAX};
  check(moonpool_take_notification(receiver, 10, &notification), "take a notification");
  printf("%s says '%.*s', and here is: %s\n", notification.sender, (int)notification.size, payload,
         (const char*)memory);
  const int same = memcmp(memory, kText, sizeof(kText)) == 0;
  free(payload);
  moonpool_engine_destroy(sender);
  moonpool_engine_destroy(receiver);
  return same ? 0 : 1;
}
