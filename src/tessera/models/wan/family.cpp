#include "tessera/models/common/family.h"

#include "tessera/base/check.h"
#include "tessera/models/common/names.h"
#include "tessera/models/wan/animate.h"
#include "tessera/models/wan/s2v.h"
#include "tessera/models/wan/spec.h"
#include "tessera/models/wan/vace.h"
#include "tessera/models/wan/weight_form.h"

namespace tessera::models::wan {

namespace {

using at::Tensor;

/// Cases of the first clip of a video have motion latents that the model must not use; case.json marks them.
bool drops_motion(const CaseTensors& file, const std::string& about) {
  const std::string label = file.label();
  return label.find("_drop", label.rfind('/')) != std::string::npos ||
         about.find("drop_motion_frames=True") != std::string::npos;
}

std::vector<net::Sample> s2v_samples(const CaseTensors& file, const std::string& about) {
  const Tensor t = file.tensor("in.t").to(at::kDouble), audio = file.tensor("in.audio_input");
  check_input(t.dim() == 1 && audio.dim() == 4 && audio.size(0) == t.size(0), "verify",
              file.label() + ": expected in.t [B] and in.audio_input [B, layers, dim, rows]");
  const auto first_added = [](const Tensor& clip) { return at::constant_pad_nd(clip, {0, 0, 0, 0, 1, 0}); };
  const bool drop_motion = drops_motion(file, about);
  std::vector<net::Sample> samples;
  for (size_t i = 0; i < static_cast<size_t>(t.size(0)); ++i) {
    const auto n = static_cast<int64_t>(i);
    net::Sample sample;
    sample.t = t[n].item<double>();
    sample.context = file.tensor(of_sample("in.context", i));
    sample.x = at::cat({file.tensor(of_sample("in.ref_latents", i)), file.tensor(of_sample("in.x", i))}, 1);
    sample.target = first_added(file.tensor(of_sample("in.target", i)));
    sample.extra["pose"] = first_added(file.tensor(of_sample("in.cond_states", i)));
    sample.extra["audio"] = audio[n].transpose(1, 2).contiguous();
    if (!drop_motion) sample.extra["motion"] = file.tensor(of_sample("in.motion_latents", i));
    samples.push_back(std::move(sample));
  }
  return samples;
}

/// Without the picture.
NamedTensors s2v_outputs(const std::vector<Tensor>& predictions) {
  NamedTensors named;
  for (size_t i = 0; i < predictions.size(); ++i) named.emplace_back(of_sample("out", i), predictions[i].slice(1, 1));
  return named;
}

NamedTensors s2v_input_grads(const std::vector<std::map<std::string, Tensor>>& of_samples, const CaseTensors&) {
  NamedTensors named;
  std::vector<Tensor> audio;
  for (size_t i = 0; i < of_samples.size(); ++i) {
    const auto& grads = of_samples[i];
    const Tensor& x = grads.at("x");
    named.emplace_back(of_sample("grad_in.ref_latents", i), x.slice(1, 0, 1));
    named.emplace_back(of_sample("grad_in.x", i), x.slice(1, 1));
    named.emplace_back(of_sample("grad_in.context", i), grads.at("context"));
    named.emplace_back(of_sample("grad_in.cond_states", i), grads.at("pose").slice(1, 1));
    if (grads.count("motion")) named.emplace_back(of_sample("grad_in.motion_latents", i), grads.at("motion"));
    audio.push_back(grads.at("audio").transpose(1, 2));
  }
  named.emplace_back("grad_in.audio_input", at::stack(audio));
  return named;
}

DenoiserCase s2v_case() {
  return {.kind = "dit_s2v", .samples = s2v_samples, .outputs = s2v_outputs, .input_grads = s2v_input_grads};
}

/// Timesteps are one a sample, or one a token and then padding: what is not a sample's is not read.
std::vector<net::Sample> fun_samples(const CaseTensors& file, const std::string&) {
  const Tensor t = file.tensor("in.t").to(at::kDouble);
  check_input(t.dim() == 1 || t.dim() == 2, "verify", file.label() + ": in.t: expected [B] or [B, tokens]");
  std::vector<net::Sample> samples;
  for (size_t i = 0; i < static_cast<size_t>(t.size(0)); ++i) {
    const auto n = static_cast<int64_t>(i);
    net::Sample sample;
    sample.x = file.tensor(of_sample("in.x", i));
    sample.context = file.tensor(of_sample("in.context", i));
    sample.target = file.tensor(of_sample("in.target", i));
    if (t.dim() == 1)
      sample.t = t[n].item<double>();
    else
      sample.extra["t"] = t[n].slice(0, 0, sample.x[0].numel() / 4);  // a token is four cells of every published model
    for (const char* own : {"y", "y_camera"})
      if (const std::string name = of_sample(std::string("in.") + own, i); file.has(name))
        sample.extra[own] = file.tensor(name);
    if (file.has("in.clip_fea")) sample.extra["clip_fea"] = file.tensor("in.clip_fea")[n];
    if (file.has("in.full_ref")) sample.extra["reference"] = file.tensor("in.full_ref")[n].unsqueeze(1);
    samples.push_back(std::move(sample));
  }
  return samples;
}

NamedTensors fun_input_grads(const std::vector<std::map<std::string, Tensor>>& of_samples, const CaseTensors& file) {
  // cases that hold a part of the adapter's gradient leave out that of its input, which is as large
  const bool small = !file.names("grad_part.").empty();
  NamedTensors named;
  std::map<std::string, std::vector<Tensor>> stacked;
  for (size_t i = 0; i < of_samples.size(); ++i)
    for (const auto& [name, grad] : of_samples[i]) {
      if (name == "clip_fea")
        stacked["grad_in.clip_fea"].push_back(grad);
      else if (name == "reference")
        stacked["grad_in.full_ref"].push_back(grad.squeeze(1));
      else if (name != "y_camera" || !small)
        named.emplace_back(of_sample("grad_in." + name, i), grad);
    }
  for (const auto& [name, grads] : stacked) named.emplace_back(name, at::stack(grads));
  return named;
}

void without_reference(net::Sample& sample, const CaseTensors&, int64_t) { sample.extra.erase("reference"); }

DenoiserCase fun_case() {
  return {.kind = "dit_fun",
          .samples = fun_samples,
          .outputs = outputs_of_samples,
          .input_grads = fun_input_grads,
          .calls = {{"out_no_ref", without_reference}}};
}

std::vector<std::string> preset_names() {
  std::vector<std::string> all = names_of(presets());
  for (const auto& [name, config] : s2v_presets()) all.push_back(name);
  for (const auto& [name, config] : vace_presets()) all.push_back(name);
  for (const auto& [name, config] : animate_presets()) all.push_back(name);
  return all;
}

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  for (const auto& [name, config] : s2v_presets())
    if (name == preset) return std::make_unique<S2v>(config);
  for (const auto& [name, config] : vace_presets())
    if (name == preset) return std::make_unique<Vace>(config);
  for (const auto& [name, config] : animate_presets())
    if (name == preset) return std::make_unique<Animate>(config);
  for (const auto& [name, config] : presets())
    if (name == preset) return std::make_unique<Wan>(config);
  unknown_name("model.preset", preset, preset_names());
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes& weights) {
  if (is_s2v_config(json) || weights.count("casual_audio_encoder.weights"))
    return std::make_unique<S2v>(parse_s2v_config(json, file));
  if (is_vace_config(json) || weights.count("vace_patch_embedding.weight"))
    return std::make_unique<Vace>(parse_vace_config(json, file));
  if (is_animate_config(json) || weights.count("motion_encoder.dec.direction.weight"))
    return std::make_unique<Animate>(parse_animate_config(json, file));
  return std::make_unique<Wan>(parse_config(json, file, weights));
}

std::vector<InputCase> input_cases() {
  std::vector<InputCase> all = vace_input_cases();
  for (InputCase& row : animate_input_cases()) all.push_back(std::move(row));
  return all;
}

}  // namespace

Family family() {
  return {.name = "wan",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"Wan", "VaceWan"},
          .weights = {weight_form()},
          .pipeline_files = pipeline_files,
          .cases = {s2v_case(), vace_case(), animate_case(), fun_case()},
          .input_cases = input_cases()};
}

}  // namespace tessera::models::wan
