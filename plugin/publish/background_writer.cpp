// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/background_writer.h"

#include <exception>
#include <utility>

#include "core/environment.h"

namespace driftless {

BackgroundWriter::BackgroundWriter(bool background)
    : background_(background && environment().has_threads()) {}

Status BackgroundWriter::hand_over(Work work) {
  DRIFTLESS_RETURN_IF_ERROR(finish());
  // Nothing may leave the thread.
  auto guarded = [work = std::move(work)]() -> Status {
    try {
      return work();
    } catch (const std::exception& caught) {
      return error(StatusCode::kNoSpace, "writing a version: ", caught.what());
    }
  };
  begun_ = std::async(background_ ? std::launch::async : std::launch::deferred, std::move(guarded));
  return background_ ? Status() : finish();
}

Status BackgroundWriter::finish() {
  if (begun_.valid()) status_ = begun_.get();
  return status_;
}

}  // namespace driftless
