#pragma once
// Which sample comes when: a fresh shuffle per epoch, keyed by (seed, epoch), the same on every layout.
//
//   BatchOrder order(seed, bucket_of_each_sample, global_batch);
//   order.at(position);                              // position = step * global_batch + place; index and epoch
//   order.bucket(step);                              // of all samples of that global batch
//
// There is no state to save beyond the position: a run resumed from (epoch, cursor) continues as if never stopped.
#include <cstdint>
#include <map>
#include <optional>
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
  mutable std::vector<int64_t> shuffled_;
};

/// Samples of several shapes (buckets): a global batch holds one shape. Each bucket has a SampleOrder of its own and
/// its batches are spread evenly: after any number of steps a bucket is within one batch of its due share, so its
/// samples come as often as those of every other, and none is dropped at the end of an epoch. With one bucket this is
/// SampleOrder. It keeps what was asked last, so one object serves one thread.
class BatchOrder {
 public:
  /// `buckets`: of each sample, by index; numbers need not be contiguous.
  /// `batches`: samples of a global batch by bucket, for those that have another number than the others.
  BatchOrder(uint64_t seed, const std::vector<int>& buckets, int64_t global_batch,
             const std::map<int, int64_t>& batches = {});

  int64_t size() const { return size_; }
  SampleOrder::Place place(int64_t position) const { return {consumed(position) / size_, consumed(position) % size_}; }
  /// Positions from the first of a batch to the first of the next one: the samples of the largest batch. A smaller batch
  /// uses the first of its positions.
  int64_t stride() const { return global_batch_; }
  /// Samples of the batches before `position`.
  int64_t consumed(int64_t position) const;
  int64_t batch_size(int64_t batch) const;  ///< samples of global batch number `batch`

  struct Pick {
    int64_t index = 0;
    int64_t epoch = 0;  ///< how often this sample's bucket was gone through before
  };
  Pick at(int64_t position) const;
  /// Where batches of this size go on after `samples` samples of another size: there, so that none is left out; with
  /// several buckets at the next batch, because a batch holds one.
  int64_t go_on(int64_t samples) const;
  int bucket(int64_t batch) const;  ///< of global batch number `batch`, from 0

 private:
  struct Turn {
    int32_t bucket = 0;  // in members_
    int64_t number = 0;  // how many batches the bucket had in the cycle before
  };
  Turn turn(int64_t batch) const;  // of batch number `batch`
  Turn turn_of_several_sizes(int64_t batch) const;
  /// Batches of bucket `other` that are due before batch `number` of `bucket`.
  int64_t due_before(int32_t bucket, int64_t number, int32_t other) const;

  int64_t size_, global_batch_;
  std::vector<int64_t> batches_;     // samples of a bucket's global batch, by bucket; empty: global_batch_ of each
  mutable int64_t turn_batch_ = -1;  // of which turn_ is
  mutable Turn turn_;
  std::vector<int> names_;                     // of buckets, as the caller numbers them
  std::vector<std::vector<int64_t>> members_;  // sample indices by bucket
  std::vector<SampleOrder> orders_;
  std::vector<Turn> cycle_;  // size_ batches: as many of each bucket as it has samples
};

/// Which of `count` captions a sample has in an epoch.
int64_t draw_caption(uint64_t seed, int64_t epoch, int64_t index, int64_t count);
/// The same of captions that are drawn by weights above 0.
int64_t draw_caption(uint64_t seed, int64_t epoch, int64_t index, const std::vector<double>& weights);

}  // namespace tessera::data
