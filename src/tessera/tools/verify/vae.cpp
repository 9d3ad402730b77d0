// Kind "vae": posterior, scaled latents and pictures of a video autoencoder. Every rank computes the same.
#include <set>

#include "tessera/base/check.h"
#include "tessera/job/codec.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

/// Weights and the config.json that goes with their naming.
constexpr std::pair<const char*, const char*> kVaeNamings[] = {{"model.safetensors", "config.json"},
                                                               {"diffusers.safetensors", "diffusers_config.json"}};

/// What the case has inputs for, and what it expects: "video" of in.video and out.video_mu.
std::set<std::string> subjects(const CaseFile& file) {
  std::set<std::string> all;
  for (const auto& name : file.names("in.")) all.insert(name.substr(3));
  for (const auto& name : file.names("out."))
    if (const size_t end = name.rfind('_'); end != name.npos) all.insert(name.substr(4, end - 4));
  return all;
}

void check_file(const models::VideoVae& vae, CaseFile& file, double bound) {
  file.compare("out.mean", vae.latent_mean(), bound);
  file.compare("out.std", vae.latent_std(), bound);
  for (const std::string& subject : subjects(file)) {
    const at::Tensor in = file.tensor("in." + subject);  // missing: the case cannot be computed
    const std::string out = "out." + subject + "_";
    const int64_t channels = in.dim() == 4 ? in.size(0) : 0, latent_channels = vae.latent_mean().size(0);
    check_input(channels == 3 || channels == latent_channels, "verify",
                file.case_name() + "/" + file.file_name() + ": in." + subject +
                    " is neither pixels [3, F, H, W] nor a latent [" + std::to_string(latent_channels) + ", f, h, w]",
                "does config.json belong to this case?");
    if (channels == latent_channels) {
      file.compare(out + "decoded", vae.decode(in), bound);
      continue;
    }
    const models::Posterior posterior = vae.posterior(in);
    const at::Tensor latent = vae.encode(in);
    file.compare(out + "mu", posterior.mean, bound);
    file.compare(out + "logvar", posterior.log_variance, bound);
    file.compare(out + "latent", latent, bound);
    file.compare(out + "decoded", vae.decode(latent), bound);  // before the clamp to [-1, 1]
  }
}

}  // namespace

CaseResults verify_vae(const CaseContext& context) {
  CaseResults results;
  for (const auto& [weights, config] : kVaeNamings) {
    const bool other = std::string_view(weights) != kVaeNamings[0].first;
    if (other && !std::filesystem::exists(context.folder / weights)) continue;
    const auto vae = job::open_vae(context.folder / weights, context.folder / config, {});
    for (const auto& path : context.case_files()) {
      CaseFile file(context.name, path, weights);
      check_file(*vae, file, context.tolerance("out"));
      results.push_back(std::move(file));
    }
  }
  return results;
}

}  // namespace tessera::tools
