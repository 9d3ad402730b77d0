#include "tessera/models/common/family.h"

#include "tessera/base/check.h"
#include "tessera/models/common/names.h"
#include "tessera/models/sana/files.h"
#include "tessera/models/sana/spec.h"

namespace tessera::models::sana {

namespace {

using at::Tensor;

/// [C, 1, H, W] of a picture.
Tensor latent_of(const Tensor& batch, int64_t i) { return batch.dim() == 4 ? batch[i].unsqueeze(1) : batch[i]; }

std::vector<net::Sample> samples(const CaseTensors& file, const std::string&) {
  const Tensor x = file.tensor("in.hidden_states"), context = file.tensor("in.encoder_hidden_states"),
               target = file.tensor("in.target");
  const bool by_frame = file.has("in.timestep_frames"), guided = file.has("in.guidance");
  const Tensor t = file.tensor(by_frame ? "in.timestep_frames" : "in.timestep").to(at::kDouble);
  std::vector<net::Sample> samples;
  for (int64_t i = 0; i < x.size(0); ++i) {
    net::Sample sample;
    sample.x = latent_of(x, i);
    sample.target = latent_of(target, i);
    sample.context = context[i].slice(0, 0, rows_of(file, "in.encoder_attention_mask", i));
    if (by_frame)
      sample.extra["t"] = t[i];
    else
      sample.t = t[i].item<double>() * (guided ? 1000 : 1);
    if (guided) sample.extra["guidance"] = file.tensor("in.guidance")[i];
    samples.push_back(std::move(sample));
  }
  return samples;
}

Tensor batch_of(const std::vector<Tensor>& latents, bool pictures) {
  const Tensor all = at::stack(latents);
  return pictures ? all.squeeze(2) : all;
}

NamedTensors outputs(const std::vector<Tensor>& predictions, bool pictures) {
  return {{"out.sample", batch_of(predictions, pictures)}};
}

/// Rows of captions that the mask leaves out have no gradient.
NamedTensors input_grads(const std::vector<std::map<std::string, Tensor>>& of_samples, const CaseTensors& file) {
  const Tensor context = at::zeros_like(file.tensor("in.encoder_hidden_states"));
  std::vector<Tensor> x;
  for (size_t i = 0; i < of_samples.size(); ++i) {
    x.push_back(of_samples[i].at("x"));
    const Tensor& rows = of_samples[i].at("context");
    context[static_cast<int64_t>(i)].slice(0, 0, rows.size(0)).copy_(rows);
  }
  return {{"grad_in.hidden_states", batch_of(x, file.tensor("in.hidden_states").dim() == 4)},
          {"grad_in.encoder_hidden_states", context}};
}

/// Timesteps and guidance of a case are as the network gets them: its pipelines have multiplied them by their scales.
std::string with_scaled_inputs(const std::string& json, const CaseTensors&) {
  Config config = parse_config(json, "config.json");
  config.timestep_scale = config.guidance_scale = 1;
  return to_json(config);
}

std::vector<DenoiserCase> sana_cases() {
  const DenoiserCase pictures = {
      .kind = "sana_transformer",
      .samples = samples,
      .outputs = [](const std::vector<Tensor>& predictions) { return outputs(predictions, true); },
      .input_grads = input_grads,
      .weights = {"model.safetensors", "original.safetensors"},
      .grad_naming = "diffusers",
      .config = with_scaled_inputs};
  DenoiserCase video = pictures;
  video.kind = "sana_video";
  video.outputs = [](const std::vector<Tensor>& predictions) { return outputs(predictions, false); };
  DenoiserCase lora = pictures;
  lora.kind = "lora_sana";
  lora.weights = {"model.safetensors"};
  lora.adapter = "pytorch_lora_weights.safetensors";
  return {pictures, video, lora};
}

std::vector<std::string> preset_names() { return names_of(presets()); }

std::unique_ptr<net::Denoiser> from_preset(const std::string& preset) {
  return std::make_unique<Sana>(find_named(presets(), "model.preset", preset));
}

std::unique_ptr<net::Denoiser> from_json(const std::string& json, const std::string& file, const Shapes&) {
  return std::make_unique<Sana>(parse_config(json, file));
}

}  // namespace

Family family() {
  return {.name = "sana",
          .presets = preset_names,
          .from_preset = from_preset,
          .from_json = from_json,
          .classes = {"Sana"},
          .weights = weight_forms(),
          .pipeline_files = pipeline_files,
          .cases = sana_cases(),
          .sampling_cases = {"sampling_sana"}};
}

}  // namespace tessera::models::sana
