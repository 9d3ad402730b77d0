#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

/// Keyed by (step, tensor, kind), then by element, so that results are the same on any mesh.
ops::Rounding SliceRanges::rounding(std::string_view kind) {
  keys_.emplace_back(seed_, Purpose::rounding, static_cast<uint64_t>(step_), slice_.tensor ^ hash_text(kind));
  return {&keys_.back(), static_cast<uint64_t>(slice_.begin)};
}

ops::MasterRange SliceRanges::masters() {
  ops::MasterRange range;
  if (form_ == plan::Masters::fp32)
    range.fp32 = static_cast<float*>(slice_.param);
  else
    range.bf16 = static_cast<uint16_t*>(slice_.param);
  range.low = slice_.state<uint16_t>(plan::kMasterLow);
  range.rounding = rounding("param");
  return range;
}

ops::MomentRange SliceRanges::moment(const std::string& kind) {
  ops::MomentRange range;
  range.rounding = rounding(kind);
  for (const auto& spec : *slice_.specs) {
    if (spec.kind != kind) continue;
    void* data = slice_.state<void>(kind);
    if (spec.type == DType::f32) range.fp32 = static_cast<float*>(data);
    if (spec.type == DType::bf16) range.bf16 = static_cast<uint16_t*>(data);
    if (spec.type == DType::u8) range.codes = static_cast<uint8_t*>(data);
  }
  range.scales = slice_.state<float>(kind + std::string(plan::kScaleSuffix));
  return range;
}

ops::GradientRange gradient_of(const net::Slice& slice) {
  ops::GradientRange range{.fp32 = slice.grad};
  (slice.half_type == at::kBFloat16 ? range.bf16 : range.fp16) = slice.half_grad;
  return range;
}

}  // namespace tessera::optim
