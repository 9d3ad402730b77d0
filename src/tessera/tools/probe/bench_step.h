#pragma once
// One measurement of our training step on synthetic data, for `make bench` (bench/run): the work of bench/shapes.py.
//
//   bench_step({.config = R"({"dim": 512, ...})", .latent = {16, 4, 32, 32}, .recompute = true});
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "tessera/base/dtype.h"
#include "tessera/plan/states.h"

namespace tessera::tools {

struct BenchOptions {
  std::string config;               ///< the model's config.json as text
  std::array<int64_t, 4> latent{};  ///< [C, f, h, w] of the one sample of each rank
  std::optional<int> recompute;     ///< blocks that recompute; none: the planner decides
  int64_t budget = 0;               ///< bytes a rank for the planner; 0: unlimited, on a GPU what it has
  int64_t host_budget = 0;          ///< likewise of host memory; 0: none but for states_on_host
  bool states_on_host = false;      ///< masters and moments are offloaded to the host
  std::string mesh;                 ///< "sp=2"; empty: dp_shard over all ranks
  std::string plan;                 ///< a plan file: its mesh, batch and units; overrides the choices above
  std::string nvme = ".";           ///< folder of what such a plan has on disk
  std::string trace;  ///< file of this rank's instructions as executed, FILE.planned as predicted; empty: none
  std::string profile = "cpu";  ///< rates for the planner: a shipped name or a file
  std::string device = "cpu";   ///< as run.device
  DType compute =
      DType::f32;    ///< as plan.compute_dtype, which parameters are gathered in; a plan file has its own, and of
  bool fp8 = false;  ///< linears of blocks multiply in 8 bits; `compute` then is bf16
  std::optional<plan::Attention> attention;     ///< plan.attention; none: as "auto"
  DType grad = DType::f32;                      ///< plan.grad_dtype
  plan::Moments moments = plan::Moments::fp32;  ///< and plan.moments
  std::optional<int64_t> lora;                  ///< rank of adapters on a frozen model; none: all of it is trained
  std::string kernels;                          ///< file of what a further step launches, by kernel; empty: none
  int steps = 8, warmup = 3;                    ///< steps = 0: only the prediction
  double seconds = 0;                           ///< further steps are timed until all took about so long together
};

/// Joins the ranks of the environment; rank 0 prints one JSON line {"seconds":[...],"peak_bytes","persistent_bytes",
/// "host_bytes","predicted_peak_bytes","predicted_seconds","plan"}: seconds of every step and bytes, the largest of the ranks; host_bytes
/// is what is offloaded to the host and the buffers on the way there. On a GPU also "predicted_driver_bytes", which NVML should
/// show. Returns the exit code.
int bench_step(const BenchOptions& options);

}  // namespace tessera::tools
