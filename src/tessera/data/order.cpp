#include "tessera/data/order.h"

#include <numeric>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::data {

SampleOrder::SampleOrder(uint64_t seed, int64_t dataset_size) : seed_(seed), size_(dataset_size) {
  check_input(size_ > 0, "data.order", "the dataset is empty", "check data.path and data.metadata");
}

int64_t SampleOrder::at(int64_t position) const {
  check_internal(position >= 0, "data.order", "position " + std::to_string(position) + " is negative");
  const auto [epoch, cursor] = place(position);
  if (epoch != epoch_) {  // Fisher-Yates, draw i keyed by (seed, epoch, i)
    shuffled_.resize(static_cast<size_t>(size_));
    std::iota(shuffled_.begin(), shuffled_.end(), 0);
    const RandomKey key(seed_, Purpose::order, static_cast<uint64_t>(epoch));
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

}  // namespace tessera::data
