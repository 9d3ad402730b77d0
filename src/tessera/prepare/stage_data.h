#pragma once
// The data of each part of a run: its samples, and where in their order it goes on.
//
//   std::vector<StageData> data = prepare_parts(recipe, job, mesh, comm, rank);
//   const auto pick = data[0].pick(step, place);
//   data[0].samples->sample(pick.index, pick.epoch);
//
// Positions are counted in samples over the whole run, so a run resumed in any stage goes on as if never stopped, and a
// stage that leaves data and batch alone changes nothing of the order.
#include <string>
#include <vector>

#include "tessera/prepare/prepare.h"
#include "tessera/recipe/stages.h"

namespace tessera::prepare {

struct StageData {
  std::shared_ptr<const PreparedData> samples;  ///< parts that differ in no key of the data share it
  data::BatchOrder order;
  int64_t first_step = 1;
  int64_t position = 0;  ///< of the first sample of the first step
  int64_t stride = 1;    ///< of the order: the samples of a global batch, or of the largest
  std::shared_ptr<const PreparedData> held_out = {};  ///< whose loss is measured and not trained; none: there are none

  std::vector<std::string> sets = {};  ///< names of each [[data.set]] that is drawn from

  /// Times that each clip of a step is trained in it, one after the other: twice where the second time is the first one's
  /// twin (train.preserve). The order counts clips.
  int64_t times = 1;

  /// How far a data set was gone through.
  struct Seen {
    std::string set;
    int64_t samples = 0;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> seen_before(int64_t step) const;
  /// Goes on behind what the parts before have seen, each set behind its own samples.
  void follow(const StageData& before);
  /// From the first step on; a set that is not among them begins.
  void go_on_in_sets(const std::vector<Seen>& seen);

  int64_t position_of(int64_t step) const { return position + (step - first_step) * stride; }
  data::BatchOrder::Pick pick(int64_t step, int64_t place) const { return order.at(position_of(step) + place / times); }
  int bucket(int64_t step) const { return order.bucket(position_of(step) / stride); }
  /// Samples of the step, of all ranks.
  int64_t batch(int64_t step) const { return times * order.batch_size(position_of(step) / stride); }
  /// Samples of all steps before it.
  int64_t samples_before(int64_t step) const { return order.consumed(position_of(step)); }
  /// Epoch and cursor after a step, for checkpoints.
  data::SampleOrder::Place place_after(int64_t step) const { return order.place(position_of(step + 1)); }
};

/// The data of each part as an expert goes through it, in steps of its own: `first_steps[p]` is the first of part p.
/// With as many as the run has it is the data itself.
std::vector<StageData> data_of_expert(const std::vector<StageData>& data, const std::vector<int64_t>& first_steps);

/// After step `done` the order goes on behind the samples that the checkpoint's run has seen by then, which a run with
/// another train.global_batch, or that was resumed with one, does not get from its steps. `seen`: as place_after() of that
/// run gave it; in epoch 0 at cursor 0 nothing is known, and nothing changes.
/// `of_sets`: likewise, of each of several data sets.
void go_on_behind(std::vector<StageData>& data, int64_t done, data::SampleOrder::Place seen,
                  const std::vector<StageData::Seen>& of_sets = {});

/// Encodes what is missing for every part before any of them begins; one for each of run_parts(recipe). Sets
/// data.tokenizer of the recipe, so that all parts share one. Throws as prepare does, naming the stage.
std::vector<StageData> prepare_parts(recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm,
                                     int rank, PrepareOptions options = {});

}  // namespace tessera::prepare
