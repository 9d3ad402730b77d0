#pragma once
// Pipeline schedules as data: which micro-batch a rank runs when, through which of its stages, and where a model's
// units are cut into stages.
//
//   Pipeline pipeline{PipelineSchedule::one_f_one_b, 1, balanced_stages(unit_seconds, 4)};
//   for (const PipelineAct& act : pipeline_acts(pipeline.schedule, 4, pp_rank, 1, micros)) ...
//
// [Note: stages] A rank of the `pp` axis has `chunks` stages, one after every `pp` of them: stage s belongs to rank
// s % pp. Stages are contiguous ranges of units; the first has the stem, the last the head and the loss. What passes a
// cut is the boundary of the unit before it; conditioning travels with the first message of a micro-batch that a rank
// gets, and its gradient returns with the last backward of the micro-batch there, added on the way.
//
// [Note: bubbles] With p ranks, m micro-batches, F and B seconds of a rank's forward and backward of one micro-batch (B
// the whole of it, W its part for weights, 0 < W < B) a step takes m (F + B) and, as long as nothing is awaited but
// other stages:
//   gpipe        (p - 1) (F + B)        activations of m micro-batches
//   1f1b         (p - 1) (F + B)        of at most p
//   interleaved  (p - 1) (F + B) / v    v chunks a rank; of p (1 + (p - 1) / (p v)); v times as many messages
//   zero_bubble  (p - 1) (F + B - 2 W)  of at most p, less or more; weights' gradients fill the waits (ZB-H1 of Qi et
//                                       al. 2023), from inputs and gradients that are held until then
#include <string>
#include <string_view>
#include <vector>

namespace tessera::plan {

enum class PipelineSchedule { gpipe, one_f_one_b, interleaved, zero_bubble };

std::string_view name(PipelineSchedule schedule);
/// By name. Throws UserError (usage) naming `where` and the nearest name.
PipelineSchedule pipeline_schedule_of(std::string_view text, std::string_view where);

/// How a plan uses the `pp` axis.
struct Pipeline {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int chunks = 1;               ///< stages a rank has; more than one only when interleaved
  std::vector<int> first = {};  ///< first unit of each stage; empty: as many units in each as can be
  bool operator==(const Pipeline&) const = default;
};

struct PipelineAct {
  enum class Kind {
    forward,
    backward,     ///< with gradients of weights, but in zero_bubble
    weight_grad,  ///< zero_bubble: gradients of weights that its backward left out
  };
  Kind kind{};
  int chunk = 0;
  int micro = 0;
  bool operator==(const PipelineAct&) const = default;
};

/// What rank `rank` of `ranks` runs, in order. Every unit sees its micro-batches in ascending order, forwards as
/// backwards, so that gradients are summed in one order whatever the schedule.
std::vector<PipelineAct> pipeline_acts(PipelineSchedule schedule, int ranks, int rank, int chunks, int micros);

/// Cuts units into `stages` contiguous ranges of at least one unit: the first unit of each. The dearest stage is as
/// cheap as it can be, and among such cuts the stages are as even as can be. Throws UserError (usage) when there are
/// fewer units than stages.
std::vector<int> balanced_stages(const std::vector<double>& unit_cost, int stages);

}  // namespace tessera::plan
