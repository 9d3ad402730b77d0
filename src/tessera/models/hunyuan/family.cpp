#include "tessera/models/common/family.h"

#include <nlohmann/json.hpp>

#include "tessera/models/common/names.h"
#include "tessera/models/hunyuan/files.h"
#include "tessera/models/hunyuan/spec.h"

namespace tessera::models::hunyuan {

using at::Tensor;

namespace {

std::vector<std::string> preset_names() { return names_of(presets()); }

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  return std::make_unique<Hunyuan>(find_named(presets(), "model.preset", preset));
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes& weights) {
  return std::make_unique<Hunyuan>(parse_config(json, file, weights));
}

/// The rows of sample i that its mask leaves: models here have no padding.
Tensor kept(const CaseTensors& file, const std::string& name, int64_t i) {
  const Tensor rows = file.tensor("in." + name)[i];
  return rows.index_select(0, (file.tensor("in." + name + "_mask")[i] != 0).nonzero().squeeze(1));
}

std::vector<net::Sample> samples(const CaseTensors& file, const std::string&) {
  const auto in = [&](const char* name) { return file.tensor(std::string("in.") + name); };
  const Tensor x = in("latent"), target = in("target"), cond = at::cat({in("mask"), in("cond")}, 1),
               image = in("image"), t = in("t").to(at::kDouble);
  // without a picture in the whole batch its rows are masked, else those of all samples count
  const bool seen = image.count_nonzero().item<int64_t>() > 0;
  std::vector<net::Sample> samples;
  for (int64_t i = 0; i < x.size(0); ++i) {
    net::Sample sample;
    sample.x = x[i];
    sample.target = target[i];
    sample.t = t[i].item<double>();
    sample.context = kept(file, "text", i);
    sample.extra = {{"glyphs", kept(file, "byt5", i)}, {"cond", cond[i]}};
    if (seen) sample.extra["image"] = image[i];
    if (file.has("in.t_r")) sample.extra["t_r"] = in("t_r")[i].reshape({1});
    samples.push_back(std::move(sample));
  }
  return samples;
}

/// As many rows of each input as the case gives.
std::string with_lengths(const std::string& json, const CaseTensors& file) {
  auto config = nlohmann::ordered_json::parse(json);
  config["text_len"] = file.tensor("in.text").size(1);
  config["glyph_len"] = file.tensor("in.byt5").size(1);
  config["image_len"] = file.tensor("in.image").size(1);
  return config.dump();
}

NamedTensors input_grads(const std::vector<std::map<std::string, Tensor>>& of_samples, const CaseTensors& file) {
  const auto all = [&](const char* name) {
    std::vector<Tensor> found;
    for (const auto& grads : of_samples) found.push_back(grads.at(name));
    return at::stack(found);
  };
  /// Padding has no gradient.
  const auto padded = [&](const std::string& name, const char* ours) {
    Tensor rows = at::zeros_like(file.tensor("in." + name));
    for (size_t i = 0; i < of_samples.size(); ++i) {
      const auto s = static_cast<int64_t>(i);
      const Tensor places = (file.tensor("in." + name + "_mask")[s] != 0).nonzero().squeeze(1);
      rows[s].index_copy_(0, places, of_samples[i].at(ours));
    }
    return rows;
  };
  NamedTensors result = {{"grad_in.latent", all("x")},
                         {"grad_in.cond", all("cond").slice(1, 1)},
                         {"grad_in.text", padded("text", "context")},
                         {"grad_in.byt5", padded("byt5", "glyphs")}};
  if (of_samples.front().count("image")) result.emplace_back("grad_in.image", all("image"));
  return result;
}

std::vector<DenoiserCase> hunyuan_cases() {
  return {{.kind = "dit_hunyuan15",
           .samples = samples,
           .outputs = [](const std::vector<Tensor>& predictions) -> NamedTensors {
             return {{"out", at::stack(predictions)}};
           },
           .input_grads = input_grads,
           .weights = {"model.safetensors", "diffusers.safetensors"},
           .grad_naming = "official",
           .config = with_lengths}};
}

}  // namespace

Family family() {
  return {.name = "hunyuan",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"HunyuanVideo"},
          .weights = {weight_form()},
          .cases = hunyuan_cases()};
}

}  // namespace tessera::models::hunyuan
