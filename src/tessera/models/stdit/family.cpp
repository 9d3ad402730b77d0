#include "tessera/models/common/family.h"

#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/models/common/names.h"
#include "tessera/models/stdit/files.h"
#include "tessera/models/stdit/spec.h"

namespace tessera::models::stdit {

namespace {

using at::Tensor;

std::vector<net::Sample> samples(const CaseTensors& file, const std::string&) {
  const auto in = [&](const std::string& name) { return file.tensor("in." + name); };
  const Tensor x = in("x"), t = in("timestep").to(at::kDouble), text = in("y"), target = in("target");
  std::vector<net::Sample> samples;
  for (int64_t i = 0; i < x.size(0); ++i) {
    net::Sample sample;
    sample.x = x[i];
    sample.t = t[i].item<double>();
    sample.target = -target[i];  // its program predicts data - noise
    const int64_t rows = rows_of(file, "in.mask", i);
    sample.context = text[i][0].slice(0, 0, rows);
    sample.extra["fps"] = in("fps")[i].reshape({1});
    for (const char* side : {"height", "width"}) sample.extra[side] = in(side)[0].reshape({1});  // the first one's
    if (file.has("in.cond")) {
      for (const char* given : {"cond", "cond_mask"}) sample.extra[given] = in(given)[i];
      sample.extra["mask_index"] = in("mask_index");
      sample.extra["y_null"] = in("y_null")[i][0].slice(0, 0, rows);
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

NamedTensors outputs(const std::vector<Tensor>& predictions) { return {{"out.sample", -at::stack(predictions)}}; }

/// Rows of captions that the mask leaves out have no gradient.
NamedTensors input_grads(const std::vector<std::map<std::string, Tensor>>& of_samples, const CaseTensors& file) {
  const Tensor text = at::zeros_like(file.tensor("in.y"));
  std::vector<Tensor> x;
  for (size_t i = 0; i < of_samples.size(); ++i) {
    x.push_back(of_samples[i].at("x"));
    const Tensor& rows = of_samples[i].at("context");
    text[static_cast<int64_t>(i)][0].slice(0, 0, rows.size(0)).copy_(rows);
  }
  return {{"grad_in.x", at::stack(x)}, {"grad_in.y", text}};
}

void without_given_frames(net::Sample& sample, const CaseTensors&, int64_t) {
  for (const char* given : {"cond", "cond_mask", "mask_index", "y_null"}) sample.extra.erase(given);
}

/// Frames that its mask leaves out have no noise.
void with_clean_frames(net::Sample& sample, const CaseTensors& file, int64_t i) {
  without_given_frames(sample, file, i);
  sample.extra["x_mask"] = file.tensor("in.x_mask")[i];
}

void with_padding_of_text(net::Sample& sample, const CaseTensors& file, int64_t i) {
  sample.context = file.tensor("in.y")[i][0];
}

/// Positions of a frame, of which all frames have the same.
NamedTensors positions(const net::Denoiser& model, const std::vector<net::Sample>& samples) {
  const Tensor rows = model.pack({samples.front()}).inputs[kPositions];
  const int64_t frames = samples.front().x.size(1), of_frame = rows.size(0) / frames;
  const Tensor all = rows.reshape({frames, of_frame, -1});
  check_internal(all.eq(all.narrow(0, 0, 1)).all().item<bool>(), "verify", "frames have other positions");
  return {{"out.pos_emb", all.narrow(0, 0, 1).cpu()}};
}

/// Cases compare all channels of the head.
std::string with_sigma(const std::string& json, const CaseTensors&) {
  auto config = nlohmann::ordered_json::parse(json);
  config["keeps_sigma"] = true;
  return config.dump();
}

std::vector<DenoiserCase> stdit_cases() {
  const DenoiserCall masked = {"out.sample_xmask", with_clean_frames};
  const std::pair<const char*, DenoiserCall> kinds[] = {{"stdit3_v12", {"out.sample_nomask", with_padding_of_text}},
                                                        {"stdit3_v13", {"out.sample_t2v", without_given_frames}}};
  std::vector<DenoiserCase> cases;
  for (const auto& [kind, call] : kinds)
    cases.push_back({.kind = kind,
                     .samples = samples,
                     .outputs = outputs,
                     .input_grads = input_grads,
                     .grad_naming = "official",
                     .config = with_sigma,
                     .calls = {masked, call},
                     .inputs = positions});
  return cases;
}

std::vector<std::string> preset_names() { return names_of(presets()); }

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  return std::make_unique<Stdit>(find_named(presets(), "model.preset", preset));
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes&) {
  return std::make_unique<Stdit>(parse_config(json, file));
}

}  // namespace

Family family() {
  return {.name = "stdit",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"STDiT"},
          .weights = weight_forms(),
          .cases = stdit_cases()};
}

}  // namespace tessera::models::stdit
