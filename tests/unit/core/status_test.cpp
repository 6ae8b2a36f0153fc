// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>
#include <string_view>

namespace driftless {
namespace {

TEST(Status, DefaultIsOkAndPrintsIt) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_TRUE(status.message().empty());
  EXPECT_EQ(status.to_string(), "ok");
}

TEST(Status, ErrorKeepsCodeAndMessage) {
  const Status status = error(StatusCode::kWrongBase, "expected ", 3, ", found ", 5U, '!');
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kWrongBase);
  EXPECT_EQ(status.message(), "expected 3, found 5!");
  EXPECT_EQ(status.to_string(), "wrong_base: expected 3, found 5!");
}

TEST(Status, OkCodeWithMessageIsOk) { EXPECT_TRUE(Status(StatusCode::kOk, "ignored").ok()); }

TEST(Status, CopiesShareTheError) {
  const Status status = error(StatusCode::kIo, "x");
  const Status copy = status;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(copy.code(), StatusCode::kIo);
  EXPECT_EQ(copy.message().data(), status.message().data());
}

TEST(Status, ContextGoesBeforeTheMessageAndKeepsTheCode) {
  const Status status = error(StatusCode::kCorrupt, "bad header").with_context("a.safetensors");
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "a.safetensors: bad header");
  EXPECT_TRUE(Status().with_context("anything").ok());
}

TEST(Status, EveryCodeHasADistinctName) {
  std::set<std::string_view> names;
  for (unsigned code = 0; code <= static_cast<unsigned>(StatusCode::kInternal); ++code) {
    const std::string_view name = to_string(static_cast<StatusCode>(code));
    EXPECT_NE(name, "unknown") << code;
    EXPECT_TRUE(names.insert(name).second) << name << " is there twice";
  }
}

TEST(Status, ErrnoBecomesTheNextAction) {
  EXPECT_EQ(errno_status(ENOSPC, "x").code(), StatusCode::kNoSpace);
  EXPECT_EQ(errno_status(EDQUOT, "x").code(), StatusCode::kNoSpace);
  EXPECT_EQ(errno_status(ENOENT, "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(errno_status(ENOTDIR, "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(errno_status(EEXIST, "x").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(errno_status(ENOTEMPTY, "x").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(errno_status(EIO, "x").code(), StatusCode::kIo);
  EXPECT_EQ(errno_status(EACCES, "opening f").message(), "opening f: Permission denied");
}

TEST(Status, ConcatJoinsEveryKindOfPart) {
  const std::string text = "s";
  EXPECT_EQ(concat("a", text, std::string_view("v"), 'c', -1, std::uint64_t{1} << 63, 0.5),
            "asvc-192233720368547758080.500000");
  EXPECT_EQ(concat(), "");
}

TEST(Result, HoldsAValue) {
  Result<int> result = 7;
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  EXPECT_EQ(*result, 7);
  *result = 8;
  EXPECT_EQ(result.value(), 8);
}

TEST(Result, HoldsAnError) {
  const Result<std::string> result = error(StatusCode::kNotFound, "gone");
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kNotFound);
}

TEST(Result, BuiltFromAnOkStatusIsADefectAndNotAValue) {
  const Result<int> result = Status();
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInternal);
}

TEST(Result, MovesWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> taken = std::move(*result);
  EXPECT_EQ(*taken, 3);
}

Result<int> half(int number) {
  if (number % 2 != 0) return error(StatusCode::kInvalidArgument, number, " is odd");
  return number / 2;
}

Status quarter(int number, int& out) {
  DRIFTLESS_ASSIGN_OR_RETURN(const int once, half(number));
  DRIFTLESS_ASSIGN_OR_RETURN(out, half(once));
  DRIFTLESS_RETURN_IF_ERROR(Status());
  return {};
}

TEST(Result, MacrosPassTheFirstErrorOn) {
  int out = 0;
  EXPECT_TRUE(quarter(12, out).ok());
  EXPECT_EQ(out, 3);
  EXPECT_EQ(quarter(6, out).message(), "3 is odd");
  EXPECT_EQ(quarter(5, out).message(), "5 is odd");
  EXPECT_EQ(out, 3);
}

}  // namespace
}  // namespace driftless
