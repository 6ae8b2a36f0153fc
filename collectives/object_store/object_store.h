// SPDX-License-Identifier: Apache-2.0
// ObjectStore: the interface to a store of named, immutable objects. This folder has S3-compatible
// stores and web servers; others (a Hugging Face bucket) are implemented in Python.
//
// Keys are relative to the road's prefix, plain text, with parts joined by '/'. An object appears
// whole or not at all. Every call ends with its deadline; it retries temporary failures until then,
// with growing waits. Thread-safe. Codes: kNotFound, kAlreadyExists (for a conditional put()),
// kDeadlineExceeded, kIo, kUnsupported, kInvalidArgument (credentials refused, no such bucket: a
// retry does not help). No message contains a credential.
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

// The content of an object, and the store's tag for exactly this content.
struct TaggedText {
  std::string text;
  std::string tag;
};

// GETs that need no credentials until they expire: the URL of object `key` is base +
// percent_encode(key) + "?" + query + its signature.
struct Presigned {
  std::string base;                     // ends with '/'
  std::string query;                    // ends with the signature's name and '='
  std::string expires;                  // UTC, 2026-01-31T12:00:00Z; for display
  std::vector<std::string> signatures;  // in the order of the keys

  [[nodiscard]] std::string url(const std::string& key, const std::string& signature) const;
};
// The longest time that S3 allows.
inline constexpr std::chrono::hours kLongestPresigned{7 * 24};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // For messages: "s3://bucket/prefix".
  [[nodiscard]] virtual const std::string& name() const = 0;

  // `only_new`: kAlreadyExists if an object with this key exists, decided atomically. A retry of a
  // put() whose answer was lost may find its own object: the caller must compare.
  [[nodiscard]] virtual Status put(const std::string& key, std::span<const std::byte> bytes,
                                   bool only_new, const Deadline& deadline) = 0;

  // Replaces the object that has this tag: kAlreadyExists if the object has another tag, kNotFound
  // if there is none. Like put(), it may find its own object.
  [[nodiscard]] virtual Status replace(const std::string& key, std::span<const std::byte> bytes,
                                       const std::string& tag, const Deadline& deadline) = 0;

  // A large object in pieces of kPieceBytes (the last one may be shorter), in any order, from any
  // number of threads. A piece may be sent again: the last one counts. finish() makes the object
  // visible.
  class Upload {
   public:
    virtual ~Upload() = default;
    [[nodiscard]] virtual Status put(std::uint32_t piece, std::span<const std::byte> bytes,
                                     const Deadline& deadline) = 0;
    // Call it once all pieces below `pieces` are sent.
    [[nodiscard]] virtual Status finish(std::uint32_t pieces, const Deadline& deadline) = 0;
    // Removes all its pieces. Best effort; drop_uploads() finds the rest.
    virtual void drop() = 0;
  };
  [[nodiscard]] virtual Result<std::unique_ptr<Upload>> upload(const std::string& key,
                                                               const Deadline& deadline) = 0;
  // Removes unfinished uploads below `prefix` that other publishers left.
  [[nodiscard]] virtual Status drop_uploads(const std::string& prefix,
                                            const Deadline& deadline) = 0;

  // The size of an object.
  [[nodiscard]] virtual Result<std::uint64_t> size(const std::string& key,
                                                   const Deadline& deadline) = 0;
  // Fills `bytes` from `offset` on, up to the object's end; returns the number of bytes.
  [[nodiscard]] virtual Result<std::uint64_t> get(const std::string& key, std::uint64_t offset,
                                                  std::span<std::byte> bytes,
                                                  const Deadline& deadline) = 0;
  // A whole small object; kCorrupt if it is longer than `max_bytes`.
  [[nodiscard]] virtual Result<TaggedText> get_tagged(const std::string& key, std::size_t max_bytes,
                                                      const Deadline& deadline) = 0;
  [[nodiscard]] Result<std::string> get_text(const std::string& key, std::size_t max_bytes,
                                             const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(TaggedText read, get_tagged(key, max_bytes, deadline));
    return std::move(read.text);
  }
  // Objects whose keys begin with `prefix` and sort after `after`, ascending. Recent puts may be
  // missing, and recently removed objects still listed.
  [[nodiscard]] virtual Result<std::vector<ObjectInfo>> list(const std::string& prefix,
                                                             const std::string& after,
                                                             const Deadline& deadline) = 0;
  // Ok if the object does not exist.
  [[nodiscard]] virtual Status remove(const std::string& key, const Deadline& deadline) = 0;
  // kUnsupported if the store cannot give access without credentials. Sends the store no request.
  [[nodiscard]] virtual Result<Presigned> presign(std::span<const std::string> keys,
                                                  std::chrono::seconds valid,
                                                  const Deadline& deadline) = 0;
};

[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The size of a piece of an upload. S3 accepts 10,000 pieces, of at least 5 MiB.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;
inline constexpr std::uint64_t kMaxObjectBytes = 10'000 * kPieceBytes;

struct S3Options {
  std::string bucket;
  std::string prefix;    // without '/' at its ends; may be empty
  std::string endpoint;  // "http(s)://host[:port]"; empty: that of AWS for the region
  std::string region = "us-east-1";
  std::string profile;  // of the shared credentials file; empty: AWS_PROFILE, or "default"
  std::string ca_file;  // CA bundle for https; empty: the system's
};
// kInvalidArgument if a name cannot be valid. The first call looks for credentials.
[[nodiscard]] Result<std::shared_ptr<ObjectStore>> make_s3_store(const S3Options& options);
// The server's address without '/' at its end.
[[nodiscard]] std::string s3_endpoint(const S3Options& options);

// Reads objects at url/key without credentials: a public bucket, a web server, or a URL whose query
// is sent with every request. list() reads the object "index.json" that a publisher maintains. If
// the URL is a presigned one of index.json itself, its presigned links are used. Calls that write
// are kUnsupported.
[[nodiscard]] Result<std::shared_ptr<ObjectStore>> make_web_store(const std::string& url,
                                                                  const std::string& ca_file);

}  // namespace driftless
