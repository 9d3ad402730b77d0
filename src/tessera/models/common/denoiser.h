#pragma once
// What the families' units and denoisers have in common: a config, and latents whose tokens are their patches in turn. A
// family overrides what differs.
//
//   class Sana final : public FamilyDenoiser<Config> { ... };
#include "tessera/models/common/initial.h"
#include "tessera/models/common/patches.h"
#include "tessera/net/declare.h"

namespace tessera::models {

/// How tensor parallelism splits a unit's linears: by heads and by the width of the feed-forward (Megatron-LM: Shoeybi et
/// al. 2019). What `o` or the feed-forward's second linear reads is split by columns, so they are by rows.
inline constexpr plan::Split kColumns = plan::Split::column_parallel, kRows = plan::Split::row_parallel;

/// A unit with the config of its model, whose parameters net::declare() finds.
template <class Config>
class FamilyUnit : public net::Unit {
 public:
  /// One of its kind, which stays fp32: a stem, a head.
  FamilyUnit(const Config& config, const std::string& name, const std::string& prefix)
      : Unit({.name = name, .kind = name, .params = {}, .cost = {}}, prefix), c_(config) {}
  /// One of a list of blocks: "blocks.3".
  FamilyUnit(const Config& config, const std::string& list, const std::string& kind, int64_t index)
      : Unit({.name = list + "." + std::to_string(index), .kind = kind, .params = {}, .cost = {}, .narrow = true}),
        c_(config) {}

 protected:
  const Config c_;
};

/// `Config` has a to_json() beside it.
template <class Config>
class FamilyDenoiser : public net::Denoiser {
 public:
  FamilyDenoiser(const Config& config, const net::DenoiserSizes& sizes, const Patch& patch)
      : Denoiser(sizes), config_(config), patch_(patch) {}

  const Config& config() const { return config_; }
  std::string config_json() const override { return to_json(config_); }
  /// Latent, time and text alone.
  net::Sample blank(const std::array<int64_t, 4>& latent) const override {
    net::Sample sample;
    sample.x = at::zeros(latent, at::kFloat);
    sample.t = 500;
    sample.context = at::zeros({context_length(), context_dim()}, at::kFloat);
    return sample;
  }
  std::vector<at::Tensor> unpack(const at::Tensor& out, const net::Batch& batch) const override {
    return unpack_rows(out, batch, patch_);
  }
  at::Tensor pack_target(const at::Tensor& target) const override { return to_output_rows(target, patch_); }
  int64_t token_count(const std::array<int64_t, 4>& latent) const override { return count_patches(latent, patch_); }
  void initialise(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count,
                  float* out) const override {
    draw_initial(initial(param), seed, param.name, first, count, out);
  }

 protected:
  /// How the family draws a parameter.
  virtual Initial initial(const plan::ParamSpec& param) const = 0;

  const Config config_;

 private:
  const Patch patch_;
};

/// An extra of a sample; null: it has none.
inline const at::Tensor* extra_of(const net::Sample& sample, const std::string& name) {
  const auto found = sample.extra.find(name);
  return found == sample.extra.end() ? nullptr : &found->second;
}

/// Rows of the host, whose runs are found there, for operands on a device.
inline ops::RowIndex row_index(const at::Tensor& rows, at::Device device) {
  ops::RowIndex index(rows);
  index.of_token = index.of_token.to(device);
  return index;
}

/// A batch that is filled sample by sample: no other memory is needed than the plan counts. A family's packing checks a
/// sample and counts its tokens in add(), makes the tensors in allocate(), and writes a sample's part of them in fill().
template <class Packing, class Config>
net::Batch packed(const std::vector<net::Sample>& samples, const Config& config, size_t spaces) {
  Packing packing(config);
  net::Tokens& tokens = packing.batch_.tokens;
  tokens.spaces.resize(spaces);
  tokens.offsets = {0};
  for (net::Space& space : tokens.spaces) space.offsets = {0};
  for (const net::Sample& sample : samples) packing.add(sample);
  packing.allocate(samples.at(0).x.device());
  for (size_t s = 0; s < samples.size(); ++s) packing.fill(samples[s], s);
  packing.finish();
  return std::move(packing.batch_);
}

}  // namespace tessera::models
