// SPDX-License-Identifier: Apache-2.0
// A road carries versions from publisher ranks to receivers. The two roles have an interface each.
//
// A road moves opaque bytes. It carries *publications*. A publication consists of parts (frames,
// files), which the publisher ranks write, and a manifest, which the leader (rank 0) adds when all
// parts are there. It appears to receivers whole or not at all, in ascending order of versions, and
// never changes. Only on roads that keep ranks apart may parts of different ranks have the same
// name; publishers therefore put their rank into the name.
//
// Every wait takes a Deadline and ends with kDeadlineExceeded. Nothing here throws or aborts.
// Callers act on these codes: kNotFound (no longer there: take the newest anchor), kIncomplete (not
// yet whole: try again), kDeadlineExceeded, kBusy (another publisher is using the road), kNoSpace.
// A SendRoad also returns kWrongRun if it is fenced: another publisher has taken the road over, so
// nothing that this one publishes can count any more, and it must stop. A road stays fenced.
//
// This header includes the common types of all roads. A file that includes it, also through another
// header (plugin/job/config.h), does not repeat its includes.
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
#include "core/device_space.h"
#include "core/file_system.h"
#include "core/hash128.h"
#include "core/memory_kind.h"
#include "core/status.h"
#include "core/waiting.h"

namespace driftless {

// A version as it follows its base (a delta or a full version), or an anchor: the same weights
// whole, for receivers that cannot follow the versions. Anchors lie beside the versions, not among
// them.
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

// A part as a receiver needs to know it to fetch it. The manifest contains the receipt.
struct PartReceipt {
  std::string name;  // a plain file name
  std::uint32_t rank = 0;
  std::uint64_t size_bytes = 0;
  Hash128 hash;               // xxh3-128 of its bytes
  std::uint64_t locator = 0;  // has a meaning for the road only

  friend bool operator==(const PartReceipt&, const PartReceipt&) = default;
};

// Bytes of a part that a receiver wants.
struct ByteRange {
  std::uint64_t offset = 0;  // within the part
  std::uint64_t size_bytes = 0;

  friend auto operator<=>(const ByteRange&, const ByteRange&) = default;
};

// A range, and its place within DeviceSpace::memory.
struct DeviceRange {
  ByteRange range;
  std::uint64_t to = 0;
};

// A receiver's report: its id, the version that it holds, its proof, and what it can read and wants
// of a version (proof and needs are opaque to the road). Version 0 without a proof: the receiver
// holds nothing yet, not even the base. The road keeps the report until the receiver sends a newer
// one or leaves.
struct ReceiverReport {
  std::string id;  // a plain file name, unique among the receivers of the road
  std::uint64_t version = 0;
  std::string proof;       // at most kMaxProofBytes
  std::string needs = {};  // at most kMaxNeedsBytes; formats/receiver_needs.h. Empty: unknown
};
inline constexpr std::size_t kMaxProofBytes = 512;
inline constexpr std::size_t kMaxNeedsBytes = 1024;
inline constexpr std::size_t kMaxReceiverIdBytes = 200;
// kInvalidArgument if the id is not a plain file name, or a field is too long.
[[nodiscard]] Status check_report(const ReceiverReport& report);

// Switches from a road to its fallback (collectives/fallback/fallback_road.h). The publisher ranks
// agree first: either all of them switch or none.
class Fallback {
 public:
  virtual ~Fallback() = default;
  // [all] The failure of the first road on this rank since its last begin(), or since it was
  // opened; ok if there was none.
  [[nodiscard]] virtual Status trouble() const = 0;
  [[nodiscard]] virtual bool used() const = 0;
  // [all, the leader first, while no publication is under way] Uses the fallback from now on.
  // `run_info` [leader] is announced there; empty if the run is not announced yet. If it fails,
  // nothing changes.
  [[nodiscard]] virtual Status use(std::string_view reason,
                                   const std::optional<std::string>& run_info,
                                   const Deadline& deadline) = 0;
};

// The sending side of one publisher rank. Every publisher rank has one. All ranks make the calls
// marked [all]; only rank 0 makes those marked [leader]. One thread at a time.
class SendRoad {
 public:
  virtual ~SendRoad() = default;

  // [leader, once, before the first publication] Publishes what a receiver must know before any
  // version. kAlreadyExists if the road holds another announcement: the road belongs to another
  // run.
  [[nodiscard]] virtual Status announce(std::string_view run_info, const Deadline& deadline) = 0;

  // [all] Starts a publication, and drops an unfinished one first. The leader calls it before the
  // other ranks do; the publisher ensures that. kAlreadyExists if the publication exists.
  [[nodiscard]] virtual Status begin(const PublicationId& id, const Deadline& deadline) = 0;
  // [all] Creates a part, which is written through pwrite() at any offsets and finished by sync().
  // The road does not know its size in advance; pwrite() returns kNoSpace if the road cannot hold
  // it. All parts must be closed before flush().
  [[nodiscard]] virtual Result<std::unique_ptr<File>> create_part(const std::string& name) = 0;
  // [all] Whether several threads may each write a part while the next one is created. One thread
  // at a time calls create_part(). If not, a part must be closed before the next one is created.
  [[nodiscard]] virtual bool writes_at_once() const { return false; }
  // [all] Brings everything that this rank wrote to where receivers will read it, and makes it
  // durable if the road is. Returns this rank's parts in the order of their creation. May be a
  // collective call, so a rank that fails earlier must call abort().
  [[nodiscard]] virtual Result<std::vector<PartReceipt>> flush(const Deadline& deadline) = 0;
  // [leader, after all ranks have flushed] Makes the publication visible. Ok: it is committed, and
  // durable if the road is. kWrongRun: this publisher is fenced, and the publication is not
  // visible. After any other status the caller must ask published().
  [[nodiscard]] virtual Status seal(std::string_view manifest, const Deadline& deadline) = 0;
  // [all] Drops the unfinished publication; no receiver saw or will see any of it. Ok if there is
  // none.
  [[nodiscard]] virtual Status abort() = 0;
  // [all] The xxh3-128 of the publication's manifest if receivers can see it, otherwise empty. It
  // resolves a seal whose outcome was lost: the manifest of another publisher has another hash.
  [[nodiscard]] virtual Result<std::optional<Hash128>> published(const PublicationId& id,
                                                                 const Deadline& deadline) = 0;

  // [leader] The last report of each receiver. Omits receivers that have sent none for longer than
  // the road's patience.
  [[nodiscard]] virtual Result<std::vector<ReceiverReport>> receivers() = 0;
  // [leader] The ids of receivers that called leave(), as of the last receivers(). Receivers that
  // died or fell silent are not among them.
  [[nodiscard]] virtual std::vector<std::string> left() const { return {}; }
  // [leader] Allows the road to remove versions up to `version`, and anchors before it, except
  // those that a listed receiver still needs: the versions past its own or, if it holds nothing
  // yet, the oldest anchor and the versions past that. Returns what was removed; a road that makes
  // room by itself returns nothing. kIncomplete: this publisher is not fenced, but some receivers
  // have not yet been informed of the publications that exist.
  [[nodiscard]] virtual Result<std::vector<PublicationId>> prune(std::uint64_t /*version*/) {
    return std::vector<PublicationId>();
  }
  // [leader] The highest version that may ever have been visible in this run on the road, including
  // versions removed since: such a number is not used again. 0 if the road forgets versions that it
  // does not list. kCorrupt if the number cannot be determined any more. There is no default,
  // because a wrapper that does not forward this call would use a number twice.
  [[nodiscard]] virtual Result<std::uint64_t> highest_number() = 0;
  // [all] The kind of memory that holds parts. On kDevice pwrite() accepts host and device bytes,
  // so a writer need not copy device bytes to the host.
  [[nodiscard]] virtual MemoryKind part_memory() const { return MemoryKind::kHost; }
  // [all, between flush() and seal() or abort()] The directory of the publication's files until the
  // publication becomes visible. Empty on roads without files.
  [[nodiscard]] virtual std::string pending_directory() const { return {}; }
  // [all] Checks whether an empty road could hold a publication in which this rank writes up to
  // `bytes`. The error names the setting that is too small. A road with a limit in bytes refuses
  // here, before the first version.
  [[nodiscard]] virtual Status check_version_size(std::uint64_t /*bytes*/) { return {}; }
  // [all] Notes for the user about the opening of the road: a directory that it made, for example.
  [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
  // [all] Null if the road has no fallback.
  [[nodiscard]] virtual Fallback* fallback() { return nullptr; }
  // [all] Makes progress on a road without a thread of its own; callers call it now and then.
  // Cheap.
  virtual void progress() {}
};

// The receiving side of one receiver. One thread at a time. Two exceptions: any thread may use the
// returned bytes, and several may fetch if fetches_at_once() is true.
class ReceiveRoad {
 public:
  virtual ~ReceiveRoad() = default;

  // Waits for the announcement and returns it.
  [[nodiscard]] virtual Result<std::string> run_info(const Deadline& deadline) = 0;
  // Checks the weights of a receiver that already holds a whole version, by their digest
  // (hexadecimal), before any other call. kWrongBase if the road's version has other weights. Roads
  // whose runs have random ids need no check: the run's id is the check.
  [[nodiscard]] virtual Status check_held(std::uint64_t /*version*/, std::string_view /*digest*/,
                                          const Deadline& /*deadline*/) {
    return {};
  }
  // The publications that can be fetched now, ascending by number, a version before its anchor.
  [[nodiscard]] virtual Result<std::vector<PublicationId>> list(const Deadline& deadline) = 0;
  // Returns once the road holds a version past `version`. Polls with growing intervals.
  [[nodiscard]] virtual Status wait_beyond(std::uint64_t version, const Deadline& deadline) = 0;
  // The manifest as sealed. kNotFound if the publication does not exist (any more), kIncomplete if
  // it is not yet whole, kCorrupt if it is damaged.
  [[nodiscard]] virtual Result<std::string> fetch_manifest(const PublicationId& id,
                                                           const Deadline& deadline) = 0;
  // The bytes of a part, of the size that the receipt states; kNotFound if it has been removed. The
  // caller compares the hash, unless the bytes are in device memory (MappedFile::memory_kind()):
  // then the road has compared it. The bytes stay valid after the publication is removed. The
  // default fetches the part as one range.
  [[nodiscard]] virtual Result<MappedFile> fetch_part(const PublicationId& id,
                                                      const PartReceipt& part,
                                                      const Deadline& deadline);
  // The bytes of `ranges`, in their order; ranges may overlap, touch, be empty and be many. Only
  // these bytes are fetched and take memory, unless the road holds the whole part anyway. Each
  // range has the same address modulo kRangeAlignment as its offset in the part. kCorrupt, before
  // anything is fetched, if a range leaves the part; other failures as in fetch_part(). Returns all
  // ranges or fails.
  //
  // The road cannot prove a range, because a part's hash covers all its bytes. The caller proves
  // the bytes by hashes that lie inside the part (of blocks). A road that returns bytes in device
  // memory holds the whole part there and has compared its hash; a road that reads only ranges
  // returns host memory.
  [[nodiscard]] virtual Result<std::vector<MappedFile>> fetch_ranges(
      const PublicationId& id, const PartReceipt& part, std::span<const ByteRange> ranges,
      const Deadline& deadline) = 0;
  // Whether a receiver with weights on a GPU should call fetch_to_device() for the blocks that it
  // needs. Other roads bring them to the host.
  [[nodiscard]] virtual bool fetches_to_device() const { return false; }
  // Fetches ranges of a part into memory of a GPU; failures as in fetch_ranges(), and the content
  // of `space` is then undefined. The ranges are not proven: the caller hashes the blocks where
  // they lie (kernels/device_hash.h), and compares these hashes. The default fetches to the host, a
  // limited number of bytes at a time, and copies.
  [[nodiscard]] virtual Status fetch_to_device(const PublicationId& id, const PartReceipt& part,
                                               std::span<const DeviceRange> ranges,
                                               const DeviceSpace& space, const Deadline& deadline);
  // Whether several threads may call fetch_part() and fetch_ranges() at once. If not, one call with
  // many ranges keeps several requests in flight.
  [[nodiscard]] virtual bool fetches_at_once() const = 0;
  // Whether one request at present reads many ranges, so that another range costs less than the
  // bytes of a gap.
  [[nodiscard]] virtual bool batches_ranges() const { return false; }
  // Registers the receiver or updates its report. The caller repeats it from time to time, also
  // without news, as its sign of life.
  [[nodiscard]] virtual Status report(const ReceiverReport& report, const Deadline& deadline) = 0;
  // Signs off: this receiver fetches nothing more, so nothing needs to be kept for it. Ok, at once,
  // if the publisher has closed its road. Otherwise a road that needs the publisher's answer waits
  // for it, and returns kDeadlineExceeded if the publisher has died without closing.
  [[nodiscard]] virtual Status leave(const Deadline& deadline) = 0;
  // Whether this receiver currently serves other receivers, so that offer_part() is useful.
  [[nodiscard]] virtual bool serves_others() const { return false; }
  // Offers all bytes of a part, as the caller produced them. The road keeps the bytes that it can
  // prove to be the part's, within its limits, and serves them to other receivers. Returns the
  // number of bytes kept.
  [[nodiscard]] virtual Result<std::uint64_t> offer_part(const PublicationId& /*id*/,
                                                         const PartReceipt& /*part*/,
                                                         std::span<const std::byte> /*bytes*/,
                                                         const Deadline& /*deadline*/) {
    return std::uint64_t{0};
  }
  // The carrier of the last bytes of parts, on a road that has several: "shm", "tcp". Empty if the
  // road has only one, or nothing was fetched yet.
  [[nodiscard]] virtual std::string carrier() const { return {}; }
};

}  // namespace driftless
