#pragma once
// Pipeline schedules as data: which micro-batch each rank runs when and through which of its stages, and how the units
// of a model are divided into stages.
//
//   Pipeline pipeline{PipelineSchedule::one_f_one_b, 1, balanced_stages(unit_seconds, 4)};
//   for (const PipelineAct& act : pipeline_acts(pipeline.schedule, 4, pp_rank, 1, micros)) ...
//
// [Note: stages] A rank of the `pp` axis has `chunks` stages: stage s belongs to rank s % pp. Stages are contiguous
// ranges of units; the first has the stem, the last has the head and the loss. Each message between stages carries the
// output of the last unit before the stage boundary. The first message of a micro-batch to a rank also carries the
// conditioning; the accumulated gradient of the conditioning returns with the rank's last backward of that micro-batch.
//
// [Note: bubbles] Let p be the ranks, m the micro-batches, and F and B the seconds of one rank's forward and backward
// of one micro-batch. W is the weight-gradient part of B, 0 < W < B. A step takes m (F + B) plus this bubble, if ranks
// wait for nothing but other stages:
//   gpipe        (p - 1) (F + B)        holds activations of m micro-batches
//   1f1b         (p - 1) (F + B)        holds at most p
//   interleaved  (p - 1) (F + B) / v    v chunks a rank; holds p (1 + (p - 1) / (p v)); v times as many messages
//   zero_bubble  (p - 1) (F + B - 2 W)  holds about p; deferred weight gradients fill the bubbles (ZB-H1 of Qi et al.
//                                       2023) and keep their inputs and output gradients until then
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
  std::vector<int> first = {};  ///< first unit of each stage; empty: as even as possible
  bool operator==(const Pipeline&) const = default;
};

struct PipelineAct {
  enum class Kind {
    forward,
    backward,     ///< without weight gradients in zero_bubble
    weight_grad,  ///< zero_bubble: the weight gradients that the backward deferred
  };
  Kind kind{};
  int chunk = 0;
  int micro = 0;
  bool operator==(const PipelineAct&) const = default;
};

/// The acts of rank `rank` of `ranks`, in order. Every unit runs forwards and backwards in ascending order of
/// micro-batches, so gradients are summed in the same order under every schedule.
std::vector<PipelineAct> pipeline_acts(PipelineSchedule schedule, int ranks, int rank, int chunks, int micros);

/// Divides units into `stages` contiguous ranges of at least one unit and returns the first unit of each. Minimises the
/// cost of the most expensive stage, then the unevenness of the others. Throws UserError (usage) if there are fewer
/// units than stages.
std::vector<int> balanced_stages(const std::vector<double>& unit_cost, int stages);

}  // namespace tessera::plan
