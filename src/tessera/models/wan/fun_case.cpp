#include "tessera/models/wan/family.h"

#include "tessera/base/check.h"

namespace tessera::models::wan {

using at::Tensor;

namespace {

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

}  // namespace

DenoiserCase fun_case() {
  return {.kind = "dit_fun",
          .samples = fun_samples,
          .outputs = outputs_of_samples,
          .input_grads = fun_input_grads,
          .calls = {{"out_no_ref", without_reference}}};
}

}  // namespace tessera::models::wan
