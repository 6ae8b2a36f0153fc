// SPDX-License-Identifier: Apache-2.0
// Spans: appends one line of OTLP/JSON (an ExportTraceServiceRequest) per record to a file. The
// spans of one version of a run are one trace, whichever process wrote them: the trace id and the
// id of the publisher's span follow from the run and the version. docs/operate/metrics.md.
#pragma once

#include <memory>
#include <string>

#include "plugin/observe/record_sink.h"

namespace driftless {

[[nodiscard]] Result<std::unique_ptr<RecordSink>> open_span_writer(std::string path);

// 32 and 16 hexadecimal digits.
[[nodiscard]] std::string trace_id(const Hash128& run, std::uint64_t version);
[[nodiscard]] std::string publisher_span_id(const Hash128& run, std::uint64_t version);

}  // namespace driftless
