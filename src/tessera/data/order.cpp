#include "tessera/data/order.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::data {

SampleOrder::SampleOrder(uint64_t seed, int64_t dataset_size, uint64_t stream)
    : seed_(seed), stream_(stream), size_(dataset_size) {
  check_input(size_ > 0, "data.order", "the dataset is empty", "check data.path and data.metadata");
}

int64_t SampleOrder::at(int64_t position) const {
  check_internal(position >= 0, "data.order", "position " + std::to_string(position) + " is negative");
  const auto [epoch, cursor] = place(position);
  if (epoch != epoch_) {  // Fisher-Yates, draw i keyed by (seed, epoch, i)
    shuffled_.resize(static_cast<size_t>(size_));
    std::iota(shuffled_.begin(), shuffled_.end(), 0);
    const RandomKey key(seed_, Purpose::order, static_cast<uint64_t>(epoch), stream_);
    for (auto i = static_cast<uint64_t>(size_ - 1); i > 0; --i) std::swap(shuffled_[i], shuffled_[key.below(i, i + 1)]);
    epoch_ = epoch;
  }
  return shuffled_[static_cast<size_t>(cursor)];
}

std::vector<int64_t> SampleOrder::batch(int64_t position, int64_t global_batch, int dp_rank, int dp_size) const {
  const int64_t first = global_batch * dp_rank / dp_size;
  const int64_t last = global_batch * (dp_rank + 1) / dp_size;
  std::vector<int64_t> indices;
  for (int64_t i = first; i < last; ++i) indices.push_back(at(position + i));
  return indices;
}

BatchOrder::BatchOrder(uint64_t seed, const std::vector<int>& buckets, int64_t global_batch)
    : size_(static_cast<int64_t>(buckets.size())), global_batch_(global_batch) {
  check_input(size_ > 0, "data.order", "the dataset is empty", "check data.path and data.metadata");
  check_internal(global_batch >= 1, "data.order", "a global batch of " + std::to_string(global_batch));
  std::map<int, std::vector<int64_t>> by_bucket;
  for (int64_t i = 0; i < size_; ++i) by_bucket[buckets[static_cast<size_t>(i)]].push_back(i);
  for (auto& [name, members] : by_bucket) {
    orders_.emplace_back(seed, static_cast<int64_t>(members.size()), orders_.size());
    names_.push_back(name);
    members_.push_back(std::move(members));
  }
  if (members_.size() == 1) return;  // every turn is the same bucket's
  // Batch j of a bucket of n samples is due at (j + 1/2) / n of the cycle.
  for (size_t b = 0; b < members_.size(); ++b)
    for (size_t j = 0; j < members_[b].size(); ++j)
      cycle_.push_back({static_cast<int32_t>(b), static_cast<int64_t>(j)});
  std::stable_sort(cycle_.begin(), cycle_.end(), [&](const Turn& x, const Turn& y) {
    const auto n = [&](const Turn& t) { return static_cast<int64_t>(members_[static_cast<size_t>(t.bucket)].size()); };
    return (2 * x.number + 1) * n(y) < (2 * y.number + 1) * n(x);
  });
}

int BatchOrder::bucket(int64_t batch) const {
  return cycle_.empty() ? names_[0] : names_[static_cast<size_t>(cycle_[static_cast<size_t>(batch % size_)].bucket)];
}

int64_t BatchOrder::go_on(int64_t position) const {
  return cycle_.empty() ? position : round_up(position, global_batch_);
}

BatchOrder::Pick BatchOrder::at(int64_t position) const {
  check_internal(position >= 0, "data.order", "position " + std::to_string(position) + " is negative");
  const int64_t batch = position / global_batch_, place = position % global_batch_;
  const Turn turn = cycle_.empty() ? Turn{0, batch} : cycle_[static_cast<size_t>(batch % size_)];
  const auto bucket = static_cast<size_t>(turn.bucket);
  const auto count = static_cast<int64_t>(members_[bucket].size());
  const int64_t before = cycle_.empty() ? turn.number : batch / size_ * count + turn.number;
  const int64_t own = before * global_batch_ + place;
  return {members_[bucket][static_cast<size_t>(orders_[bucket].at(own))], own / count};
}

namespace {

/// The shuffles of this purpose have small second keys, so draws of captions never meet them.
RandomKey caption_key(uint64_t seed, int64_t epoch, int64_t index) {
  const auto sample = (uint64_t{1} << 40) + static_cast<uint64_t>(index);
  return {seed, Purpose::order, static_cast<uint64_t>(epoch), sample};
}

}  // namespace

int64_t draw_caption(uint64_t seed, int64_t epoch, int64_t index, int64_t count) {
  return static_cast<int64_t>(caption_key(seed, epoch, index).below(0, static_cast<uint64_t>(count)));
}

int64_t draw_caption(uint64_t seed, int64_t epoch, int64_t index, const std::vector<double>& weights) {
  double left = caption_key(seed, epoch, index).uniform(0) * std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t drawn = 0;
  while (drawn + 1 < weights.size() && (left -= weights[drawn]) >= 0) ++drawn;
  return static_cast<int64_t>(drawn);
}

}  // namespace tessera::data
