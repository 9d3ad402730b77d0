#pragma once
// Video transformers as the planner sees them, with sites whose results a recompute may keep, from their sizes alone:
// the proportions are those that the engine measures of Wan's blocks in bf16.
//
//   const Network network = transformer({.dim = 5120, .ffn = 13824, .blocks = 8, .tokens = 32760});
//   choose(network.model, mesh, input, {.profile = profile, .work = network.work, .dtype = "bf16"});
#include <string>
#include <vector>

#include "tessera/plan/search/planner.h"

namespace tessera::plan::toy {

struct TransformerShape {
  int64_t dim = 0, ffn = 0;
  int blocks = 0;
  int64_t tokens = 0;    ///< of a micro-batch on one rank
  int64_t text = 512;    ///< tokens that the cross-attention reads
  bool lora = false;     ///< frozen bf16 weights, adapters of rank 32
  int other_blocks = 0;  ///< blocks of a second kind after the others, without cross-attention
};

struct Network {
  ModelSpec model;
  WorkTable work;
};

inline Network transformer(const TransformerShape& shape) {
  Network network;
  network.model.name = "transformer";
  const int64_t d = shape.dim, f = shape.ffn, t = shape.tokens;
  const int64_t wide = 4 * t * d, narrow = 2 * t * d, hidden = 2 * t * f;  // tensors [tokens, dim] in fp32 and in bf16
  const auto weight = [&](UnitSpec& unit, const std::string& name, int64_t rows, int64_t columns) {
    const bool frozen = shape.lora;
    unit.params.push_back({.name = unit.name + "." + name,
                           .shape = {rows, columns},
                           .trainable = !frozen,
                           .stored = frozen ? DType::bf16 : DType::f32});
    constexpr int64_t kRank = 32;
    if (frozen) unit.params.push_back({.name = unit.name + "." + name + ".lora", .shape = {rows + columns, kRank}});
  };
  const auto block = [&](const std::string& name, const std::string& kind, bool cross) {
    UnitSpec unit;
    unit.name = name, unit.kind = kind, unit.narrow = true;
    for (const char* linear : {"q", "k", "v", "o"}) weight(unit, linear, d, d);
    if (cross)
      for (const char* linear : {"cross.q", "cross.k", "cross.v", "cross.o"}) weight(unit, linear, d, d);
    weight(unit, "ffn.0", f, d), weight(unit, "ffn.2", d, f);
    UnitWork& work = network.work[kind];
    work = {};
    for (int i = 0; i < 4; ++i) work.add_product(2.0 * t * d * d, !shape.lora);
    if (cross)
      for (int64_t rows : {t, shape.text, shape.text, t}) work.add_product(2.0 * rows * d * d, !shape.lora);
    work.add_product(2.0 * t * d * f, !shape.lora), work.add_product(2.0 * t * d * f, !shape.lora);
    work.attention["self_attn"] = 4.0 * t * t * d;
    if (cross) work.attention["cross_attn"] = 4.0 * t * shape.text * d;
    work.results["ffn.2"] = 2.0 * t * d * f;
    work.streamed = 20.0 * static_cast<double>(narrow), work.operators = 30;
    Footprint& cost = unit.cost;
    cost.out = cost.grad_in = wide;
    cost.saved_by_site = {{"norm", 5 * narrow}, {"self_attn", 5 * narrow}, {"ffn", narrow + 2 * hidden}};
    if (cross) cost.saved_by_site["cross_attn"] = 3 * narrow;
    for (const auto& [site, bytes] : cost.saved_by_site) cost.saved += bytes;
    cost.saved += wide;  // the input
    cost.keep_peak = cost.saved + 2 * narrow, cost.forward_peak = 2 * wide + hidden + 3 * narrow;
    cost.recompute_saved = cost.saved, cost.recompute_peak = cost.keep_peak;
    cost.backward_peak = 2 * wide + hidden + narrow;
    cost.selective = cost;
    cost.selective->saved_by_site["norm"] = narrow / 64;
    cost.selective->saved -= 5 * narrow - narrow / 64, cost.selective->keep_peak -= 5 * narrow - narrow / 64;
    cost.selective->backward_peak += 2 * narrow;
    cost.selective->rebuilt = 20 * narrow, cost.selective->rebuilds = 9;
    cost.results = {{"ffn.2", narrow}, {"self_attn", narrow + narrow / 32}};
    if (cross) cost.results["cross_attn"] = narrow + narrow / 32;
    std::vector<std::pair<std::string, int64_t>> sites(cost.results.begin(), cost.results.end());
    cost.forward_flops = work.forward_flops(), cost.backward_flops = work.backward_flops();
    for (unsigned kept = 1; kept < (1u << sites.size()); ++kept) {
      std::string names;
      int64_t bytes = 0;
      for (size_t s = 0; s < sites.size(); ++s)
        if (kept >> s & 1) names += (names.empty() ? "" : ",") + sites[s].first, bytes += sites[s].second;
      double flops = cost.forward_flops;
      for (size_t s = 0; s < sites.size(); ++s)
        if (kept >> s & 1)
          flops -= work.attention.contains(sites[s].first) ? work.attention.at(sites[s].first)
                                                           : work.results.at(sites[s].first);
      cost.replays[names] = {.forward_peak = cost.forward_peak + bytes,
                             .recompute_saved = cost.recompute_saved - bytes,
                             .recompute_peak = cost.recompute_peak - bytes,
                             .forward_flops = flops};
    }
    network.model.units.push_back(std::move(unit));
  };
  const auto end = [&](const std::string& name, int64_t rows) {
    UnitSpec unit;
    unit.name = unit.kind = name;
    weight(unit, "linear", rows, d);
    network.work[name].add_product(2.0 * t * rows * d, !shape.lora);
    network.work[name].streamed = 2.0 * static_cast<double>(wide);
    Footprint& cost = unit.cost;
    cost.out = name == "head" ? 4 * t * rows : wide, cost.grad_in = wide;
    cost.saved = narrow, cost.keep_peak = 2 * narrow, cost.forward_peak = 2 * narrow;
    cost.recompute_saved = narrow, cost.recompute_peak = 2 * narrow, cost.backward_peak = narrow;
    cost.saved_by_site = {{"norm", narrow}};
    network.model.units.push_back(std::move(unit));
  };
  end("stem", 64);
  for (int b = 0; b < shape.blocks; ++b) block("blocks." + std::to_string(b), "block", true);
  for (int b = 0; b < shape.other_blocks; ++b) block("singles." + std::to_string(b), "single", false);
  end("head", 64);
  network.model.tokens = t;
  network.model.loss_grad = 4 * t * 64, network.model.targets = 4 * t * 64, network.model.inputs = 4 * t * 64;
  network.model.loss_peak = 8 * t * 64;
  return network;
}

}  // namespace tessera::plan::toy
