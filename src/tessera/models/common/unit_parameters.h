#pragma once
// Lists the parameters of a unit in the order of their use, and how tensor parallelism shards them.
//
//   UnitParameters p("blocks.3", "block", "blocks.3.");
//   p.linear("ffn.0", hidden, dim);                                    // blocks.3.ffn.0.weight, .bias
//   plan::UnitSpec spec = p.sharded(kShards);                          // by the ends of their names
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/plan/unit_spec.h"

namespace tessera::models {

/// Parameters whose names have this ending are sharded so (Megatron-LM: Shoeybi et al. 2019): by heads and by the width
/// of the feed-forward. `whole_input`: computed from rows that every rank has, such as text.
struct Shard {
  std::string_view ending;
  plan::Split split;
  bool whole_input = false;
};

struct UnitParameters {
  plan::UnitSpec spec;
  std::string prefix;

  UnitParameters(std::string name, std::string kind, std::string prefix)
      : spec{.name = std::move(name), .kind = std::move(kind), .params = {}, .cost = {}}, prefix(std::move(prefix)) {}

  void add(const std::string& name, std::vector<int64_t> shape) {
    spec.params.push_back({.name = prefix + name, .shape = std::move(shape)});
  }
  /// `shape` of the weight: [out, in], or that of a convolution which is a linear on patches.
  void linear(const std::string& site, std::vector<int64_t> shape, bool bias = true) {
    const int64_t out = shape.front();
    add(site + ".weight", std::move(shape));
    if (bias) add(site + ".bias", {out});
  }
  void linear(const std::string& site, int64_t out, int64_t in, bool bias = true) { linear(site, {out, in}, bias); }
  void norm(const std::string& site, int64_t width) {
    add(site + ".weight", {width});
    add(site + ".bias", {width});
  }

  /// The list. The last row that fits a name holds.
  plan::UnitSpec sharded(std::span<const Shard> rows) const {
    plan::UnitSpec unit = spec;
    for (plan::ParamSpec& param : unit.params)
      for (const Shard& row : rows)
        if (param.name.ends_with(row.ending)) param.split = row.split, param.whole_input = row.whole_input;
    return unit;
  }
};

}  // namespace tessera::models
