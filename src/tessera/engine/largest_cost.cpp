#include "tessera/engine/largest_cost.h"

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "tessera/base/check.h"

namespace tessera::engine {

namespace {

template <class Number>
requires std::is_arithmetic_v<Number>
void larger(Number& a, const Number& b) { a = std::max(a, b); }
void larger(plan::Footprint::Replay& a, const plan::Footprint::Replay& b) {
  larger(a.forward_peak, b.forward_peak), larger(a.recompute_saved, b.recompute_saved);
  larger(a.recompute_peak, b.recompute_peak), larger(a.forward_flops, b.forward_flops);
}
template <class Value>
void larger(std::map<std::string, Value>& a, const std::map<std::string, Value>& b) {
  for (const auto& [site, value] : b) larger(a[site], value);
}
void larger(std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  for (size_t i = 0; i < a.size(); ++i) larger(a[i], b.at(i));
}

/// The larger bytes, and the larger bytes of each quantised form: of what it quantises and of what it leaves unchanged.
void larger(int64_t& bytes, plan::Compact& compact, int64_t other_bytes, const plan::Compact& other) {
  const int64_t most = std::max(bytes, other_bytes);
  for (size_t f = 0; f < compact.forms.size(); ++f) {
    auto& form = compact.forms[f];
    form.whole = most - std::max(bytes - form.whole, other_bytes - other.forms[f].whole);
    larger(form.bytes, other.forms[f].bytes);
  }
  bytes = most;
}
using Bytes = std::map<std::string, int64_t>;
using Compacts = std::map<std::string, plan::Compact>;
void larger(Bytes& a, Compacts& compact_a, const Bytes& b, Compacts compact_b) {
  for (const auto& [site, ignored] : b) a.try_emplace(site, 0);
  for (auto& [site, bytes] : a) {
    const auto other = b.find(site);
    larger(bytes, compact_a[site], other == b.end() ? 0 : other->second, compact_b[site]);
  }
}

int64_t sum_of(const Bytes& bytes) {
  int64_t sum = 0;
  for (const auto& [site, n] : bytes) sum += n;
  return sum;
}

/// The result is an upper bound for any choice of offloaded sites: each site, and the bytes without a site, are the
/// larger of the two ranks'.
void larger(plan::GraphCost& a, const plan::GraphCost& b) {
  const int64_t others = std::max(a.saved - sum_of(a.saved_by_site), b.saved - sum_of(b.saved_by_site));
  larger(a.saved_by_site, a.compact_by_site, b.saved_by_site, b.compact_by_site);
  a.saved = sum_of(a.saved_by_site) + others;
  larger(a.keep_peak, b.keep_peak), larger(a.backward_peak, b.backward_peak);
  larger(a.deferred, b.deferred), larger(a.deferred_peak, b.deferred_peak);
  larger(a.weight_grad_peak, b.weight_grad_peak);
  larger(a.rebuilt, b.rebuilt), larger(a.rebuilds, b.rebuilds);
}

void check_same_order(const std::vector<plan::Traffic>& a, const std::vector<plan::Traffic>& b) {
  const auto fields = [](const plan::Traffic& t) {
    return std::tie(t.purpose, t.axes, t.kind, t.rows, t.row_bytes, t.part, t.reach);
  };
  check_internal(std::ranges::equal(a, b, {}, fields, fields), "engine.measure",
                 "ranks that share tokens send in another order: the model asks for other operators where it has no "
                 "rows of a space");
}

}  // namespace

void take_larger(plan::Footprint& a, const plan::Footprint& b) {
  check_same_order(a.traffic, b.traffic);
  check_same_order(a.backward_traffic, b.backward_traffic);
  take_larger_shape(a, b);
}

void take_larger_shape(plan::Footprint& a, const plan::Footprint& b) {
  larger(static_cast<plan::GraphCost&>(a), b);
  larger(a.out, a.compact_out, b.out, b.compact_out), larger(a.cond, b.cond), larger(a.forward_peak, b.forward_peak);
  larger(a.recompute_saved, b.recompute_saved), larger(a.recompute_peak, b.recompute_peak);
  larger(a.grad_in, b.grad_in), larger(a.grad_cond, b.grad_cond);
  larger(a.forward_flops, b.forward_flops), larger(a.backward_flops, b.backward_flops);
  larger(a.results, a.compact_results, b.results, b.compact_results);
  larger(a.replays, b.replays);
  a.attention.add(b.attention);
  if (a.selective && b.selective) larger(*a.selective, *b.selective);
}

}  // namespace tessera::engine
