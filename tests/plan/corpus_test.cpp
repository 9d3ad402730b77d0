// Planning problems of many models, machines, budgets and meshes, and how much slower each found plan is than compute
// alone. tests/plan/corpus.csv keeps that for every problem, with their mean, median and worst: a change that makes one
// worse fails here, and one that makes the file anew shows its mean in the diff.
//
//   TESSERA_MATRIX_SHARE=1 TESSERA_WRITE_CORPUS=tests/plan/corpus.csv build/bin/test_plan --gtest_filter='Corpus.*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "matrix.h"
#include "plan/toy.h"
#include "plan/transformer.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/simulate/libraries.h"

namespace tessera::plan {
namespace {

using toy::draw, toy::Network, toy::Random, toy::TransformerShape;

constexpr int kProblems = 440;
constexpr int64_t kGiB = int64_t{1} << 30;
const std::string kFile = TESSERA_SOURCE_DIR "/tests/plan/corpus.csv";

struct Problem {
  Network network;
  Machine machine;
  Mesh mesh;
  PlannerInput input;
  std::string name;
};

Problem problem(int number) {
  Random random(static_cast<uint64_t>(number) * 7919 + 1);
  const auto one_of = [&](const auto& list) { return list[random() % std::size(list)]; };
  constexpr TransformerShape kShapes[] = {{.dim = 1536, .ffn = 8960, .blocks = 14},
                                          {.dim = 5120, .ffn = 13824, .blocks = 10},
                                          {.dim = 3072, .ffn = 14336, .blocks = 12},
                                          {.dim = 2240, .ffn = 5600, .blocks = 16},
                                          {.dim = 3072, .ffn = 12288, .blocks = 6, .other_blocks = 8},
                                          {.dim = 768, .ffn = 3072, .blocks = 18}};
  constexpr const char* kMachines[] = {"1xrtx4090", "1xrtx5090", "1xl40s",  "1xa100-80", "1xh200",
                                       "8xrtx4090", "4xrtx3090", "a100-80", "h100",      "h200"};
  constexpr int64_t kTokens[] = {1024, 4096, 14040, 32760, 75600};
  TransformerShape shape = one_of(kShapes);
  shape.tokens = one_of(kTokens);
  shape.lora = draw(random, 0, 3) == 0;
  Problem p;
  const std::string profile = one_of(kMachines);
  p.machine.profile = find_profile(profile);
  const int devices = p.machine.profile.devices;
  std::vector<std::string> meshes = {"dp_shard=" + std::to_string(devices)};
  if (devices >= 4) {
    meshes.push_back("dp_replicate=2,dp_shard=" + std::to_string(devices / 2));
    meshes.push_back("pp=2,dp_shard=" + std::to_string(devices / 2));
  }
  const std::string mesh = draw(random, 0, 1) ? meshes.front() : one_of(meshes);
  p.mesh = Mesh::parse(mesh);
  p.network = toy::transformer(shape);
  p.machine.work = p.network.work, p.machine.dtype = "bf16";
  PlannerInput& in = p.input;
  in.param_dtype = in.compute = DType::bf16;
  if (draw(random, 0, 1)) in.states = {.masters = Masters::split, .moments = Moments::int8};
  p.machine.update_bytes = update_bytes(in.states, DType::f32);
  in.global_batch = p.mesh.dp_size() * draw(random, 1, 2) * p.mesh[Axis::pp], in.micro_batch = 1;
  // The networks have fewer blocks than released ones: so much less is the memory.
  PlannerInput probe = in;
  const int64_t whole = choose(p.network.model, p.mesh, probe, p.machine).memory.peak;
  in.budget = std::min(without_reserve(p.machine.profile.device.memory), whole * draw(random, 20, 105) / 100);
  constexpr int kHostTenths[] = {0, 1, 3, 8, 20};
  in.host_budget = whole * one_of(kHostTenths) / 10;
  in.nvme = in.host_budget > 0 && draw(random, 0, 3) == 0 && p.machine.profile.disk_read > 0;
  in.may_update_in_backward = draw(random, 0, 2) == 0 && in.global_batch == p.mesh.dp_size();
  p.name = std::to_string(shape.dim) + " x " + std::to_string(shape.blocks + shape.other_blocks) +
           (shape.lora ? " lora, " : " full, ") + std::to_string(shape.tokens) + " tokens, " + profile + " " + mesh +
           ", " + std::to_string(in.budget / (kGiB / 10)) + " + " + std::to_string(in.host_budget / (kGiB / 10)) +
           " tenths of GiB" + (in.nvme ? " and a disk" : "");
  return p;
}

/// Seconds that the compute lane is busy if nothing is computed again and everything is on the device.
double compute_alone(const Problem& p) {
  PlannerInput free = p.input;
  free.budget = 0, free.host_budget = 0, free.nvme = false;
  const Choice choice = choose(p.network.model, p.mesh, free, p.machine);
  return predict(p.network.model, choice.plan, p.machine).step.compute;
}

/// The kept ratios by problem; 0: no plan fits.
std::map<int, double> kept() {
  std::ifstream in(kFile);
  EXPECT_TRUE(in) << kFile;
  std::map<int, double> ratios;
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && std::isdigit(static_cast<unsigned char>(line[0])))
      ratios[std::atoi(line.c_str())] = std::atof(line.substr(line.find(',') + 1).c_str());
  return ratios;
}

TEST(Corpus, NoPlanIsFurtherFromComputeAloneThanItWas) {
  const char* file = std::getenv("TESSERA_WRITE_CORPUS");
  const std::map<int, double> before = file ? std::map<int, double>() : kept();
  if (!file) ASSERT_EQ(before.size(), static_cast<size_t>(kProblems));
  std::string rows;
  double sum = 0, worst = 0;
  std::vector<double> ratios;
  int fitted = 0, none = 0, better = 0, mixed = 0;
  tessera::testing::MatrixPart part("planning problems", kProblems);
  for (const int i : part) {
    const Problem p = problem(i);
    const Choice choice = choose(p.network.model, p.mesh, p.input, p.machine);
    const double ratio = choice.fits ? choice.seconds / compute_alone(p) : 0;
    PlannerInput soon = p.input;
    soon.first_that_fits = true;
    const bool fits_soon = choose(p.network.model, p.mesh, soon, p.machine).fits;
    EXPECT_TRUE(choice.fits || !fits_soon) << p.name << ": the first that fits";
    mixed += choice.fits && !fits_soon;
    char text[64];
    std::snprintf(text, sizeof text, "%d,%.5f,", i, ratio);
    rows += text + p.name + "\n";
    if (choice.fits) {
      EXPECT_LE(choice.memory.peak, p.input.budget) << p.name;
      EXPECT_GE(ratio, 1 - 1e-9) << p.name;
      ratios.push_back(ratio), sum += ratio, worst = std::max(worst, ratio), ++fitted;
    } else {
      ++none;
    }
    if (file) continue;
    const double was = before.at(i);
    EXPECT_TRUE(choice.fits || was == 0) << p.name << ": it fitted";
    if (choice.fits && was > 0) EXPECT_LE(ratio, was + 2e-5) << p.name << ": it was " << was;
    better += choice.fits && (was == 0 || ratio < was - 1e-3);
  }
  EXPECT_LE(mixed, 1 + fitted / 20)
      << "plans of which no first one was found: few problems need blocks that save in different ways";
  std::printf("%d plans: mean %.4f of compute alone, worst %.3f; %d problems without a plan%s\n", fitted,
              sum / std::max(1, fitted), worst, none,
              better > 0 ? (", " + std::to_string(better) + " better than kept: make the file anew").c_str() : "");
  if (!file) return;
  std::ranges::sort(ratios);
  std::ofstream out(file);
  char text[160];
  std::snprintf(text, sizeof text,
                "# step over compute alone of %d plans: mean %.4f, median %.4f, worst %.3f; %d without a plan\n",
                fitted, sum / std::max(1, fitted), ratios.empty() ? 0 : ratios[ratios.size() / 2], worst, none);
  out << text << "# problem, ratio (0: none fits), what it is\n" << rows;
}

}  // namespace
}  // namespace tessera::plan
