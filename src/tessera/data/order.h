#pragma once
// Which sample comes when: a fresh shuffle per epoch, keyed by (seed, epoch), the same on every layout.
//
//   SampleOrder order(seed, dataset_size);
//   order.at(position);                                  // position = epoch * size + cursor, counted from 0
//   order.batch(step * global_batch, global_batch, dp_rank, dp_size);
//
// There is no state to save beyond the position: a run resumed from (epoch, cursor) continues as if never stopped.
#include <cstdint>
#include <vector>

namespace tessera::data {

class SampleOrder {
 public:
  SampleOrder(uint64_t seed, int64_t dataset_size);

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
  uint64_t seed_;
  int64_t size_;
  mutable int64_t epoch_ = -1;
  mutable std::vector<int64_t> shuffled_;
};

}  // namespace tessera::data
