// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/s3_answers.h"

#include <algorithm>
#include <cctype>
#include <pugixml.hpp>

namespace driftless::object_store {
namespace {

constexpr std::size_t kMaxCode = 64;

bool is_truncated(const pugi::xml_node& root) {
  return std::string_view(root.child_value("IsTruncated")) == "true";
}

}  // namespace

std::string parse_error_code(const std::string& text) {
  pugi::xml_document document;
  if (!document.load_buffer(text.data(), text.size())) return "";
  const std::string code = document.child("Error").child_value("Code");
  const bool word = code.size() <= kMaxCode && std::ranges::all_of(code, [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
                    });
  return word ? code : "an unreadable code";
}

Result<ListedObjects> parse_listed_objects(const std::string& text) {
  pugi::xml_document document;
  const pugi::xml_parse_result parsed = document.load_buffer(text.data(), text.size());
  const pugi::xml_node root = document.child("ListBucketResult");
  if (!parsed || !root) {
    return error(StatusCode::kCorrupt, "a malformed list: ", parsed.description());
  }
  ListedObjects listed;
  for (const pugi::xml_node each : root.children("Contents")) {
    listed.objects.push_back({each.child_value("Key"), each.child("Size").text().as_ullong()});
  }
  listed.more = is_truncated(root);
  listed.next = root.child_value("NextContinuationToken");
  return listed;
}

ListedUploads parse_listed_uploads(const std::string& text) {
  pugi::xml_document document;
  (void)document.load_buffer(text.data(), text.size());
  const pugi::xml_node root = document.child("ListMultipartUploadsResult");
  ListedUploads listed;
  for (const pugi::xml_node each : root.children("Upload")) {
    listed.uploads.push_back({each.child_value("Key"), each.child_value("UploadId")});
  }
  listed.more = is_truncated(root);
  listed.next_key = root.child_value("NextKeyMarker");
  listed.next_id = root.child_value("NextUploadIdMarker");
  return listed;
}

std::string parse_upload_id(const std::string& text) {
  pugi::xml_document document;
  (void)document.load_buffer(text.data(), text.size());
  // The root element's name differs between stores.
  return document.document_element().child_value("UploadId");
}

}  // namespace driftless::object_store
