#include "tessera/plan/plan.h"

#include <algorithm>
#include <array>

#include "tessera/base/check.h"

namespace tessera::plan {

namespace {

/// Lower case without separators, so that ZeRO-3, zero_3 and ZERO3 are one name.
std::string folded(std::string_view text) {
  std::string result;
  for (char c : text)
    if (c != '-' && c != '_' && c != ' ') result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

[[noreturn]] void unknown(std::string_view where, std::string_view text, const std::vector<std::string>& known) {
  throw UserError(Exit::usage, where, "unknown value '" + std::string(text) + "'",
                  "did you mean " + nearest(text, known).front() + "?");
}

}  // namespace

std::string_view name(Policy policy) { return policy == Policy::keep ? "keep" : "recompute"; }
std::string_view name(Strategy strategy) { return strategy == Strategy::full_shard ? "full_shard" : "shard_grad_op"; }

Policy policy_of(std::string_view text, std::string_view where) {
  for (Policy policy : {Policy::keep, Policy::recompute})
    if (text == name(policy)) return policy;
  unknown(where, text, {"keep", "recompute"});
}

Strategy strategy_of(std::string_view text, std::string_view where) {
  const std::string word = folded(text);
  if (word == "fullshard" || word == "zero3") return Strategy::full_shard;
  if (word == "shardgradop" || word == "zero2") return Strategy::shard_grad_op;
  if (word == "noshard" || word == "hybridshard" || word == "ddp")
    throw UserError(Exit::usage, where, "'" + std::string(text) + "' is a matter of the mesh, not of the strategy",
                    "keep full_shard and set dp_replicate to the number of copies of the model");
  unknown(where, text, {"full_shard", "shard_grad_op", "FULL_SHARD", "SHARD_GRAD_OP", "ZeRO-3", "ZeRO-2"});
}

int64_t Plan::accumulation() const {
  const int64_t most = div_up(global_batch, mesh.dp_size());  // samples of the fullest rank
  return std::max<int64_t>(1, div_up(most, micro_batch));
}

Plan::Slice Plan::slice(int dp_rank, int64_t micro) const {
  const int64_t first = dp_rank * global_batch / mesh.dp_size();
  const int64_t end = (dp_rank + 1) * global_batch / mesh.dp_size();
  const int64_t begin = std::min(end, first + micro * micro_batch);
  return {begin, std::min(micro_batch, end - begin)};
}

std::string Plan::summary() const {
  const auto units_with = [&](auto wanted) {
    return std::count_if(units.begin(), units.end(), [&](const UnitPlan& unit) { return wanted(unit); });
  };
  const auto recomputed = units_with([](const UnitPlan& u) { return u.activations == Policy::recompute; });
  const auto resident = units_with([](const UnitPlan& u) { return u.strategy == Strategy::shard_grad_op; });
  const auto total = static_cast<int64_t>(units.size());
  std::string text = "keep " + std::to_string(total - recomputed) + " of " + std::to_string(total) + " units";
  if (recomputed > 0) text += ", recompute " + std::to_string(recomputed);
  if (resident > 0) text += ", shard_grad_op " + std::to_string(resident);
  text += ", prefetch " + std::to_string(prefetch);
  text += ", global batch " + std::to_string(global_batch) + " in " + std::to_string(accumulation()) +
          " micro-batch(es) of at most " + std::to_string(micro_batch);
  return text + ", mesh " + mesh.to_string();
}

}  // namespace tessera::plan
