// SPDX-License-Identifier: Apache-2.0
// Subcommands on checkpoints and files.
#include <array>

#include "tools/cli/arguments.h"

namespace driftless::cli {
namespace {

void add_synth(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "synth", "Write a Qwen3-shaped checkpoint and its successors, as RL training makes them");
  SynthOptions& options = all.synth;
  command->add_option("--out", options.out, "Directory that gets step_000000/, step_000001/, ...")
      ->required();
  command->add_option("--params", options.params, "Number of parameters, about")
      ->required()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 44));
  add_number(*command, "--steps", options.steps, "Successors to write", 0U, kMaxSynthSteps);
  add_number(*command, "--lr", options.lr, "Learning rate: how far a step moves a weight", 0.0,
             1.0);
  command->add_option("--seed", options.seed, "The same seed gives the same bytes")
      ->capture_default_str();
  add_number(*command, "--shard-bytes", options.shard_bytes, "Largest size of one file",
             std::uint64_t{1} << 16, std::uint64_t{1} << 44);
  runs(*command, all, [&all] { return run_synth(all.common, all.synth); });
}

void add_diff(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "diff", "Publish the exact delta between two checkpoints as a version directory");
  DiffArguments& options = all.diff;
  command->add_option("OLD", options.delta.old_checkpoint, "Checkpoint that the receivers have")
      ->required();
  command->add_option("NEW", options.delta.new_checkpoint, "Checkpoint that they are to get")
      ->required();
  command->add_option("--out", options.delta.directory, "Directory that gets weight_v{N:06d}/")
      ->required();
  command
      ->add_option("--layout", options.layout, "Files of the version; each has its own encodings")
      ->check(one_of(
          std::array{DirectoryLayout::kHfDelta, DirectoryLayout::kFlush, DirectoryLayout::kFrames},
          [](DirectoryLayout each) { return to_string(each); }))
      ->capture_default_str();
  command
      ->add_option("--encoding", options.encoding,
                   "hf_delta: xor (default), overwrite, full; flush: deltas_zstd (default), "
                   "deltas, indices; frames: compact (default), deltas_zstd, deltas, indices")
      ->check(one_of_the_encodings());
  command->add_option("--checksum", options.checksum, "Checksum of every changed tensor")
      ->check(
          one_of(std::array{ChecksumKind::kXxh3_128, ChecksumKind::kBlake3, ChecksumKind::kAdler32},
                 [](ChecksumKind each) { return to_string(each); }))
      ->capture_default_str();
  add_version(*command, "--version", options.delta.version,
              "Number of the version (default: one past the newest in --out)");
  add_version(*command, "--base", options.delta.base_version,
              "Version that it builds on (default: the one before)");
  add_number(*command, "--buffer-bytes", options.delta.buffer_bytes,
             "Size of a flush file before compression", std::uint64_t{1} << 16,
             std::uint64_t{1} << 34);
  runs(*command, all, [&all] { return run_diff(all.common, all.diff); });
}

void add_quantize(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "quantize", "Make a checkpoint in FP8 blocks or INT4 groups from a bfloat16 one");
  QuantizeOptions& options = all.quantize.quantize;
  command->add_option("BF16_DIR", options.checkpoint, "Checkpoint directory in bfloat16")
      ->required();
  command->add_option("FP8_DIR", options.out, "Directory that is made")->required();
  command
      ->add_option("--scheme", all.quantize.scheme,
                   "fp8_block: blocks of 128x128 weights; int4_group: groups of a row, as "
                   "compressed-tensors stores them")
      ->check(CLI::IsMember({"fp8_block", "int4_group"}))
      ->capture_default_str();
  command->add_option("--group", all.quantize.group, "Weights of a group in INT4: 32 or 128")
      ->check(CLI::IsMember({32, 128}))
      ->capture_default_str();
  command
      ->add_option("--rule", all.quantize.rule,
                   "linear: as slime sends; linear_div: as its offline tool; ue8m0: scales are "
                   "powers of two")
      ->check(CLI::IsMember({"linear", "linear_div", "ue8m0"}))
      ->capture_default_str();
  command
      ->add_option("--only", options.only,
                   "Quantize the tensors whose names match this pattern (*, ?), instead of the "
                   "default choice: no embeddings, norms, output, routers")
      ->type_name("PATTERN")
      ->expected(1)
      ->take_all();
  command->add_option("--skip", options.skip, "Keep tensors that match this pattern")
      ->type_name("PATTERN")
      ->expected(1)
      ->take_all();
  add_number(*command, "--shard-bytes", options.shard_bytes, "Largest size of one file",
             std::uint64_t{1} << 16, std::uint64_t{1} << 44);
  runs(*command, all, [&all] { return run_quantize(all.common, all.quantize); });
}

void add_apply(CLI::App& app, Arguments& all) {
  CLI::App* command =
      app.add_subcommand("apply", "Bring a checkpoint directory to a published version, in place");
  ApplyArguments& options = all.apply;
  command->add_option("DIR", options.directory, "Directory that holds weight_v*/")->required();
  command->add_option("--to", options.checkpoint, "Checkpoint directory to patch")->required();
  add_version(*command, "--to-version", options.to_version,
              "Version to bring it to (default: the newest in DIR)");
  command
      ->add_option(
          "--verify", options.verify,
          "touched: the checksum of every tensor that changes; full: also the digest of all "
          "weights, before and after")
      ->check(CLI::IsMember({"touched", "full"}))
      ->capture_default_str();
  add_number(*command, "--wait", options.wait_seconds,
             "Seconds to wait for another process that patches the same checkpoint", 0.0, 1e6);
  runs(*command, all, [&all] { return run_apply(all.common, all.apply); });
}

void add_verify_engine(CLI::App& command, CLI::Option* checkpoint, Arguments& all) {
  VerifyEngineArguments& options = all.verify_engine;
  CLI::Option* engine =
      command
          .add_option(
              "--engine", options.url,
              "A running engine's address: every rank reads its weights, and their shares "
              "must add up to the version's digests. Exit 0: proven, 1: differs, 2: cannot tell")
          ->excludes(checkpoint);
  command.add_option("--kind", options.kind, "The engine")
      ->check(CLI::IsMember({"auto", "vllm", "sglang"}))
      ->capture_default_str()
      ->needs(engine);
  command.add_option("--token-file", options.token_file, "File with the engine's API key")
      ->needs(engine);
  command.add_option("--loader", options.loader, "SGLang: what its --custom-weight-loader names")
      ->capture_default_str()
      ->needs(engine);
  command.add_option("--shm-dir", options.shm_dir, "SGLang: where its ranks answer, on its host")
      ->capture_default_str()
      ->needs(engine);
  add_number(command, "--timeout", options.timeout_seconds, "Seconds for the engine's answer", 1.0,
             1e6)
      ->needs(engine);
  command
      .add_option("--checkpoint", options.checkpoint,
                  "A checkpoint of the version that the engine should hold: elements that differ "
                  "are named, with their rank and parameter")
      ->needs(engine);
  command.add_flag("--all", options.all, "Show every tensor, not only those that are not proven")
      ->needs(engine);
  runs(command, all, [&all]() -> Result<int> {
    if (!all.verify_engine.url.empty()) return run_verify_engine(all.common, all.verify_engine);
    if (!all.verify.checkpoint.empty()) return run_verify(all.common, all.verify);
    return error(StatusCode::kInvalidArgument, "verify: name a checkpoint, or --engine URL");
  });
}

void add_verify(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "verify",
      "Prove that a checkpoint, or a running engine, holds exactly the weights it should");
  VerifyArguments& options = all.verify;
  CLI::Option* checkpoint = command->add_option("CKPT", options.checkpoint, "Checkpoint directory");
  CLI::Option* like = command->add_option(
      "--like", options.like,
      "Another checkpoint, compared bit for bit: the first difference is named");
  command
      ->add_option(
          "--manifest", options.manifest,
          "A version's manifest.json or directory, whose digest it must have (default: its "
          "own state)")
      ->excludes(like);
  add_verify_engine(*command, checkpoint, all);
}

void add_compare(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "compare", "Show what changed between two checkpoints, and what each encoding would cost");
  CompareArguments& options = all.compare;
  command->add_option("OLD", options.before, "Checkpoint before the change")->required();
  command->add_option("NEW", options.after, "Checkpoint after it")->required();
  CLI::Option* html =
      command->add_option("--html", options.html, "Write the same as one HTML file, too");
  command->add_flag("--all", options.all, "Show every tensor that changed");
  command->add_flag("--force", options.force, "Replace the HTML file if it is there")->needs(html);
  runs(*command, all, [&all] { return run_compare(all.common, all.compare); });
}

void add_inspect(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Show what a checkpoint, version, frame, flush file, manifest or journal holds");
  command->add_option("PATH", all.inspect, "File or directory")->required();
  runs(*command, all, [&all] { return run_inspect(all.common, all.inspect); });
}

void add_bench(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "bench", "Measure this build on this machine, as ratios to reading memory and to numpy");
  BenchArguments& options = all.bench;
  add_number(*command, "--bytes", options.bench.side_bytes, "Size of the weights to compare",
             std::uint64_t{1} << 20, std::uint64_t{1} << 40);
  add_number(*command, "--repeats", options.bench.repeats, "Runs; each figure is their median", 1,
             1000);
  command->add_option("--python", options.bench.python,
                      "Python with numpy and zstandard (default: the first found)");
  command->add_option("--trace", options.trace,
                      "Measure the encodings on a recorded run instead: a directory with "
                      "base.safetensors and trace.safetensors");
  command->add_flag("--all", options.all, "With --trace: measure the encodings and the speed");
  runs(*command, all, [&all] { return run_bench_command(all.common, all.bench); });
}

void add_demo(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "demo", "Synthesize a run, publish it in every encoding, follow it, prove bit identity");
  DemoArguments& options = all.demo;
  command->add_option("--dir", options.directory,
                      "Keep the files in this new directory (default: a temporary one, removed)");
  add_number(*command, "--params", options.synth.params, "Number of parameters, about",
             std::uint64_t{100'000}, std::uint64_t{1} << 40);
  add_number(*command, "--steps", options.synth.steps, "RL steps", 1, 1000);
  runs(*command, all, [&all] { return run_demo(all.common, all.demo); });
}

}  // namespace

void add_checkpoint_commands(CLI::App& app, Arguments& all) {
  add_synth(app, all);
  add_diff(app, all);
  add_quantize(app, all);
  add_apply(app, all);
  add_verify(app, all);
  add_compare(app, all);
  add_inspect(app, all);
  add_bench(app, all);
  add_demo(app, all);
}

}  // namespace driftless::cli
