#pragma once
// One tensor as ranks hold it, updated by an optimiser over their slices.
//
//   Ranks whole(lion, {64, 100}, {0, 6400}), cut(lion, {64, 100}, {0, 256, 6400});
//   for (int64_t step = 1; step <= 5; ++step) whole.step(step), cut.step(step);
//   at::equal(whole.whole(), cut.whole());
#include <cstring>

#include "tessera/net/unit_update.h"
#include "tessera/ops/bf16.h"

namespace tessera::optim {

/// One tensor on several ranks: each has its elements, and states of the whole tensor of its own.
class Ranks {
 public:
  /// `cuts`: 0, ..., the number of elements. `columns`: that many for each rank of a row-parallel matrix instead, all of
  /// them.
  Ranks(const net::UnitUpdate& update, std::vector<int64_t> shape, std::vector<int64_t> cuts, int64_t columns = 0,
        plan::Masters masters = plan::Masters::fp32, std::string name = "w")
      : update_(&update), spec_{std::move(name), std::move(shape)}, specs_(update.states(spec_)), masters_(masters) {
    const at::Tensor start = at::sin(at::arange(spec_.numel()).to(at::kFloat) * 0.37);
    for (size_t r = 0; r + 1 < cuts.size(); ++r) {
      Rank& rank = ranks_.emplace_back();
      rank.begin = cuts[r], rank.end = cuts[r + 1];
      if (columns > 0) {
        rank.begin = 0, rank.end = spec_.shape[0] * columns;
        rank.cut = {spec_.shape[1], columns, static_cast<int64_t>(r) * columns};
      }
      rank.places = places(rank);
      const at::Tensor own = start.index_select(0, rank.places).contiguous();
      rank.param.resize(own.numel() * plan::master_bytes(masters));
      for (const auto& state : specs_)
        rank.states.emplace_back(state.values(rank.begin, rank.end) * size_of(state.type));
      if (masters == plan::Masters::fp32)
        std::memcpy(rank.param.data(), own.const_data_ptr<float>(), rank.param.size());
      else
        ops::split_fp32(halves(rank.param), halves(rank.states[low()]), own.const_data_ptr<float>(), own.numel());
    }
  }

  void step(int64_t step, double scale = 1) {
    this->step({step, 1e-2, scale, d},
               at::cos(at::arange(spec_.numel()).to(at::kFloat) * (0.11 * static_cast<double>(step))));
  }

  void step(const net::StepControl& control, const at::Tensor& grad) {
    totals = {};
    std::vector<net::Slice> slices;
    std::vector<at::Tensor> grads;
    std::vector<std::vector<std::vector<float>>> kept(ranks_.size());
    for (Rank& rank : ranks_) {
      grads.push_back(grad.index_select(0, rank.places).contiguous());
      net::Slice slice;
      slice.spec = &spec_, slice.tensor = hash_text("w"), slice.numel = spec_.numel();
      slice.begin = rank.begin, slice.end = rank.end, slice.cut = rank.cut;
      slice.param = rank.param.data(), slice.grad = grads.back().const_data_ptr<float>();
      slice.specs = &specs_;
      slice.totals = &totals;
      for (auto& state : rank.states) slice.states.push_back(state.data());
      slices.push_back(slice);
    }
    for (int round = 0; round < update_->rounds(); ++round) {
      const auto count = static_cast<size_t>(update_->sums(spec_, round));
      std::vector<float> all(count, 0);
      for (const auto& slice : slices) {
        std::vector<double> part(count, 0);
        update_->add_sums(slice, control, round, part.data());
        for (size_t i = 0; i < count; ++i) all[i] += static_cast<float>(part[i]);
      }
      for (size_t r = 0; r < slices.size(); ++r) {
        kept[r].push_back(all);
        slices[r].sums.clear();
        for (auto& sums : kept[r]) slices[r].sums.push_back(sums.data());
        update_->take_sums(slices[r], control, round);
      }
    }
    for (const auto& slice : slices) update_->update(slice, control);
  }

  /// The same tensor, loaded by another run of the optimiser.
  void go_on(const net::UnitUpdate& update) { update_ = &update; }

  double d = 0;             ///< of the steps to come
  net::Totals totals = {};  ///< of the last step, over all ranks

  at::Tensor whole() const {
    at::Tensor all = at::empty({spec_.numel()}, at::kFloat);
    for (const Rank& rank : ranks_) {
      at::Tensor own = at::empty({rank.places.numel()}, at::kFloat);
      auto* values = own.mutable_data_ptr<float>();
      if (masters_ == plan::Masters::fp32)
        std::memcpy(values, rank.param.data(), rank.param.size());
      else
        ops::join_fp32(values, halves(rank.param), halves(rank.states[low()]), own.numel());
      all.index_copy_(0, rank.places, own);
    }
    return all;
  }
  /// A state in fp32, as the first rank has it.
  at::Tensor state(const std::string& kind) const {
    for (size_t s = 0; s < specs_.size(); ++s)
      if (specs_[s].kind == kind)
        return at::from_blob(const_cast<uint8_t*>(ranks_[0].states[s].data()),
                             {static_cast<int64_t>(ranks_[0].states[s].size() / 4)}, at::kFloat)
            .clone();
    return {};
  }
  bool same_whole_states() const {
    for (size_t s = 0; s < specs_.size(); ++s)
      for (const Rank& rank : ranks_)
        if (specs_[s].whole > 0 && rank.states[s] != ranks_[0].states[s]) return false;
    return true;
  }

 private:
  struct Rank {
    int64_t begin = 0, end = 0;
    net::Cut cut;
    at::Tensor places;
    std::vector<uint8_t> param;
    std::vector<std::vector<uint8_t>> states;
  };
  static uint16_t* halves(const std::vector<uint8_t>& bytes) {
    return reinterpret_cast<uint16_t*>(const_cast<uint8_t*>(bytes.data()));
  }
  /// Which state has the other halves of split masters.
  size_t low() const {
    for (size_t s = 0; s < specs_.size(); ++s)
      if (specs_[s].kind == plan::kMasterLow) return s;
    return specs_.size();
  }
  static at::Tensor places(const Rank& rank) {
    at::Tensor places = at::arange(rank.begin, rank.end, at::kLong);
    if (rank.cut.width == 0) return places;
    return at::floor_divide(places, rank.cut.width) * rank.cut.inner + rank.cut.first + places % rank.cut.width;
  }

  const net::UnitUpdate* update_;
  const plan::ParamSpec spec_;
  const std::vector<plan::StateSpec> specs_;
  const plan::Masters masters_;
  std::vector<Rank> ranks_;
};

inline double distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

}  // namespace tessera::optim
