// SPDX-License-Identifier: Apache-2.0
// A road: what carries versions from publisher ranks to receivers. Two roles, two interfaces.
//
// A road moves opaque bytes. What it carries is a *publication*: parts (frames, files) written by
// the publisher ranks, and a manifest that the leader (rank 0) adds when all parts are there. A
// publication appears to receivers whole or not at all, in ascending order of versions, and is
// never changed. Parts of different ranks may have the same name only on roads that keep ranks
// apart; publishers therefore put their rank into it.
//
// Every wait takes a Deadline and ends with kDeadlineExceeded. Nothing here throws or aborts. Codes
// that callers act upon: kNotFound (not there any more: take the newest anchor), kIncomplete (not
// whole yet: try again), kDeadlineExceeded, kBusy (somebody else publishes here), kNoSpace; and, of
// a SendRoad, kWrongRun: fenced. Another publisher has taken the road over, so nothing that this
// one publishes can count any more, and it must stop. A road is fenced for good.
//
// This header brings the vocabulary of all roads: files that include it, also by way of another one
// (plugin/job/config.h), do not repeat its includes.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/deadline.h"
#include "core/file_system.h"
#include "core/hash128.h"
#include "core/memory_kind.h"
#include "core/status.h"
#include "core/waiting.h"

namespace driftless {

// Version `version` as it follows its base (a delta, or a full one), or as an anchor: the same
// weights whole, for who cannot follow the versions. Anchors lie beside them, not among them.
enum class PublicationKind : std::uint8_t { kVersion = 0, kAnchor = 1 };

struct PublicationId {
  std::uint64_t version = 0;
  PublicationKind kind = PublicationKind::kVersion;

  friend auto operator<=>(const PublicationId&, const PublicationId&) = default;
};
[[nodiscard]] std::string to_string(const PublicationId& id);  // "version 7", "anchor of version 7"
[[nodiscard]] inline bool is_version(const PublicationId& id) {
  return id.kind == PublicationKind::kVersion;
}
[[nodiscard]] bool has_version_past(const std::vector<PublicationId>& ids, std::uint64_t version);
// kNotFound: "<road>: version 7 is not there (any more); take the newest anchor".
[[nodiscard]] Status not_there(std::string_view road, const PublicationId& id);

inline constexpr std::uint64_t kRangeAlignment = 16;

// What a receiver must know to fetch a part. Travels in the manifest.
struct PartReceipt {
  std::string name;  // a plain file name
  std::uint32_t rank = 0;
  std::uint64_t size_bytes = 0;
  Hash128 hash;               // xxh3-128 of its bytes
  std::uint64_t locator = 0;  // the road's own

  friend bool operator==(const PartReceipt&, const PartReceipt&) = default;
};

// Bytes of a part that a receiver wants.
struct ByteRange {
  std::uint64_t offset = 0;  // within the part
  std::uint64_t size_bytes = 0;

  friend auto operator<=>(const ByteRange&, const ByteRange&) = default;
};

// What a receiver says of itself: that it is there, what it holds, its proof, and what it can read
// and wants of a version (both opaque to the road). Version 0 without a proof: it holds nothing
// yet, not even the base. Kept by the road until the receiver says something newer or leaves.
struct ReceiverReport {
  std::string id;  // a plain file name, unique among the receivers of the road
  std::uint64_t version = 0;
  std::string proof;       // at most kMaxProofBytes
  std::string needs = {};  // at most kMaxNeedsBytes; formats/receiver_needs.h. Empty: not said
};
inline constexpr std::size_t kMaxProofBytes = 512;
inline constexpr std::size_t kMaxNeedsBytes = 1024;
inline constexpr std::size_t kMaxReceiverIdBytes = 200;
// kInvalidArgument where the id is not a plain file name, or something is too long.
[[nodiscard]] Status check_report(const ReceiverReport& report);

// The way from a road to the one behind it (collectives/fallback/fallback_road.h). The publisher
// ranks agree, and all of them go over or none does.
class Fallback {
 public:
  virtual ~Fallback() = default;
  // [all] Why this rank could not go on by the first road since its last begin(), or from the start
  // on; ok: it can.
  [[nodiscard]] virtual Status trouble() const = 0;
  [[nodiscard]] virtual bool used() const = 0;
  // [all, the leader first, no publication is under way] From here on by the fallback. `run_info`
  // [leader]: announced there; nothing: the run is not announced yet. Not ok: as before.
  [[nodiscard]] virtual Status use(std::string_view reason,
                                   const std::optional<std::string>& run_info,
                                   const Deadline& deadline) = 0;
};

// The sending side of one publisher rank. Every publisher rank has one, and makes the calls marked
// [all]; [leader] is rank 0 alone. One thread at a time.
class SendRoad {
 public:
  virtual ~SendRoad() = default;

  // [leader, once, before the first publication] What a receiver must know before any version.
  // kAlreadyExists where the road holds another announcement: it belongs to another run.
  [[nodiscard]] virtual Status announce(std::string_view run_info, const Deadline& deadline) = 0;

  // [all] Starts a publication; the leader's call comes before the others' (the publisher sees to
  // it). kAlreadyExists where it is there. An unfinished one is dropped first.
  [[nodiscard]] virtual Status begin(const PublicationId& id, const Deadline& deadline) = 0;
  // [all] A new part, written through pwrite() at any offsets and finished by sync(). The road is
  // told nothing about its size; kNoSpace from pwrite() where it cannot hold it. All parts must be
  // closed before flush().
  [[nodiscard]] virtual Result<std::unique_ptr<File>> create_part(const std::string& name) = 0;
  // [all] Whether several parts may be written at a time, each by a thread of its own, while one
  // thread creates the next. If not, a part is closed before the next one is created.
  [[nodiscard]] virtual bool writes_at_once() const { return false; }
  // [all] Everything that this rank wrote is where receivers will look for it, and durable where
  // the road is. Returns this rank's parts in the order of their creation. May be a meeting of all
  // ranks, so a rank that fails before calls abort().
  [[nodiscard]] virtual Result<std::vector<PartReceipt>> flush(const Deadline& deadline) = 0;
  // [leader, once all ranks have flushed] Makes the publication visible. Ok: it is committed, and
  // durable where the road is. kWrongRun: fenced, and it is not visible. Any other status: look at
  // published().
  [[nodiscard]] virtual Status seal(std::string_view manifest, const Deadline& deadline) = 0;
  // [all] Drops the unfinished publication; nothing of it was or will be visible. Ok where there is
  // none.
  [[nodiscard]] virtual Status abort() = 0;
  // [all] The xxh3-128 of its manifest if receivers can see it, else nothing. For a seal whose
  // outcome was lost: another publisher's manifest tells another hash.
  [[nodiscard]] virtual Result<std::optional<Hash128>> published(const PublicationId& id,
                                                                 const Deadline& deadline) = 0;

  // [leader] What the receivers last said. One that has been silent for the road's patience is not
  // listed any more.
  [[nodiscard]] virtual Result<std::vector<ReceiverReport>> receivers() = 0;
  // [leader] The ids of receivers that signed off by leave(), as of the last receivers(). One that
  // died or fell silent did not.
  [[nodiscard]] virtual std::vector<std::string> left() const { return {}; }
  // [leader] Room may be made by removing versions up to `version` and anchors before it, except
  // those that a listed receiver still needs to get on: versions past its own; for one that has
  // nothing yet, the oldest anchor there and the versions past it. Returns what was removed; a road
  // that makes room by itself returns nothing. kIncomplete: this publisher is not fenced, but some
  // receivers have not been told of what is there.
  [[nodiscard]] virtual Result<std::vector<PublicationId>> prune(std::uint64_t /*version*/) {
    return std::vector<PublicationId>();
  }
  // [leader] The highest version that may ever have been visible in the run on the road, also one
  // that somebody has removed since: its number is not used again. 0 where the road forgets what it
  // does not list. kCorrupt where nobody can say any more. Without a default: a road around another
  // that does not pass it on would use a number again.
  [[nodiscard]] virtual Result<std::uint64_t> highest_number() = 0;
  // [all] Where parts are kept. On kDevice pwrite() takes host or device bytes, and a writer that
  // has them on the device need not bring them down.
  [[nodiscard]] virtual MemoryKind part_memory() const { return MemoryKind::kHost; }
  // [all, between flush() and seal() or abort()] The directory that the files of the publication
  // lie in until it appears; empty on roads without files.
  [[nodiscard]] virtual std::string pending_directory() const { return {}; }
  // [all] Whether a publication in which this rank writes up to `bytes` can be on the road, however
  // empty that is. Not ok: the message names the setting that is too small. A road with a bounded
  // number of bytes for versions refuses here, before the first one.
  [[nodiscard]] virtual Status check_version_size(std::uint64_t /*bytes*/) { return {}; }
  // [all] What opening the road did that its user should know.
  [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
  // [all] Null: this road has none.
  [[nodiscard]] virtual Fallback* fallback() { return nullptr; }
  // [all] Lets the road work; to be called now and then where it has no thread of its own. Cheap.
  virtual void progress() {}
};

// The receiving side of one receiver. One thread at a time, except the bytes that it returned, and
// fetches if fetches_at_once() says so.
class ReceiveRoad {
 public:
  virtual ~ReceiveRoad() = default;

  // The announcement; waits for it.
  [[nodiscard]] virtual Result<std::string> run_info(const Deadline& deadline) = 0;
  // Before anything else is asked for, if the receiver holds all weights of a version already, with
  // this digest (hexadecimal). kWrongBase if the road finds that the version is another one. Of
  // roads whose runs have random ids the run says it.
  [[nodiscard]] virtual Status check_held(std::uint64_t /*version*/, std::string_view /*digest*/,
                                          const Deadline& /*deadline*/) {
    return {};
  }
  // What can be fetched now, ascending by number, a version before its anchor.
  [[nodiscard]] virtual Result<std::vector<PublicationId>> list(const Deadline& deadline) = 0;
  // Returns once a version past `version` is there; looks again and again, ever more rarely.
  [[nodiscard]] virtual Status wait_beyond(std::uint64_t version, const Deadline& deadline) = 0;
  // The manifest as sealed. kNotFound where the publication is not there (any more), kIncomplete
  // where it is not whole yet, kCorrupt where it is damaged.
  [[nodiscard]] virtual Result<std::string> fetch_manifest(const PublicationId& id,
                                                           const Deadline& deadline) = 0;
  // A part's bytes, of the size that the receipt says; kNotFound where it has gone meanwhile. The
  // caller compares the hash, unless they are in device memory (MappedFile::memory_kind()): a road
  // that returns such bytes has compared it. They stay valid after the publication has gone.
  // As one range, if the road has no other way.
  [[nodiscard]] virtual Result<MappedFile> fetch_part(const PublicationId& id,
                                                      const PartReceipt& part,
                                                      const Deadline& deadline);
  // The bytes of `ranges`, in their order; they may overlap, touch, be empty or many. Only they are
  // fetched, and memory is taken for them alone, unless the road holds the part anyway. Each begins
  // in memory as it does in the part, modulo kRangeAlignment. kCorrupt, before anything is fetched,
  // if a range leaves the part; else as fetch_part(). All ranges come, or none does.
  //
  // No hash of the road's proves a range: the hash of a part is that of all its bytes. The caller
  // proves what it gets by hashes of its own inside the part (of blocks). A road that returns bytes
  // in device memory has the whole part there, and has compared it; one that reads ranges alone
  // returns host memory.
  [[nodiscard]] virtual Result<std::vector<MappedFile>> fetch_ranges(
      const PublicationId& id, const PartReceipt& part, std::span<const ByteRange> ranges,
      const Deadline& deadline) = 0;
  // Whether fetch_part() and fetch_ranges() may be called by several threads at once. If not, a
  // call with many ranges is how several are on their way at a time.
  [[nodiscard]] virtual bool fetches_at_once() const = 0;
  // Registers, or says again. To be called from time to time, also when nothing is new: it is the
  // sign of life.
  [[nodiscard]] virtual Status report(const ReceiverReport& report, const Deadline& deadline) = 0;
  // Nothing more will be fetched, so nothing needs to be kept. Ok, and at once, where the publisher
  // has closed its road: it keeps nothing any more. One that is there is waited for; where it has
  // died without a word a road that needs its answer ends with kDeadlineExceeded.
  [[nodiscard]] virtual Status leave(const Deadline& deadline) = 0;
  // Whether this receiver serves others, now, and so has a use for offer_part().
  [[nodiscard]] virtual bool serves_others() const { return false; }
  // The bytes of a part, all of them, as the caller made them. The road keeps what it can prove to
  // be the part's, within its bounds, and serves it to other receivers. Returns how many bytes it
  // keeps.
  [[nodiscard]] virtual Result<std::uint64_t> offer_part(const PublicationId& /*id*/,
                                                         const PartReceipt& /*part*/,
                                                         std::span<const std::byte> /*bytes*/,
                                                         const Deadline& /*deadline*/) {
    return std::uint64_t{0};
  }
  // How the last bytes of parts came, on a road that has several ways: "shm", "tcp". Empty: there
  // is one, or nothing came yet.
  [[nodiscard]] virtual std::string carrier() const { return {}; }
};

}  // namespace driftless
