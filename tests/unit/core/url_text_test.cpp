// SPDX-License-Identifier: Apache-2.0
#include "core/url_text.h"

#include <gtest/gtest.h>

namespace driftless {
namespace {

TEST(UrlText, ShowsNoUserPasswordOrQuery) {
  EXPECT_EQ(public_url("http://host:80/v1"), "http://host:80/v1");
  EXPECT_EQ(public_url("http://user:word@host:80/v1?token=x#y"), "http://host:80/v1");
  EXPECT_EQ(public_url("https://user:wo/rd@x@host/"), "https://host/");
  EXPECT_EQ(public_url("s3://bucket/at@sign?key=x"), "s3://bucket/at@sign");
  EXPECT_EQ(public_url("s3://key:word@bucket/p"), "s3://bucket/p");
  EXPECT_EQ(public_url("no url at all"), "no url at all");
}

TEST(UrlText, KnowsAUser) {
  for (const char* url : {"http://u@h", "http://u:p@h/x", "http://u:p/q@h", "s3://k@b/p"}) {
    EXPECT_TRUE(has_user(url)) << url;
  }
  for (const char* url : {"http://h", "http://h/x?mail=a@b", "s3://b/a@b", "", "a@b"}) {
    EXPECT_FALSE(has_user(url)) << url;
  }
}

}  // namespace
}  // namespace driftless
