#pragma once
// Which sample comes when: a fresh shuffle per epoch, keyed by (seed, epoch), the same on every layout.
//
//   BatchOrder order(seed, bucket_of_each_sample, global_batch);
//   order.at(position);                              // position = step * global_batch + place; index and epoch
//   order.bucket(step);                              // of all samples of that global batch
//   order.of_sets(position);                         // how far each of several data sets was gone through
//
// There is no state to save beyond the position: a run resumed from (epoch, cursor) continues as if never stopped.
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace tessera::data {

/// Samples of one shape.
class SampleOrder {
 public:
  /// `stream` tells apart orders of one run: its shuffles are its own.
  SampleOrder(uint64_t seed, int64_t dataset_size, uint64_t stream = 0);

  int64_t size() const { return size_; }

  struct Place {
    int64_t epoch = 0, cursor = 0;
    bool operator==(const Place&) const = default;
  };
  Place place(int64_t position) const { return {position / size_, position % size_}; }
  int64_t position(Place place) const { return place.epoch * size_ + place.cursor; }

  /// Dataset index at a global position. Keeps the shuffle of the epoch asked last, so one object serves one thread.
  int64_t at(int64_t position) const;

  /// Dataset indices of one dp rank's part of the global batch that begins at `position`: contiguous, in order, parts
  /// differ by at most one sample (some are empty when there are fewer samples than ranks).
  std::vector<int64_t> batch(int64_t position, int64_t global_batch, int dp_rank, int dp_size) const;

 private:
  uint64_t seed_, stream_;
  int64_t size_;
  mutable int64_t epoch_ = -1;
  mutable std::vector<uint32_t> shuffled_;
};

/// Takes turns in proportion to rates, one batch a turn: whose turn each is, without going through those before it.
class Turns {
 public:
  /// Of each that takes part; `batches`: how much of its rate a turn uses up.
  Turns(std::vector<int64_t> rates, std::vector<int64_t> batches);
  /// Turn number `every`, 2 `every` and so on, from 0, are of those that `apart` names, by their rates among each other; all
  /// others are of the rest. Both have members; `every` is 2 or more.
  Turns(const std::vector<int64_t>& rates, const std::vector<int64_t>& batches, const std::vector<bool>& apart,
        int64_t every);

  struct Turn {
    int32_t whose = 0;
    int64_t number = 0;  ///< of its turns before
  };
  Turn at(int64_t turn) const;
  /// Turns of each before it.
  std::vector<int64_t> before(Turn turn) const;

 private:
  int64_t due_before(Turn turn, int32_t other) const;

  std::vector<int64_t> rates_, batches_;

  struct Half;
  std::vector<Half> halves_;  ///< where turns are apart: the rest, and those apart
  int64_t every_ = 0;
};
struct Turns::Half {
  std::vector<int32_t> members;
  Turns turns;
};

/// Shapes of one frame that have each `every`-th batch but the first to themselves, and the clips all others.
struct ImageTurns {
  std::set<int> buckets = {};
  int64_t every = 0;  ///< 0: they come as often as there are samples of them
};

/// Data sets that are gone through each by itself: of which each sample is, and how many samples of an epoch come from
/// each set.
struct SetShares {
  std::vector<int> of_samples = {};  ///< by index
  std::vector<double> amounts = {};  ///< empty: all samples are gone through as one
};

/// Samples of several shapes (buckets): a global batch holds one shape. Each bucket has a SampleOrder of its own and
/// its batches are spread evenly: after any number of steps a bucket is within one batch of its due share, so its
/// samples come as often as those of every other, and none is dropped at the end of an epoch. With one bucket this is
/// SampleOrder. Samples of several sets have a SampleOrder for each set of a bucket, and within its batches sets take
/// turns by their amounts: a set goes through its samples whatever the others do. It keeps what was asked last, so one
/// object serves one thread.
class BatchOrder {
 public:
  /// `buckets`: of each sample, by index; numbers need not be contiguous.
  /// `batches`: samples of a global batch by bucket, for those that have another number than the others. Throws UserError
  /// (input) where images take turns with clips and there are none of either.
  BatchOrder(uint64_t seed, const std::vector<int>& buckets, int64_t global_batch,
             const std::map<int, int64_t>& batches = {}, const SetShares& sets = {}, const ImageTurns& images = {});

  int64_t size() const { return size_; }  ///< samples of an epoch
  SampleOrder::Place place(int64_t position) const { return {consumed(position) / size_, consumed(position) % size_}; }
  /// Positions from the first of a batch to the first of the next one: the samples of the largest batch. A smaller batch
  /// uses the first of its positions.
  int64_t stride() const { return global_batch_; }
  /// Samples of the batches before `position`.
  int64_t consumed(int64_t position) const;
  int64_t batch_size(int64_t batch) const;  ///< samples of global batch number `batch`

  struct Pick {
    int64_t index = 0;
    int64_t epoch = 0;  ///< how often this sample's bucket, or its set's part of it, was gone through before
  };
  Pick at(int64_t position) const;
  /// Where batches of this size go on after `samples` samples of another size: there, so that none is left out; with
  /// several buckets at the next batch, because a batch holds one.
  int64_t go_on(int64_t samples) const;
  int bucket(int64_t batch) const;  ///< of global batch number `batch`, from 0

  int64_t set_size(size_t set) const { return set_sizes_.at(set); }  ///< of its samples
  /// How many samples of each set come before `position`; of all where there are no sets.
  std::vector<int64_t> of_sets(int64_t position) const;
  /// From `position` on each set goes on behind so many samples of its own, which other amounts or steps without it left
  /// elsewhere than this order has it; as many as of_sets() says change nothing.
  void go_on_in_sets(int64_t position, const std::vector<int64_t>& seen);

 private:
  struct Turn {
    int32_t bucket = 0;  // in buckets_
    int64_t number = 0;  // how many batches the bucket had in the cycle before
  };
  /// What a bucket has of a set.
  struct Group {
    int set = 0;
    std::vector<uint32_t> members;  // sample indices
    SampleOrder order;
    int64_t ahead = 0;  // samples that it was gone through beyond its turns
  };
  struct Shape {
    int name = 0;  // as the caller numbers it
    std::vector<Group> groups = {};
    std::optional<Turns> turns = {};  // of its groups, where there are several
    /// Samples of each group before sample number `samples` of the bucket, without `ahead`.
    std::vector<int64_t> taken(int64_t samples) const;
    int64_t samples() const;
  };
  Turn turn(int64_t batch) const;  // of batch number `batch`
  std::vector<std::vector<int64_t>> taken(int64_t position) const;

  int64_t size_ = 0, global_batch_;
  bool by_set_ = false;
  std::vector<int64_t> set_sizes_;
  std::vector<int64_t> batches_;     // samples of a bucket's global batch, by bucket; empty: global_batch_ of each
  std::optional<Turns> turns_;       // of buckets, where the cycle does not have them
  mutable int64_t turn_batch_ = -1;  // of which turn_ is
  mutable Turn turn_;
  std::vector<Shape> buckets_;
  std::vector<Turn> cycle_;  // as many batches as there are samples, and of each bucket as many as it has
};

/// Which of `count` captions a sample has in an epoch.
int64_t draw_caption(uint64_t seed, int64_t epoch, int64_t index, int64_t count);
/// The same of captions that are drawn by weights above 0.
int64_t draw_caption(uint64_t seed, int64_t epoch, int64_t index, const std::vector<double>& weights);

}  // namespace tessera::data
