#pragma once
// How many samples of a step each dp rank runs if ranks differ in speed.
//
//   plan.shares = shares_by_cost(plan.global_batch, {0.5, 0.5, 1.0, 0.5});     // 14 -> {4, 4, 2, 4}
//
// Shares do not change the loss curve: noise and timestep depend on a sample's place in the global batch.
#include <cstdint>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// The plan's slice of a step of `batch` samples. Where these are not the plan's own number, ranks share them alike and
/// each divides its own over as many micro-batches as the plan has: the schedule is the plan's.
Plan::Slice slice_of(const Plan& plan, int64_t batch, int dp_rank, int64_t micro);

/// Which samples of a step have a target that is made of what the model predicts before it: without its adapters, or without
/// a caption.
enum class AskBase { none, twins, clips, any };  ///< twins: those at odd places of the batch; clips: the others
/// How many of a micro-batch at most. Where one has some on any rank, all ranks run a pass without a gradient for it.
int64_t asking_base(const Plan& plan, AskBase which, int dp_rank, int64_t micro);
/// The most that a dp rank has of each micro-batch: a pass for each that is not 0.
std::vector<int64_t> asking_base(const Plan& plan, AskBase which);

/// Numbers of samples that micro-batches of the plan have beside the largest and 0, in order: those that end a rank's share.
std::vector<int64_t> smaller_micro_batches(const Plan& plan);

/// `seconds[r]`: time of one sample on dp rank r, above 0. Returns the shares with the earliest finish of the slowest
/// rank; ties go to lower ranks. Each rank keeps at least one sample if there are enough, so that its speed is still
/// measured. Deterministic.
std::vector<int64_t> shares_by_cost(int64_t global_batch, const std::vector<double>& seconds);

/// Seconds until the slowest rank finishes.
double slowest(const std::vector<int64_t>& shares, const std::vector<double>& seconds);

}  // namespace tessera::plan
