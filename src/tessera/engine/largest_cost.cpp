#include "tessera/engine/largest_cost.h"

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "tessera/base/check.h"

namespace tessera::engine {

namespace {

template <class Number>
  requires std::is_arithmetic_v<Number>
void larger(Number& a, const Number& b) {
  a = std::max(a, b);
}
void larger(plan::Footprint::Replay& a, const plan::Footprint::Replay& b) {
  larger(a.forward_peak, b.forward_peak), larger(a.recompute_saved, b.recompute_saved);
  larger(a.recompute_peak, b.recompute_peak), larger(a.forward_flops, b.forward_flops);
}
void larger(plan::Compact& a, const plan::Compact& b) {
  for (size_t f = 0; f < a.forms.size(); ++f)
    larger(a.forms[f].whole, b.forms[f].whole), larger(a.forms[f].bytes, b.forms[f].bytes);
}
template <class Value>
void larger(std::map<std::string, Value>& a, const std::map<std::string, Value>& b) {
  for (const auto& [site, value] : b) larger(a[site], value);
}
void larger(std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  for (size_t i = 0; i < a.size(); ++i) larger(a[i], b.at(i));
}

void larger(plan::GraphCost& a, const plan::GraphCost& b) {
  larger(a.saved, b.saved), larger(a.keep_peak, b.keep_peak), larger(a.backward_peak, b.backward_peak);
  larger(a.deferred, b.deferred), larger(a.deferred_peak, b.deferred_peak);
  larger(a.weight_grad_peak, b.weight_grad_peak);
  larger(a.saved_by_site, b.saved_by_site), larger(a.compact_by_site, b.compact_by_site);
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
  larger(static_cast<plan::GraphCost&>(a), b);
  larger(a.out, b.out), larger(a.cond, b.cond), larger(a.forward_peak, b.forward_peak);
  larger(a.recompute_saved, b.recompute_saved), larger(a.recompute_peak, b.recompute_peak);
  larger(a.grad_in, b.grad_in), larger(a.grad_cond, b.grad_cond);
  larger(a.forward_flops, b.forward_flops), larger(a.backward_flops, b.backward_flops);
  larger(a.results, b.results), larger(a.compact_results, b.compact_results), larger(a.compact_out, b.compact_out);
  larger(a.replays, b.replays);
  if (a.lean && b.lean) larger(*a.lean, *b.lean);
}

}  // namespace tessera::engine
