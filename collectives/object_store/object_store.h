// SPDX-License-Identifier: Apache-2.0
// ObjectStore: what the road needs of a store of named, immutable objects. S3-compatible stores and
// web servers are in this folder; others (a Hugging Face bucket) are implemented in Python.
//
// Keys are relative to the road's prefix, plain text, parts joined by '/'. An object appears whole
// or not at all. Every call ends with its deadline; calls that failed in a way that may pass are
// tried again until then, with growing waits. Any thread. Codes: kNotFound, kAlreadyExists (of a
// conditional put()), kDeadlineExceeded, kIo, kUnsupported, kInvalidArgument (credentials refused,
// no such bucket: trying again does not help). No message holds a credential.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"

namespace driftless {

struct ObjectInfo {
  std::string key;
  std::uint64_t size_bytes = 0;

  friend auto operator<=>(const ObjectInfo&, const ObjectInfo&) = default;
};

// What an object holds, and the store's tag of exactly this content.
struct TaggedText {
  std::string text;
  std::string tag;
};

// GETs that anybody can make until they expire: the object `key` is at
// base + percent_encode(key) + "?" + query + its signature.
struct Presigned {
  std::string base;                     // ends with '/'
  std::string query;                    // ends with the name that the signature belongs to, and '='
  std::string expires;                  // UTC, 2026-01-31T12:00:00Z; for people
  std::vector<std::string> signatures;  // of the keys, in their order

  [[nodiscard]] std::string url(const std::string& key, const std::string& signature) const;
};
// The longest that S3 allows.
inline constexpr std::chrono::hours kLongestPresigned{7 * 24};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // For messages: "s3://bucket/prefix".
  [[nodiscard]] virtual const std::string& name() const = 0;

  // `only_new`: kAlreadyExists if an object of this key is there, at that instant. A put() whose
  // answer was lost and which is tried again may find its own object: the caller compares.
  [[nodiscard]] virtual Status put(const std::string& key, std::span<const std::byte> bytes,
                                   bool only_new, const Deadline& deadline) = 0;

  // In place of the object that has this tag: kAlreadyExists if another one is there, kNotFound if
  // none is. As put(), it may find its own object.
  [[nodiscard]] virtual Status replace(const std::string& key, std::span<const std::byte> bytes,
                                       const std::string& tag, const Deadline& deadline) = 0;

  // A large object, in pieces of kPieceBytes (the last one may be shorter), in any order, from any
  // number of threads, each as often as wanted: the last one counts. It appears with finish().
  class Upload {
   public:
    virtual ~Upload() = default;
    [[nodiscard]] virtual Status put(std::uint32_t piece, std::span<const std::byte> bytes,
                                     const Deadline& deadline) = 0;
    // All pieces below `pieces` are there.
    [[nodiscard]] virtual Status finish(std::uint32_t pieces, const Deadline& deadline) = 0;
    // Nothing of it stays. Best effort; drop_uploads() finds what is left.
    virtual void drop() = 0;
  };
  [[nodiscard]] virtual Result<std::unique_ptr<Upload>> upload(const std::string& key,
                                                               const Deadline& deadline) = 0;
  // Removes unfinished uploads below `prefix`, which others left behind.
  [[nodiscard]] virtual Status drop_uploads(const std::string& prefix,
                                            const Deadline& deadline) = 0;

  // The size of an object.
  [[nodiscard]] virtual Result<std::uint64_t> size(const std::string& key,
                                                   const Deadline& deadline) = 0;
  // Fills `bytes` from `offset` on, as far as the object goes; returns how many came.
  [[nodiscard]] virtual Result<std::uint64_t> get(const std::string& key, std::uint64_t offset,
                                                  std::span<std::byte> bytes,
                                                  const Deadline& deadline) = 0;
  // The whole of a small object; kCorrupt if it is longer than `max_bytes`.
  [[nodiscard]] virtual Result<TaggedText> get_tagged(const std::string& key, std::size_t max_bytes,
                                                      const Deadline& deadline) = 0;
  [[nodiscard]] Result<std::string> get_text(const std::string& key, std::size_t max_bytes,
                                             const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(TaggedText read, get_tagged(key, max_bytes, deadline));
    return std::move(read.text);
  }
  // Objects whose keys begin with `prefix` and come after `after`, ascending. What was put or
  // removed a moment ago may be missing or still there.
  [[nodiscard]] virtual Result<std::vector<ObjectInfo>> list(const std::string& prefix,
                                                             const std::string& after,
                                                             const Deadline& deadline) = 0;
  // Ok if it is not there.
  [[nodiscard]] virtual Status remove(const std::string& key, const Deadline& deadline) = 0;
  // kUnsupported if the store cannot open objects to those who have no credentials. No request.
  [[nodiscard]] virtual Result<Presigned> presign(std::span<const std::string> keys,
                                                  std::chrono::seconds valid,
                                                  const Deadline& deadline) = 0;
};

[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// What a piece of an upload holds: S3 takes 10,000 of them, of 5 MiB at least.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;
inline constexpr std::uint64_t kMaxObjectBytes = 10'000 * kPieceBytes;

struct S3Options {
  std::string bucket;
  std::string prefix;    // without '/' at its ends; may be empty
  std::string endpoint;  // "http(s)://host[:port]"; empty: AWS's, of the region
  std::string region = "us-east-1";
  std::string profile;  // of the shared credentials file; empty: AWS_PROFILE, or "default"
  std::string ca_file;  // certificates of those that https is believed; empty: the system's
};
// kInvalidArgument if the names cannot be right. Credentials are looked for with the first call.
[[nodiscard]] Result<std::shared_ptr<ObjectStore>> make_s3_store(const S3Options& options);
// The server's address, without '/' at its end.
[[nodiscard]] std::string s3_endpoint(const S3Options& options);

// Reads objects at url/key, without credentials: a public bucket, a web server, a URL whose query
// is sent with every request. list() reads the object "index.json" that a publisher keeps. A URL of
// that object itself, presigned, opens those that it holds presigned links of. Everything that
// writes is kUnsupported.
[[nodiscard]] Result<std::shared_ptr<ObjectStore>> make_web_store(const std::string& url,
                                                                  const std::string& ca_file);

}  // namespace driftless
