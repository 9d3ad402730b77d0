// Kinds of clips: batches of them [B, 3, F, H, W] and of their latents, through an autoencoder with tiles in space and
// time and without. Two forms: inputs of fixed names with diffusers' tiling, and a table of cases with Open-Sora's.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/job/codec.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using models::Tiling;

/// Inputs that are coded under one tiling. Latents are unscaled, or a denoiser's.
struct Row {
  std::string video, moments, latent, decoded;  // tensors of the case
  Tiling tiling;
  bool scaled = false;
};

const Json& field(const CaseContext& context, const Json& of, const char* key) {
  check_input(of.contains(key), "verify", (context.folder / "config.json").string() + ": " + key + " is missing");
  return of[key];
}

int64_t number(const CaseContext& context, const Json& of, const char* key) {
  const Json& value = field(context, of, key);
  check_input(value.is_number_integer(), "verify",
              (context.folder / "config.json").string() + ": " + key + " is no whole number");
  return value.get<int64_t>();
}

/// Arguments of diffusers' enable_tiling, under "_tiling"; none: no tiles.
Tiling diffusers_tiling(const CaseContext& context) {
  if (!context.config.contains("_tiling")) return {};
  const Json& given = context.config["_tiling"];
  const auto at = [&](const char* key) { return number(context, given, key); };
  const int64_t size = at("tile_sample_min_height"), stride = at("tile_sample_stride_height");
  check_input(size == at("tile_sample_min_width") && stride == at("tile_sample_stride_width"), "verify",
              (context.folder / "config.json").string() + ": tiles that are not square");
  const int64_t frames = at("tile_sample_min_num_frames");
  return {size, size - stride, frames, frames - at("tile_sample_stride_num_frames")};
}

std::vector<Row> named_rows(const CaseContext& context) {
  const Tiling tiling = diffusers_tiling(context), time = {0, 0, tiling.frames, tiling.shared_frames};
  return {{"in.video", "out.moments", "in.z", "out.decoded", tiling},
          {"in.image", "out.image_moments", "in.image_z", "out.image_decoded", tiling},
          {"in.small_video", "out.framewise_moments", "in.small_z", "out.framewise_decoded", time},
          {"in.video", "out.untiled_moments", "in.small_z", "out.untiled_decoded", {}}};
}

std::vector<Row> listed_rows(const CaseContext& context) {
  std::vector<Row> rows;
  for (const auto& [name, given] : context.config["cases"].items()) {
    const auto text = [&, &given = given](const char* key) {
      return "in." + field(context, given, key).get<std::string>();
    };
    Tiling tiling;
    if (field(context, given, "spatial") == true)
      tiling.size = number(context, context.config, "sample_size"), tiling.overlap = Tiling::kUsual;
    if (field(context, given, "temporal") == true)
      tiling.frames = number(context, context.config, "sample_tsize"), tiling.shared_frames = Tiling::kUsual;
    const std::string out = "out." + name;
    rows.push_back({text("video"), out + ".moments", text("latent"), out + ".decoded", tiling, true});
  }
  return rows;
}

at::Tensor each(const at::Tensor& batch, const std::function<at::Tensor(const at::Tensor&)>& one) {
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < batch.size(0); ++i) all.push_back(one(batch.select(0, i)));
  return at::stack(all);
}

void check_row(const models::VideoVae& vae, CaseFile& file, const Row& row,
               const std::function<double(double)>& bound) {
  const auto moments_of = [&](const at::Tensor& clip) {
    const models::Posterior p = vae.posterior(clip);
    return at::cat({p.mean, p.log_variance});
  };
  // the first frame of the clip where the case has no picture of its own
  const bool first = row.video == "in.image" && !file.has(row.video);
  const std::string video = first ? "in.video" : row.video;
  if (file.has(row.moments)) {
    const at::Tensor clips = file.tensor(video), moments = each(first ? clips.narrow(2, 0, 1) : clips, moments_of);
    file.compare(row.moments, moments, bound);
    if (row.moments == "out.moments" && file.has("out.mean") && file.has("out.std")) {
      const auto parts = moments.chunk(2, 1);
      file.compare("out.mean", parts[0], bound);
      file.compare("out.std", (parts[1].clamp(-30, 20) * 0.5).exp(), bound);
    }
  }
  if (const std::string z = row.moments.substr(0, row.moments.rfind('.')) + ".z"; row.scaled && file.has(z))
    file.compare(z, each(file.tensor(video), [&](const at::Tensor& clip) { return vae.encode(clip); }), bound);
  if (!file.has(row.decoded)) return;
  const at::Tensor deviation = vae.latent_std().view({-1, 1, 1, 1}), mean = vae.latent_mean().view({-1, 1, 1, 1});
  file.compare(row.decoded,
               each(file.tensor(row.latent),
                    [&](const at::Tensor& z) { return vae.decode(row.scaled ? z : (z - mean) / deviation); }),
               bound);
}

}  // namespace

CaseResults verify_clips(const CaseContext& context) {
  const std::vector<Row> rows = context.config.contains("cases") ? listed_rows(context) : named_rows(context);
  CaseResults results;
  for (const auto& path : context.case_files()) {
    CaseFile file(context.name, path, "model.safetensors");
    for (const Row& row : rows)
      check_row(*job::open_vae(context.folder / "model.safetensors", context.folder / "config.json", row.tiling), file,
                row, context.bound("out"));
    for (const std::string& name : file.names("out.")) {
      const bool compared =
          std::ranges::any_of(file.comparisons(), [&](const Comparison& c) { return c.name == name; });
      if (!compared) file.fail(name);
    }
    results.push_back(std::move(file));
  }
  return results;
}

}  // namespace tessera::tools
