#include "tessera/plan/states.h"

#include <algorithm>
#include <array>

#include "tessera/base/check.h"
#include "tessera/base/names.h"
#include "tessera/base/text.h"

namespace tessera::plan {

namespace {

constexpr std::array<std::string_view, 3> kMasters = {"fp32", "split", "bf16"};
constexpr std::array<std::string_view, 3> kMoments = {"fp32", "bf16", "int8"};

}  // namespace

std::string_view name(Masters masters) { return kMasters[static_cast<size_t>(masters)]; }
std::string_view name(Moments moments) { return kMoments[static_cast<size_t>(moments)]; }

Masters masters_of(std::string_view text, std::string_view where) { return named<Masters>(kMasters, text, where); }
Moments moments_of(std::string_view text, std::string_view where) { return named<Moments>(kMoments, text, where); }

void Formats::set_compute(std::string_view text, std::string_view where) {
  constexpr std::array kTypes = {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3};
  compute = dtype_of(text, where, kTypes);
  fp8 = compute == DType::f8_e4m3;
  if (fp8) compute = DType::bf16;
}

void Formats::check_types(std::string_view where) const {
  if (states.masters != Masters::fp32 && param_dtype != DType::bf16)
    throw UserError(Exit::usage, std::string(where) + "param_dtype",
                    in_quotes(name(param_dtype)) + " contradicts masters = " + in_quotes(name(states.masters)),
                    "such masters are gathered as bf16: leave param_dtype out");
  if (grad == DType::f16)
    throw UserError(Exit::usage, std::string(where) + "grad_dtype",
                    "gradients cannot be stored in fp16: without a loss scale small gradients underflow to zero",
                    "expected fp32 or bf16, which has the exponents of fp32");
  if (gather_fp8 && !fp8)
    throw UserError(Exit::usage, std::string(where) + "gather",
                    "\"fp8\" contradicts compute_dtype = " + in_quotes(compute_name()) + ": no product is in 8 bits",
                    "set compute_dtype = \"fp8\", or leave gather out");
  if (compute != DType::f32 && compute != gathered())
    throw UserError(
        Exit::usage, std::string(where) + "compute_dtype",
        in_quotes(compute_name()) + " contradicts parameters that are gathered as " + in_quotes(name(gathered())),
        states.masters == Masters::fp32 ? "leave param_dtype out: it follows compute_dtype"
                                        : "masters = " + in_quotes(name(states.masters)) + " compute in bf16 or fp32");
}

StateLayout state_layout(const UnitSpec& unit, const UnitLayout& layout, const std::vector<Held>& held,
                         const StatesOf& states) {
  StateLayout result;
  for (size_t b = 0; b < layout.buffers.size(); ++b) {
    const Buffer& buffer = layout.buffers[b];
    const int64_t low = buffer.shard * held[b].shard, high = low + buffer.shard;
    const int64_t own = low + buffer.partition() * held[b].partition, past = own + buffer.partition();
    const auto add = [&](int p, int64_t from, int64_t to, bool updated) {
      const int64_t start = layout.params[p].start, stop = start + layout.params[p].numel;
      const int64_t first = std::max(start, from), last = std::min(stop, to);
      if (first >= last) return;
      StateLayout::Range range{p, static_cast<int>(b), first - start, last - start, first - low, updated, {}, {}};
      if (states && updated && unit.params[p].trainable) range.states = states(unit.params[p]);
      for (const StateSpec& state : range.states) {
        check_internal(range.begin % state.per == 0, "plan.states",
                       unit.params[p].name + ": a shard begins inside a block of " + state.kind);
        range.at.push_back(result.bytes);
        result.bytes += round_up(state.values(range.begin, range.end) * size_of(state.type), kStateAlign);
      }
      result.ranges.push_back(std::move(range));
    };
    for (const int p : buffer.params) {
      add(p, low, own, false);
      add(p, own, past, true);
      add(p, past, high, false);
    }
  }
  return result;
}

int64_t shard_bytes(const Buffer& buffer, Masters masters) {
  return buffer.trainable ? buffer.shard * master_bytes(masters) : stored_bytes(buffer.stored, buffer.shard);
}

int64_t shard_bytes(const UnitLayout& layout, Masters masters) {
  int64_t bytes = 0;
  for (const Buffer& buffer : layout.buffers) bytes += shard_bytes(buffer, masters);
  return bytes;
}

int64_t trained_shard_bytes(const UnitLayout& layout, Masters masters) {
  return layout.grad_shard * master_bytes(masters);
}

int64_t master_bytes(Masters masters) { return masters == Masters::fp32 ? 4 : 2; }

double bytes_per_parameter(StateFormat format) {
  ParamSpec large;
  large.shape = {kLeastQuantised, kLeastQuantised}, large.whole = true;
  double bytes = 0;
  for (const StateSpec& state : states_of(format)(large))
    bytes += static_cast<double>(state.values(0, large.numel()) * size_of(state.type));
  return static_cast<double>(master_bytes(format.masters)) + bytes / static_cast<double>(large.numel());
}

}  // namespace tessera::plan
