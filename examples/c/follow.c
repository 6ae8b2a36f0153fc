/* SPDX-License-Identifier: Apache-2.0 */
/* Receives a run into tensors of its own, and ends when the run has ended.
 *
 *   follow CONFIG TENSORS BASE OUT [KEY=VALUE...]
 *
 * CONFIG is the job's YAML file; KEY=VALUE overrides a setting. TENSORS is a text file with a line
 * for each tensor of the model: its name, its type and its shape ("model.norm.weight BF16 1024").
 * BASE is a file with the bytes of all tensors, one after the other, with which the trainer
 * started. With "-" the tensors hold nothing, and the trainer must publish an anchor. At the end
 * the program writes the bytes of the tensors to OUT.
 *
 *   cc -std=c99 follow.c $(pkg-config --cflags --libs driftless)
 */
#include <driftless/driftless.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIMS = 8, MAX_TENSORS = 4096, IDLE_SECONDS = 120 };

typedef struct {
  char name[256];
  char dtype[32];
  uint32_t dims;
  int64_t shape[MAX_DIMS];
  size_t size;
  void* data;
} tensor;

typedef struct {
  size_t count;
  tensor tensors[MAX_TENSORS];
} model;

/* Stands in for an engine. A real one stops taking requests in pause, and continues in resume. */
typedef struct {
  unsigned pauses, resumes;
} engine;

static int32_t pause_engine(void* user) {
  ((engine*)user)->pauses++;
  return DRIFTLESS_OK;
}

static int32_t resume_engine(void* user) {
  ((engine*)user)->resumes++;
  return DRIFTLESS_OK;
}

/* Called if MPI waits too long for a process that does not join. Nothing can interrupt that wait,
 * so this ends the process. */
static void end_late(void* user, const char* what) {
  (void)user;
  fprintf(stderr, "follow: %s\n", what);
  _Exit(1);
}

static int failed(const char* doing, const driftless_error* error) {
  fprintf(stderr, "follow: %s: %s: %s\n", doing, driftless_error_name(error),
          driftless_error_message(error));
  fprintf(stderr, "follow: %s\n", driftless_error_next_action(error));
  return 0;
}

static int cannot(const char* what, const char* path) {
  fprintf(stderr, "follow: %s %s: %s\n", what, path, strerror(errno));
  return 0;
}

static size_t bytes_of(const char* dtype) {
  if (strstr(dtype, "64")) return 8;
  if (strstr(dtype, "32")) return 4;
  if (strstr(dtype, "16")) return 2;
  return 1;
}

static int parse_tensor(char* line, tensor* out) {
  char* word = strtok(line, " \t\n");
  char* dtype = strtok(NULL, " \t\n");
  if (word == NULL || dtype == NULL || strlen(word) >= sizeof out->name ||
      strlen(dtype) >= sizeof out->dtype) {
    return 0;
  }
  strcpy(out->name, word);
  strcpy(out->dtype, dtype);
  out->size = bytes_of(dtype);
  while ((word = strtok(NULL, " \t\n")) != NULL) {
    if (out->dims == MAX_DIMS) return 0;
    out->shape[out->dims] = strtoll(word, NULL, 10);
    out->size *= (size_t)out->shape[out->dims++];
  }
  out->data = calloc(out->size > 0 ? out->size : 1, 1);
  return out->data != NULL;
}

static int read_tensors(const char* path, model* out) {
  char line[1024];
  FILE* file = fopen(path, "r");
  if (file == NULL) return cannot("reading", path);
  while (fgets(line, sizeof line, file) != NULL) {
    if (out->count == MAX_TENSORS || !parse_tensor(line, &out->tensors[out->count])) {
      fprintf(stderr, "follow: %s: tensor %zu: expected NAME TYPE SHAPE\n", path, out->count + 1);
      fclose(file);
      return 0;
    }
    out->count++;
  }
  fclose(file);
  return 1;
}

static int read_base(const char* path, model* into) {
  size_t i;
  FILE* file = fopen(path, "rb");
  if (file == NULL) return cannot("reading", path);
  for (i = 0; i < into->count; i++) {
    if (fread(into->tensors[i].data, 1, into->tensors[i].size, file) != into->tensors[i].size) {
      fclose(file);
      return cannot("too short:", path);
    }
  }
  fclose(file);
  return 1;
}

static int write_out(const char* path, const model* from) {
  size_t i;
  FILE* file = fopen(path, "wb");
  if (file == NULL) return cannot("writing", path);
  for (i = 0; i < from->count; i++) {
    fwrite(from->tensors[i].data, 1, from->tensors[i].size, file);
  }
  return fclose(file) == 0 ? 1 : cannot("writing", path);
}

static int register_tensors(driftless_receiver* receiver, const model* from) {
  size_t i;
  driftless_error* error = NULL;
  for (i = 0; i < from->count; i++) {
    driftless_tensor tensor = {0};
    tensor.struct_size = sizeof tensor;
    tensor.name = from->tensors[i].name;
    tensor.dtype = from->tensors[i].dtype;
    tensor.dims = from->tensors[i].dims;
    tensor.shape = from->tensors[i].shape;
    tensor.data = from->tensors[i].data;
    tensor.place = DRIFTLESS_HOST;
    if (driftless_register(receiver, &tensor, &error) != DRIFTLESS_OK) {
      failed("registering", error);
      driftless_error_free(error);
      return 0;
    }
  }
  return 1;
}

/* Takes every new version until the run has ended and its last version is held. */
static int follow(driftless_receiver* receiver, driftless_error** error) {
  int idle;
  for (idle = 0; idle < IDLE_SECONDS; idle++) {
    int32_t staged = 0;
    driftless_end end = {0};
    driftless_code code = driftless_stage(receiver, 1000, &staged, error);
    /* No anchor yet. The receiver has asked for one; it comes with the trainer's next version. */
    if (code == DRIFTLESS_WRONG_BASE) continue;
    if (code != DRIFTLESS_OK) return failed("staging", *error);
    if (staged) { /* the slow part is done: commit pauses the engine only for a moment */
      driftless_report report = {0};
      report.struct_size = sizeof report;
      if (driftless_commit(receiver, &report, error) != DRIFTLESS_OK) {
        return failed("committing", *error);
      }
      printf("version %" PRIu64 " digest %s changed %" PRIu64
             " fetch %.1f ms stage %.1f ms "
             "pause %.3f ms\n",
             report.version, report.digest, report.changed_units, report.fetch_ms, report.stage_ms,
             report.pause_ms + report.apply_ms + report.resume_ms);
      fflush(stdout);
      idle = -1;
    }
    end.struct_size = sizeof end;
    if (driftless_look_for_end(receiver, &end, error) != DRIFTLESS_OK) {
      return failed("looking for the end", *error);
    }
    if (end.ended && end.reached) {
      printf("the run ended at version %" PRIu64 "\n", end.version);
      return 1;
    }
  }
  fprintf(stderr, "follow: nothing new for %d s\n", IDLE_SECONDS);
  return 0;
}

static int run(driftless_receiver* receiver, const model* weights, int32_t holds,
               driftless_error** error) {
  engine served = {0, 0};
  driftless_callbacks callbacks = {0};
  char run_id[33];
  char* metrics = NULL;
  callbacks.struct_size = sizeof callbacks;
  callbacks.user = &served;
  callbacks.pause = pause_engine;
  callbacks.resume = resume_engine;
  callbacks.late = end_late;
  if (driftless_set_callbacks(receiver, &callbacks, error) != DRIFTLESS_OK) {
    return failed("setting callbacks", *error);
  }
  if (!register_tensors(receiver, weights)) return 0;
  if (driftless_start(receiver, holds, DRIFTLESS_BY_CONFIG, error) != DRIFTLESS_OK ||
      driftless_run_id(receiver, run_id, error) != DRIFTLESS_OK) {
    return failed("starting", *error);
  }
  printf("run %s, driftless %s\n", run_id, driftless_version());
  if (!follow(receiver, error)) return 0;
  if (driftless_metrics_json(receiver, &metrics, error) != DRIFTLESS_OK) {
    return failed("metrics", *error);
  }
  printf("metrics %s\n", metrics);
  printf("paused %u times, resumed %u times\n", served.pauses, served.resumes);
  driftless_free(metrics);
  return 1;
}

int main(int argc, char** argv) {
  static model weights;
  size_t i;
  int ok;
  driftless_receiver* receiver = NULL;
  driftless_error* error = NULL;
  if (argc < 5) {
    fprintf(stderr, "usage: follow CONFIG TENSORS BASE OUT [KEY=VALUE...]\n");
    return 2;
  }
  if (driftless_abi() != DRIFTLESS_ABI) {
    fprintf(stderr, "follow: the library has ABI %u, compiled for %d\n", driftless_abi(),
            DRIFTLESS_ABI);
    return 1;
  }
  ok = read_tensors(argv[2], &weights);
  if (ok && strcmp(argv[3], "-") != 0) ok = read_base(argv[3], &weights);
  if (ok && driftless_open(argv[1], (const char* const*)(argv + 5), (size_t)(argc - 5), NULL,
                           &receiver, &error) != DRIFTLESS_OK) {
    ok = failed("opening", error);
  }
  ok =
      ok && run(receiver, &weights,
                strcmp(argv[3], "-") == 0 ? DRIFTLESS_HOLDS_NOTHING : DRIFTLESS_HOLDS_BASE, &error);
  /* After a failure, close without waiting for other processes. */
  if (driftless_close(&receiver, ok ? DRIFTLESS_BY_CONFIG : 0, &error) != DRIFTLESS_OK && ok) {
    ok = failed("closing", error);
  }
  ok = ok && write_out(argv[4], &weights);
  driftless_error_free(error);
  for (i = 0; i < weights.count; i++) free(weights.tensors[i].data);
  return ok ? 0 : 1;
}
