// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/config.h"

#include <gtest/gtest.h>

#include <set>

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/mpi_rma/mpi_rma_options.h"
#include "collectives/nccl/nccl_options.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "core/setting_values.h"
#include "plugin/interchange/layouts.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

Result<Config> parse(std::string_view text, std::vector<std::string> overrides = {}) {
  return parse_config(text, "job.yaml", overrides);
}

// The message of the refusal, which is expected.
std::string refusal(std::string_view text, std::vector<std::string> overrides = {}) {
  const Result<Config> config = parse(text, std::move(overrides));
  EXPECT_FALSE(config.ok()) << text;
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(config.status().message().find('\n'), std::string_view::npos);
  return std::string(config.status().message());
}

#define EXPECT_MESSAGE(message, words) \
  EXPECT_NE((message).find(words), std::string::npos) << (message)

TEST(Config, DefaultsAreThoseOfTheComponents) {
  const auto config = parse("mode: delta\n");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->publisher.buffer_bytes, PublisherOptions().buffer_bytes);
  EXPECT_EQ(config->publisher.deadline, PublisherOptions().deadline);
  EXPECT_EQ(config->of_road<MpiRmaSettings>().ring_bytes, MpiRmaOptions().ring_bytes);
  EXPECT_EQ(config->of_road<SharedFsOptions>().poll_first, SharedFsOptions().poll_first);
  EXPECT_EQ(config->receiver.fold_bytes, ReceiverOptions().fold_bytes);
  EXPECT_EQ(config->publisher.layout, DirectoryLayout::kFrames);
  EXPECT_EQ(config->publisher.encoding, Encoding::kDeltas);
}

// A process uses the GPU that it computes with, for itself and for its road, unless the
// configuration names one.
TEST(Config, TheGpuIsThatOfTheProcess) {
  const auto gpus = [](const Result<Config>& config) {
    return std::pair(config->gpu.device, config->of_road<NcclSettings>().device);
  };
  Result<Config> config = parse("road: { kind: nccl }\n");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(gpus(config), std::pair(0, 0));
  config->use_gpu(3);
  EXPECT_EQ(gpus(config), std::pair(3, 3));
  config->use_gpu(1);  // a later target of the same process
  EXPECT_EQ(gpus(config), std::pair(1, 1));

  config = parse("road: { kind: nccl }\ngpu: { device: 2 }\n");
  config->use_gpu(3);
  EXPECT_EQ(gpus(config), std::pair(2, 2));

  config = parse("road: { kind: nccl }\ngpu: { device: 2 }\n", {"gpu.device=auto"});
  EXPECT_EQ(gpus(config), std::pair(0, 0));
  config->use_gpu(5);
  EXPECT_EQ(gpus(config), std::pair(5, 5));
  EXPECT_MESSAGE(refusal("gpu: { device: 1024 }\n"), "gpu.device");
}

TEST(Config, EveryKeyOfAFileIsTaken) {
  const auto config = parse(R"(
mode: full
encoding: overwrite
checksum: blake3
buffer_size: 16MiB
snapshot: host
threads: 3
road:
  kind: shared_fs
  layout: hf_delta
  shared_fs:
    dir: /mnt/weights
    after_publish: "sync; echo done"
    before_read: 'ls > /dev/null'
    hook_timeout: 10s
  ring_size: 512MB
  ring_versions: 7
  mpi_rma: { anchor_size: 1 GiB, progress_thread: false }
  poll_first: 20ms
  poll_longest: 2s
  patience: 5min
anchors: { first: true, every: 50, by_size: true }
full_above_density: 0.5
keep_versions: 12
resume: require
deadlines: { publish: 500ms, fetch: 30s, connect: 1h }
receiver: { id: left, target: checkpoint, checkpoint_dir: "/local/ckpt_{rank}", fold_size: 2GiB }
engines:
  - url: http://a:30000
    action: pull_weights
    local_checkpoint_dir: /local/model
  - { url: "https://b", action: update_weights_from_disk, local_checkpoint_dir: /m, token_file: /t }
engine_calls: { timeout: 5s, retries: 4, retry_wait: 250ms }
notify: { cleanup: true }
metrics: { file: "metrics_{role}_{rank}.jsonl" }
)");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->publisher.mode, UpdateMode::kFull);
  EXPECT_EQ(config->publisher.encoding, Encoding::kOverwrite);
  EXPECT_EQ(config->publisher.checksum, ChecksumKind::kBlake3);
  EXPECT_EQ(config->publisher.buffer_bytes, 16U << 20);
  EXPECT_EQ(config->publisher.threads, 3U);
  EXPECT_EQ(config->receiver.threads, 3U);
  EXPECT_EQ(config->road, "shared_fs");
  const auto& files = config->of_road<SharedFsOptions>();
  const auto& windows = config->of_road<MpiRmaSettings>();
  EXPECT_EQ(files.dir, "/mnt/weights");
  EXPECT_EQ(config->publisher.layout, DirectoryLayout::kHfDelta);
  EXPECT_EQ(windows.ring_bytes, 512'000'000U);
  EXPECT_EQ(windows.ring_versions, 7U);
  EXPECT_EQ(windows.anchor_bytes, 1U << 30);
  EXPECT_FALSE(windows.anchor_auto);
  EXPECT_FALSE(windows.progress_thread);
  EXPECT_EQ(files.after_publish, "sync; echo done");
  EXPECT_EQ(files.before_read, "ls > /dev/null");
  EXPECT_EQ(files.hook_timeout, std::chrono::seconds(10));
  EXPECT_EQ(files.poll_first, std::chrono::milliseconds(20));
  EXPECT_EQ(files.poll_longest, std::chrono::seconds(2));
  EXPECT_EQ(files.patience, std::chrono::minutes(5));
  EXPECT_TRUE(config->publisher.first_anchor);
  EXPECT_EQ(config->publisher.anchor_every, 50U);
  EXPECT_TRUE(config->publisher.anchor_by_size);
  EXPECT_EQ(config->publisher.full_above_density, 0.5);
  EXPECT_EQ(config->publisher.keep_versions, 12U);
  EXPECT_EQ(config->publisher.resume, ResumeMode::kRequire);
  EXPECT_EQ(config->publisher.deadline, std::chrono::milliseconds(500));
  EXPECT_EQ(config->receiver.fetch_deadline, std::chrono::seconds(30));
  EXPECT_EQ(config->connect_deadline, std::chrono::hours(1));
  EXPECT_EQ(config->receiver_id, "left");
  EXPECT_EQ(config->target, TargetKind::kCheckpoint);
  EXPECT_EQ(config->checkpoint_dir, "/local/ckpt_{rank}");
  EXPECT_EQ(config->receiver.fold_bytes, std::uint64_t{2} << 30);
  ASSERT_EQ(config->engines.size(), 2U);
  EXPECT_EQ(config->engines[0].url, "http://a:30000");
  EXPECT_EQ(config->engines[1].action, EngineAction::kUpdateFromDisk);
  EXPECT_EQ(config->engines[1].token_file, "/t");
  EXPECT_EQ(config->engine_calls.retries, 4U);
  EXPECT_EQ(config->engine_calls.timeout, std::chrono::seconds(5));
  EXPECT_TRUE(config->notify.cleanup);
  EXPECT_EQ(config->metrics_file, "metrics_{role}_{rank}.jsonl");
}

TEST(Config, ProofsAreStagedUnlessConfiguredInThePause) {
  EXPECT_EQ(parse("mode: delta\n")->receiver.proof, (ProofRule{false, 1}));
  EXPECT_EQ(parse("receiver: { prove: staged }\n")->receiver.proof, (ProofRule{false, 1}));
  EXPECT_EQ(parse("receiver: { prove: always }\n")->receiver.proof.always, true);
  EXPECT_EQ(parse("receiver: { prove: 8 }\n")->receiver.proof, (ProofRule{false, 8}));
  EXPECT_EQ(parse("mode: delta\n", {"receiver.prove=3"})->receiver.proof.every, 3U);
  EXPECT_MESSAGE(refusal("receiver: { prove: off }\n"), "receiver.prove");
  EXPECT_MESSAGE(refusal("receiver: { prove: 0 }\n"), "a whole number");
  EXPECT_MESSAGE(refusal("receiver: { prove: { every: 2 } }\n"), "a whole number");
}

// The table's contract: it can read what it prints, with the same result.
TEST(Config, WhatATableRowPrintsItReads) {
  for (const ConfigKey& key : config_table().keys()) {
    Config config;
    config.engines.emplace_back();
    const std::string value = key.default_value();
    if (key.name == "engines[].url") continue;
    EXPECT_TRUE(key.apply(config, 0, value).ok()) << key.name << ": " << value;
    const std::string printed = key.text(config, 0);
    EXPECT_TRUE(key.apply(config, 0, printed).ok()) << key.name << ": " << printed;
    EXPECT_EQ(key.text(config, 0), printed) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_FALSE(key.expected.empty()) << key.name;
  }
}

// One file serves the trainer and the agents: each takes the items that are meant for it.
TEST(Config, OneListNamesTheEnginesOfAgentsAndOfTheTrainer) {
  const auto config = parse(
      "road: { kind: shared_fs, layout: hf_delta, shared_fs: { dir: /d },\n"
      "        host_shm: { name: a.b-c_1, size: 1MiB, versions: 3 } }\n"
      "agent:\n  hand_over: checkpoint\n  checkpoint_dir: /m\n"
      "engines:\n  - { url: http://a:1, kind: sglang }\n  - { url: http://b:2, kind: vllm }\n"
      "  - { url: http://t:3, action: pull_weights, local_checkpoint_dir: /l }\n",
      {"engines[1].token_file=/t", "engines[3].url=http://c", "engines[3].kind=vllm"});
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  const std::vector<EngineEndpoint> driven = config->driven_engines();
  ASSERT_EQ(driven.size(), 3U);
  EXPECT_EQ(driven[0].kind, EngineKind::kSglang);
  EXPECT_EQ(driven[1].token_file, "/t");
  EXPECT_EQ(driven[2].url, "http://c");
  ASSERT_EQ(config->notified_engines().size(), 1U);
  EXPECT_EQ(config->notified_engines()[0].url, "http://t:3");
  EXPECT_EQ(config->of_road<HostShmOptions>().name, "a.b-c_1");
  EXPECT_EQ(config->of_road<HostShmOptions>().versions, 3U);
  EXPECT_MESSAGE(refusal("engines: 5\n"), "expected a list");
  EXPECT_MESSAGE(refusal("engines: [{ url: nowhere, kind: vllm }]\n"), "engines[0].url");
  EXPECT_MESSAGE(refusal("agent: { hand_over: checkpoint }\n"), "agent.checkpoint_dir is missing");
  EXPECT_MESSAGE(refusal("agent: { checkpoint_dir: /m }\n"), "has no use");
  EXPECT_MESSAGE(refusal("road: { host_shm: { name: ../up } }\n"), "road.host_shm.name");
  EXPECT_MESSAGE(refusal("mode: delta\n", {"engines.url=x"}), "name the item");
  EXPECT_MESSAGE(refusal("mode: delta\n", {"engines=x"}), "name the item");
}

TEST(Config, AnEngineHasAKindOrAnAction) {
  EXPECT_MESSAGE(refusal("engines: [{ url: http://a }]\n"),
                 "engines[0] has neither kind nor action");
  EXPECT_MESSAGE(refusal("engines: [{ url: http://a, kind: vllm, action: flush }]\n"),
                 "engines[0] has both kind and action");
  EXPECT_MESSAGE(refusal("engines: [{ url: http://a, kind: tgi }]\n"), "vllm or sglang");
  EXPECT_MESSAGE(refusal("engines: [{ url: http://a, kind: vllm, local_checkpoint_dir: /m }]\n"),
                 "engines[0].local_checkpoint_dir has no use");
  EXPECT_MESSAGE(refusal("engines: [{ url: http://a, kind: vllm }]\nnotify: { cleanup: true }\n"),
                 "none with an action");
}

TEST(Config, TheAgentsFormerListIsRefusedWithTheNewName) {
  const std::string now = "list them under engines, each with its kind";
  EXPECT_MESSAGE(refusal("agent: { engines: [{ url: http://a, kind: vllm }] }\n"), now);
  EXPECT_MESSAGE(refusal("agent: { engines: }\n"), now);
  EXPECT_MESSAGE(refusal("mode: delta\n", {"agent.engines[0].url=http://a"}), now);
  EXPECT_MESSAGE(refusal("mode: delta\n", {"agent.engines.url=x"}), now);
}

TEST(Config, NamesOfKeysAreUnique) {
  std::set<std::string_view> names;
  for (const ConfigKey& key : config_table().keys())
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
}

TEST(Config, EffectiveSettingsAreReadAgainToTheSame) {
  const auto config = parse("road: { kind: shared_fs, shared_fs: { dir: /d }, layout: hf_delta }\n",
                            {"engines[0].url=http://a", "engines[0].action=pull_weights",
                             "engines[0].local_checkpoint_dir=/m", "threads=2"});
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  const auto settings = effective_settings(*config);
  std::vector<std::string> overrides;
  for (const auto& [key, value] : settings) overrides.push_back(key + "=" + value);
  const auto again = parse("mode: delta\n", overrides);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(effective_settings(*again), settings);
}

TEST(Config, AnUnknownKeyIsNamedWithLineAndNearestKey) {
  const std::string message = refusal("mode: delta\nroad:\n  kind: mpi_rma\n  rign_size: 1MiB\n");
  EXPECT_MESSAGE(message, "job.yaml:4:");
  EXPECT_MESSAGE(message, "road.rign_size");
  EXPECT_MESSAGE(message, "'road.ring_size'");
  EXPECT_MESSAGE(refusal("dir: /x\n"), "'road.shared_fs.dir'");
  EXPECT_MESSAGE(refusal("anchor:\n  first: true\n"), "job.yaml:2");
  EXPECT_MESSAGE(refusal("agent: { mirror: /m }\n"), "'agent.mirror': is gone; remove it");
  EXPECT_MESSAGE(refusal("mode: delta\n", {"road.single_writer=true"}), "is gone; remove it");
  EXPECT_MESSAGE(refusal("engines:\n  - { uri: http://a }\n"), "'engines[].url'");
  EXPECT_EQ(refusal("zzzzzzzzzzzz: 1\n").find("did you mean"), std::string::npos);
}

// Each former name of a key is refused, with the present name.
TEST(Config, AFormerNameIsRefusedWithTheNewOne) {
  std::size_t former = 0;
  for (const ConfigKey& key : config_table().keys()) {
    for (const std::string_view name : key.former) {
      EXPECT_MESSAGE(refusal("mode: delta\n", {concat(name, "=1")}),
                     concat("is now '", key.name, "'"));
      ++former;
    }
  }
  EXPECT_GE(former, 20U);
  EXPECT_MESSAGE(refusal("road:\n  kind: shared_fs\n  dir: /x\n"), "is now 'road.shared_fs.dir'");
  EXPECT_MESSAGE(refusal("road:\n  kind: shared_fs\n  dir: /x\n"), "job.yaml:3");
}

TEST(Config, ARendezvousIsOneSetting) {
  const auto meet = [](const Config& config) { return config.of_road<NcclSettings>().rendezvous; };
  const std::string token = "hub: { token_file: /t, address: 'a:1' }\n";
  const std::string nccl = token + "road: { kind: nccl, nccl: { rendezvous: ";
  EXPECT_EQ(parse(nccl + "mpi } }\n")->road_row(), "nccl/mpi");
  const auto hub = parse(nccl + "hub } }\n");
  EXPECT_EQ(hub->road_row(), "nccl/hub");
  EXPECT_EQ(meet(*hub).hub.address, "a:1");
  EXPECT_EQ(meet(*hub).hub.token_file, "/t");
  const auto file = parse(nccl + "'file:///meet' } }\n");
  EXPECT_EQ(file->road_row(), "nccl");
  EXPECT_EQ(meet(*file).dir, "/meet");
  EXPECT_MESSAGE(refusal(nccl + "tcp } }\n"), "mpi, hub or file://DIR");
  EXPECT_MESSAGE(refusal(nccl + "'tcp://a:1' } }\n"), "set rendezvous: hub, and hub.address: a:1");
  EXPECT_MESSAGE(refusal("road: { kind: nccl, nccl: { rendezvous: hub } }\n"),
                 "hub.token_file is missing");
  EXPECT_MESSAGE(refusal("road: { nccl: { token_file: /t } }\n"), "is now 'hub.token_file'");
}

TEST(Config, AWrongValueIsNamedWithLineAndWhatWasExpected) {
  const std::string message = refusal("mode: delta\nbuffer_size: 64 parsecs\n");
  EXPECT_MESSAGE(message, "job.yaml:2:");
  EXPECT_MESSAGE(message, "buffer_size");
  EXPECT_MESSAGE(message, "64MiB");
  EXPECT_MESSAGE(message, "64 parsecs");
  EXPECT_MESSAGE(refusal("mode: diff\n"), "delta or full");
  EXPECT_MESSAGE(refusal("encoding: full\n"), "mode: full");
  EXPECT_MESSAGE(refusal("threads: -1\n"), "0 to 1024");
  EXPECT_MESSAGE(refusal("threads: 1.5\n"), "whole number");
  EXPECT_MESSAGE(refusal("anchors: { first: yes }\n"), "true, false or auto");
  EXPECT_MESSAGE(refusal("deadlines: { publish: 30 }\n"), "500ms");
  EXPECT_MESSAGE(refusal("deadlines: { publish: 0s }\n"), "above 0, found '0s'");
  EXPECT_MESSAGE(refusal("full_above_density: nan\n"), "from 0 to 1");
  EXPECT_MESSAGE(refusal("full_above_density: 1.5\n"), "from 0 to 1");
  EXPECT_MESSAGE(refusal("buffer_size: 99999999999999999999\n"), "size");
  EXPECT_MESSAGE(refusal("buffer_size: 1\n"), "64KiB");
  EXPECT_MESSAGE(refusal("receiver: { id: ../x }\n"), "plain file name");
}

TEST(Config, WrongKindsOfNodesAreNamed) {
  EXPECT_MESSAGE(refusal("mode: [delta]\n"), "found a list");
  EXPECT_MESSAGE(refusal("mode: { a: b }\n"), "found keys below it");
  EXPECT_MESSAGE(refusal("road: mpi_rma\n"), "expected keys below it");
  EXPECT_MESSAGE(refusal("road: [1]\n"), "expected keys below it");
  EXPECT_MESSAGE(refusal("engines: { url: x }\n"), "expected a list");
  EXPECT_MESSAGE(refusal("engines: http://x\n"), "expected a list");
  EXPECT_MESSAGE(refusal("engines: [http://x]\n"), "engines[0]");
  EXPECT_MESSAGE(refusal("mode:\n"), "no value");
  EXPECT_MESSAGE(refusal("road:\n"), "nothing below");
  EXPECT_MESSAGE(refusal("just words\n"), "single value");
  EXPECT_MESSAGE(refusal("- a\n- b\n"), "found a list");
  EXPECT_MESSAGE(refusal("? [a]\n: b\n"), "plain word");
}

TEST(Config, WhatYamlAllowsAndAConfigurationDoesNot) {
  EXPECT_MESSAGE(refusal("mode: delta\nmode: full\n"), "second time");
  EXPECT_MESSAGE(refusal("road: { kind: mpi_rma, kind: mpi_rma }\n"), "second time");
  EXPECT_MESSAGE(refusal("mode: &a delta\nsnapshot: *a\n"), "anchors and aliases");
  EXPECT_MESSAGE(refusal("mode: !!binary ZGVsdGE=\n"), "tags");
  EXPECT_MESSAGE(refusal("mode: delta\n---\nmode: full\n"), "more than one document");
  EXPECT_MESSAGE(refusal(""), "is empty");
  EXPECT_MESSAGE(refusal("# only words\n"), "is empty");
  EXPECT_MESSAGE(refusal("---\n"), "is empty");
  EXPECT_MESSAGE(refusal("mode: delta\n  road: [\n"), "job.yaml:");
  EXPECT_MESSAGE(refusal("mode: de\xfflta\n"), "job.yaml:1: is not UTF-8");
  EXPECT_MESSAGE(refusal("mode: delta\n\x04\nnonsense: 1\n"), "job.yaml:2: holds a control");
  EXPECT_MESSAGE(refusal(std::string("mode: delta\0", 12)), "control");
  EXPECT_MESSAGE(refusal(std::string(kMaxConfigBytes + 1, '#')), "longer");
  EXPECT_FALSE(parse(std::string(100'000, '[')).ok());
  EXPECT_FALSE(parse("a: " + std::string(100'000, '{')).ok());
}

TEST(Config, AnAliasBombCostsNothing) {
  std::string bomb = "a0: &a0 [x, x]\n";
  for (int i = 1; i < 100; ++i) {
    const std::string before = concat("*a", i - 1);
    bomb += concat("a", i, ": &a", i, " [", before, ", ", before, "]\n");
  }
  refusal(bomb);
}

TEST(Config, OverridesComeAfterTheFile) {
  const auto config = parse("mode: full\nthreads: 2\n", {"threads=4", "road.kind=shared_fs",
                                                         "road.shared_fs.dir=/a=b", "threads=5"});
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->publisher.threads, 5U);
  EXPECT_EQ(config->of_road<SharedFsOptions>().dir, "/a=b");
  EXPECT_EQ(config->publisher.layout, DirectoryLayout::kFlush);
  EXPECT_EQ(config->publisher.encoding, Encoding::kDeltasZstd);
}

TEST(Config, AWrongOverrideIsNamed) {
  EXPECT_MESSAGE(refusal("mode: full\n", {"road.knd=mpi_rma"}), "'road.kind'");
  EXPECT_MESSAGE(refusal("mode: full\n", {"threads"}), "key=value");
  EXPECT_MESSAGE(refusal("mode: full\n", {"threads=many"}), "--set threads: expected");
  EXPECT_MESSAGE(refusal("mode: full\n", {"engines=[]"}), "is a list");
  EXPECT_MESSAGE(refusal("mode: full\n", {"engines[1].url=x"}), "from 0 to 0");
  EXPECT_MESSAGE(refusal("mode: full\n", {"engines[].url=x"}), "in brackets");
  EXPECT_MESSAGE(refusal("mode: full\n", {"engines[0].uri=x"}), "engines[].url");
}

TEST(Config, CombinationsThatCannotBeNameBothKeys) {
  const std::string layout = refusal("road: { kind: mpi_rma, layout: flush }\n");
  EXPECT_MESSAGE(layout, "road.layout: flush");
  EXPECT_MESSAGE(layout, "road.kind");
  const std::string xored =
      refusal("encoding: xor\nroad: { kind: shared_fs, shared_fs: { dir: /d } }\n");
  EXPECT_MESSAGE(xored, "encoding: xor");
  EXPECT_MESSAGE(xored, "road.layout: flush");
  EXPECT_MESSAGE(
      refusal("encoding: deltas\nroad: { kind: shared_fs, shared_fs: { dir: /d }, layout: "
              "hf_delta }\n"),
      "xor or overwrite");
  EXPECT_MESSAGE(refusal("road: { kind: shared_fs }\n"), "road.shared_fs.dir");
  EXPECT_MESSAGE(refusal("receiver: { target: checkpoint }\n"), "receiver.checkpoint_dir");
  EXPECT_MESSAGE(refusal("receiver: { checkpoint_dir: /x }\n"), "receiver.target");
  EXPECT_MESSAGE(refusal("receiver: { target: device, checkpoint_dir: /x }\n"),
                 "receiver.target: device");
  EXPECT_MESSAGE(refusal("receiver: { target: device }\n"
                         "road: { kind: shared_fs, shared_fs: { dir: /d }, layout: hf_delta }\n"),
                 "hf_delta");
  EXPECT_MESSAGE(refusal("road: { mpi_rma: { anchor_size: 0 } }\nanchors: { first: true }\n"),
                 "anchors.first");
  EXPECT_MESSAGE(refusal("road: { poll_first: 2s, poll_longest: 1s }\n"), "road.poll_longest");
  EXPECT_MESSAGE(refusal("notify: { cleanup: true }\n"), "engines");
  EXPECT_MESSAGE(
      refusal("engines: [{ url: http://a, action: pull_weights, local_checkpoint_dir: /m }]\n"),
      "hf_delta");
  const std::string files = "road: { kind: shared_fs, shared_fs: { dir: /d }, layout: hf_delta }\n";
  EXPECT_MESSAGE(refusal(files + "engines: [{ url: http://a, action: pull_weights }]\n"),
                 "local_checkpoint_dir");
  EXPECT_MESSAGE(refusal(files + "engines: [{ url: a, local_checkpoint_dir: /m }]\n"),
                 "engines[0].url");
  EXPECT_MESSAGE(refusal(files + "engines: [{ url: http://a, action: flush }]\n"),
                 "road.layout: flush");
}

TEST(Config, AFallbackIsARoadThatKeepsItsVersions) {
  const std::string peer = "hub: { token_file: t }\nroad: { kind: peer, peer: { fallback: ";
  const Result<Config> config =
      parse_config(peer + "shared_fs }, shared_fs: { dir: d } }\n", "f", {});
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->fallback(), "shared_fs");
  EXPECT_EQ(config->of_fallback().chosen<SharedFsOptions>()->dir, "d");
  EXPECT_EQ(config->publisher.layout, DirectoryLayout::kFrames);
  EXPECT_GT(config->publisher.keep_versions, 0U);
  EXPECT_MESSAGE(refusal(peer + "shared_fs } }\n"),
                 "road.shared_fs.dir is missing: shared_fs, as a");
  EXPECT_MESSAGE(refusal(peer + "nccl } }\n"), "expected shared_fs or object_store");
  EXPECT_MESSAGE(refusal(peer + "peer } }\n"), "found 'peer'");
}

TEST(Config, ALayoutReportsItsEncodings) {
  const PublicationFormat& shards = publication_format(DirectoryLayout::kHfDelta);
  EXPECT_TRUE(shards.carries(Encoding::kXor) && shards.carries_assets() && shards.in_directory);
  EXPECT_FALSE(shards.carries(Encoding::kDeltas));
  const PublicationFormat& flush = publication_format(DirectoryLayout::kFlush);
  EXPECT_TRUE(flush.carries(Encoding::kDeltas) && flush.carries_assets());
  EXPECT_FALSE(flush.carries(Encoding::kCompact));
  const PublicationFormat& frames = publication_format(DirectoryLayout::kFrames);
  EXPECT_TRUE(frames.carries(Encoding::kCompact));
  EXPECT_FALSE(frames.in_directory || frames.carries_assets() || frames.carries(Encoding::kXor));
  // A number that is no layout.
  EXPECT_EQ(publication_format(static_cast<DirectoryLayout>(200)).layout, DirectoryLayout::kFrames);
}

TEST(Config, EncodingFollowsTheLayout) {
  const std::string road = "road: { kind: shared_fs, shared_fs: { dir: /d }, layout: ";
  EXPECT_EQ(parse(road + "hf_delta }\n")->publisher.encoding, Encoding::kXor);
  EXPECT_EQ(parse(road + "flush }\n")->publisher.encoding, Encoding::kDeltasZstd);
  EXPECT_EQ(parse(road + "frames }\n")->publisher.encoding, Encoding::kDeltas);
  EXPECT_EQ(parse(road + "hdf5 }\n")->publisher.encoding, Encoding::kDeltas);
}

TEST(Config, AFileThatIsNotThereIsNotFound) {
  const testing::TempDir dir;
  const auto config = load_config(posix_file_system(), dir.file("none.yaml"), {});
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), StatusCode::kNotFound);
}

TEST(ConfigValues, SizesAndDurations) {
  EXPECT_EQ(*parse_size("4096"), 4096U);
  EXPECT_EQ(*parse_size("64MiB"), std::uint64_t{64} << 20);
  EXPECT_EQ(*parse_size("512MB"), 512'000'000U);
  EXPECT_EQ(*parse_size("3 kB"), 3'000U);
  EXPECT_EQ(size_text(std::uint64_t{64} << 20), "64MiB");
  EXPECT_EQ(size_text(1000), "1000");
  EXPECT_EQ(size_text(0), "0");
  for (const char* wrong : {"", "MiB", "-1", "1.5GB", "1 M iB", "16777217TiB", "0x10", " 1"}) {
    EXPECT_FALSE(parse_size(wrong).ok()) << wrong;
  }
  EXPECT_EQ(parse_duration("2min")->count(), 120'000);
  EXPECT_EQ(duration_text(std::chrono::minutes(10)), "10min");
  EXPECT_EQ(duration_text(std::chrono::milliseconds(1500)), "1500ms");
  for (const char* wrong : {"", "5", "ms", "-1s", "1d", "99999999h"}) {
    EXPECT_FALSE(parse_duration(wrong).ok()) << wrong;
  }
}

TEST(ConfigValues, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("same", "same"), 0U);
}

}  // namespace
}  // namespace driftless
