// Training, samples and random plans on a device, which here is simulated (tests/device/simulated.h): the bits of a run on
// CPU ranks with the kernels of GPUs, in device memory that host code cannot touch, with every use of bytes in order.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "curves.h"
#include "matrix_cases.h"
#include "need_goldens.h"
#include "planned_memory.h"
#include "seed_jobs.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 4;

const TinyRun& shared() {
  static const TinyRun run("device");
  return run;
}

const std::map<std::string, std::string> kOnCpu = {{"TESSERA_KERNELS", "fused"}, {"OMP_NUM_THREADS", "1"}};
const std::map<std::string, std::string> kOnDevice = {
    {"OMP_NUM_THREADS", "1"},          {"TESSERA_SIMULATED_LENT", "1"},
    {"TESSERA_KERNELS", "fused"},      {"TESSERA_SIMULATED_BYTES", "1073741824"},
    {"TESSERA_SIMULATED_POISON", "1"}, {"TESSERA_SIMULATED_RECORD", "1"}};

Result train(const char* program, int ranks, const std::string& name, const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      program,     "launch",           "-n",          std::to_string(ranks), "train", shared().recipe(),
      "--run.out", shared().out(name), "--run.steps", std::to_string(kSteps)};
  words.insert(words.end(), more.begin(), more.end());
  return run_program(words, program == std::string(ON_DEVICE) ? kOnDevice : kOnCpu, 300);
}

struct Case {
  const char* name;
  int ranks;
  std::vector<std::string> flags;
  bool lora = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class OnDevice : public ::testing::TestWithParam<Case> {};

TEST_P(OnDevice, TrainsWithTheBitsOfTheCpu) {
  const auto flags = GetParam().lora ? on_base(shared(), GetParam().flags) : GetParam().flags;
  const std::string cpu = std::string("cpu-") + GetParam().name, device = std::string("device-") + GetParam().name;
  const Result here = train(TESSERA_BINARY, GetParam().ranks, cpu, flags);
  ASSERT_EQ(here.code, 0) << here.output;
  const Result there = train(ON_DEVICE, GetParam().ranks, device, flags);
  ASSERT_EQ(there.code, 0) << there.output;
  EXPECT_NE(there.output.find("run.device: simulated"), std::string::npos) << there.output;
  ASSERT_EQ(curve_of(shared(), cpu).size(), kSteps);
  EXPECT_EQ(curve_of(shared(), cpu), curve_of(shared(), device));
  EXPECT_EQ(there.output.find("allocated memory from the GPU's driver"), std::string::npos) << there.output;
  for (const char* unused : {"blocks:cp", "reach:", "states:"})
    EXPECT_EQ(there.output.find(unused), std::string::npos) << "Wan sends nothing of that kind: " << there.output;
  if (std::string(GetParam().name) == "experts_side_by_side")
    EXPECT_NE(text_of(shared().out(device) + "/plan.toml").find("together = 2"), std::string::npos);
  if (GetParam().lora) return;
  const auto weights = shared().model(cpu);
  EXPECT_FALSE(weights.empty());
  EXPECT_TRUE(weights == shared().model(device)) << "the exported weights differ";
}

const Case kOnDeviceCases[] = {
    {"alone", 1, {}},
    {"shards", 2, {"--mesh", "dp_shard=2", "--plan.recompute", "all"}},
    {"all_tiers_on_the_host",
     2,
     {"--mesh", "dp_shard=2", "--plan.parameters", "host", "--plan.gradients", "host", "--plan.states", "host",
      "--plan.update_on", "device"}},
    {"states_on_disk", 1, {"--plan.states", "nvme", "--plan.nvme", "/tmp"}},
    {"updates_on_the_host", 1, {"--plan.states", "host", "--plan.update_on", "host"}},
    {"split_masters_and_8_bit_moments",
     2,
     {"--mesh", "dp_shard=2", "--plan.masters", "split", "--plan.moments", "int8"}},
    {"16_bits_on_the_way",
     2,
     {"--mesh", "dp_shard=2", "--plan.param_dtype", "bf16", "--plan.reduce_dtype", "bf16", "--plan.grad_dtype",
      "bf16"}},
    {"sums_over_tensors", 2, {"--mesh", "dp_shard=2", "--train.optimizer", "came8bit"}},
    {"adafactor", 2, {"--mesh", "dp_shard=2", "--train.optimizer", "adafactor", "--train.relative_step", "true"}},
    {"adafactor_with_a_first_moment",
     2,
     {"--mesh", "tp=2", "--train.optimizer", "adafactor", "--train.factored_beta1", "0.9", "--plan.masters", "split"}},
    {"prodigy",
     2,
     {"--mesh", "dp_shard=2", "--train.optimizer", "prodigy", "--train.lr", "1", "--train.d0", "1e-4", "--plan.moments",
      "int8"}},
    {"average", 1, {"--train.ema", "0.9"}},
    {"lion_with_8_bit_moments",
     2,
     {"--mesh", "dp_shard=2", "--train.optimizer", "lion", "--plan.moments", "int8", "--plan.grad_dtype", "bf16"}},
    {"average_of_split_masters", 1, {"--train.optimizer", "lion", "--plan.masters", "split", "--train.ema", "0.9"}},
    {"schedule_free", 1, {"--train.optimizer", "adamw_schedule_free"}},
    {"hard_gate", 2, {"--experts.router", "gate", "--experts.count", "2", "--plan.idle", "host"}},
    {"experts_side_by_side",
     2,
     {"--mesh", "dp_shard=2", "--experts.router", "gate", "--experts.count", "5", "--train.micro_batch", "1"}},
    {"soft_gate", 2, {"--experts.router", "gate", "--experts.count", "2", "--experts.hard", "false"}},
    {"encoders_on_the_host", 2, {"--mesh", "dp_shard=2", "--data.encoders", "host"}},
    {"replicas", 2, {"--mesh", "dp_replicate=2"}},
    {"ulysses", 2, {"--mesh", "sp=2"}},
    {"ring", 2, {"--mesh", "cp=2"}},
    {"tensor", 2, {"--mesh", "tp=2"}},
    {"tensor_in_bf16", 2, {"--mesh", "tp=2", "--plan.compute_dtype", "bf16"}},
    {"ulysses_in_bf16", 2, {"--mesh", "sp=2", "--plan.compute_dtype", "bf16"}},
    {"ring_in_bf16", 2, {"--mesh", "cp=2", "--plan.compute_dtype", "bf16"}},
    {"tensor_in_fp8", 2, {"--mesh", "tp=2", "--plan.compute_dtype", "fp8"}},
    {"codes_in_fp8", 2, {"--mesh", "dp_shard=2", "--plan.compute_dtype", "fp8", "--plan.gather", "fp8"}},
    {"stages", 2, {"--mesh", "pp=2"}},
    {"lora_on_int8", 2, {"--lora.base_dtype", "int8", "--lora.dropout", "0.1"}, true},
    {"dora", 1, {"--lora.dora", "true"}, true},
    {"shared_weights", 2, {"--mesh", "dp_replicate=2", "--plan.parameters", "host"}, true}};
INSTANTIATE_TEST_SUITE_P(ByTurns, OnDevice, ::testing::ValuesIn(in_turn("runs on a device", kOnDeviceCases, 6)),
                         [](const auto& info) { return std::string(info.param.name); });

/// The errors of a GPU's kernels take memory beside the gradients that they write: the plan knows how much, of any sizes.
TEST(OnDeviceRuns, EveryLossKeepsToItsPlan) {
  const char* losses[] = {"mse",
                          "mae",
                          "huber",
                          "smooth_l1",
                          "pseudo_huber",
                          "true_huber",
                          "true_smooth_l1",
                          "log_cosh",
                          "mse=0.7,huber=0.3",
                          "mae=1,true_huber=2,log_cosh=1"};
  for (const std::string loss : in_turn("losses on a device", losses, 3)) {
    const std::string name = "loss-" + loss;
    const Result run = train(ON_DEVICE, 1, name, {"--diffusion.loss", loss, "--run.steps", "2"});
    ASSERT_EQ(run.code, 0) << run.output;
    expect_planned_peaks(shared().metrics(name).back(), name);
  }
}

/// Copies and reductions that are done late, by threads of their streams, after random times: what waits for too little has
/// other numbers.
TEST(OnDeviceRuns, LateWorkChangesNoBit) {
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_RECORD"] = "0";
  environment["TESSERA_SIMULATED_BYTES"] = "2147483648";
  environment["TESSERA_SIMULATED_DELAY"] = "11";
  environment["TESSERA_TEST_DEVICE"] = "1";
  expect_jobs_pass(PLAN_WORKER_ON_DEVICE, {{"dp_shard=1", 60, 63}, {"dp_shard=2", 64, 67}}, environment);
}

/// What follows `words` in a text, up to the end of its line.
std::string told_behind(const std::string& words, const std::string& text) {
  const size_t at = text.find(words);
  if (at == text.npos) return "nothing is told";
  const size_t begin = text.find_first_not_of(' ', at + words.size());
  return text.substr(begin, text.find('\n', begin) - begin);
}

/// One rule decides in the plan and in the run, and what another kernel computes is a line of both.
TEST(OnDeviceRuns, ThePlansKernelsOfAttentionAreThoseOfTheLog) {
  struct Kernels {
    const char* name;
    int ranks;
    const char *pixels, *dtype;  // 384: 1,152 tokens
    std::vector<std::string> flags;
    const char* first;  // line of the run
    const char* taken;
  };
  const char *text = "fewer than 1024 keys", *decided = "plan.attention = cudnn: ";
  const std::string both = std::string("cuDNN at self_attn; flash at cross_attn (") + text + ")";
  const Kernels cases[] = {{"recomputed", 1, "384,384", "bf16", {"--plan.recompute", "all"}, decided, both.c_str()},
                           {"ulysses", 2, "384,384", "bf16", {"--mesh", "sp=2"}, decided, both.c_str()},
                           {"ring", 2, "512,512", "bf16", {"--mesh", "cp=2"}, decided, both.c_str()},
                           {"same_bits",
                            1,
                            "384,384",
                            "bf16",
                            {"--run.deterministic", "true"},
                            "plan.attention = flash: run.deterministic",
                            "flash at cross_attn, self_attn"},
                           {"few_keys",
                            1,
                            "32,32",
                            "bf16",
                            {"--plan.attention", "cudnn"},
                            "",
                            "flash at cross_attn, self_attn (fewer than 1024 keys)"},
                           {"ring_of_few",
                            2,
                            "32,32",
                            "fp16",
                            {"--mesh", "cp=2"},
                            decided,
                            "flash at cross_attn, self_attn (fewer than 1024 keys)"},
                           {"fp32", 1, "32,32", "fp32", {}, "", "products at cross_attn, self_attn (fp32)"}};
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_ATTENTION"] = "1";
  environment["TESSERA_SIMULATED_CHIP"] = "sm_90";
  for (const Kernels& c : cases) {
    const std::string run = std::string("kernels-") + c.name;
    std::vector<std::string> words = {ON_DEVICE,
                                      "launch",
                                      "-n",
                                      std::to_string(c.ranks),
                                      "train",
                                      shared().recipe(),
                                      "--run.out",
                                      shared().out(run),
                                      "--run.steps",
                                      "2",
                                      "--train.global_batch",
                                      "1",
                                      "--data.size",
                                      c.pixels,
                                      "--plan.compute_dtype",
                                      c.dtype};
    words.insert(words.end(), c.flags.begin(), c.flags.end());
    const Result r = run_program(words, environment, 300);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find(c.first), std::string::npos) << c.name << ": " << r.output;
    EXPECT_EQ(told_behind("; attention by ", r.output), c.taken) << c.name;
    EXPECT_EQ(told_behind("attention by ", text_of(shared().out(run) + "/plan.txt")), c.taken) << c.name;
    const bool compiles = std::string(c.taken).starts_with("cuDNN");
    EXPECT_EQ(r.output.find("cuDNN compiled attention of") != std::string::npos, compiles) << c.name;
  }
}

/// An autoencoder on the processors takes longer than the steps on the device: what they wait for it is in the plan, in each
/// step's line and in the report.
TEST(OnDeviceRuns, StepsWaitForASlowEncoderOnTheHostAndSaySo) {
  const Result r = train(ON_DEVICE, 1, "slow-encoder",
                         {"--data.encoders", "host", "--data.vae", "wan2.1-vae", "--data.frames", "5",
                          "--model.config.in_dim", "16", "--model.config.out_dim", "16", "--train.global_batch", "1"});
  ASSERT_EQ(r.code, 0) << r.output;
  double waited = 0, seconds = 0;
  const auto steps = shared().metrics("slow-encoder");
  ASSERT_EQ(steps.size(), kSteps);
  for (const auto& step : steps) {
    waited += step["ranks"][0]["exposed"]["data"].get<double>();
    seconds += step["seconds"].get<double>();
  }
  EXPECT_GT(waited, seconds / 2) << "the encoder is the bottleneck";
  const std::filesystem::path run = shared().out("slow-encoder");
  const auto planned = nlohmann::json::parse(text_of(run / "plan.json")).at("step_seconds");
  EXPECT_GT(planned.at("encoders").get<double>(), planned.at("total").get<double>() / 2);
  const std::string plan = text_of(run / "plan.txt"), report = text_of(run / "report.html");
  EXPECT_NE(plan.find(" hidden behind the step"), std::string::npos) << plan;
  const std::string row = report.substr(std::min(report.size(), report.find("samples (data loading)")), 120);
  EXPECT_FALSE(row.empty()) << "the report tells it";
  EXPECT_EQ(row.find(">0 ms"), std::string::npos) << "as planned and as measured: " << row;
}

/// From the CPU to the device and back, no step is lost.
TEST(OnDeviceRuns, ARunGoesOnOnTheDeviceAndOnTheCpu) {
  const Result whole = train(TESSERA_BINARY, 2, "whole", {"--mesh", "dp_shard=2"});
  ASSERT_EQ(whole.code, 0) << whole.output;
  const std::vector<std::string> more = {"--mesh", "dp_shard=2", "--checkpoint.every", "1"};
  for (const auto& [program, last] : {std::pair(TESSERA_BINARY, "1"), {ON_DEVICE, "3"}, {TESSERA_BINARY, "4"}}) {
    std::vector<std::string> flags = more;
    flags.insert(flags.end(), {"--run.steps", last});
    const Result r = train(program, 2, "parts", flags);
    ASSERT_EQ(r.code, 0) << r.output;
  }
  EXPECT_EQ(curve_of(shared(), "whole"), curve_of(shared(), "parts"));
}

TEST(OnDeviceRuns, SamplesAreThoseOfTheCpu) {
  const Result base = train(TESSERA_BINARY, 1, "sampled", {});
  ASSERT_EQ(base.code, 0) << base.output;
  std::map<std::string, std::string> clips;
  for (const std::string program : {TESSERA_BINARY, ON_DEVICE}) {
    const std::string out = shared().out("clip-" + std::to_string(clips.size()));
    const Result r = run_program(
        {program, "launch", "-n", "2", "sample", shared().recipe(), "--run.out", shared().out("sampled"), "--mesh",
         "sp=2", "--sample.steps", "3", "--format", "frames", "--out", out, "--prompt", "a red square"},
        program == ON_DEVICE ? kOnDevice : kOnCpu, 120);
    ASSERT_EQ(r.code, 0) << r.output;
    std::map<std::filesystem::path, std::string> files;
    for (const auto& item : std::filesystem::recursive_directory_iterator(out))
      if (item.is_regular_file()) files[item.path().lexically_relative(out)] = text_of(item.path());
    EXPECT_FALSE(files.empty());
    for (const auto& [name, bytes] : files) {
      const auto [known, first] = clips.emplace(name.string(), bytes);
      EXPECT_EQ(first, program == TESSERA_BINARY);
      EXPECT_TRUE(known->second == bytes) << name << " differs";
    }
  }
}

/// The host of rank 0 has gone on, its device waits in a message.
TEST(OnDeviceRuns, ARankThatDiesOrHangsIsNamedWithItsInstruction) {
  for (const auto& [act, words] : {std::pair("kill", "rank 1 was killed by signal 9 (Killed) at step 2"),
                                   {"hang", "rank 1 has made no progress for 2 s (fault.timeout)"}}) {
    auto environment = kOnDevice;
    environment["TESSERA_DRILL"] = std::string("rank=1,step=2,op=reduce,do=") + act;
    const Result r = run_program(
        {ON_DEVICE, "launch", "-n", "2", "train", shared().recipe(), "--run.out",
         shared().out(std::string("lost-") + act), "--run.steps", "3", "--mesh", "dp_shard=2", "--fault.timeout", "2"},
        environment, 120);
    EXPECT_EQ(r.code, 5) << r.output;
    EXPECT_NE(r.output.find(words), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("on reduce:dp_shard[0,1]"), std::string::npos) << r.output;
    EXPECT_NE(
        r.output.find("communicators by NCCL (a stand-in), enqueued on streams, within this machine, by PCIe from "
                      "GPU to GPU: "),
        std::string::npos)
        << r.output;
  }
}

/// The host of rank 1 has given the copy and waits behind it: its GPU is named with what it is at, and what it did last.
TEST(OnDeviceRuns, AGpuThatHangsIsNamedWithWhatItIsAt) {
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_SLOW"] = "1,stash blocks.1";
  const Result r =
      run_program({ON_DEVICE, "launch", "-n", "2", "train", shared().recipe(), "--run.out", shared().out("hangs"),
                   "--run.steps", "3", "--mesh", "dp_shard=2", "--plan.activations", "offload", "--fault.timeout", "2"},
                  environment, 120);
  EXPECT_EQ(r.code, 5) << r.output;
  EXPECT_NE(r.output.find("rank 1 has made no progress for 2 s (fault.timeout)"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("stash blocks.1 (micro-batch 0), activations on lane d2h, after stash blocks.0"),
            std::string::npos)
      << r.output;
  EXPECT_NE(r.output.find(", on the GPU"), std::string::npos) << r.output;
}

/// An illegal address ends all that a GPU does, and shows at a later call of any thread.
TEST(OnDeviceRuns, AGpuThatFailsForGoodIsNamedWithItsInstruction) {
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_FAULT"] = "1,backward blocks.1";
  std::vector<std::string> words = {ON_DEVICE,
                                    "launch",
                                    "-n",
                                    "2",
                                    "train",
                                    shared().recipe(),
                                    "--run.out",
                                    shared().out("fails"),
                                    "--run.steps",
                                    "2",
                                    "--mesh",
                                    "dp_shard=2",
                                    "--fault.timeout",
                                    "20"};
  const Result two = run_program(words, environment, 120);
  EXPECT_EQ(two.code, 5) << two.output;
  EXPECT_NE(two.output.find("rank 1 was lost: the GPU failed: an illegal memory access was encountered "
                            "(cudaErrorIllegalAddress)"),
            std::string::npos)
      << two.output;
  EXPECT_NE(two.output.find("on the GPU backward blocks.1 (micro-batch 0)"), std::string::npos) << two.output;

  environment["TESSERA_SIMULATED_FAULT"] = "0,backward blocks.1";
  environment["TESSERA_SERIAL"] = "1";
  const Result serial = run_program(
      {ON_DEVICE, "train", shared().recipe(), "--run.out", shared().out("fails-serial"), "--run.steps", "2"},
      environment, 120);
  EXPECT_EQ(serial.code, 5) << serial.output;
  EXPECT_NE(serial.output.find("(cudaErrorIllegalAddress), in aten::"), std::string::npos) << serial.output;
}

/// Threads beside the lanes meet the fault first: the one that swaps experts, and the one that sends around the ring.
TEST(OnDeviceRuns, AGpuThatFailsInAThreadBesideTheLanesEndsTheRankLikeAnyOther) {
  struct Fault {
    const char *at, *said;
    int ranks;
    std::vector<std::string> flags;
  };
  for (const Fault& fault : {Fault{"0,swap of experts",
                                   "swap of experts 0 and 1: parameters of ",
                                   1,
                                   {"--experts.router", "gate", "--experts.count", "2", "--plan.idle", "host"}},
                             {"1,beside forward blocks.1", "at step 1: forward blocks.1", 2, {"--mesh", "cp=2"}}}) {
    auto environment = kOnDevice;
    environment["TESSERA_SIMULATED_FAULT"] = fault.at;
    std::vector<std::string> words = {ON_DEVICE,
                                      "launch",
                                      "-n",
                                      std::to_string(fault.ranks),
                                      "train",
                                      shared().recipe(),
                                      "--run.out",
                                      shared().out("fails-beside-" + std::to_string(fault.ranks)),
                                      "--run.steps",
                                      "2",
                                      "--fault.timeout",
                                      "20"};
    words.insert(words.end(), fault.flags.begin(), fault.flags.end());
    const Result r = run_program(words, environment, 120);
    EXPECT_EQ(r.code, 5) << r.output;
    EXPECT_NE(r.output.find("the GPU failed: an illegal memory access was encountered (cudaErrorIllegalAddress)"),
              std::string::npos)
        << r.output;
    EXPECT_NE(r.output.find(fault.said), std::string::npos) << fault.said << " in:\n" << r.output;
  }
}

/// Whatever a command was at: the model, an encoder, the autoencoder. The driver, here a stand-in, tells the Xid.
TEST(OnDeviceRuns, AGpuThatFailsForGoodIsNamedByEveryCommand) {
  const Result base = train(TESSERA_BINARY, 1, "failing-base", {});
  ASSERT_EQ(base.code, 0) << base.output;
  const std::vector<std::string> sample = {
      "sample",   shared().recipe(), "--run.out", shared().out("failing-base"),    "--sample.steps", "1",
      "--format", "frames",          "--out",     shared().out("failing-samples"), "--prompt",       "a red square"};
  std::vector<std::string> of_two = {"launch", "-n", "2"};
  of_two.insert(of_two.end(), sample.begin(), sample.end());
  of_two.insert(of_two.end(), {"--mesh", "dp_shard=2", "--fault.timeout", "20"});
  struct Fault {
    const char *at, *said;
    std::vector<std::string> words;
  };
  const std::vector<Fault> faults = {
      {"0,forward blocks.1", "on the GPU forward blocks.1 (micro-batch 0)", sample},
      {"0,gather blocks.1", "gather blocks.1", of_two},
      {"0,forward",
       "on the GPU forward ",
       {"prepare", shared().recipe(), "--data.cache", shared().out("failing-cache")}},
      {"0,backward blocks.1",
       "on the GPU backward blocks.1 (micro-batch 0)",
       {"bench", "--config", R"({"dim":64,"num_heads":2,"num_layers":2,"ffn_dim":128})", "--latent", "16,1,8,8",
        "--device", "cuda", "--recompute", "none", "--steps", "2", "--warmup", "1"}}};
  for (const Fault& fault : faults) {
    auto environment = kOnDevice;
    environment["TESSERA_SIMULATED_FAULT"] = fault.at;
    environment["LD_LIBRARY_PATH"] = NVML_OF_DEVICE;
    std::vector<std::string> words = {ON_DEVICE};
    words.insert(words.end(), fault.words.begin(), fault.words.end());
    const Result r = run_program(words, environment, 120);
    EXPECT_EQ(r.code, 5) << words[1] << ": " << r.output;
    for (const char* said :
         {"the GPU failed: an illegal memory access was encountered (cudaErrorIllegalAddress), Xid 31 "
          "(a kernel used an address that is not its own: a fault of the program); ",
          fault.said})
      EXPECT_NE(r.output.find(said), std::string::npos) << words[1] << ": " << said << " in:\n" << r.output;
  }
}

TEST(OnDeviceRuns, AGoldenCaseOnAGpuThatFailsIsNotCalledDamaged) {
  TESSERA_NEED_GOLDENS();
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_FAULT"] = "0,forward blocks.0";
  const Result r = run_program({ON_DEVICE, "verify", "--device", "cuda", std::string(TESSERA_GOLDENS) + "/wan21_t2v"},
                               environment, 120);
  EXPECT_EQ(r.code, 5) << r.output;
  EXPECT_NE(r.output.find("the GPU failed: an illegal memory access was encountered (cudaErrorIllegalAddress); "),
            std::string::npos)
      << r.output;
  EXPECT_EQ(r.output.find("do not go together"), std::string::npos) << r.output;
}

TEST(OnDeviceRuns, WithoutNcclCopiesGoByGlooAndTheLogSaysWhy) {
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_WITHOUT_NCCL"] = "NCCL is not there";
  const Result r = run_program({ON_DEVICE, "launch", "-n", "2", "train", shared().recipe(), "--run.out",
                                shared().out("gloo"), "--run.steps", "1", "--mesh", "dp_shard=2"},
                               environment, 120);
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("no NCCL between GPUs: rank 0: NCCL is not there"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("sent as copies in host memory"), std::string::npos) << r.output;
}

/// NCCL finds the links itself, and falls back without a word.
TEST(OnDeviceRuns, ASlowWayBetweenGpusIsAWarningAndABlockThatIsNotTakenChangesNothing) {
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_WAY"] = "SHM/direct/direct";
  environment["TESSERA_SIMULATED_TAKES_NO_BLOCK"] = "1";
  const Result r =
      run_program({ON_DEVICE, "launch", "-n", "2", "train", shared().recipe(), "--run.out", shared().out("slow-way"),
                   "--run.steps", std::to_string(kSteps), "--mesh", "dp_shard=2", "--plan.recompute", "all"},
                  environment, 120);
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("within this machine, by host memory, from copies of its own: "), std::string::npos)
      << r.output;
  EXPECT_NE(r.output.find("no symmetric window: rank 0 has no memory that NCCL has taken"), std::string::npos)
      << r.output;
  EXPECT_NE(r.output.find("GPUs of this machine send through host memory: they have no peer-to-peer access"),
            std::string::npos)
      << r.output;
  const Result plain = train(ON_DEVICE, 2, "plain-way", {"--mesh", "dp_shard=2", "--plan.recompute", "all"});
  ASSERT_EQ(plain.code, 0) << plain.output;
  EXPECT_EQ(curve_of(shared(), "slow-way"), curve_of(shared(), "plain-way"));
}

/// The stand-in compares where in their windows ranks' tensors lie, and ends a communicator's process that leaves one open.
TEST(OnDeviceRuns, GathersUseASymmetricWindowAndARefusedOneChangesNothing) {
  const std::vector<std::string> flags = {"--mesh", "dp_shard=2", "--plan.recompute", "all"};
  const Result opened = train(ON_DEVICE, 2, "window", flags);
  ASSERT_EQ(opened.code, 0) << opened.output;
  const auto line = [](const Result& r, const std::string& group) {
    std::istringstream in(r.output);
    for (std::string text; std::getline(in, text);)
      if (text.find("communicators by ") != text.npos && text.find(group) != text.npos) return text;
    return std::string();
  };
  EXPECT_NE(line(opened, "gather:dp_shard").find("collectives of "), std::string::npos) << opened.output;
  EXPECT_NE(line(opened, "gather:dp_shard").find(" in a symmetric window"), std::string::npos) << opened.output;
  EXPECT_EQ(opened.output.find("from copies of its own"), std::string::npos) << "every group was lent what it sends";
  EXPECT_EQ(line(opened, "reduce:dp_shard").find("window"), std::string::npos) << "its sums are in the order of ranks";
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_REFUSES_WINDOW"] = "1";
  std::vector<std::string> words = {ON_DEVICE,     "launch",
                                    "-n",          "2",
                                    "train",       shared().recipe(),
                                    "--run.out",   shared().out("no-window"),
                                    "--run.steps", std::to_string(kSteps)};
  words.insert(words.end(), flags.begin(), flags.end());
  const Result refused = run_program(words, environment, 120);
  ASSERT_EQ(refused.code, 0) << refused.output;
  EXPECT_NE(line(refused, "gather:dp_shard").find("no symmetric window: rank 1 was refused it"), std::string::npos)
      << refused.output;
  EXPECT_EQ(curve_of(shared(), "window"), curve_of(shared(), "no-window"));
}

/// Threads beside the lanes: the one that sends around the ring, and the one that swaps experts. Each of their waits is missed.
TEST(OnDeviceRuns, AWaitOfTheRingOrOfASwapThatIsForgottenIsFound) {
  const std::vector<std::string> ring = {"--mesh", "cp=2"},
                                 swap = {"--experts.router", "gate", "--experts.count", "2", "--plan.idle", "host"};
  struct Fault {
    const char *forgotten, *said;
    int ranks;
    const std::vector<std::string>& flags;
  };
  for (const Fault& fault : {Fault{"beside,forward", "beside forward blocks.", 2, ring},
                             {"forward,beside", "beside forward blocks.", 2, ring},
                             {"swap,", "swap of experts", 1, swap},
                             {"forward,swap", "swap of experts", 1, swap}}) {
    auto environment = kOnDevice;
    environment["TESSERA_SIMULATED_FORGET"] = fault.forgotten;
    std::vector<std::string> words = {ON_DEVICE,     "launch",
                                      "-n",          std::to_string(fault.ranks),
                                      "train",       shared().recipe(),
                                      "--run.out",   shared().out(std::string("forgets-") + fault.forgotten),
                                      "--run.steps", "2"};
    words.insert(words.end(), fault.flags.begin(), fault.flags.end());
    const Result r = run_program(words, environment, 120);
    EXPECT_NE(r.code, 0) << fault.forgotten;
    for (const char* word : {"and neither waits for the other", fault.said})
      EXPECT_NE(r.output.find(word), std::string::npos) << fault.forgotten << ": " << word << " in:\n" << r.output;
  }
}

/// What is brought to the device goes through page-locked memory that is there before the first step, also where the first
/// batches are small.
TEST(OnDeviceRuns, AStepWhoseBatchIsLargerThanAllBeforeLocksNoMemory) {
  const TinyRun run("device-buckets");
  for (int i = 0; i < 27; ++i) {  // of ten batches one is of clips
    const data::Frames still{.count = 1,
                             .height = 32,
                             .width = 32,
                             .fps = 8,
                             .rgb = std::vector<uint8_t>(32 * 32 * 3, static_cast<uint8_t>(9 * i))};
    const std::vector<uint8_t> png = data::write_png(still, 0);
    const std::string stem = (run.folder() / "data" / ("still" + std::to_string(i))).string();
    std::ofstream(stem + ".png", std::ios::binary) << std::string(png.begin(), png.end());
    std::ofstream(stem + ".txt") << "a still one";
  }
  const Result r = run_program({ON_DEVICE, "train", run.recipe(), "--run.out", run.out(), "--run.steps", "12",
                                "--data.buckets", "8x96x96,1x32x32"},
                               kOnDevice, 300);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.find("allocated memory from the GPU's driver"), std::string::npos) << r.output;
  std::vector<int64_t> tokens;
  for (const auto& step : run.metrics("run")) tokens.push_back(step["tokens"].get<int64_t>());
  ASSERT_EQ(tokens.size(), 12);
  EXPECT_LT(std::max(tokens[0], tokens[1]), *std::max_element(tokens.begin(), tokens.end()))
      << "the first two steps had small batches alone: " << nlohmann::json(tokens);
}

/// Of three ranks the stand-in of NCCL adds the last one first.
TEST(OnDeviceRuns, SumsByTheLibraryDifferInTheirLastBitsAlone) {
  const std::vector<std::string> flags = {"--mesh", "dp_shard=3", "--train.global_batch", "3"};
  std::vector<std::string> library = flags;
  library.insert(library.end(), {"--run.sums", "library"});
  for (const auto& [name, more] : {std::pair("in-order", flags), {"by-library", library}}) {
    const Result r = train(ON_DEVICE, 3, name, more);
    ASSERT_EQ(r.code, 0) << r.output;
  }
  const auto in_order = curve_of(shared(), "in-order"), by_library = curve_of(shared(), "by-library");
  ASSERT_EQ(in_order.size(), kSteps);
  ASSERT_EQ(by_library.size(), kSteps);
  EXPECT_NE(in_order, by_library) << "the sums were in the order of ranks";
  for (size_t step = 0; step < in_order.size(); ++step)
    for (size_t i = 0; i < 2; ++i)
      EXPECT_NEAR(by_library[step][i], in_order[step][i], 2e-6 * in_order[step][i]) << "step " << step + 1;
}

TEST(OnDeviceRuns, TwoRanksOnOneGpuAreRefusedByName) {
  std::vector<std::string> words = {ON_DEVICE, "launch",          "-n",        "2",
                                    "train",   shared().recipe(), "--run.out", shared().out("same")};
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_DEVICES"] = "1";
  const Result r = run_program(words, environment, 120);
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("ranks 0 and 1 have the same GPU"), std::string::npos) << r.output;
  environment["TESSERA_SHARE_GPU"] = "1";
  words.insert(words.end(), {"--run.steps", "2"});
  const Result shares = run_program(words, environment, 120);
  EXPECT_EQ(shares.code, 0) << shares.output;
}

TEST(OnDeviceRuns, ALaunchWithoutACountStartsARankForEachGpu) {
  auto environment = kOnDevice;
  environment["TESSERA_SIMULATED_DEVICES"] = "2";
  const std::vector<std::string> words = {
      ON_DEVICE, "launch", "train", shared().recipe(), "--run.out", shared().out("counted"), "--run.steps", "1"};
  const Result both = run_program(words, environment, 120);
  EXPECT_EQ(both.code, 0) << both.output;
  EXPECT_NE(both.output.find("a rank for each of the 2 GPUs of this machine"), std::string::npos) << both.output;
  EXPECT_NE(both.output.find("mesh dp_shard=2"), std::string::npos) << both.output;

  std::vector<std::string> on_cpu = words;
  on_cpu[5] = shared().out("not-counted");
  on_cpu.insert(on_cpu.end(), {"--run.device", "cpu"});
  const Result alone = run_program(on_cpu, environment, 120);
  EXPECT_EQ(alone.code, 0) << alone.output;
  EXPECT_EQ(alone.output.find("a rank for each"), std::string::npos) << alone.output;
  EXPECT_EQ(alone.output.find("mesh dp_shard=2"), std::string::npos) << alone.output;
}

/// Containers and virtual machines may refuse it: the host tier is slower then, and no bit is another.
TEST(OnDeviceRuns, WhereTheSystemPageLocksNothingTheHostTierIsStaged) {
  const std::vector<std::string> tiers = {"--mesh",           "dp_shard=2", "--plan.parameters",  "host",
                                          "--plan.gradients", "host",       "--plan.states",      "host",
                                          "--plan.update_on", "device",     "--plan.activations", "offload"},
                                 swap = {"--experts.router", "gate", "--experts.count", "2", "--plan.idle", "host"};
  for (const auto& [name, flags] : {std::pair("tiers", tiers), {"swap", swap}}) {
    const int ranks = flags[0] == "--mesh" ? 2 : 1;
    const std::string cpu = std::string("cpu-refused-") + name;
    const Result here = train(TESSERA_BINARY, ranks, cpu, flags);
    ASSERT_EQ(here.code, 0) << here.output;
    for (const auto& [refused, said] :
         {std::pair("pins", "copies to and from the GPU are staged through 32.00 MiB of page-locked memory"),
          {"pins,pinned", "the driver has no page-locked memory either, so each copy between host and GPU blocks"}}) {
      auto environment = kOnDevice;
      environment["TESSERA_SIMULATED_REFUSES"] = refused;
      const std::string run = std::string(refused) + "-" + name;
      std::vector<std::string> words = {
          ON_DEVICE,   "launch",          "-n",          std::to_string(ranks), "train", shared().recipe(),
          "--run.out", shared().out(run), "--run.steps", std::to_string(kSteps)};
      words.insert(words.end(), flags.begin(), flags.end());
      const Result there = run_program(words, environment, 300);
      ASSERT_EQ(there.code, 0) << there.output;
      EXPECT_NE(
          there.output.find("refuses to page-lock the host memory of offloaded tensors (cudaHostRegister: operation "
                            "not supported"),
          std::string::npos)
          << there.output;
      EXPECT_NE(there.output.find(said), std::string::npos) << there.output;
      EXPECT_EQ(curve_of(shared(), cpu), curve_of(shared(), run)) << run;
    }
  }
}

TEST(OnDeviceRuns, RandomPlansGiveTheBitsOfThePlainLoopInTheMemoryTheyPredict) {
  auto environment = kOnDevice;
  environment["TESSERA_TEST_DEVICE"] = "1";
  environment["TESSERA_SIMULATED_BYTES"] = "2147483648";
  expect_jobs_pass(
      PLAN_WORKER_ON_DEVICE,
      {{"dp_shard=1", 20, 23},
       {"dp_shard=2", 24, 27},
       {"sp=2", 28, 31},
       {"cp=2", 32, 35},
       {"cp=2", 0, 2, "sana"},  // states and reaches, and keys of other blocks: each connected where units send so
       {"cp=2", 0, 2, "stdit:1.2"},
       {"tp=2", 36, 39},
       {"pp=2", 40, 43},
       {"dp_replicate=2,dp_shard=2", 44, 47}},
      environment);
}

TEST(OnDeviceRuns, RandomPlansGiveTheSameBitsThroughStagingAlsoWithLateCopies) {
  auto environment = kOnDevice;
  environment["TESSERA_TEST_DEVICE"] = "1";
  environment["TESSERA_SIMULATED_BYTES"] = "2147483648";
  environment["TESSERA_SIMULATED_REFUSES"] = "pins";
  expect_jobs_pass(PLAN_WORKER_ON_DEVICE, {{"dp_shard=1", 68, 72}, {"dp_shard=2", 72, 75}}, environment);
  environment["TESSERA_SIMULATED_RECORD"] = "0";
  environment["TESSERA_SIMULATED_DELAY"] = "13";
  expect_jobs_pass(PLAN_WORKER_ON_DEVICE, {{"dp_shard=1", 75, 78}, {"dp_shard=2", 78, 81}}, environment);
}

}  // namespace
}  // namespace tessera::testing
