#include "tessera/data/order.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::data {

SampleOrder::SampleOrder(uint64_t seed, int64_t dataset_size, uint64_t stream)
    : seed_(seed), stream_(stream), size_(dataset_size) {
  check_input(size_ > 0, "data.order", "the dataset is empty", "check data.path and data.metadata");
  check_internal(size_ < ~uint32_t{0}, "data.order", std::to_string(size_) + " samples");
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

Turns::Turns(std::vector<int64_t> rates, std::vector<int64_t> batches)
    : rates_(std::move(rates)), batches_(std::move(batches)) {}

Turns::Turns(const std::vector<int64_t>& rates, const std::vector<int64_t>& batches, const std::vector<bool>& apart,
             int64_t every)
    : every_(every) {
  for (const bool half : {false, true}) {
    std::vector<int32_t> members;
    std::vector<int64_t> own_rates, own_batches;
    for (size_t i = 0; i < rates.size(); ++i)
      if (apart.at(i) == half)
        members.push_back(static_cast<int32_t>(i)), own_rates.push_back(rates[i]), own_batches.push_back(batches[i]);
    check_internal(!members.empty() && every > 1, "data.order", "turns apart of nobody, or each of them");
    halves_.push_back({std::move(members), Turns(std::move(own_rates), std::move(own_batches))});
  }
}

// [Note: batches of several sizes] Batch j of a bucket of n samples, s of them in a batch, is due when its samples have
// been used (j + 1/2) s / n times; batches are taken as they are due, equal ones in the order of the buckets. That is the
// cycle of BatchOrder where all have the same s. The turn of batch number k is found by halving: it is the bucket's batch
// that has k batches of all before it. n is the rate: how often a bucket's samples come beside those of others.

int64_t Turns::due_before(Turn turn, int32_t other) const {
  const auto rate = [&](int32_t b) { return static_cast<__int128>(rates_[static_cast<size_t>(b)]); };
  const auto batch = [&](int32_t b) { return static_cast<__int128>(batches_[static_cast<size_t>(b)]); };
  // (2 i + 1) batch(other) / rate(other) < (2 number + 1) batch(whose) / rate(whose), or equal and earlier
  const __int128 due = (2 * static_cast<__int128>(turn.number) + 1) * batch(turn.whose) * rate(other);
  const __int128 each = batch(other) * rate(turn.whose);
  const __int128 whole = due / each;  // 2 i + 1 up to this is due, the last one only where it is not equal
  __int128 count = (whole + 1) / 2;
  if (count > 0 && (2 * count - 1) * each == due && other >= turn.whose) --count;
  return static_cast<int64_t>(count);
}

std::vector<int64_t> Turns::before(Turn turn) const {
  std::vector<int64_t> counts;
  if (!halves_.empty()) {
    const auto place = std::ranges::find(halves_[1].members, turn.whose);
    const bool apart = place != halves_[1].members.end();
    const std::vector<int32_t>& own = halves_[apart].members;
    const auto at = static_cast<int32_t>(std::ranges::find(own, turn.whose) - own.begin());
    std::vector<int64_t> of_halves[2];
    of_halves[apart] = halves_[apart].turns.before({at, turn.number});
    const int64_t index = std::accumulate(of_halves[apart].begin(), of_halves[apart].end(), int64_t{0});  // of its half
    const int64_t rest =
        index < every_ ? 0 : 1 + (index - every_) / (every_ - 1);  // apart before turn `index` of the rest
    const int64_t other = apart ? (index + 1) * every_ - index : rest;
    const Turns& others = halves_[!apart].turns;
    of_halves[!apart] = others.before(others.at(other));
    counts.resize(halves_[0].members.size() + halves_[1].members.size());
    for (const int half : {0, 1})
      for (size_t i = 0; i < of_halves[half].size(); ++i)
        counts[static_cast<size_t>(halves_[static_cast<size_t>(half)].members[i])] = of_halves[half][i];
    return counts;
  }
  for (int32_t other = 0; other < static_cast<int32_t>(rates_.size()); ++other)
    counts.push_back(other == turn.whose ? turn.number : due_before(turn, other));
  return counts;
}

Turns::Turn Turns::at(int64_t turn) const {
  if (!halves_.empty()) {
    const bool apart = turn > 0 && turn % every_ == 0;
    const int64_t apart_before = turn == 0 ? 0 : (turn - 1) / every_;
    const Turn own = halves_[apart].turns.at(apart ? apart_before : turn - apart_before);
    return {halves_[apart].members[static_cast<size_t>(own.whose)], own.number};
  }
  for (int32_t whose = 0; whose < static_cast<int32_t>(rates_.size()); ++whose) {
    const auto all_before = [&](int64_t number) {
      int64_t all = number;
      for (int32_t other = 0; other < static_cast<int32_t>(rates_.size()); ++other)
        all += other == whose ? 0 : due_before({whose, number}, other);
      return all;
    };
    int64_t low = 0, high = turn;  // its first turn with `turn` or more before it
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (all_before(middle) < turn)
        low = middle + 1;
      else
        high = middle;
    }
    if (all_before(low) == turn) return {whose, low};
  }
  throw InternalError("data.order", "nobody has turn " + std::to_string(turn));
}

int64_t BatchOrder::Shape::samples() const {
  int64_t all = 0;
  for (const Group& group : groups) all += std::ssize(group.members);
  return all;
}

std::vector<int64_t> BatchOrder::Shape::taken(int64_t samples) const {
  return turns ? turns->before(turns->at(samples)) : std::vector{samples};
}

BatchOrder::BatchOrder(uint64_t seed, const std::vector<int>& buckets, int64_t global_batch,
                       const std::map<int, int64_t>& batches, const SetShares& sets, const ImageTurns& images)
    : global_batch_(global_batch),
      by_set_(!sets.amounts.empty()),
      set_sizes_(std::max<size_t>(1, sets.amounts.size())) {
  check_input(!buckets.empty(), "data.order", "the dataset is empty", "check data.path and data.metadata");
  check_internal(global_batch >= 1, "data.order", "a global batch of " + std::to_string(global_batch));
  std::map<int, std::map<int, std::vector<uint32_t>>> members;  // by bucket and set
  for (size_t i = 0; i < buckets.size(); ++i) {
    const int set = by_set_ ? sets.of_samples.at(i) : 0;
    members[buckets[i]][set].push_back(static_cast<uint32_t>(i));
    ++set_sizes_.at(static_cast<size_t>(set));
  }
  const double epoch =
      by_set_ ? std::accumulate(sets.amounts.begin(), sets.amounts.end(), 0.0) : static_cast<double>(buckets.size());
  size_ = std::max<int64_t>(1, std::llround(epoch));
  constexpr double kUnit = 1 << 20;  // of rates: fractions of samples count
  std::vector<int64_t> own, rates;
  for (auto& [name, by_set] : members) {
    buckets_.push_back({.name = name});
    Shape& bucket = buckets_.back();
    std::vector<int64_t> of_groups;
    for (auto& [set, indices] : by_set) {
      const auto count = static_cast<int64_t>(indices.size()), of_set = set_sizes_[static_cast<size_t>(set)];
      const uint64_t stream = (static_cast<uint64_t>(set) << 20) + buckets_.size() - 1;
      bucket.groups.push_back({set, std::move(indices), SampleOrder(seed, count, stream)});
      const double amount = by_set_ ? sets.amounts[static_cast<size_t>(set)] : static_cast<double>(of_set);
      const double rate = amount * static_cast<double>(count) / static_cast<double>(of_set);
      of_groups.push_back(std::max<int64_t>(1, std::llround(rate * kUnit)));
    }
    rates.push_back(by_set_ ? std::accumulate(of_groups.begin(), of_groups.end(), int64_t{0}) : bucket.samples());
    if (of_groups.size() > 1) {
      std::vector<int64_t> ones(of_groups.size(), 1);
      bucket.turns.emplace(std::move(of_groups), std::move(ones));
    }
    const auto batch = batches.find(name);
    own.push_back(batch == batches.end() ? global_batch : batch->second);
  }
  global_batch_ = *std::ranges::max_element(own);
  if (images.every > 0) {
    std::vector<bool> apart;
    for (const Shape& bucket : buckets_) apart.push_back(images.buckets.contains(bucket.name));
    const auto of_images = std::ranges::count(apart, true);
    check_input(of_images > 0 && of_images<std::ssize(apart), "data.images_every", of_images> 0
                    ? "the data set has images alone, and none of its clips has more than one frame"
                    : "the data set has no image: no sample has one frame",
                "give both, or leave data.images_every out");
    turns_.emplace(rates, own, apart, images.every);
    batches_ = std::move(own);
    return;
  }
  if (by_set_ || std::ranges::count(own, global_batch_) < std::ssize(own)) {
    turns_.emplace(std::move(rates), own);
    batches_ = std::move(own);
    return;
  }
  if (buckets_.size() == 1) return;  // every turn is the same bucket's
  // Batch j of a bucket of n samples is due at (j + 1/2) / n of the cycle.
  for (size_t b = 0; b < buckets_.size(); ++b)
    for (int64_t j = 0; j < buckets_[b].samples(); ++j) cycle_.push_back({static_cast<int32_t>(b), j});
  std::stable_sort(cycle_.begin(), cycle_.end(), [&](const Turn& x, const Turn& y) {
    const auto n = [&](const Turn& t) { return buckets_[static_cast<size_t>(t.bucket)].samples(); };
    return (2 * x.number + 1) * n(y) < (2 * y.number + 1) * n(x);
  });
}

/// `number` counts the bucket's batches from the first on.
BatchOrder::Turn BatchOrder::turn(int64_t batch) const {
  if (turns_) {
    if (turn_batch_ != batch) {
      const Turns::Turn found = turns_->at(batch);
      turn_ = {found.whose, found.number}, turn_batch_ = batch;
    }
    return turn_;
  }
  if (cycle_.empty()) return {0, batch};
  const auto length = static_cast<int64_t>(cycle_.size());
  Turn turn = cycle_[static_cast<size_t>(batch % length)];
  turn.number += batch / length * buckets_[static_cast<size_t>(turn.bucket)].samples();
  return turn;
}

int BatchOrder::bucket(int64_t batch) const { return buckets_[static_cast<size_t>(turn(batch).bucket)].name; }

int64_t BatchOrder::batch_size(int64_t batch) const {
  return batches_.empty() ? global_batch_ : batches_[static_cast<size_t>(turn(batch).bucket)];
}

int64_t BatchOrder::consumed(int64_t position) const {
  if (!turns_) return position;
  const Turn next = turn(position / global_batch_);
  const std::vector<int64_t> turns = turns_->before({next.bucket, next.number});
  return std::inner_product(turns.begin(), turns.end(), batches_.begin(), position % global_batch_);
}

int64_t BatchOrder::go_on(int64_t samples) const {
  const bool one_size = std::ranges::all_of(batches_, [&](int64_t batch) { return batch == global_batch_; });
  if (one_size) return buckets_.size() == 1 ? samples : round_up(samples, global_batch_);
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
  const Turn now = turn(position / global_batch_);
  const auto b = static_cast<size_t>(now.bucket);
  const Shape& bucket = buckets_[b];
  Turns::Turn own = {0, now.number * (batches_.empty() ? global_batch_ : batches_[b]) + position % global_batch_};
  if (bucket.turns) own = bucket.turns->at(own.number);
  const Group& group = bucket.groups[static_cast<size_t>(own.whose)];
  const int64_t place = std::max<int64_t>(0, own.number + group.ahead);
  return {group.members[static_cast<size_t>(group.order.at(place))], place / std::ssize(group.members)};
}

/// Samples of each group of each bucket before `position`, without those that they are ahead.
std::vector<std::vector<int64_t>> BatchOrder::taken(int64_t position) const {
  const Turn next = turn(position / global_batch_);
  const std::vector<int64_t> turns = turns_->before({next.bucket, next.number});
  std::vector<std::vector<int64_t>> all;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const bool now = next.bucket == static_cast<int32_t>(b);
    all.push_back(buckets_[b].taken(turns[b] * batches_[b] + (now ? position % global_batch_ : 0)));
  }
  return all;
}

std::vector<int64_t> BatchOrder::of_sets(int64_t position) const {
  if (!by_set_) return {consumed(position)};
  std::vector<int64_t> counts(set_sizes_.size());
  const std::vector<std::vector<int64_t>> taken = this->taken(position);
  for (size_t b = 0; b < buckets_.size(); ++b)
    for (size_t g = 0; g < buckets_[b].groups.size(); ++g) {
      const Group& group = buckets_[b].groups[g];
      counts[static_cast<size_t>(group.set)] += taken[b][g] + group.ahead;
    }
  return counts;
}

/// What a set is ahead is spread over its shapes as its samples are.
void BatchOrder::go_on_in_sets(int64_t position, const std::vector<int64_t>& seen) {
  if (!by_set_) return;
  for (Shape& bucket : buckets_)
    for (Group& group : bucket.groups) group.ahead = 0;
  const std::vector<int64_t> here = of_sets(position);
  std::vector<int64_t> samples(set_sizes_.size());  // of the shapes before
  for (Shape& bucket : buckets_)
    for (Group& group : bucket.groups) {
      const auto set = static_cast<size_t>(group.set);
      const int64_t ahead = seen.at(set) - here[set];
      const auto share = [&] {
        return static_cast<int64_t>(static_cast<__int128>(ahead) * samples[set] / set_sizes_[set]);
      };
      const int64_t before = share();
      samples[set] += std::ssize(group.members);
      group.ahead = share() - before;
    }
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
