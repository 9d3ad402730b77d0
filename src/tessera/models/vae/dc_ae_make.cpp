#include "tessera/models/vae/dc_ae_make.h"

#include <map>

#include "tessera/models/vae/dc_ae.h"
#include "tessera/models/vae/dc_ae_names.h"
#include "tessera/models/vae/dc_ae_weight_form.h"
#include "tessera/models/vae/stored_weights.h"

namespace tessera::models::dc_ae {

namespace {

const std::string kEfficientvit = "efficientvit";

/// The tensors of a file under diffusers' names, whatever it calls them.
class Stored {
 public:
  explicit Stored(WeightSource weights) : weights_(std::move(weights)) {
    const auto foreign = [](const std::string& name, const std::string& naming) {
      return naming == kEfficientvit ? in_efficientvit(name).name : name;
    };
    // these two tell the naming; which others there are depends on the sizes
    naming_ = detect_naming({"encoder.conv_in.weight", "decoder.conv_in.weight"}, foreign, {"diffusers", kEfficientvit},
                            weights_.names, weights_.file);
  }

  /// Empty for a tensor that is not there.
  std::vector<int64_t> shape(const std::string& name) const {
    const StoredRows rows = place(name);
    if (!has_tensor(weights_, rows.name)) return {};
    std::vector<int64_t> shape = weights_.shape(rows.name);
    if (shape.empty() || shape[0] % rows.parts != 0) return shape;
    shape[0] /= rows.parts;
    if (pointwise(name) && shape.size() == 4) shape.resize(2);  // a linear here, a 1x1 convolution there
    return shape;
  }

  void expect(const Parameter& parameter, const std::string& hint) const {
    const StoredRows rows = place(parameter.name);
    std::vector<int64_t> whole = parameter.shape;
    whole[0] *= rows.parts;
    if (pointwise(parameter.name)) whole.insert(whole.end(), {1, 1});
    expect_tensor(weights_, rows.name, whole, hint);
  }

  Tensor read(const std::string& name) const {
    const StoredRows rows = place(name);
    const Tensor whole = weights_.read(rows.name);
    const int64_t count = whole.size(0) / rows.parts;
    const Tensor part = rows.parts == 1 ? whole : whole.narrow(0, rows.part * count, count).clone();
    return pointwise(name) ? part.flatten(1) : part;
  }

 private:
  bool original() const { return naming_.naming == kEfficientvit; }
  StoredRows place(const std::string& name) const {
    StoredRows rows = original() ? in_efficientvit(name) : StoredRows{name};
    rows.name.insert(0, naming_.prefix);
    return rows;
  }
  /// Linear in diffusers and a convolution in this file.
  bool pointwise(const std::string& name) const {
    return original() && name.find(".attn.to_") != name.npos && name.find("multiscale") == name.npos;
  }

  const WeightSource weights_;
  Naming naming_;
};

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const auto stored = std::make_shared<const Stored>(weights);
  Config config = config_of_weights([&](const std::string& name) { return stored->shape(name); }, weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  for (const Parameter& parameter : parameters(config))
    stored->expect(parameter, "these are not weights of DC-AE f32c32 as Sana uses it");
  return std::make_unique<DcAe>(
      std::move(config), [stored](const std::string& name) { return stored->read(name); }, tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<DcAe>(Config{}, random_weights(parameters({})), tiling);
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = weight_forms(),
          .make = make,
          .usual_overlap = usual_overlap,
          .picture_cases = {"dc_ae", "dc_ae_tiled"},
          .presets = {{"dc-ae-f32c32", released}}};
}

}  // namespace tessera::models::dc_ae
