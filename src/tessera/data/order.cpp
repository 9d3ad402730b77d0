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

BatchOrder::BatchOrder(uint64_t seed, const std::vector<int>& buckets, int64_t global_batch,
                       const std::map<int, int64_t>& batches)
    : size_(static_cast<int64_t>(buckets.size())), global_batch_(global_batch) {
  check_input(size_ > 0, "data.order", "the dataset is empty", "check data.path and data.metadata");
  check_internal(global_batch >= 1, "data.order", "a global batch of " + std::to_string(global_batch));
  std::map<int, std::vector<int64_t>> by_bucket;
  for (int64_t i = 0; i < size_; ++i) by_bucket[buckets[static_cast<size_t>(i)]].push_back(i);
  std::vector<int64_t> own;
  for (auto& [name, members] : by_bucket) {
    orders_.emplace_back(seed, static_cast<int64_t>(members.size()), orders_.size());
    names_.push_back(name);
    members_.push_back(std::move(members));
    const auto batch = batches.find(name);
    own.push_back(batch == batches.end() ? global_batch : batch->second);
  }
  global_batch_ = *std::ranges::max_element(own);
  if (std::ranges::count(own, global_batch_) < static_cast<int64_t>(own.size())) {
    batches_ = std::move(own);
    return;
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

// [Note: batches of several sizes] Batch j of a bucket of n samples, s of them in a batch, is due when its samples have
// been used (j + 1/2) s / n times; batches are taken as they are due, equal ones in the order of the buckets. That is the
// cycle above where all have the same s. The turn of batch number k is found by halving: it is the bucket's batch that
// has k batches of all before it.

int64_t BatchOrder::due_before(int32_t bucket, int64_t number, int32_t other) const {
  const auto samples = [&](int32_t b) { return static_cast<__int128>(members_[static_cast<size_t>(b)].size()); };
  const auto batch = [&](int32_t b) { return static_cast<__int128>(batches_[static_cast<size_t>(b)]); };
  // (2 i + 1) batch(other) / samples(other) < (2 number + 1) batch(bucket) / samples(bucket), or equal and earlier
  const __int128 due = (2 * static_cast<__int128>(number) + 1) * batch(bucket) * samples(other);
  const __int128 each = batch(other) * samples(bucket);
  const __int128 whole = due / each;  // 2 i + 1 up to this is due, the last one only where it is not equal
  __int128 count = (whole + 1) / 2;
  if (count > 0 && (2 * count - 1) * each == due && other >= bucket) --count;
  return static_cast<int64_t>(count);
}

BatchOrder::Turn BatchOrder::turn_of_several_sizes(int64_t batch) const {
  const auto buckets = static_cast<int32_t>(members_.size());
  for (int32_t b = 0; b < buckets; ++b) {
    const auto before = [&](int64_t number) {
      int64_t all = number;
      for (int32_t other = 0; other < buckets; ++other) all += other == b ? 0 : due_before(b, number, other);
      return all;
    };
    int64_t low = 0, high = batch;  // the first batch of b with `batch` or more before it
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (before(middle) < batch)
        low = middle + 1;
      else
        high = middle;
    }
    if (before(low) == batch) return {b, low};
  }
  throw InternalError("data.order", "no bucket has batch " + std::to_string(batch));
}

/// `number` counts the bucket's batches from the first on.
BatchOrder::Turn BatchOrder::turn(int64_t batch) const {
  if (!batches_.empty()) {
    if (turn_batch_ != batch) turn_ = turn_of_several_sizes(batch), turn_batch_ = batch;
    return turn_;
  }
  if (cycle_.empty()) return {0, batch};
  Turn turn = cycle_[static_cast<size_t>(batch % size_)];
  turn.number += batch / size_ * static_cast<int64_t>(members_[static_cast<size_t>(turn.bucket)].size());
  return turn;
}

int BatchOrder::bucket(int64_t batch) const { return names_[static_cast<size_t>(turn(batch).bucket)]; }

int64_t BatchOrder::batch_size(int64_t batch) const {
  return batches_.empty() ? global_batch_ : batches_[static_cast<size_t>(turn(batch).bucket)];
}

int64_t BatchOrder::consumed(int64_t position) const {
  if (batches_.empty()) return position;
  const int64_t batch = position / global_batch_;
  const Turn next = turn(batch);
  int64_t samples = position % global_batch_;
  for (int32_t b = 0; b < static_cast<int32_t>(members_.size()); ++b)
    samples +=
        (b == next.bucket ? next.number : due_before(next.bucket, next.number, b)) * batches_[static_cast<size_t>(b)];
  return samples;
}

int64_t BatchOrder::go_on(int64_t samples) const {
  if (batches_.empty()) return cycle_.empty() ? samples : round_up(samples, global_batch_);
  int64_t low = 0, high = samples;  // batches have at least one sample
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (consumed(middle * global_batch_) < samples)
      low = middle + 1;
    else
      high = middle;
  }
  return low * global_batch_;
}

BatchOrder::Pick BatchOrder::at(int64_t position) const {
  check_internal(position >= 0, "data.order", "position " + std::to_string(position) + " is negative");
  const int64_t batch = position / global_batch_, place = position % global_batch_;
  const Turn now = turn(batch);
  const auto bucket = static_cast<size_t>(now.bucket);
  const auto count = static_cast<int64_t>(members_[bucket].size());
  const int64_t own = now.number * (batches_.empty() ? global_batch_ : batches_[bucket]) + place;
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
