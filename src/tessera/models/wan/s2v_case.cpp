#include "tessera/models/wan/family.h"

#include "tessera/base/check.h"

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

}  // namespace

DenoiserCase s2v_case() {
  return {.kind = "dit_s2v", .samples = s2v_samples, .outputs = s2v_outputs, .input_grads = s2v_input_grads};
}

}  // namespace tessera::models::wan
