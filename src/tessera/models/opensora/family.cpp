#include "tessera/models/common/family.h"

#include <nlohmann/json.hpp>

#include "tessera/models/common/names.h"
#include "tessera/models/common/patches.h"
#include "tessera/models/opensora/files.h"
#include "tessera/models/opensora/spec.h"

namespace tessera::models::opensora {

namespace {

using at::Tensor;

constexpr Patch kPatch = {1, 2, 2};  // of every case

/// What a kind of case calls its tensors.
struct CaseNames {
  std::string x, text, pooled, time, prediction;
};
const CaseNames kProgram = {"img", "txt", "y_vec", "timesteps", "pred"};
const CaseNames kDiffusers = {"hidden_states", "encoder_hidden_states", "pooled_projections", "timestep", "sample"};

/// [C, F, H, W] of rows [tokens, C * 4]; `ids` [tokens, 3] are the frames, rows and columns of the tokens.
Tensor latent_of(const Tensor& rows, const Tensor& ids) {
  const auto sizes = at::amax(ids.reshape({-1, 3}), 0).to(at::kLong) + 1;
  const auto size = [&](int64_t axis) { return sizes[axis].item<int64_t>() * kPatch[static_cast<size_t>(axis)]; };
  return from_rows(rows, {rows.size(1) / 4, size(0), size(1), size(2)}, kPatch);
}

std::vector<net::Sample> samples(const CaseTensors& file, const CaseNames& names) {
  const auto in = [&](const std::string& name) { return file.tensor("in." + name); };
  const Tensor x = in(names.x), target = in("target"), text = in(names.text), ids = in("img_ids"),
               t = in(names.time).to(at::kDouble), pooled = in(names.pooled);
  std::vector<net::Sample> samples;
  for (int64_t i = 0; i < x.size(0); ++i) {
    net::Sample sample;
    const Tensor places = ids.dim() == 3 ? ids[i] : ids;
    sample.x = latent_of(x[i], places);
    sample.target = latent_of(target[i], places);
    sample.t = 1000 * t[i].item<double>();
    sample.context = text[i];
    sample.extra["pooled"] = pooled[i];
    if (file.has("in.guidance")) sample.extra["guidance"] = in("guidance")[i];
    if (file.has("in.cond")) sample.extra["cond"] = latent_of(in("cond")[i], places);
    samples.push_back(std::move(sample));
  }
  return samples;
}

/// The text has as many rows as the case gives.
std::string with_length(const std::string& json, const CaseTensors& file, const CaseNames& names) {
  auto config = nlohmann::ordered_json::parse(json);
  config["context_length"] = file.tensor("in." + names.text).size(1);
  return config.dump();
}

Tensor batch_of(const std::vector<Tensor>& latents) {
  std::vector<Tensor> rows;
  for (const Tensor& latent : latents) rows.push_back(to_rows(latent, kPatch));
  return at::stack(rows);
}

NamedTensors input_grads(const std::vector<std::map<std::string, Tensor>>& of_samples, const CaseTensors& file,
                         const CaseNames& names) {
  const auto all = [&](const char* name) {
    std::vector<Tensor> found;
    for (const auto& grads : of_samples) found.push_back(grads.at(name));
    return found;
  };
  NamedTensors result = {{"grad_in." + names.x, batch_of(all("x"))},
                         {"grad_in." + names.text, at::stack(all("context"))},
                         {"grad_in." + names.pooled, at::stack(all("pooled"))}};
  if (file.has("in.cond")) result.emplace_back("grad_in.cond", batch_of(all("cond")));
  return result;
}

std::vector<DenoiserCase> opensora_cases() {
  const DenoiserCase program = {
      .kind = "opensora2_mmdit",
      .samples = [](const CaseTensors& file, const std::string&) { return samples(file, kProgram); },
      .outputs = [](const std::vector<Tensor>& predictions) -> NamedTensors {
        return {{"out." + kProgram.prediction, batch_of(predictions)}};
      },
      .input_grads = [](const auto& grads, const CaseTensors& file) { return input_grads(grads, file, kProgram); },
      .grad_naming = "official",
      .config = [](const std::string& json, const CaseTensors& file) { return with_length(json, file, kProgram); }};
  const DenoiserCase flux = {
      .kind = "opensora2_flux",
      .samples = [](const CaseTensors& file, const std::string&) { return samples(file, kDiffusers); },
      .outputs = [](const std::vector<Tensor>& predictions) -> NamedTensors {
        return {{"out." + kDiffusers.prediction, batch_of(predictions)}};
      },
      .input_grads = [](const auto& grads, const CaseTensors& file) { return input_grads(grads, file, kDiffusers); },
      .weights = {"model.safetensors", "original.safetensors", "released.safetensors"},
      .grad_naming = "diffusers",
      .config = [](const std::string& json, const CaseTensors& file) { return with_length(json, file, kDiffusers); }};
  return {program, flux};
}

std::vector<std::string> preset_names() { return names_of(presets()); }

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  return std::make_unique<OpenSora>(find_named(presets(), "model.preset", preset));
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes&) {
  return std::make_unique<OpenSora>(parse_config(json, file));
}

}  // namespace

Family family() {
  return {.name = "opensora",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"MMDiT", "FluxTransformer"},
          .weights = {weight_form()},
          .cases = opensora_cases()};
}

}  // namespace tessera::models::opensora
