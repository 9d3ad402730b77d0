// Kind "vae": posterior, scaled latents and pictures of a video autoencoder. Kinds of pictures: batches of them and
// their unscaled latents, with tiles and without. Every rank computes the same.
#include <algorithm>
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

namespace {

/// Weights under either naming; the config.json goes with both.
constexpr const char* kPictureWeights[] = {"model.safetensors", "original.safetensors"};

/// Pictures are frames that are coded alone.
at::Tensor as_clip(const at::Tensor& batch) { return batch.transpose(0, 1); }

void check_pictures(const models::VideoVae& vae, CaseFile& file, const std::string& suffix,
                    const std::function<double(double)>& bound) {
  const at::Tensor deviation = vae.latent_std().view({-1, 1, 1, 1}), mean = vae.latent_mean().view({-1, 1, 1, 1});
  const auto sizes = [&](const std::string& of) {  // "", "_wide": what the case has of this input
    std::vector<std::string> found;
    for (const std::string& name : file.names(of)) found.push_back(name.substr(of.size()));
    return found;
  };
  for (const std::string& size : sizes("in.image"))
    if (file.has("out.latent" + size + suffix))
      file.compare("out.latent" + size + suffix, as_clip(vae.posterior(as_clip(file.tensor("in.image" + size))).mean),
                   bound);
  for (const std::string& size : sizes("in.z"))
    if (file.has("out.decoded" + size + suffix)) {
      const at::Tensor scaled = (as_clip(file.tensor("in.z" + size)) - mean) / deviation;
      file.compare("out.decoded" + size + suffix, as_clip(vae.decode(scaled)), bound);
    }
}

}  // namespace

namespace {

/// The weights of the autoencoder that the words about a file name: "VAE weights: ../wan21_vae/model.safetensors".
std::filesystem::path named_vae(const CaseContext& context, const std::string& words) {
  for (const std::string_view mark : {"VAE weights: ", "VAE: "}) {
    const size_t at = words.find(mark);
    if (at == words.npos) continue;
    const std::string rest = words.substr(at + mark.size());
    return context.folder / rest.substr(0, rest.find_first_of(" ;,"));
  }
  throw UserError(Exit::input, "verify",
                  (context.folder / "case.json").string() + ": files names no VAE for its inputs",
                  "write \"VAE weights: PATH\" there, a path from the case");
}

}  // namespace

CaseResults verify_inputs(const CaseContext& context, const models::InputCase& kind,
                          const std::function<CaseResults(const CaseContext&)>& before) {
  CaseResults results;
  if (before) results = before(context);
  const double tolerance = context.tolerance(kind.tolerance);
  const Settings& all = context.description.json;
  const Settings files = all.contains("files") ? all.at("files") : Settings(Json::object());
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(context.folder))
    if (const std::string name = entry.path().filename().string();
        name.starts_with(kind.files) && name.ends_with(".safetensors"))
      paths.push_back(entry.path());
  std::ranges::sort(paths);
  for (const std::filesystem::path& path : paths) {
    CaseFile file(context.name, path);
    std::string words = files.value(file.file_name(), std::string());
    for (const auto& [other, about] : files.items())  // where its own words name none, those of the case's other files
      if (about.is_string()) words += " " + about.get<std::string>();
    const std::filesystem::path weights = named_vae(context, words);
    const auto vae = job::open_vae(weights, weights.parent_path() / "config.json", {});
    for (const auto& [name, value] : kind.results(file, *vae)) {
      if (!value.defined()) {
        file.leave_out(name, "what comes after is given it");
        continue;
      }
      const auto own = std::ranges::find_if(kind.bounds, [&](const auto& row) { return name.starts_with(row.first); });
      const bool whole = value.scalar_type() == at::kLong;
      file.compare(name, value, whole ? 0.0 : own == kind.bounds.end() ? tolerance : own->second);
    }
    file.fail_the_rest();
    results.push_back(std::move(file));
  }
  return results;
}

CaseResults verify_pictures(const CaseContext& context) {
  CaseResults results;
  const models::Tiling tiling = diffusers_tiling(context);
  for (const char* weights : kPictureWeights) {
    if (!std::filesystem::exists(context.folder / weights)) continue;
    const auto open = [&](const models::Tiling& tiles) {
      return job::open_vae(context.folder / weights, context.folder / "config.json", tiles);
    };
    const auto vae = open(tiling), untiled = open({});
    for (const auto& path : context.case_files()) {
      CaseFile file(context.name, path, weights);
      check_pictures(*vae, file, "", context.bound("out"));
      check_pictures(*untiled, file, "_untiled", context.bound("out"));
      results.push_back(std::move(file));
    }
  }
  return results;
}

}  // namespace tessera::tools
