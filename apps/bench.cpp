#include <nlohmann/json.hpp>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/tools/probe/bench_step.h"

namespace tessera::apps {

namespace {

int run_bench(const Arguments& arguments) {
  tools::BenchOptions options;
  options.config = arguments.value("--config");
  if (options.config.empty())
    throw UserError(Exit::usage, "bench", "--config is missing", "make bench calls this command with all it needs");
  const auto latent = nlohmann::json::parse("[" + arguments.value("--latent", "16,4,16,16") + "]", nullptr, false);
  if (!latent.is_array() || latent.size() != 4) throw UserError(Exit::usage, "bench", "--latent: expected C,F,H,W");
  for (int i = 0; i < 4; ++i) options.latent[i] = latent[i].get<int64_t>();
  const std::string recompute = arguments.value("--recompute", "auto");
  if (recompute != "auto")
    options.recompute = recompute == "all" ? 1 << 20 : recompute == "none" ? 0 : std::stoi(recompute);
  if (arguments.has("--device")) options.device = arguments.value("--device");
  if (arguments.has("--compute")) {
    plan::Formats types;
    types.set_compute(arguments.value("--compute"), "bench: --compute");
    options.compute = types.compute, options.fp8 = types.fp8;
  }
  if (const std::string attention = arguments.value("--attention", "auto"); attention != "auto")
    options.attention = plan::attention_of(attention, "bench: --attention");
  constexpr DType kGradTypes[] = {DType::f32, DType::bf16};
  if (arguments.has("--grad")) options.grad = dtype_of(arguments.value("--grad"), "bench: --grad", kGradTypes);
  if (arguments.has("--moments")) options.moments = plan::moments_of(arguments.value("--moments"), "bench: --moments");
  if (arguments.has("--budget")) options.budget = parse_bytes(arguments.value("--budget"), "--budget");
  if (arguments.has("--host-budget"))
    options.host_budget = parse_bytes(arguments.value("--host-budget"), "--host-budget");
  options.states_on_host = arguments.has("--offload-states");
  if (arguments.has("--lora")) options.lora = static_cast<int64_t>(arguments.number("--lora", 0));
  options.kernels = arguments.value("--kernels");
  options.mesh = arguments.value("--mesh");
  options.plan = arguments.value("--plan");
  options.nvme = arguments.value("--nvme", options.nvme);
  options.trace = arguments.value("--trace");
  options.profile = arguments.value("--profile", options.profile);
  options.steps = static_cast<int>(arguments.number("--steps", 8));
  options.seconds = arguments.number("--seconds", 0);
  options.warmup = static_cast<int>(arguments.number("--warmup", 3));
  return tools::bench_step(options);
}

}  // namespace

Command bench_command() {
  Command c;
  c.name = "bench";
  c.summary = "Times a training step on synthetic data (used by make bench).";
  c.usage =
      "bench --config JSON --latent C,F,H,W [--recompute auto|none|all|N] [--device cuda] [--compute bf16] [--attention flash] [--grad bf16] "
      "[--moments int8] [--lora RANK] [--budget SIZE] [--host-budget SIZE] [--offload-states] [--mesh AXIS=N,...] [--plan FILE] [--trace FILE] [--kernels FILE] [--steps N] [--seconds S] "
      "[--warmup N]";
  c.example =
      "tessera launch -n 2 bench --latent 16,4,16,16 \\\n"
      "    --config '{\"dim\":512,\"num_heads\":8,\"num_layers\":8,\"ffn_dim\":2048}'";
  c.flags = {{"--config", "JSON", "the model's config.json"},
             {"--latent", "C,F,H,W", "shape of each rank's latent"},
             {"--recompute", "auto|none|all|N", "blocks that recompute; auto: the planner chooses"},
             {"--device", "cpu|cuda|auto", "where to compute; cpu without it"},
             {"--compute", "fp32|bf16|fp16|fp8", "dtype of the blocks' products and attention; fp32 without it"},
             {"--attention", "auto|cudnn|flash", "kernel of attention on a GPU; auto without it"},
             {"--grad", "fp32|bf16", "dtype that gradients are kept in until the update; fp32 without it"},
             {"--moments", "fp32|bf16|int8", "form of the moments; fp32 without it"},
             {"--lora", "RANK", "train adapters of this rank on a frozen model, in bf16 where --compute is"},
             {"--budget", "SIZE", "device memory of a rank, for the planner; on a GPU all that it has without it"},
             {"--host-budget", "SIZE", "host memory of a rank, for what the planner offloads"},
             {"--offload-states", "", "keep optimiser states on the host"},
             {"--mesh", "AXIS=N,...", "mesh of the ranks; dp_shard over all without it"},
             {"--plan", "FILE", "run the plan of this file, with its mesh and batch"},
             {"--nvme", "DIR", "folder of what such a plan has on disk [current folder]"},
             {"--trace", "FILE", "rank 0's instructions as executed, and as predicted in FILE.planned"},
             {"--kernels", "FILE",
              "what one more step launches on rank 0: [{kernel, count, us}] as LibTorch's profiler records it"},
             {"--profile", "NAME|FILE", "machine of the planner; adds predicted_seconds"},
             {"--steps", "N", "steps that are timed; 0: only predict"},
             {"--seconds", "S", "time further steps, until all take about so long"},
             {"--warmup", "N", "steps before those"}};
  c.run = run_bench;
  return c;
}

}  // namespace tessera::apps
