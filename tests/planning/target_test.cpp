// Plans for a GPU, made without one: what its kernels and libraries take.
#include "tessera/base/target.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/check.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/store/meter.h"
#include "tessera/job/job.h"
#include "tessera/models/registry.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/session.h"
#include "tessera/plan/device_groups.h"
#include "tessera/plan/simulate/libraries.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/plan_view.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::planning {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

at::Tensor on_meta(std::vector<int64_t> shape, at::ScalarType type) {
  return at::empty(shape, at::TensorOptions(at::kMeta).dtype(type));
}

/// Bytes beside the results while `run` runs.
template <class Run>
int64_t taken(const Run& run) {
  const engine::Meter::MetaCount count;
  run();
  EXPECT_EQ(count.live(), 0);
  return count.peak();
}

/// Of samples with as many queries as keys, 40 heads of 128 in bf16.
struct Attention {
  static constexpr int64_t kHeads = 40, kWidth = 40 * 128;
  explicit Attention(ops::Offsets at)
      : at(std::move(at)),
        x(on_meta({this->at.back(), kWidth}, at::kBFloat16)),
        dx(at::empty_like(x)),
        lse(on_meta({kHeads, this->at.back()}, at::kFloat)) {}
  explicit Attention(int64_t rows) : Attention(ops::Offsets{0, rows}) {}
  static Attention of_alike(int64_t samples, int64_t rows) {
    ops::Offsets at;
    for (int64_t s = 0; s <= samples; ++s) at.push_back(s * rows);
    return Attention(at);
  }
  int64_t forward() const {
    return taken([&] { ops::kernels(x).attention({x, x, x}, {}, kHeads, 1, at, at, {dx, lse}); });
  }
  int64_t backward() const {
    return taken([&] { ops::kernels(x).attention_backward({x, x, x}, x, x, lse, {}, kHeads, at, at, {dx, dx, dx}); });
  }
  const ops::Offsets at;
  const at::Tensor x, dx, lse;
};

/// LibTorch's flash_api.cpp: the results and two small tensors forward; backward three gradients, the rows' sums in fp32, and
/// the gradient of the queries in fp32, of rows in multiples of 128.
TEST(TargetMemory, AttentionOnMetaTakesWhatTheFlashKernelOfTheTargetTakes) {
  engine::Meter::install();
  const Attention attention(1000);
  const int64_t rows = 1000 * Attention::kWidth * 2, lse = 1000 * 40 * 4;
  {
    const ops::TargetScope scope(target("sm_90", "test"));
    EXPECT_EQ(attention.forward(), rows + lse + 128);
    EXPECT_EQ(attention.backward(), 3 * rows + 1024 * 40 * 4 + 1024 * Attention::kWidth * 4 + 64);
  }
  EXPECT_NE(attention.backward(), 3 * rows + 1024 * 40 * 4 + 1024 * Attention::kWidth * 4 + 64)
      << "without a target it is the CPU's kernel that is measured";
}

/// An operator in one pass takes its results and, where it sums over tokens, a row for each 64 of them; LibTorch's take fp32 copies
/// of their operands. cuBLAS multiplies 16-bit operands to fp32 as they are.
TEST(TargetMemory, NormsGatesAndWeightGradientsTakeNoCopiesOfTheirOperands) {
  engine::Meter::install();
  constexpr int64_t kTokens = 650, kWidth = 5120, kSums = 11 * kWidth * 4, kFloats = kTokens * kWidth * 4;
  const at::Tensor x = on_meta({kTokens, kWidth}, at::kFloat), y = on_meta({kTokens, kWidth}, at::kBFloat16),
                   dx = at::empty_like(y), table = on_meta({kWidth}, at::kFloat),
                   gate = on_meta({1, kWidth}, at::kFloat), dw = on_meta({kWidth, kWidth}, at::kFloat);
  at::Tensor moments = on_meta({kTokens, 2}, at::kFloat), root = on_meta({kTokens}, at::kFloat);
  const ops::RowIndex rows(at::empty({kTokens}, at::TensorOptions(at::kMeta).dtype(at::kInt)));
  const auto of_norms = [&](bool fused) {
    const ops::Kernels& k = fused ? ops::kernels(x) : ops::aten_kernels();
    return std::vector<int64_t>{
        taken([&] {
          k.layer_norm(x, {table, table}, 1e-6, at::kBFloat16, moments);
        }),
        taken([&] {
          k.layer_norm_backward(y, x, {.scale = table}, moments, {table, table}, true, x);
        }),
        taken([&] { k.rms_norm(y, table, {}, 1e-6, kWidth, {}, root); }),
        taken([&] { k.rms_norm_backward(y, y, table, {}, root, kWidth, {}, dx, table, true, nullptr); }),
        taken([&] { k.gated_residual_backward(x, y, gate, rows, dx, gate, true, nullptr); }),
        taken([&] { k.linear_weight_gradient(dw, y, y, /*gelu=*/false, /*add=*/true); })};
  };
  const ops::TargetScope scope(target("sm_90", "test"));
  EXPECT_EQ(of_norms(true), (std::vector<int64_t>{kFloats / 2, kFloats + 2 * kSums, kFloats / 2, kSums, kSums, 0}));
  const std::vector<int64_t> libtorchs = of_norms(false);
  EXPECT_GE(libtorchs[1], 3 * kFloats);
  EXPECT_GT(libtorchs[3], 3 * kFloats);
}

/// The backward rounds each sample up to 128 rows in fp32, or adds as many to each of different lengths; so a call has a bound.
TEST(TargetMemory, SamplesThatShareACallTakeTheMemoryOfAll) {
  engine::Meter::install();
  const ops::TargetScope scope(target("sm_90", "test"));
  const Attention alike = Attention::of_alike(10, 30), unlike(ops::Offsets{0, 30, 50, 60});
  constexpr int64_t kWidth = Attention::kWidth, kRow = 40 * 4;  // of a sum of each head
  const auto halves = [](int64_t rows) { return rows * kWidth * 2; };
  EXPECT_EQ(alike.forward(), halves(300) + 300 * kRow + 128);
  EXPECT_EQ(alike.backward(), 3 * halves(300) + 300 * kRow + 1280 * kRow + 1280 * kWidth * 4 + 64)
      << "the log-sum-exp is copied, sample by sample";
  EXPECT_EQ(unlike.forward(), halves(60) + 60 * kRow + 128 + 2 * 64) << "and where they begin";
  EXPECT_EQ(unlike.backward(), 3 * halves(60) + 444 * kRow + 444 * kWidth * 4 + 64 + 2 * 64);
  EXPECT_EQ(Attention::of_alike(1100, 30).backward(), Attention::of_alike(512, 30).backward()) << "65,536 rows a call";
  EXPECT_GT(Attention::of_alike(512, 30).backward(), Attention::of_alike(511, 30).backward());
}

/// cuDNN takes the gradients of all scores where these are few, else fp32 sums of dq, and the products of output and gradient; a
/// text's keys are few for it, so flash is measured.
TEST(TargetMemory, AttentionByCudnnTakesItsWorkspace) {
  engine::Meter::install();
  const ops::AttentionScope asked(plan::Attention::cudnn);
  for (const int64_t rows : {1100, 4096}) {  // 100 MiB of scores, and 1.3 GiB
    const Attention attention(rows);
    const int64_t halves = rows * Attention::kWidth * 2, lse = rows * 40 * 4, tiles = (rows + 63) / 64 * 64;
    const ops::TargetScope scope(target("sm_90", "test"));
    EXPECT_EQ(attention.forward(), halves + lse + 128);
    const int64_t scores = 40 * tiles * tiles * 2, sums = tiles * Attention::kWidth * 4;
    EXPECT_EQ(scores > int64_t{256} << 20, rows == 4096);
    EXPECT_EQ(attention.backward(), 3 * halves + lse + (rows == 4096 ? sums : scores) + 64);
    const ops::TargetScope older(target("sm_80", "test"));
    EXPECT_EQ(attention.backward(), 3 * halves + lse + sums + 64) << "older chips have no kernel for the scores";
  }
  const ops::TargetScope scope(target("sm_90", "test"));
  const int64_t few = Attention(1000).backward();
  const ops::AttentionScope flash(plan::Attention::flash);
  EXPECT_EQ(few, Attention(1000).backward());
}

/// Ranks of sp and cp have delta and no output: it is flash attention all the same, and takes no scores.
TEST(TargetMemory, AttentionByDeltaTakesWhatTheFlashKernelTakesAndOneTensor) {
  engine::Meter::install();
  const ops::TargetScope scope(target("sm_90", "test"));
  const Attention attention(1000);
  const at::Tensor &x = attention.x, &dx = attention.dx;
  const int64_t with_output = attention.backward(),
                with_delta = taken([&] {
                  ops::kernels(x).attention_backward({x, x, x}, {}, x, attention.lse, attention.lse, Attention::kHeads,
                                                     attention.at, attention.at, {dx, dx, dx});
                });
  EXPECT_EQ(with_delta - with_output, 1000 * Attention::kWidth * 2);
}

/// "head_size must be a multiple of 8": other heads are multiplied and added in fp32, and so measured.
TEST(TargetMemory, HeadsThatTheFlashKernelDoesNotTakeHaveTheMemoryOfProducts) {
  engine::Meter::install();
  const ops::TargetScope scope(target("sm_90", "test"));
  const auto scores = [](int64_t head_dim) {
    const int64_t rows = 1000, heads = 40, at_once = 512;  // rows of scores
    const at::Tensor x = on_meta({rows, heads * head_dim}, at::kBFloat16), lse = on_meta({heads, rows}, at::kFloat);
    const ops::Offsets at = {0, rows};
    return taken([&] {
             ops::kernels(x).attention({x, x, x}, {}, heads, 1, at, at, {x, lse});
           }) > heads * at_once * rows * 4;
  };
  EXPECT_FALSE(scores(128));
  EXPECT_FALSE(scores(256));
  EXPECT_TRUE(scores(20));
  EXPECT_TRUE(scores(264));
}

/// 40 heads of 64 queries are 40 blocks of work for 264 places: keys are divided, and the parts are added in fp32.
TEST(TargetMemory, FewQueriesAreAttendedToInPartsWhichTakeMemory) {
  engine::Meter::install();
  const ops::TargetScope scope(target("sm_90", "test"));
  const Attention few(64);
  const at::Tensor keys = on_meta({4096, Attention::kWidth}, at::kBFloat16);
  const ops::Offsets k_at = {0, 4096};
  const int64_t bytes = taken([&] {
    ops::kernels(few.x).attention({few.x, keys, keys}, {}, Attention::kHeads, 1, few.at, k_at, {few.dx, few.lse});
  });
  const int64_t whole = 64 * Attention::kWidth * 2 + 64 * 40 * 4 + 128, part = 64 * Attention::kWidth * 4 + 64 * 40 * 4;
  EXPECT_EQ((bytes - whole) % part, 0);
  EXPECT_EQ((bytes - whole) / part, 6) << "6 parts of 40 blocks fill 240 of 264 places";
}

TEST(TargetMemory, TheWorkspaceOfCublasIsThatOfTheArchitectureAndOneAThread) {
  const auto bytes = [](const char* gpu, int threads) {
    return plan::bytes_of(plan::workspaces(plan::find_profile(gpu), threads));
  };
  EXPECT_EQ(bytes("1xh200", 1), 32 * kMiB);
  EXPECT_EQ(bytes("1xh200", 2), 64 * kMiB);
  EXPECT_EQ(bytes("1xa100-80", 1), 8 * kMiB + 128 * 1024);
  EXPECT_EQ(bytes("cpu", 1), 0);
  EXPECT_THROW(target("sm_91", "test"), UserError);
}

TEST(TargetMemory, ASettingOfCublasIsCountedAsLibTorchReadsIt) {
  const Target& old = target("sm_80", "test");
  EXPECT_EQ(cublas_workspace(old, ":4096:8"), 32 * kMiB);
  EXPECT_EQ(cublas_workspace(old, ":16:8"), 128 * 1024);
  EXPECT_EQ(cublas_workspace(old, ":4096:2:16:8"), 8 * kMiB + 128 * 1024) << "two pairs";
  EXPECT_EQ(cublas_workspace(target("sm_90", "test"), ":32768:1"), 32 * kMiB);
  for (const char* unread : {"", "4096", ":4096", "::", ":big:8"})
    EXPECT_EQ(cublas_workspace(old, unread), cublas_workspace(old, old.cublas)) << unread;
}

TEST(TargetMemory, ADefaultBudgetLeavesRoomForWhatLiesBesideIt) {
  for (const plan::Profile& profile : plan::shipped_profiles()) {
    for (const char* mesh : {"dp_shard=1", "dp_shard=8", "cp=8", "sp=4,dp_shard=16"}) {
      const Mesh ranks = Mesh::parse(mesh);
      if (profile.target.empty()) {
        EXPECT_TRUE(plan::beside_plan(profile, ranks).empty());
        continue;
      }
      const int64_t budget = plan::default_budget(profile, ranks);
      EXPECT_LE(budget, plan::without_reserve(profile.device.memory)) << profile.name;
      EXPECT_LE(plan::driver_bytes(profile, ranks, budget), profile.device.memory) << profile.name << ", " << mesh;
    }
  }
}

/// Of eight A100 that share the tokens: exchanges over NVLink take 14 MiB a channel and peer.
TEST(TargetMemory, NcclTakesBuffersForWhatEachCommunicatorSendsAlone) {
  const auto bytes = [](const char* profile, const char* mesh) {
    for (const plan::LibraryBytes& line : plan::beside_plan(plan::find_profile(profile), Mesh::parse(mesh)))
      if (line.name == "NCCL") return line.bytes;
    return int64_t{0};
  };
  const int64_t kMiB = 1 << 20, wide = 7 * 32 * 14, few = 7 * 4 * 14;
  const int64_t gather = 2 * 24 * 14, ring = 2 * 32 * 14, reduce = wide, blocks = wide, small = 3 * few;
  EXPECT_EQ(bytes("a100-80", "cp=8"), (gather + ring + reduce + blocks + small) * kMiB);
  EXPECT_EQ(bytes("a100-80", "dp_shard=8"), (gather + reduce) * kMiB);
  EXPECT_EQ(bytes("a100-80", "dp_replicate=8"), reduce * kMiB) << "whole gradients, in one communicator";
  EXPECT_EQ(bytes("1xa100-80", "dp_shard=1"), 0);
}

/// `made(request)`: of a recipe with these settings.
template <class Make>
Planned planned_by(const char* profile, const std::map<std::string, std::string>& more, const Make& made) {
  std::map<std::string, std::string> keys = {{"model.preset", "wan2.1-t2v-1.3b"},
                                             {"data.vae", "haar"},
                                             {"data.text_encoder", "umt5-xxl"},
                                             {"data.frames", "16"},
                                             {"data.size", "256,256"},
                                             {"train.global_batch", "1"},
                                             {"plan.compute_dtype", "bf16"},
                                             {"plan.profile", profile},
                                             {"plan.budget", "60GiB"}};
  for (const auto& [key, value] : more) keys[key] = value;
  const recipe::Recipe recipe = recipe::load_recipe("", {keys.begin(), keys.end()});
  const job::Job job = job::make_job(recipe);
  PlanRequest request =
      plan_request(recipe, job, job::shapes_of(recipe, *job.model, *job.codec), recipe.mesh, /*prompts=*/0);
  return made(request);
}
Planned planned(const char* profile, const std::map<std::string, std::string>& more = {}) {
  return planned_by(profile, more, [](const PlanRequest& request) { return make_plan_as_is(request); });
}

/// Each of Hopper's 132 multiprocessors adds up gradients of queries of its own, by heads.
TEST(TargetMemory, ADeterministicRunTakesTheMemoryOfItsAttention) {
  engine::Meter::install();
  const ops::TargetScope scope(target("sm_90", "test"));
  const Attention attention(1000);
  const int64_t fast = attention.backward();
  at::globalContext().setDeterministicAlgorithms(true, false);
  const int64_t same_bits = attention.backward();
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(same_bits - fast, 3 * 1024 * Attention::kWidth * 4) << "four copies of 40 heads' sums in place of one";
}

/// What make_job() tells LibTorch is what the plan counts, also with the setting that cuBLAS asks for where a run is to give
/// the same bits: on an A100 four times its own.
TEST(TargetMemory, TheWorkspaceOfCublasIsThatOfTheSettingThatTheRunMakes) {
  for (const char* profile : {"1xa100-80", "1xh200"})
    for (const char* same_bits : {"false", "true"}) {
      const auto device =
          nlohmann::json::parse(plan_json(planned(profile, {{"run.deterministic", same_bits}}))).at("device");
      const int64_t counted = device.at("by_part").at("libraries").get<int64_t>();
      const Target& chip = target(device.at("target").get<std::string>(), "test");
      EXPECT_EQ(counted, cublas_workspace(chip, std::getenv("CUBLAS_WORKSPACE_CONFIG")))
          << profile << ", " << same_bits;
      const bool small = chip.name == "sm_80" && same_bits == std::string("false");
      EXPECT_EQ(counted, small ? 8 * kMiB + 128 * 1024 : 32 * kMiB) << profile << ", " << same_bits;
    }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

/// An autoencoder on the GPU has the memory of cuDNN's workspace, in the phases that use it; the wavelet none, and on CPU ranks
/// oneDNN has its own.
TEST(TargetMemory, AConvolutionsWorkspaceIsBoundedByTheSettingThatTheRunMakesAndCountedWhereAutoencodersRun) {
  const auto encoders = [](const char* profile, const char* vae, const char* frames) {
    return nlohmann::json::parse(plan_json(planned(profile, {{"data.vae", vae}, {"data.frames", frames}})))
        .at("encoders");
  };
  const auto gpu = encoders("1xh200", "wan2.1-vae", "17"), cpu = encoders("cpu", "wan2.1-vae", "17");
  const int64_t counted = gpu.at("vae_workspace_bytes").get<int64_t>();
  EXPECT_EQ(counted, 2048 * kMiB);
  ASSERT_NE(std::getenv("CUDNN_CONV_WSCAP_DBG"), nullptr) << "the run sets what the plan counts";
  EXPECT_EQ(counted, cudnn_workspace(std::getenv("CUDNN_CONV_WSCAP_DBG")));
  for (const char* part : {"vae_encode_bytes", "vae_decode_bytes"})
    EXPECT_EQ(gpu.at(part).get<int64_t>() - cpu.at(part).get<int64_t>(), counted) << part;
  EXPECT_EQ(cpu.at("vae_workspace_bytes"), 0);
  EXPECT_EQ(encoders("1xh200", "haar", "16").at("vae_workspace_bytes"), 0);
}

TEST(TargetMemory, ASettingOfCudnnIsCountedAsItReadsIt) {
  EXPECT_EQ(cudnn_workspace("256"), 256 * kMiB);
  EXPECT_EQ(cudnn_workspace("0"), 0);
  for (const char* no_number : {"", "much", "1GiB"}) EXPECT_EQ(cudnn_workspace(no_number), 2048 * kMiB) << no_number;
}

/// Beside a step that encodes its own clips it is there as long as the step.
TEST(TargetMemory, AStepThatEncodesItsClipsLeavesRoomForAConvolutionsWorkspace) {
  const Planned online =
      planned("1xh200", {{"data.vae", "wan2.1-vae"}, {"data.cache", "online"}, {"data.frames", "17"}});
  EXPECT_EQ(online.encoders.workspace, 2048 * kMiB);
  EXPECT_GE(online.encoders.encode, online.encoders.workspace);
  EXPECT_GE(online.spec.resident, online.encoders.codec_weights + online.encoders.encode);
}

using Names = std::set<std::string>;

/// Groups that units of a model send by, of so many frames; of one rank, or -1: of all.
std::vector<plan::DeviceGroup> groups_of(const net::Denoiser& model, int64_t frames, const Mesh& ranks, int rank = -1) {
  const net::Batch batch = model.pack({model.blank({model.in_channels(), frames, 16, 16})});
  return plan::unit_groups(engine::measure(model.units(), batch, "m", {.mesh = ranks, .rank = rank}), ranks);
}

/// Their purposes.
Names sent_by(const char* preset, const char* mesh) {
  Names names;
  for (const plan::DeviceGroup& group : groups_of(*models::make_denoiser({.preset = preset}), 1, Mesh::parse(mesh)))
    names.insert(group.purpose);
  return names;
}

/// Wan's attention goes around a ring; Open-Sora 1.2's gathers the keys of other blocks; Sana's adds up states, and its
/// convolutions reach over to neighbours.
TEST(DeviceGroups, AreThoseOfWhatTheModelSendsAlone) {
  EXPECT_EQ(sent_by("wan2.1-t2v-1.3b", "cp=2"), (Names{"ring", "tokens"}));
  EXPECT_EQ(sent_by("wan2.1-t2v-1.3b", "sp=2,tp=2"), (Names{"sequence", "tensor", "norms", "tokens"}));
  EXPECT_EQ(sent_by("wan2.1-t2v-1.3b", "dp_shard=2"), Names{});
  EXPECT_EQ(sent_by("opensora1.2", "cp=2"), (Names{"blocks", "tokens"}));
  EXPECT_EQ(sent_by("sana-1.6b", "cp=2"), (Names{"reach", "states", "tokens"}));
}

/// So one rank's are everybody's (planning.cpp), also where ranks hold rows of other kinds.
TEST(DeviceGroups, AreTheSameOnEveryRank) {
  for (const auto& [preset, frames] : {std::pair("wan2.2-s2v-14b", 5), {"opensora1.2", 5}, {"sana-1.6b", 1}}) {
    const auto model = models::make_denoiser({.preset = preset});
    for (const char* mesh : {"cp=3", "sp=2,tp=2"}) {
      const Mesh ranks = Mesh::parse(mesh);
      const auto all = groups_of(*model, frames, ranks);
      EXPECT_FALSE(all.empty());
      for (int rank = 0; rank < ranks.world(); ++rank)
        EXPECT_EQ(groups_of(*model, frames, ranks, rank), all) << preset << " " << mesh << " rank " << rank;
    }
  }
}

/// All but keys of other blocks, reaches and states: 32 channels of the other rank, and 4 for each of two.
TEST(DeviceGroups, APlanCountsWhatItsRunConnects) {
  const auto nccl = [](const std::vector<plan::LibraryBytes>& lines) {
    for (const plan::LibraryBytes& line : lines)
      if (line.name == "NCCL") return line.bytes;
    return int64_t{0};
  };
  const Planned wan = planned("a100-80", {{"mesh", "cp=2"}});
  const int64_t any = nccl(plan::beside_plan(wan.machine.profile, wan.plan().mesh));
  EXPECT_EQ(any - nccl(wan.beside()), (32 + 2 * 4) * 14 * kMiB);
}

int64_t beside(const Planned& planned, const std::string& name) {
  for (const plan::LibraryBytes& line : planned.beside())
    if (line.name == name) return line.bytes;
  return 0;
}

/// What graphs take of the driver, and updates for their sums, lies beside the plan and is part of what nvidia-smi shows.
TEST(TargetMemory, APlanForAGpuCountsGraphsAndTheSumsOfUpdates) {
  const Planned without = planned("1xh200");
  Planned with = planned("1xh200");
  with.graphs = plan::choose_graphs(true, with.spec, with.plan(), with.prediction.step.compute, "");
  EXPECT_EQ(beside(without, "CUDA graphs"), 0);
  ASSERT_TRUE(with.graphs.on) << with.graphs.why;
  const int64_t graphs = beside(with, "CUDA graphs");
  EXPECT_GT(graphs, 0);
  EXPECT_EQ(graphs % plan::kNodeBytes, 0);
  EXPECT_EQ(with.driver_bytes(0) - without.driver_bytes(0), graphs);
  const auto optimizer = [](const char* name) { return planned("1xh200", {{"train.optimizer", name}}); };
  EXPECT_EQ(beside(optimizer("adamw"), "update sums"), 0);
  for (const char* summed : {"adafactor", "came"}) {
    const int64_t sums = beside(optimizer(summed), "update sums");
    EXPECT_GT(sums, 0) << summed;
    EXPECT_EQ(sums % 24, 0) << summed << ": pairs of values, each in double and in fp32";
  }
}

/// Whether steps are graphs, and why: by what the plan knows, by what the run knows alone, and by who else computes.
TEST(TellOf, SaysWhetherStepsAreGraphsAndWarnsWhereAskingForThemHasNoEffect) {
  const auto told = [](const char* profile, std::map<std::string, std::string> more, int threads = 1,
                       const std::string& forbidden = "") {
    return planned_by(profile, more, [&](PlanRequest& request) {
      request.device_threads = threads;
      if (!forbidden.empty()) request.no_graphs = forbidden;
      Planned made = make_plan_as_is(request);
      tell_of(made, request);
      return made;
    });
  };
  const std::map<std::string, std::string> on = {{"plan.graphs", "on"}};
  const auto with = [&](std::map<std::string, std::string> more) { return more.insert(on.begin(), on.end()), more; };
  const auto has = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
  const char* no_effect = "plan.graphs = on has no effect: ";

  const Planned chosen = told("1xh200", {}), asked = told("1xh200", on), off = told("1xh200", {{"plan.graphs", "off"}});
  EXPECT_FALSE(chosen.graphs.asked);
  EXPECT_TRUE(has(chosen.graphs.why, "launches take the host ")) << chosen.graphs.why;
  EXPECT_EQ(chosen.graphs.on, chosen.graphs.gain > 0);
  EXPECT_TRUE(asked.graphs.asked && asked.graphs.on) << asked.graphs.why;
  EXPECT_FALSE(has(asked.choice.warning, no_effect)) << asked.choice.warning;
  EXPECT_FALSE(off.graphs.on);
  for (const char* mesh : {"tp=2", "sp=2", "cp=2", "pp=2", "dp_shard=2,tp=2"}) {
    const Planned ranks = told("h200", with({{"mesh", mesh}, {"train.global_batch", "2"}}));
    EXPECT_TRUE(ranks.graphs.on) << mesh << ": " << ranks.graphs.why;
  }

  const Planned beside = told("1xh200", on, 2), both = told("1xh200", on, 2, "a gate weighs"),
                early = told("1xh200",
                             with({{"plan.update", "in_backward"}, {"train.clip_norm", "0"}, {"run.on_nan", "stop"}}));
  EXPECT_FALSE(beside.graphs.on || both.graphs.on || early.graphs.on);
  EXPECT_EQ(beside.graphs.why, "encoders compute on the device beside the steps");
  EXPECT_EQ(both.graphs.why, "a gate weighs") << "what the run knows comes first";
  EXPECT_TRUE(has(early.graphs.why, "plan.update = in_backward")) << early.graphs.why;
  for (const Planned* without : {&beside, &both, &early})
    EXPECT_TRUE(has(without->choice.warning, (no_effect + without->graphs.why).c_str())) << without->choice.warning;

  const Planned cpu = told("cpu", {}), cpu_asked = told("cpu", on);
  EXPECT_FALSE(cpu.graphs.on);
  EXPECT_EQ(cpu.graphs.why, "plan.profile is no GPU's");
  EXPECT_FALSE(has(cpu.choice.warning, no_effect)) << cpu.choice.warning;
  EXPECT_TRUE(has(cpu_asked.choice.warning, "plan.graphs = on has no effect: a CPU takes no launches"));
}

TEST(TargetMemory, APlanForAGpuWithAHostTierNamesTheMemoryByWayOfWhichItIsStaged) {
  const auto names_it = [](const char* profile, const char* states) {
    return plan_text(planned(profile, {{"plan.states", states}})).find("staging, a rank") != std::string::npos;
  };
  EXPECT_TRUE(names_it("1xh200", "host"));
  EXPECT_FALSE(names_it("1xh200", "device"));
  EXPECT_FALSE(names_it("cpu", "host"));
}

/// 448 MiB of each of seven others for keys of other blocks, which Wan does not send, and 56 for each of two small ones.
TEST(DeviceGroups, ADefaultBudgetLeavesRoomForThoseOfItsModel) {
  const Planned wan = planned("h200", {{"mesh", "cp=8"}, {"plan.budget", ""}, {"train.global_batch", "1"}});
  const plan::Profile& profile = wan.machine.profile;
  const Mesh& mesh = wan.plan().mesh;
  const plan::Connected own(mesh, plan::unit_groups(wan.spec, mesh));
  EXPECT_EQ(wan.budget, plan::default_budget(profile, own));
  EXPECT_EQ(plan::bytes_of(plan::beside_plan(profile, mesh)) - plan::bytes_of(plan::beside_plan(profile, own)),
            7 * (32 + 2 * 4) * 14 * kMiB);
  EXPECT_GT(wan.budget, plan::default_budget(profile, mesh) + (int64_t{3} << 30));
  EXPECT_LE(wan.driver_bytes(wan.budget), profile.device.memory);
}

/// Of experts of which one rests on the host bytes change places by way of the device's memory.
TEST(TargetMemory, APlanForAGpuCountsTheMemoryByWayOfWhichExpertsSwap) {
  const auto swap_of = [](const char* profile, const char* idle) {
    const auto device =
        nlohmann::json::parse(
            plan_json(planned(profile, {{"experts.router", "gate"}, {"experts.count", "2"}, {"plan.idle", idle}})))
            .at("device");
    int64_t sum = 0;
    for (const auto& [part, bytes] : device.at("by_part").items()) sum += bytes.get<int64_t>();
    EXPECT_EQ(sum, device.at("peak_bytes")) << profile << ", " << idle;
    return device.at("by_part").value("expert swap", int64_t{0});
  };
  EXPECT_EQ(swap_of("1xh200", "host"), 16 * kMiB);
  EXPECT_EQ(swap_of("1xh200", "device"), 0);
  EXPECT_EQ(swap_of("cpu", "host"), 0) << "the host swaps bytes itself";
}

TEST(TargetMemory, APlanForAGpuHasItsLibrariesAsLinesAndOneForTheCpuNone) {
  const auto gpu = nlohmann::json::parse(plan_json(planned("1xh200"))).at("device");
  int64_t sum = 0;
  for (const auto& [part, bytes] : gpu.at("by_part").items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, gpu.at("peak_bytes"));
  EXPECT_EQ(gpu.at("by_part").at("libraries"), 32 * kMiB);
  EXPECT_EQ(gpu.at("target"), "sm_90");
  int64_t beside = 0;
  for (const auto& line : gpu.at("beside")) beside += line.at("bytes").get<int64_t>();
  EXPECT_EQ(gpu.at("driver_bytes"), plan::with_gaps(int64_t{60} << 30) + beside);
  const std::string fits = plan_text(planned("1xa100-80")),
                    beyond = plan_text(planned("1xa100-80", {{"plan.budget", "79GiB"}}));
  EXPECT_NE(fits.find("in nvidia-smi"), std::string::npos);
  EXPECT_EQ(fits.find("which is less"), std::string::npos) << fits;
  EXPECT_NE(beyond.find("which is less: set plan.budget to "), std::string::npos) << beyond;
  const auto cpu = nlohmann::json::parse(plan_json(planned("cpu"))).at("device");
  for (const char* key : {"target", "libraries", "beside", "driver_bytes"}) EXPECT_FALSE(cpu.contains(key)) << key;
  EXPECT_FALSE(cpu.at("by_part").contains("libraries"));
}

}  // namespace
}  // namespace tessera::planning
