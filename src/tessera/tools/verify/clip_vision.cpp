// Kind "clip_vision": preprocessing, and the image tower through the engine on any mesh.
#include "tessera/prepare/clip_weights.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;
namespace clip = models::clip;

constexpr std::pair<const char*, const char*> kTowerFiles[] = {{"model.safetensors", "config.json"},
                                                               {"diffusers.safetensors", "diffusers_config.json"}};

/// What the blocks leave of all pictures, [B, rows, dim].
at::Tensor run_tower(const CaseContext& context, const clip::Config& config, bool last_block, const fs::path& weights,
                     const std::vector<at::Tensor>& pixels) {
  const clip::ClipVision tower(config, last_block);
  prepare::EncoderRun run(tower.units(), tower.fingerprint(), context.mesh, *context.comm, context.rank);
  prepare::load_tower(run, checkpoint::open_weights(weights));
  return run.forward(tower.pack(pixels)).reshape({-1, tower.rows(), tower.dim()}).clone();
}

}  // namespace

CaseResults verify_clip_vision(const CaseContext& context) {
  CaseResults results;
  for (const auto& [weights, config_name] : kTowerFiles) {
    const bool other = std::string_view(weights) != kTowerFiles[0].first;
    if (other && !fs::exists(context.folder / weights)) continue;
    const fs::path config_file = context.folder / config_name;
    const clip::Config config = clip::parse_config(checkpoint::read_text(config_file), config_file.string());
    const clip::ClipVision tower(config);
    for (const auto& path : context.case_files()) {
      CaseFile file(context.name, path, weights);
      std::vector<at::Tensor> pixels;
      for (int64_t i = 0; file.has("in.image." + std::to_string(i)); ++i)
        pixels.push_back(tower.preprocess(file.tensor("in.image." + std::to_string(i))));
      if (pixels.empty()) pixels.push_back(tower.preprocess(file.tensor("in.image.0")));  // says that it is missing
      const auto run = [&](bool last) { return run_tower(context, config, last, context.folder / weights, pixels); };
      file.compare("out.pixels", at::stack(pixels), context.tolerance("out.pixels"));
      file.compare("out.features", run(false), context.tolerance("out"));
      if (file.has("out.last_block")) file.compare("out.last_block", run(true), context.tolerance("out"));
      results.push_back(std::move(file));
    }
  }
  return results;
}

}  // namespace tessera::tools
