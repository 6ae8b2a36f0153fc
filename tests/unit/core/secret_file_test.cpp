// SPDX-License-Identifier: Apache-2.0
#include "core/secret_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "support/temp_dir.h"

namespace driftless {
namespace {

using testing::TempDir;

class SecretFile : public ::testing::Test {
 protected:
  std::string write(std::string_view text, mode_t mode = 0600) {
    const std::string path = dir_.file("secret");
    std::ofstream(path, std::ios::trunc) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  TempDir dir_;
};

TEST_F(SecretFile, IsReadWithoutTheEndOfItsLine) {
  for (const mode_t mode : {mode_t{0600}, mode_t{0400}}) {
    const Result<std::string> secret = read_secret_file(write("the secret \r\n", mode));
    ASSERT_TRUE(secret.ok()) << secret.status().to_string();
    EXPECT_EQ(*secret, "the secret");
  }
}

TEST_F(SecretFile, ThatOthersCanGetAtIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610, 0601, 0666, 0777}) {
    const std::string path = write("the secret\n", mode);
    const Status refused = read_secret_file(path).status();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << std::oct << mode;
    EXPECT_NE(refused.message().find("chmod 600 " + path), std::string::npos);
    EXPECT_EQ(refused.message().find('\n'), std::string::npos);
    EXPECT_EQ(refused.message().find("the secret"), std::string::npos) << "it must not be shown";
  }
}

TEST_F(SecretFile, OfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = write("the secret\n");
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  const Status refused = read_secret_file(path).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("belongs to user 65534"), std::string::npos);
}

TEST_F(SecretFile, IsJudgedByWhatALinkLeadsTo) {
  const std::string link = dir_.file("link");
  ASSERT_EQ(::symlink(write("the secret\n").c_str(), link.c_str()), 0);
  EXPECT_TRUE(read_secret_file(link).ok());
  write("the secret\n", 0644);
  EXPECT_EQ(read_secret_file(link).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SecretFile, WithoutASecretIsRefused) {
  EXPECT_EQ(read_secret_file(write("\n")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_secret_file(write(std::string(65, 'x')), 64).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(read_secret_file(dir_.file("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_secret_file("/dev/null").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace driftless
