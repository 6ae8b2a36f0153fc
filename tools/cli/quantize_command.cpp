// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <nlohmann/json.hpp>

#include "plugin/checkpoint/journal.h"
#include "tools/cli/commands.h"

namespace driftless::cli {

Result<int> run_quantize(const Common& common, QuantizeArguments arguments) {
  QuantizeOptions& options = arguments.quantize;
  DRIFTLESS_ASSIGN_OR_RETURN(options.rule, parse_quantize_rule(arguments.rule));
  if (arguments.scheme == kInt4Rule) {
    if (options.rule != QuantizeRule::kLinear) {
      return error(StatusCode::kInvalidArgument, "--rule ", arguments.rule,
                   " is of FP8 blocks; int4_group has one rule: leave --rule out");
    }
    options.int4_group = arguments.group;
    arguments.rule = kInt4Rule;
  }
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(posix_file_system(), options.checkpoint));
  QuantizeReport done;
  {
    ProgressBar bar("quantizing");
    options.threads = common.thread_count();
    options.progress = bar.callback();
    DRIFTLESS_ASSIGN_OR_RETURN(done, quantize_checkpoint(posix_file_system(), options));
  }
  for (const std::string& note : done.notes) std::cerr << "driftless: note: " << note << "\n";
  if (common.json) {
    print_json({{"checkpoint", options.out},
                {"rule", arguments.rule},
                {"quantized_tensors", done.quantized},
                {"kept_tensors", done.kept},
                {"bytes_before", done.bytes_before},
                {"bytes", done.bytes_after},
                {"seconds", done.seconds},
                {"notes", done.notes}});
    return int{kExitOk};
  }
  std::cout << options.out << ": " << done.quantized << " tensors quantized by rule "
            << arguments.rule << ", " << done.kept << " kept; " << human_bytes(done.bytes_after)
            << " of " << human_bytes(done.bytes_before) << ", " << fixed(done.seconds, 2) << " s\n";
  return int{kExitOk};
}

}  // namespace driftless::cli
