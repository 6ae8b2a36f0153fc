// SPDX-License-Identifier: Apache-2.0
// Serializes records: one function walks over the fields of a record, for writing and for reading.
//
//   template <typename Fields, typename Value>
//   void walk(Fields& fields, Value& record) {
//     fields.number(record.version);
//     fields.text(record.name, kMaxNameBytes);
//   }
//
// Numbers are little-endian, as every machine that Driftless supports is. A text or list follows
// its length, 64 bits. A reader checks each length before it allocates memory. From the first
// missing or wrong field on it reads nothing: texts become empty, other fields keep their values.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace driftless {

class WireWriter {
 public:
  template <typename T>
  void number(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename E>
  void choice(const E& value, E /*last*/) {
    number(static_cast<std::uint8_t>(value));
  }
  void text(const std::string& value, std::uint64_t /*most*/) {
    number(std::uint64_t{value.size()});
    bytes_.append(value);
  }
  template <typename T, typename Walk>
  void list(const std::vector<T>& items, std::uint64_t /*most*/, std::uint64_t /*each*/,
            const Walk& walk) {
    number(std::uint64_t{items.size()});
    for (const T& item : items) walk(*this, item);
  }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : left_(bytes) {}
  // Whether every field was present and nothing follows the last one.
  [[nodiscard]] bool whole() const { return good_ && left_.empty(); }

  template <typename T>
  void number(T& value) {
    static_assert(std::is_arithmetic_v<T>);
    if (!check(left_.size() >= sizeof(value))) return;
    std::memcpy(&value, left_.data(), sizeof(value));
    left_.remove_prefix(sizeof(value));
  }
  // A number from 0 to `last`.
  template <typename E>
  void choice(E& value, E last) {
    std::uint8_t stored = 0;
    number(stored);
    if (check(stored <= static_cast<std::uint8_t>(last))) value = static_cast<E>(stored);
  }
  void text(std::string& value, std::uint64_t most) {
    const std::uint64_t size = length(most, 1);
    value = left_.substr(0, size);
    left_.remove_prefix(size);
  }
  // At most `most` items of at least `each` bytes.
  template <typename T, typename Walk>
  void list(std::vector<T>& items, std::uint64_t most, std::uint64_t each, const Walk& walk) {
    const std::uint64_t count = length(most, each);
    for (std::uint64_t i = 0; i < count && good_; ++i) walk(*this, items.emplace_back());
  }

 private:
  [[nodiscard]] bool check(bool holds) { return good_ = good_ && holds; }
  // Reads a length, and refuses one that the remaining bytes cannot hold.
  [[nodiscard]] std::uint64_t length(std::uint64_t most, std::uint64_t each) {
    std::uint64_t count = 0;
    number(count);
    return check(count <= most && count <= left_.size() / each) ? count : 0;
  }

  std::string_view left_;
  bool good_ = true;
};

}  // namespace driftless
