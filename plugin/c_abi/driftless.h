/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off: the conventions are paragraphs */
/* The receiver of Driftless for C, and for every language that can call C: keeps the caller's
 * tensors at the newest version of a trainer's run.
 *
 *   open -> register tensors -> start -> ( stage -> commit )... -> close
 *
 * stage() fetches, verifies and decodes while the engine works; commit() pauses the engine through
 * the caller's callback, writes the changes, and resumes it. docs/start/c_abi.md walks through it;
 * examples/c and examples/cpp have programs.
 *
 * CONVENTIONS
 *
 * Results. Every function that can fail returns a driftless_code: DRIFTLESS_OK, or a code for the
 *   next action. No function throws or ends the process; an unexpected NULL is
 *   DRIFTLESS_INVALID_ARGUMENT. A call writes its results only if it succeeds.
 *
 * Errors. The last parameter, `error`, may be NULL. If it is not, *error must be NULL or an error
 *   of an earlier call, which is freed when the call begins. After the call *error is NULL
 *   (success) or a new error with code, message and next action. So one variable, initially NULL,
 *   serves any number of calls; driftless_error_free() frees the last error.
 *
 * Ownership. The caller keeps ownership of all arguments; texts and structs are copied before the
 *   call returns. The memory of registered tensors must stay where it is until driftless_close()
 *   has returned. driftless_free() frees a `char**` result. Texts of an error live as long as the
 *   error; any other returned `const char*` is constant.
 *
 * Handles. A driftless_receiver* or driftless_worker* is a ticket, never an address: a closed or
 *   invalid one is DRIFTLESS_INVALID_ARGUMENT. A process may have any number of them open, but only
 *   one of them may join an MPI job, once in the life of the process.
 *
 * Threads. One call at a time on a receiver; a second call meanwhile, also from a callback, is
 *   DRIFTLESS_BUSY and does no harm. Calls may come from any thread, one after the other (so
 *   staging may have a thread of its own), unless MPI provides no thread support: then all calls
 *   must come from the thread that called driftless_start(); others are DRIFTLESS_INVALID_ARGUMENT.
 *   Functions marked [any time] may be called from any thread and callback at any time; they return
 *   the state after the last call that ended. Functions on errors and texts have no such rules.
 *
 * Waiting. `timeout_ms` bounds every wait; 0 checks once. It is at most a year: no wait is endless.
 *   Where DRIFTLESS_BY_CONFIG (-1) is allowed, it stands for a deadline of the configuration. Once
 *   something is there, fetching it may take `deadlines.fetch` of the configuration; a request to a
 *   road that does not answer ends after 10 s. The one exception is MPI's own calls without a
 *   deadline (MPI_Init, making windows): see the callback `late`.
 *
 * Texts are UTF-8 and end with NUL. Digests and run ids are 32 lowercase hexadecimal digits.
 *
 * Structs begin with `struct_size`: set all to zero, then `struct_size` to the struct's sizeof:
 *
 *       driftless_tensor tensor = {0};          (C++: driftless_tensor tensor{};)
 *       tensor.struct_size = sizeof tensor;
 *
 *   They grow at their end. A struct from an older header is accepted; in one from a newer header
 *   the unknown rest must be zero, or the call is DRIFTLESS_UNSUPPORTED. Results fill as much as
 *   the caller's struct holds. Reserved fields are zero.
 *
 * The ABI. DRIFTLESS_ABI is the number in the library's file name, and changes when programs must
 *   be compiled again. Functions, fields and codes may be added under the same number; treat an
 *   unknown code like DRIFTLESS_INTERNAL.
 *
 * Environment. The variables of launchers (mpirun, srun, torchrun, Ray) are read only if `launched`
 *   is AUTO.
 *
 * Output. None, except for a line on stderr after a call has waited for other processes for 5
 *   seconds, and every 30 seconds from then on: "driftless: still waiting after 5 s: ...".
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

/* DRIFTLESS_ABI of the loaded library; compare it with the header's. */
DRIFTLESS_EXPORT uint32_t driftless_abi(void);
/* Its version, "1.2.3". */
DRIFTLESS_EXPORT const char* driftless_version(void);

/* ---- results ---- */

/* Each code stands for one next action. The numbers never change. */
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
  DRIFTLESS_BUSY = 10,              /* it is in use: try again later */
  DRIFTLESS_UNSUPPORTED = 11,       /* valid, but not possible in this build */
  DRIFTLESS_NO_SPACE = 12,          /* free some memory or disk, then try again */
  DRIFTLESS_IO = 13,                /* the operating system refused: see the message */
  DRIFTLESS_DEADLINE_EXCEEDED = 14, /* the wait ended: try again, or raise the timeout */
  DRIFTLESS_INTERNAL = 15           /* a defect of Driftless */
};
/* For example "wrong_base"; "unknown" for an undefined number. */
DRIFTLESS_EXPORT const char* driftless_code_name(driftless_code code);
/* What to do next, as a sentence. */
DRIFTLESS_EXPORT const char* driftless_code_next_action(driftless_code code);

typedef struct driftless_error driftless_error;
/* All of these accept NULL, which is no error: DRIFTLESS_OK, "ok", and empty texts. */
DRIFTLESS_EXPORT driftless_code driftless_error_code(const driftless_error* error);
DRIFTLESS_EXPORT const char* driftless_error_name(const driftless_error* error);
/* Names the file, the tensor, the offset, the expected and the found value. */
DRIFTLESS_EXPORT const char* driftless_error_message(const driftless_error* error);
DRIFTLESS_EXPORT const char* driftless_error_next_action(const driftless_error* error);
DRIFTLESS_EXPORT void driftless_error_free(driftless_error* error);

/* Frees a text that a function returned in a `char**`. Ignores NULL. */
DRIFTLESS_EXPORT void driftless_free(char* text);

/* The library and its roads as a JSON object: "version", "abi", "backends" (a list of {"name",
 * "help", "built", "why_not"}). Loads the on-demand libraries to find out. */
DRIFTLESS_EXPORT driftless_code driftless_info_json(char** text, driftless_error** error);

/* ---- opening ---- */

typedef struct driftless_receiver driftless_receiver;

#define DRIFTLESS_BY_CONFIG (-1)

enum { DRIFTLESS_LAUNCHED_AUTO = 0, DRIFTLESS_LAUNCHED_YES = 1, DRIFTLESS_LAUNCHED_NO = 2 };

typedef struct driftless_options {
  size_t struct_size;
  const char* id;   /* the receiver's name, unique on the road. NULL: receiver.id of the
                       configuration; a second receiver of this process gets a suffix */
  int32_t launched; /* whether mpirun (srun, mpiexec) started this process; AUTO: find out */
  uint32_t threads; /* for hashing and decoding; 0: from the configuration */
} driftless_options;

/* Reads the YAML file; `overrides` are `override_count` texts "key=value" that override it.
 * `options` may be NULL. Loads what the configured road needs, so that DRIFTLESS_UNSUPPORTED is
 * returned here; does not wait for other processes. Ignores the file's settings for the trainer,
 * and receiver.target: the registered tensors are the target. */
DRIFTLESS_EXPORT driftless_code driftless_open(const char* config_path,
                                               const char* const* overrides, size_t override_count,
                                               const driftless_options* options,
                                               driftless_receiver** receiver,
                                               driftless_error** error);

/* Called around writing, on the thread that called commit() or rollback(); any may be NULL. They
 * return 0, or a driftless_code (another number counts as DRIFTLESS_BUSY). If pause fails, nothing
 * has changed, and commit() may be called again; if resume fails, the commit holds, and the error
 * reports that. An exception of a C++ callback is caught, and counts as a failure. */
typedef int32_t (*driftless_callback)(void* user);
/* Called if an MPI call without a deadline blocks this process for longer than deadlines.connect;
 * `what` names the call. Runs on a thread of the library. The call cannot be interrupted: a program
 * should report the reason and exit; a library inside a program may raise an alarm. Without this
 * callback the library waits until the call returns. */
typedef void (*driftless_late_callback)(void* user, const char* what);

typedef struct driftless_callbacks {
  size_t struct_size;
  void* user; /* passed to all of them */
  driftless_callback pause;
  driftless_callback resume;
  driftless_late_callback late;
} driftless_callbacks;

/* Call it before start(). Replaces earlier callbacks. NULL: none. */
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
  const int64_t* strides; /* `dims` distances to the next element, in elements; NULL: contiguous.
                             See driftless_register() */
  void* data;     /* aligned to the element's size; may be NULL if the tensor has no bytes */
  int32_t device; /* for DRIFTLESS_CUDA */
  int32_t reserved;
  void* stream; /* the cudaStream_t on which the engine uses the tensor; NULL: the default one.
                   commit() and start() wait for its queued work, after `pause` */
} driftless_tensor;

/* Call it before start(), once for every tensor of the run, in any order. DRIFTLESS_UNSUPPORTED,
 * naming the tensor, for a GPU in a build without CUDA, and if tensors lie both on host and GPU, or
 * on two GPUs: then open a receiver for each place, with the other's tensors DRIFTLESS_ABSENT.
 * DRIFTLESS_ALREADY_EXISTS if a name is repeated.
 *
 * Strides. A tensor may be any slice or transpose of memory, on the host and on a GPU: a transposed
 * view, columns of a wider matrix, padded rows. Memory between its elements is never written, and
 * may belong to other tensors. Each stride must exceed the reach of all smaller ones; otherwise,
 * and if it is 0, elements share memory, which is DRIFTLESS_INVALID_ARGUMENT.
 * DRIFTLESS_UNSUPPORTED: negative strides; strides that still have more than 6 dimensions after
 * adjoining ones are joined; and for types smaller than a byte, all but contiguous memory. Strides
 * of a dimension of one element, of an empty tensor and of an absent one are ignored. start()
 * checks that tensors share no memory with one another. All encodings and full versions work with
 * strided tensors as with contiguous ones. */
DRIFTLESS_EXPORT driftless_code driftless_register(driftless_receiver* receiver,
                                                   const driftless_tensor* tensor,
                                                   driftless_error** error);

/* ---- following ---- */

/* The contents of the tensors when start() is called. */
enum {
  DRIFTLESS_HOLDS_NOTHING = 0, /* anything: a full version is taken first */
  DRIFTLESS_HOLDS_BASE = 1     /* the run's base, version 0; proven by its digest */
};

/* Call it once all tensors are registered: joins the job, waits for the run's announcement and
 * compares the layout. DRIFTLESS_BY_CONFIG: deadlines.connect.
 * DRIFTLESS_WRONG_LAYOUT, _WRONG_BASE and _DEADLINE_EXCEEDED while waiting for the announcement
 * leave the receiver unchanged: more tensors may be registered, and start() called again. After a
 * failure to join the job the receiver can only be closed, and its errors report that. */
DRIFTLESS_EXPORT driftless_code driftless_start(driftless_receiver* receiver, int32_t holds,
                                                int64_t timeout_ms, driftless_error** error);
/* The same if the tensors hold version `version` of run `run` (NULL: of the run on the road).
 * DRIFTLESS_WRONG_BASE: their digest is not that version's in the run. If the manifests are gone,
 * driftless_state.proven is 0 until a version is committed or a manifest proves the tensors, and
 * reports to the trainer declare them unproven. */
DRIFTLESS_EXPORT driftless_code driftless_start_at(driftless_receiver* receiver, const char* run,
                                                   uint64_t version, int64_t timeout_ms,
                                                   driftless_error** error);

/* Whether something newer than the tensors' version is on the road: *newer is 1 or 0, *newest the
 * newest version there (0 if there is none). Either may be NULL. Fetches nothing. */
DRIFTLESS_EXPORT driftless_code driftless_poll(driftless_receiver* receiver, int64_t timeout_ms,
                                               int32_t* newer, uint64_t* newest,
                                               driftless_error** error);

/* Waits for something newer, fetches, proves and decodes it. *staged is 1 if commit() can be
 * called, or 0 if the timeout passed and nothing was new. The tensors are read, not written. What
 * was staged before is dropped first. While it waits it sends reports to the road, so an engine
 * that calls it every few seconds needs no driftless_keep_alive().
 * DRIFTLESS_WRONG_BASE: versions are gone and there is no anchor; the trainer was asked for one,
 * call again. After any failure the tensors are unchanged, and stage() may be called again. */
DRIFTLESS_EXPORT driftless_code driftless_stage(driftless_receiver* receiver, int64_t timeout_ms,
                                                int32_t* staged, driftless_error** error);

typedef struct driftless_report {
  size_t struct_size;
  uint64_t from_version;
  uint64_t version;
  uint64_t versions; /* folded into this commit */
  uint64_t changed_units;
  uint64_t full_bytes;  /* of all weights, counted for each version */
  uint64_t delta_bytes; /* payload of the versions */
  uint64_t wire_bytes;  /* of everything fetched */
  double fetch_ms;      /* on the road, and hashing */
  double stage_ms;      /* decoding and proving */
  double pause_ms;      /* in the callback `pause`, and waiting for streams */
  double apply_ms;      /* writing */
  double resume_ms;     /* in the callback `resume` */
  int32_t anchor;       /* 1: from a full version that is kept for late receivers */
  int32_t notes; /* number of harmless failures; driftless_last_report_json() has their texts */
  char digest[33];
  uint64_t needed_bytes; /* fetched bytes of parts that belong to tensors held here */
} driftless_report;

/* Pauses, writes, resumes, reports to the road. All or nothing: after success the tensors are the
 * new version; after a failure they are unchanged. (If they could not be restored, `valid` of the
 * state is 0, and the next stage() takes a full version.) `report` may be NULL. */
DRIFTLESS_EXPORT driftless_code driftless_commit(driftless_receiver* receiver,
                                                 driftless_report* report, driftless_error** error);
/* Drops what is staged; if nothing is, takes the last commit back, between pause and resume.
 * DRIFTLESS_UNSUPPORTED if it cannot be taken back (a full version onto tensors that held none);
 * DRIFTLESS_INVALID_ARGUMENT if there was no commit since the last stage(). */
DRIFTLESS_EXPORT driftless_code driftless_rollback(driftless_receiver* receiver,
                                                   driftless_error** error);
/* Sends a report, for an engine that does not call stage() for long: a trainer keeps versions for
 * receivers that have reported lately (road.patience). */
DRIFTLESS_EXPORT driftless_code driftless_keep_alive(driftless_receiver* receiver,
                                                     driftless_error** error);

typedef struct driftless_end {
  size_t struct_size;
  uint64_t version; /* the last one */
  int32_t ended;    /* 0: the run goes on, or it is unknown; then the rest is zero */
  int32_t reached;  /* the tensors hold that version, with that digest */
  char digest[33];
} driftless_end;

/* The trainer's end-of-run note, if this process can read it: in the trainer's MPI job, or on any
 * road but mpi_rma and nccl. */
DRIFTLESS_EXPORT driftless_code driftless_look_for_end(driftless_receiver* receiver,
                                                       driftless_end* end, driftless_error** error);

/* ---- looking, [any time] ---- */

typedef struct driftless_state {
  size_t struct_size;
  uint64_t version; /* of the tensors */
  int32_t started;
  int32_t staged;  /* something is ready for commit() */
  int32_t valid;   /* 0: they hold no version: none was committed, or a write could not be undone */
  int32_t partial; /* 1: some tensors are DRIFTLESS_ABSENT, and `digest` covers the others */
  uint32_t rank;   /* of this process among the job's rollouts */
  uint32_t proven; /* 1: the tensors have the digest that the run names for `version`. 0: no version
                      is held, or the caller of driftless_start_at() named the version, and no
                      manifest with its digest was read yet */
  char digest[33];
  char run[33]; /* all zero digits before start() */
} driftless_state;
DRIFTLESS_EXPORT driftless_code driftless_get_state(driftless_receiver* receiver,
                                                    driftless_state* state,
                                                    driftless_error** error);
/* Single fields of the state, for callers without structs. The buffers hold 33 bytes.
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
  uint64_t newest; /* the newest version that poll() or commit() has seen */
  uint64_t commits;
  uint64_t versions; /* in these commits */
  uint64_t anchors;
  uint64_t rollbacks;
  uint64_t stage_failures;
  uint64_t commit_failures;
  uint64_t unheard; /* reports that the road did not accept */
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
/* The report of the last commit. DRIFTLESS_NOT_FOUND: there was none. */
DRIFTLESS_EXPORT driftless_code driftless_last_report(driftless_receiver* receiver,
                                                      driftless_report* report,
                                                      driftless_error** error);
/* The same as a JSON object, as in metrics.file, and "notes". */
DRIFTLESS_EXPORT driftless_code driftless_last_report_json(driftless_receiver* receiver,
                                                           char** text, driftless_error** error);

/* ---- the end ---- */

/* Leaves the road and closes the job, sets *receiver to NULL, and no longer uses the tensors. If
 * *receiver is NULL, nothing happens, and the result is ok. In an MPI job this call is collective
 * over all processes and waits for them for `timeout_ms` (DRIFTLESS_BY_CONFIG: deadlines.connect);
 * 0 leaves without waiting, for the way out after a failure. The receiver is closed and *receiver
 * is NULL even after a failure, except in two cases in which nothing happens: another call is under
 * way (DRIFTLESS_BUSY), or the call was wrong (DRIFTLESS_INVALID_ARGUMENT). */
DRIFTLESS_EXPORT driftless_code driftless_close(driftless_receiver** receiver, int64_t timeout_ms,
                                                driftless_error** error);

/* ---- workers ---- */

/* A worker is one rank of an engine that another process drives: `driftless agent`, a trainer, or
 * the Python driver. The driver calls the engine, and the engine calls its ranks. Each call returns
 * a reply, a JSON object that the engine passes back unchanged:
 *
 *   {"nonce", "rank", "process", "ok", "error", "state", "version", "staged_version", "run",
 *    "digest", "follows", "waits", "ways", "timings", "moved"}
 *
 * A function returns DRIFTLESS_OK if there is a reply, even one with "ok": false, and otherwise a
 * code for a wrong call. The reply repeats `nonce`, so that it can be assigned to its call; `nonce`
 * and `ticket` may be NULL. driftless_free() frees a reply.
 *
 * States: closed, idle, staging (on a thread of the library), staged, committed (the commit can
 * be taken back), failed. "version" is the tensors' version, -1 if they hold parts of two. While
 * the worker stages, every call but status is refused by its reply. */
typedef struct driftless_worker driftless_worker;

/* Called when a staging has ended, on its thread. `reply` is that of driftless_worker_status(). */
typedef void (*driftless_reply_callback)(void* user, const char* reply);

typedef struct driftless_worker_options {
  size_t struct_size;
  int64_t rank;     /* among the engine's ranks, from 0 */
  int32_t holds;    /* the tensors' initial contents: DRIFTLESS_HOLDS_NOTHING or _BASE */
  uint32_t threads; /* for hashing and decoding; 0: from the configuration */
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
/* Follows the run of a configuration: a file's path, or YAML text. Waits for at most 10 s for the
 * run's announcement, and can be called again. The same configuration again changes nothing;
 * another one replaces it, and the tensors stay. `take_over` (or NULL): the id of the run that may
 * replace another run's weights, by a full version. */
DRIFTLESS_EXPORT driftless_code driftless_worker_open(driftless_worker* worker, const char* config,
                                                      const char* const* overrides,
                                                      size_t override_count, const char* take_over,
                                                      const char* nonce, char** reply,
                                                      driftless_error** error);
/* Starts a thread that waits for something newer and prepares it. Only a commit with the same
 * ticket may use it. */
DRIFTLESS_EXPORT driftless_code driftless_worker_stage(driftless_worker* worker, int64_t timeout_ms,
                                                       const char* ticket, const char* nonce,
                                                       char** reply, driftless_error** error);
/* [any time] */
DRIFTLESS_EXPORT driftless_code driftless_worker_status(driftless_worker* worker, const char* nonce,
                                                        char** reply, driftless_error** error);
/* Writes what is staged, if that is `version`; DRIFTLESS_STAGED: any version. The engine must not
 * use the tensors meanwhile: its driver must have paused it. */
DRIFTLESS_EXPORT driftless_code driftless_worker_commit(driftless_worker* worker, int64_t version,
                                                        const char* ticket, const char* nonce,
                                                        char** reply, driftless_error** error);
/* Returns to `version`: drops what is staged, or takes the last commit back. */
DRIFTLESS_EXPORT driftless_code driftless_worker_rollback(driftless_worker* worker, int64_t version,
                                                          const char* nonce, char** reply,
                                                          driftless_error** error);
/* Adds to the reply the rank's share of each tensor. With `sweep` the tensors are read now. */
DRIFTLESS_EXPORT driftless_code driftless_worker_shares(driftless_worker* worker, int32_t sweep,
                                                        const char* nonce, char** reply,
                                                        driftless_error** error);
/* Adds to the reply the present contents: the shares of all tensors (NULL), the blocks of one
 * tensor (`units` 0), or `units` elements of it from `first` on. */
DRIFTLESS_EXPORT driftless_code driftless_worker_read(driftless_worker* worker, const char* tensor,
                                                      uint64_t first, uint64_t units,
                                                      const char* nonce, char** reply,
                                                      driftless_error** error);
/* Leaves the road. The tensors keep their version, and the worker can be opened again. */
DRIFTLESS_EXPORT driftless_code driftless_worker_close(driftless_worker* worker, const char* nonce,
                                                       char** reply, driftless_error** error);
/* Closes the worker, and sets *worker to NULL. A NULL *worker is ok. DRIFTLESS_BUSY: it still
 * stages after that time, and nothing happened. */
DRIFTLESS_EXPORT driftless_code driftless_worker_free(driftless_worker** worker, int64_t timeout_ms,
                                                      driftless_error** error);

#ifdef __cplusplus
}
#endif

#endif /* DRIFTLESS_H */
