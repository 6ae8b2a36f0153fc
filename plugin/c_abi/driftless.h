/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off: the conventions are paragraphs */
/* The receiver of Driftless for C, and for every language that can call C: tensors of the caller's
 * follow a trainer's run.
 *
 *   open -> register tensors -> start -> ( stage -> commit )... -> close
 *
 * stage() fetches, verifies and decodes while the engine works; commit() pauses it by the caller's
 * callback, writes what changed, and resumes it. docs/start/c_abi.md has a walk through it,
 * examples/c and examples/cpp have programs.
 *
 * CONVENTIONS
 *
 * Results. Every function that can fail returns a driftless_code: DRIFTLESS_OK, or what to do next.
 *   Nothing throws, nothing ends the process, and NULL where it does not belong is
 *   DRIFTLESS_INVALID_ARGUMENT. What a call was to give is written only when it succeeds.
 *
 * Errors. The last parameter, `error`, may be NULL. Where it is not, *error must be NULL or an
 *   error of an earlier call: that one is freed when the call begins, and after the call *error is
 *   NULL (it succeeded) or a new error with code, message and next action. So one variable, NULL at
 *   first, serves any number of calls; the last error is freed by driftless_error_free().
 *
 * Ownership. What is passed in stays the caller's; texts and structs are copied before the call
 *   returns. The memory of registered tensors must stay where it is until driftless_close() has
 *   returned. A `char**` result is freed by driftless_free(); texts inside an error live as long as
 *   it does; `const char*` that a function returns by itself is constant.
 *
 * Handles. A driftless_receiver* or driftless_worker* is a ticket, never an address: one that was
 *   closed, or never was one, is DRIFTLESS_INVALID_ARGUMENT. Any number may be open in a process; a
 * process takes part in one MPI job in its life, by one of them.
 *
 * Threads. One call at a time on a receiver; a second one meanwhile, also from a callback, is
 *   DRIFTLESS_BUSY and harms nothing. Calls may come from any thread, one after the other (so
 *   staging may have a thread of its own), except where MPI was granted without threads: then all
 *   come from the one that called driftless_start(), others are DRIFTLESS_INVALID_ARGUMENT.
 *   Functions marked [any time] may be called from any thread and callback, whatever else is under
 *   way, and say what held after the last call that ended. Functions on errors and texts are free.
 *
 * Waiting. `timeout_ms` bounds every wait; 0 looks once. There is no endless wait: at most a year,
 *   and DRIFTLESS_BY_CONFIG (-1) where it is allowed stands for a deadline of the configuration.
 *   Once something is there, fetching it has `deadlines.fetch` of the configuration, and a word to
 *   a road that does not answer ends after 10 s. The one exception is MPI's own calls that know no
 *   deadline (MPI_Init, making windows): see the callback `late`.
 *
 * Texts are UTF-8 and end with NUL. Digests and run ids are 32 lowercase hexadecimal digits.
 *
 * Structs begin with `struct_size`, which the caller sets to sizeof of it, all else to zero first:
 *
 *       driftless_tensor tensor = {0};          (C++: driftless_tensor tensor{};)
 *       tensor.struct_size = sizeof tensor;
 *
 *   They grow at their end. A struct from an older header is understood; of one from a newer header
 *   the unknown rest must be zero, or the call is DRIFTLESS_UNSUPPORTED. Results fill as much as
 *   the caller's struct holds. Reserved fields are zero.
 *
 * The ABI. DRIFTLESS_ABI is the number in the library's file name, and changes when a program must
 *   be compiled again. Functions, fields and codes may be added under the same number; an unknown
 *   code is to be taken like DRIFTLESS_INTERNAL.
 *
 * Environment. Only where `launched` is left open: what launchers (mpirun, srun, torchrun, Ray)
 *   leave there is looked at.
 *
 * Output. None, but a line on stderr while a call has waited for other processes for 5 seconds, and
 *   every 30 seconds from then on: "driftless: still waiting after 5 s: ...".
 *
 * Fork. A child may not use receivers of its parent.
 */
/* clang-format on */
#ifndef DRIFTLESS_H
#define DRIFTLESS_H

#include <stddef.h>
#include <stdint.h>

#define DRIFTLESS_ABI 1

#if defined(__GNUC__)
#define DRIFTLESS_EXPORT __attribute__((visibility("default")))
#else
#define DRIFTLESS_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the library ---- */

/* DRIFTLESS_ABI of the library that was loaded; to be compared with that of the header. */
DRIFTLESS_EXPORT uint32_t driftless_abi(void);
/* Its version, "1.2.3". */
DRIFTLESS_EXPORT const char* driftless_version(void);

/* ---- results ---- */

/* Each stands for one next action. The numbers stay. */
typedef int32_t driftless_code;
enum {
  DRIFTLESS_OK = 0,
  DRIFTLESS_INVALID_ARGUMENT = 1,   /* fix the call or the option */
  DRIFTLESS_NOT_FOUND = 2,          /* check the path, or publish the version first */
  DRIFTLESS_ALREADY_EXISTS = 3,     /* choose another name, or remove what is there */
  DRIFTLESS_INCOMPLETE = 4,         /* not whole yet: wait and try again */
  DRIFTLESS_CORRUPT = 5,            /* damaged bytes: fetch them again */
  DRIFTLESS_WRONG_RUN = 6,          /* belongs to another run: start from that run's base */
  DRIFTLESS_WRONG_BASE = 7,         /* another base, or versions gone: have an anchor published */
  DRIFTLESS_WRONG_LAYOUT = 8,       /* other tensors, types or shapes: register the run's */
  DRIFTLESS_MISMATCH = 9,           /* the content is not what its hash says: take a full version */
  DRIFTLESS_BUSY = 10,              /* somebody else holds it: try again later */
  DRIFTLESS_UNSUPPORTED = 11,       /* valid, but not possible in this build */
  DRIFTLESS_NO_SPACE = 12,          /* free some memory or disk, then try again */
  DRIFTLESS_IO = 13,                /* the operating system refused: see the message */
  DRIFTLESS_DEADLINE_EXCEEDED = 14, /* the wait ended: try again, or raise the timeout */
  DRIFTLESS_INTERNAL = 15           /* a defect of Driftless */
};
/* "wrong_base"; "unknown" for a number that is none. */
DRIFTLESS_EXPORT const char* driftless_code_name(driftless_code code);
/* A sentence for people: what to do next. */
DRIFTLESS_EXPORT const char* driftless_code_next_action(driftless_code code);

typedef struct driftless_error driftless_error;
/* All of these take NULL for "no error": DRIFTLESS_OK, "ok", and empty texts. */
DRIFTLESS_EXPORT driftless_code driftless_error_code(const driftless_error* error);
DRIFTLESS_EXPORT const char* driftless_error_name(const driftless_error* error);
/* Names the file, the tensor, the offset, what was expected and what was found. */
DRIFTLESS_EXPORT const char* driftless_error_message(const driftless_error* error);
DRIFTLESS_EXPORT const char* driftless_error_next_action(const driftless_error* error);
DRIFTLESS_EXPORT void driftless_error_free(driftless_error* error);

/* Frees a text that a function gave by `char**`. NULL is nothing. */
DRIFTLESS_EXPORT void driftless_free(char* text);

/* What this library is and which roads it has, as a JSON object: "version", "abi", "backends" (a
 * list of {"name", "help", "built", "why_not"}). Loads what is loaded on demand, to know. */
DRIFTLESS_EXPORT driftless_code driftless_info_json(char** text, driftless_error** error);

/* ---- opening ---- */

typedef struct driftless_receiver driftless_receiver;

#define DRIFTLESS_BY_CONFIG (-1)

enum { DRIFTLESS_LAUNCHED_AUTO = 0, DRIFTLESS_LAUNCHED_YES = 1, DRIFTLESS_LAUNCHED_NO = 2 };

typedef struct driftless_options {
  size_t struct_size;
  const char* id; /* on the road, unique there; NULL: receiver.id of the configuration, or made up;
                     a second receiver of this process gets another one */
  int32_t launched; /* whether mpirun (srun, mpiexec) started this process; AUTO looks */
  uint32_t threads; /* for hashing and decoding; 0: by the configuration */
} driftless_options;

/* Reads the YAML file; `overrides` are `override_count` texts "key=value" that come after it.
 * `options` may be NULL. Loads what the configured road needs, so that DRIFTLESS_UNSUPPORTED comes
 * here; waits for nobody. What the file says of the trainer's side is not looked at; nor is
 * receiver.target: the tensors to be registered are the target. */
DRIFTLESS_EXPORT driftless_code driftless_open(const char* config_path,
                                               const char* const* overrides, size_t override_count,
                                               const driftless_options* options,
                                               driftless_receiver** receiver,
                                               driftless_error** error);

/* Called around the writing, on the thread that called commit() or rollback(); any may be NULL.
 * They return 0, or a driftless_code (another number counts as DRIFTLESS_BUSY). A pause that fails
 * leaves everything as it was, and commit() may be called again; after a resume that fails, the
 * commit holds, and its error says so. What a C++ callback throws is caught, and is a failure. */
typedef int32_t (*driftless_callback)(void* user);
/* MPI holds this process in a call that knows no deadline for longer than deadlines.connect: `what`
 * says which. On a thread of the library's. There is no way out but the end of the process; a
 * program says why and ends, a library inside of one may ring a bell. Without it such calls are
 * waited for. */
typedef void (*driftless_late_callback)(void* user, const char* what);

typedef struct driftless_callbacks {
  size_t struct_size;
  void* user; /* passed to all of them */
  driftless_callback pause;
  driftless_callback resume;
  driftless_late_callback late;
} driftless_callbacks;

/* Before start(); replaces those set before. NULL: none. */
DRIFTLESS_EXPORT driftless_code driftless_set_callbacks(driftless_receiver* receiver,
                                                        const driftless_callbacks* callbacks,
                                                        driftless_error** error);

/* ---- tensors ---- */

enum {
  DRIFTLESS_HOST = 0,  /* memory that this process can write to */
  DRIFTLESS_CUDA = 1,  /* memory of GPU number `device` */
  DRIFTLESS_ABSENT = 2 /* a tensor of the run that this process does not hold: `data` is NULL */
};

typedef struct driftless_tensor {
  size_t struct_size;
  const char* name;       /* as in the trainer's checkpoint (Hugging Face's) */
  const char* dtype;      /* safetensors' name or torch's: "BF16" or "bfloat16" */
  uint32_t dims;          /* 0: a scalar */
  int32_t place;          /* DRIFTLESS_HOST, ... */
  const int64_t* shape;   /* `dims` numbers of elements */
  const int64_t* strides; /* `dims` numbers of elements from one to the next; NULL: contiguous.
                             See driftless_register() */
  void* data;     /* at a multiple of the element's size; may be NULL where it has no bytes */
  int32_t device; /* of DRIFTLESS_CUDA */
  int32_t reserved;
  void* stream; /* a cudaStream_t that the engine uses the tensor on; NULL: the default one.
                   commit() and start() wait for what is queued there, after `pause` */
} driftless_tensor;

/* Before start(), once for every tensor of the run, in any order. DRIFTLESS_UNSUPPORTED, by the
 * tensor's name, for a GPU in a build without CUDA, and where tensors lie on host and GPU, or on
 * two GPUs: then open a receiver for each place, with the other's tensors DRIFTLESS_ABSENT.
 * DRIFTLESS_ALREADY_EXISTS for a name twice.
 *
 * Strides. A tensor may be any slice or transpose of memory, on the host and on a GPU: a transposed
 * view, columns of a wider matrix, padded rows. What lies between its elements is never written,
 * and may be other tensors. Each stride leaps over all that the smaller ones reach: else, and where
 * it is 0, elements share memory, and it is DRIFTLESS_INVALID_ARGUMENT. DRIFTLESS_UNSUPPORTED:
 * negative strides; strides that stay more than 6 dimensions after joining; for types smaller than
 * a byte, any but contiguous memory. Strides of a dimension of one element, of an empty tensor
 * and of an absent one say nothing. start() looks whether tensors share memory with one another.
 * All encodings and full versions go into strided tensors as into contiguous ones. */
DRIFTLESS_EXPORT driftless_code driftless_register(driftless_receiver* receiver,
                                                   const driftless_tensor* tensor,
                                                   driftless_error** error);

/* ---- following ---- */

/* What the tensors hold when start() is called. */
enum {
  DRIFTLESS_HOLDS_NOTHING = 0, /* anything: a full version is taken first */
  DRIFTLESS_HOLDS_BASE = 1     /* the run's base, version 0; proven by its digest */
};

/* All tensors are registered: joins the job, waits for the run's announcement and compares the
 * layout. DRIFTLESS_BY_CONFIG: deadlines.connect.
 * DRIFTLESS_WRONG_LAYOUT, _WRONG_BASE and _DEADLINE_EXCEEDED while waiting for the announcement
 * leave the receiver as it was before: more tensors may be registered, and start() called again.
 * After a failure to join the job it can only be closed, and says so. */
DRIFTLESS_EXPORT driftless_code driftless_start(driftless_receiver* receiver, int32_t holds,
                                                int64_t timeout_ms, driftless_error** error);
/* The same where the tensors hold version `version` of run `run` (NULL: of whatever run is there).
 * DRIFTLESS_WRONG_BASE: they do not, by the digest that the run has for it. If the manifests are
 * gone, driftless_state.proven is 0 until a version was committed or a manifest proves it, and the
 * trainer is told that it is unproven. */
DRIFTLESS_EXPORT driftless_code driftless_start_at(driftless_receiver* receiver, const char* run,
                                                   uint64_t version, int64_t timeout_ms,
                                                   driftless_error** error);

/* Whether something newer than what the tensors hold is on the road: *newer is 1 or 0, *newest the
 * newest version there (0 where there is none). Either may be NULL. Fetches nothing. */
DRIFTLESS_EXPORT driftless_code driftless_poll(driftless_receiver* receiver, int64_t timeout_ms,
                                               int32_t* newer, uint64_t* newest,
                                               driftless_error** error);

/* Waits for something newer, fetches, proves and decodes it: *staged is 1, and commit() is ready;
 * or 0, the timeout passed and nothing was new. The tensors are read, not written. What was staged
 * before is dropped first. While nothing is new it gives the road a sign of life, so that an engine
 * that calls it every few seconds needs no driftless_keep_alive().
 * DRIFTLESS_WRONG_BASE: versions are gone and there is no anchor; the trainer was asked for one,
 * call again. After any failure the tensors are as they were, and stage() may be called again. */
DRIFTLESS_EXPORT driftless_code driftless_stage(driftless_receiver* receiver, int64_t timeout_ms,
                                                int32_t* staged, driftless_error** error);

typedef struct driftless_report {
  size_t struct_size;
  uint64_t from_version;
  uint64_t version;
  uint64_t versions; /* folded into this commit */
  uint64_t changed_units;
  uint64_t full_bytes;  /* of all weights, for each version */
  uint64_t delta_bytes; /* payload of the versions */
  uint64_t wire_bytes;  /* of everything fetched */
  double fetch_ms;      /* on the road, and hashing */
  double stage_ms;      /* decoding and proving */
  double pause_ms;      /* in the callback `pause`, and waiting for streams */
  double apply_ms;      /* writing */
  double resume_ms;     /* in the callback `resume` */
  int32_t anchor;       /* 1: taken from a full version kept for late ones */
  int32_t notes; /* what failed without harm; their texts are in driftless_last_report_json() */
  char digest[33];
  uint64_t needed_bytes; /* of what was fetched of the parts: for tensors that are held here */
} driftless_report;

/* Pause, write, resume, tell the road. All or nothing: ok, and the tensors are the new version, or
 * not, and they are as they were. (Where that could not be restored, `valid` of the state is 0, and
 * the next stage() takes a full version.) `report` may be NULL. */
DRIFTLESS_EXPORT driftless_code driftless_commit(driftless_receiver* receiver,
                                                 driftless_report* report, driftless_error** error);
/* Drops what is staged; where nothing is, takes the last commit back, between pause and resume.
 * DRIFTLESS_UNSUPPORTED where that was a full version, DRIFTLESS_INVALID_ARGUMENT where there was
 * none since the last stage(). */
DRIFTLESS_EXPORT driftless_code driftless_rollback(driftless_receiver* receiver,
                                                   driftless_error** error);
/* A sign of life, for an engine that does not call stage() for long: a trainer keeps versions for
 * receivers that it has heard of lately (road.patience). */
DRIFTLESS_EXPORT driftless_code driftless_keep_alive(driftless_receiver* receiver,
                                                     driftless_error** error);

typedef struct driftless_end {
  size_t struct_size;
  uint64_t version; /* the last one */
  int32_t ended;    /* 0: the run goes on, or nobody can say; then the rest is zero */
  int32_t reached;  /* the tensors hold that version, with that digest */
  char digest[33];
} driftless_end;

/* The trainer's last word, where there is one: on shared_fs, and where trainers and rollouts are
 * one MPI job. */
DRIFTLESS_EXPORT driftless_code driftless_look_for_end(driftless_receiver* receiver,
                                                       driftless_end* end, driftless_error** error);

/* ---- looking, [any time] ---- */

typedef struct driftless_state {
  size_t struct_size;
  uint64_t version; /* that the tensors hold */
  int32_t started;
  int32_t staged;  /* something is ready for commit() */
  int32_t valid;   /* 0: they hold no version: nothing came yet, or a write could not be undone */
  int32_t partial; /* some tensors are ABSENT: the digest is of the others */
  uint32_t rank;   /* of this process among the job's rollouts */
  uint32_t proven; /* 1: the tensors are `version` by the run's own digest of it. 0: no version is
                      held; or driftless_start_at() said so, and no manifest tells its digest yet */
  char digest[33];
  char run[33]; /* all zero digits before start() */
} driftless_state;
DRIFTLESS_EXPORT driftless_code driftless_get_state(driftless_receiver* receiver,
                                                    driftless_state* state,
                                                    driftless_error** error);
/* Single ones of them, for callers without structs. The buffers hold 33 bytes.
 * DRIFTLESS_INCOMPLETE: not started, or no version is held. */
DRIFTLESS_EXPORT driftless_code driftless_weights_version(driftless_receiver* receiver,
                                                          uint64_t* version,
                                                          driftless_error** error);
DRIFTLESS_EXPORT driftless_code driftless_weights_digest(driftless_receiver* receiver, char* digest,
                                                         driftless_error** error);
DRIFTLESS_EXPORT driftless_code driftless_run_id(driftless_receiver* receiver, char* run,
                                                 driftless_error** error);

/* Sums since start(). */
typedef struct driftless_metrics {
  size_t struct_size;
  uint64_t version;
  uint64_t newest; /* that poll() or commit() has seen */
  uint64_t commits;
  uint64_t versions; /* taken by them */
  uint64_t anchors;
  uint64_t rollbacks;
  uint64_t stage_failures;
  uint64_t commit_failures;
  uint64_t unheard; /* signs of life that the road did not take */
  uint64_t changed_units;
  uint64_t delta_bytes;
  uint64_t wire_bytes;
  double fetch_ms;
  double stage_ms;
  double pause_ms;
  double apply_ms;
  double resume_ms;
  double longest_pause_ms; /* of pause, apply and resume together */
  uint64_t needed_bytes;
} driftless_metrics;
DRIFTLESS_EXPORT driftless_code driftless_get_metrics(driftless_receiver* receiver,
                                                      driftless_metrics* metrics,
                                                      driftless_error** error);
/* The same as a JSON object, the fields by their names. */
DRIFTLESS_EXPORT driftless_code driftless_metrics_json(driftless_receiver* receiver, char** text,
                                                       driftless_error** error);
/* Of the last commit. DRIFTLESS_NOT_FOUND: there was none. */
DRIFTLESS_EXPORT driftless_code driftless_last_report(driftless_receiver* receiver,
                                                      driftless_report* report,
                                                      driftless_error** error);
/* The same as a JSON object, as in metrics.file, and "notes". */
DRIFTLESS_EXPORT driftless_code driftless_last_report_json(driftless_receiver* receiver,
                                                           char** text, driftless_error** error);

/* ---- the end ---- */

/* Leaves the road and closes the job, *receiver becomes NULL, and the tensors are the caller's
 * alone. A NULL *receiver is ok: nothing happens. In an MPI job this is a meeting of all processes,
 * for which `timeout_ms` (DRIFTLESS_BY_CONFIG: deadlines.connect) is waited; 0 leaves without it,
 * which is for the way out after a failure. Whatever it returns, the receiver is gone and *receiver
 * NULL - unless it still is not: then another call is under way (DRIFTLESS_BUSY) or the call was
 * wrong (DRIFTLESS_INVALID_ARGUMENT), and nothing happened. */
DRIFTLESS_EXPORT driftless_code driftless_close(driftless_receiver** receiver, int64_t timeout_ms,
                                                driftless_error** error);

/* ---- workers ---- */

/* One rank of an engine that somebody else drives: `driftless agent`, a trainer, or Python's
 * driver. They call the engine, and the engine calls its ranks; each call is answered by a reply,
 * a JSON object that the engine hands back as it is:
 *
 *   {"nonce", "rank", "process", "ok", "error", "state", "version", "staged_version", "run",
 *    "digest", "follows", "waits", "ways", "timings", "moved"}
 *
 * A function returns DRIFTLESS_OK when there is a reply, also if that says "ok": false, and
 * otherwise a code for a wrong call. `nonce` is echoed, so that a reply can be told from that to
 * another call; it may be NULL, and so may `ticket`. driftless_free() frees a reply.
 *
 * States: closed, idle, staging (on a thread of the library's), staged, committed (the commit can
 * be taken back), failed. "version" is what the tensors hold, -1 if they are parts of two. While it
 * stages, every call but status is refused by its reply. */
typedef struct driftless_worker driftless_worker;

/* A staging has ended; on the thread that staged. `reply` is as of driftless_worker_status(). */
typedef void (*driftless_reply_callback)(void* user, const char* reply);

typedef struct driftless_worker_options {
  size_t struct_size;
  int64_t rank;     /* of the engine's, from 0 */
  int32_t holds;    /* what the tensors hold at first: DRIFTLESS_HOLDS_NOTHING or _BASE */
  uint32_t threads; /* for hashing and decoding; 0: by the configuration */
  void* user;       /* passed to the callback */
  driftless_reply_callback staged; /* may be NULL */
} driftless_worker_options;

#define DRIFTLESS_STAGED (-1)

DRIFTLESS_EXPORT driftless_code driftless_worker_create(const driftless_worker_options* options,
                                                        driftless_worker** worker,
                                                        driftless_error** error);
/* As driftless_register(), before the first open. */
DRIFTLESS_EXPORT driftless_code driftless_worker_register(driftless_worker* worker,
                                                          const driftless_tensor* tensor,
                                                          driftless_error** error);
/* Follows the run of a configuration: a file's path, or YAML text. Waits for at most 10 s for its
 * announcement, and can be called again. The same one again changes nothing; another one takes its
 * place, and the tensors stay. `take_over` (or NULL): the id of the run that may replace another
 * run's weights, by a full version. */
DRIFTLESS_EXPORT driftless_code driftless_worker_open(driftless_worker* worker, const char* config,
                                                      const char* const* overrides,
                                                      size_t override_count, const char* take_over,
                                                      const char* nonce, char** reply,
                                                      driftless_error** error);
/* Starts to wait, on a thread, for something newer, and makes it ready. Only a commit with the same
 * ticket takes it. */
DRIFTLESS_EXPORT driftless_code driftless_worker_stage(driftless_worker* worker, int64_t timeout_ms,
                                                       const char* ticket, const char* nonce,
                                                       char** reply, driftless_error** error);
/* [any time] */
DRIFTLESS_EXPORT driftless_code driftless_worker_status(driftless_worker* worker, const char* nonce,
                                                        char** reply, driftless_error** error);
/* Writes what is staged, if that is `version`; DRIFTLESS_STAGED: whatever it is. The engine does
 * not use the tensors meanwhile: whoever drives it has paused it. */
DRIFTLESS_EXPORT driftless_code driftless_worker_commit(driftless_worker* worker, int64_t version,
                                                        const char* ticket, const char* nonce,
                                                        char** reply, driftless_error** error);
/* Back to `version`: drops what is staged, or takes the last commit back. */
DRIFTLESS_EXPORT driftless_code driftless_worker_rollback(driftless_worker* worker, int64_t version,
                                                          const char* nonce, char** reply,
                                                          driftless_error** error);
/* Beside the reply what the rank holds of each tensor: with `sweep` the tensors are read now. */
DRIFTLESS_EXPORT driftless_code driftless_worker_shares(driftless_worker* worker, int32_t sweep,
                                                        const char* nonce, char** reply,
                                                        driftless_error** error);
/* Beside the reply what lies there now: of all tensors (NULL) their shares, of one its blocks
 * (`units` 0), or `units` elements from `first` on. */
DRIFTLESS_EXPORT driftless_code driftless_worker_read(driftless_worker* worker, const char* tensor,
                                                      uint64_t first, uint64_t units,
                                                      const char* nonce, char** reply,
                                                      driftless_error** error);
/* Leaves the road. The tensors keep their version, and the worker can be opened again. */
DRIFTLESS_EXPORT driftless_code driftless_worker_close(driftless_worker* worker, const char* nonce,
                                                       char** reply, driftless_error** error);
/* Closes it, and *worker becomes NULL. A NULL *worker is ok. DRIFTLESS_BUSY: it still stages after
 * that time, and nothing happened. */
DRIFTLESS_EXPORT driftless_code driftless_worker_free(driftless_worker** worker, int64_t timeout_ms,
                                                      driftless_error** error);

#ifdef __cplusplus
}
#endif

#endif /* DRIFTLESS_H */
