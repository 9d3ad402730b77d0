// Kinds of clips: batches of them [B, 3, F, H, W] and of their latents, through an autoencoder with tiles in space and
// time and without. Two forms: inputs of fixed names with diffusers' tiling, and a table of cases with Open-Sora's, each
// with fields of the configuration that it changes.
#include <array>

#include "tessera/base/check.h"
#include "tessera/job/codec.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using models::Tiling;

/// Inputs that are coded under one tiling. Latents are unscaled, or a denoiser's.
struct Row {
  std::string video, moments, latent, decoded;  // tensors of the case
  Tiling tiling;
  bool scaled = false;
  Settings given = Settings(Json::object());  // fields of config.json that it changes, and which inputs it has
  std::string name = {};                      // of a case of a table

  /// Further tensors of such a case.
  std::string in(const char* what) const { return "in." + name + "." + what; }
  std::string out(const char* what) const { return "out." + name + "." + what; }
};

Settings config_field(const CaseContext& context, const Settings& of, const char* key) {
  check_input(of.contains(key), "verify", (context.folder / "config.json").string() + ": " + key + " is missing");
  return of.at(key);
}

int64_t config_number(const CaseContext& context, const Settings& of, const char* key) {
  const Settings value = config_field(context, of, key);
  check_input(value.json().is_number_integer(), "verify",
              (context.folder / "config.json").string() + ": " + key + " is no whole number");
  return value.get<int64_t>();
}

/// Pixels that tiles share by a factor. Tiles of pixels and of latents are given apart, and each takes its whole part of
/// the factor: what does not come to the same cells is no grid of ours.
int64_t shared_by_factor(const CaseContext& context, const Settings& given, const std::string& side, int64_t pixels,
                         int64_t cell) {
  const std::string key = "tile_latent_min_" + side;
  const int64_t latents = config_number(context, given, key.c_str());
  const double factor = given.at("tile_overlap_factor").get<double>();
  const auto part = [](int64_t of, double times) { return static_cast<int64_t>(static_cast<double>(of) * times); };
  const int64_t shared = part(latents, factor);
  const bool same = latents * cell == pixels && part(pixels, factor) == shared * cell &&
                    part(pixels, 1 - factor) == pixels - shared * cell && part(latents, 1 - factor) == latents - shared;
  check_input(same, "verify",
              (context.folder / "config.json").string() + ": _tiling: tiles of " + std::to_string(pixels) +
                  " pixels and " + std::to_string(latents) + " latent cells that share " + std::to_string(factor) +
                  " of each are not the same tiles of whole cells, which this build has");
  return shared * cell;
}

}  // namespace

Tiling diffusers_tiling(const CaseContext& context) {
  if (!context.config.contains("_tiling")) return {};
  const Settings given = context.config.at("_tiling");
  const auto shared = [&](int64_t length, const char* stride) {
    return length - config_number(context, given, stride);
  };
  Tiling tiling;
  tiling.size = config_number(context, given, "tile_sample_min_height");
  tiling.width = config_number(context, given, "tile_sample_min_width");
  if (given.contains("tile_overlap_factor")) {
    const auto cell = config_number(context, context.config, "spatial_compression_ratio");
    tiling.overlap = shared_by_factor(context, given, "height", tiling.size, cell);
    tiling.width_overlap = shared_by_factor(context, given, "width", tiling.width, cell);
    return tiling;
  }
  tiling.overlap = shared(tiling.size, "tile_sample_stride_height");
  tiling.width_overlap = shared(tiling.width, "tile_sample_stride_width");
  if (given.contains("tile_sample_min_num_frames")) {
    tiling.frames = config_number(context, given, "tile_sample_min_num_frames");
    tiling.shared_frames = shared(tiling.frames, "tile_sample_stride_num_frames");
  }
  return tiling;
}

namespace {

/// Latents of a denoiser, and what is made of a clip's moments beside them.
std::vector<Row> scaled_rows(const CaseContext& context) {
  const Tiling tiling = diffusers_tiling(context);
  return {{"in.video", "out.moments", "in.latent", "out.decoded", tiling, true},
          {"in.image", "out.image_moments", "in.image_latent", "out.image_decoded", tiling, true},
          {"in.video", "out.untiled_moments", "in.image_latent", "out.untiled_image_decoded", {}, true}};
}

std::vector<Row> named_rows(const CaseContext& context) {
  const Tiling tiling = diffusers_tiling(context), time = {0, 0, tiling.frames, tiling.shared_frames};
  return {{"in.video", "out.moments", "in.z", "out.decoded", tiling},
          {"in.image", "out.image_moments", "in.image_z", "out.image_decoded", tiling},
          {"in.small_video", "out.framewise_moments", "in.small_z", "out.framewise_decoded", time},
          {"in.video", "out.untiled_moments", "in.small_z", "out.untiled_decoded", {}}};
}

/// Tiles of a side, or of frames, that a case switches on: their size is under one of two names. They share a quarter, or
/// as the configuration says. What a case says of its own stands before what config.json says of all.
void read_tiles(const CaseContext& context, const Settings& given, const char* flag,
                const std::array<const char*, 2>& sizes, int64_t& size, int64_t& shared) {
  if (!given.value(flag, false)) return;
  const auto of = [&](const char* key) { return given.contains(key) ? given : context.config; };
  const char* key = of(sizes[0]).contains(sizes[0]) ? sizes[0] : sizes[1];
  size = config_number(context, of(key), key);
  const double factor = of("tile_overlap_factor").value("tile_overlap_factor", 0.25);
  shared = size - static_cast<int64_t>(static_cast<double>(size) * (1 - factor));
}

std::vector<Row> listed_rows(const CaseContext& context) {
  std::vector<Row> rows;
  for (const auto& [name, given] : context.config.at("cases").items()) {
    check_input(given.is_object(), "verify",
                (context.folder / "config.json").string() + ": cases." + name + " is no object of settings");
    const auto input = [&, &name = name, &given = given](const char* key) {
      return "in." + (given.contains(key) ? config_field(context, given, key).get<std::string>() : name + "." + key);
    };
    Row row = {
        input("video"), "out." + name + ".moments", input("latent"), "out." + name + ".decoded", {}, true, given, name};
    read_tiles(context, given, "spatial", {"sample_size", "spatial_tile_size"}, row.tiling.size, row.tiling.overlap);
    read_tiles(context, given, "temporal", {"sample_tsize", "temporal_tile_size"}, row.tiling.frames,
               row.tiling.shared_frames);
    given.read("slicing");  // which takes samples one after the other, as it is done here
    for (const char* pieces : {"pieces_2d", "pieces_t"}) given.read(pieces);  // of the reference, which follow
    if (given.value("is_training", false)) row.scaled = false;  // of the autoencoder, whose latents stay as they are
    rows.push_back(row);
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
  if (const std::string z = row.moments.substr(0, row.moments.rfind('.')) + ".z"; file.has(z))
    file.compare(z,
                 each(file.tensor(video),
                      [&](const at::Tensor& clip) { return row.scaled ? vae.encode(clip) : vae.posterior(clip).mean; }),
                 bound);
  if (!file.has(row.decoded)) return;
  const at::Tensor deviation = vae.latent_std().view({-1, 1, 1, 1}), mean = vae.latent_mean().view({-1, 1, 1, 1});
  file.compare(row.decoded,
               each(file.tensor(row.latent),
                    [&](const at::Tensor& z) { return vae.decode(row.scaled ? z : (z - mean) / deviation); }),
               bound);
}

at::Tensor sampled(const at::Tensor& moments, const at::Tensor& noise) {
  const auto parts = moments.chunk(2, 1);
  return parts[0] + noise * (parts[1].clamp(-30, 20) * 0.5).exp();
}

/// An autoencoder of two with the noise of both. Pictures are [B * T, c, h, w], sample after sample.
void check_stages(const models::TwoStageVae& vae, CaseFile& file, const Row& row,
                  const std::function<double(double)>& bound) {
  const at::Tensor video = file.tensor(row.video);
  const int64_t samples = video.size(0), frames = video.size(2);
  const at::Tensor moments =
      each(video, [&](const at::Tensor& clip) { return vae.picture_moments(clip).transpose(0, 1); }).flatten(0, 1);
  file.compare(row.out("moments_2d"), moments, bound);
  const at::Tensor pictures = sampled(moments, file.tensor(row.in("eps2d"))) * vae.picture_factor();
  file.compare(row.out("latent_2d"), pictures, bound);
  const at::Tensor in_time = each(pictures.unflatten(0, {samples, frames}),
                                  [&](const at::Tensor& clip) { return vae.time_moments(clip.transpose(0, 1)); });
  file.compare(row.out("moments_t"), in_time, bound);
  const at::Tensor mean = vae.latent_mean().view({-1, 1, 1, 1}), deviation = vae.latent_std().view({-1, 1, 1, 1});
  file.compare(row.out("z"), (sampled(in_time, file.tensor(row.in("epst"))) - mean) / deviation, bound);
  file.compare(row.decoded,
               each(file.tensor(row.latent), [&](const at::Tensor& z) { return vae.decode_frames(z, frames); }), bound);
}

/// out.latent and the like, with out.moments.
void check_latents(const models::VideoVae& vae, CaseFile& file, const std::function<double(double)>& bound) {
  const at::Tensor video = file.tensor("in.video");
  const auto moments_of = [&](const at::Tensor& clip) {
    const models::Posterior p = vae.posterior(clip);
    return at::cat({p.mean, p.log_variance});
  };
  const at::Tensor moments = each(video, moments_of);
  const at::Tensor mean = vae.latent_mean().view({-1, 1, 1, 1}), deviation = vae.latent_std().view({-1, 1, 1, 1});
  const auto encoded = [&](const at::Tensor& clip) { return vae.encode(clip); };
  const auto check = [&](const std::string& name, const std::function<at::Tensor()>& value) {
    if (file.has(name)) file.compare(name, value(), bound);
  };
  check("out.mean", [&] { return moments.chunk(2, 1)[0]; });
  check("out.logvar", [&] { return moments.chunk(2, 1)[1].clamp(-30, 20); });
  check("out.latent", [&] { return each(video, encoded); });
  check("out.sampled_latent", [&] { return (sampled(moments, file.tensor("in.noise")) - mean) / deviation; });
  check("out.first_frame_moments", [&] { return each(video.narrow(2, 0, 1), moments_of); });
  check("out.image_latent", [&] { return each(file.tensor("in.image"), encoded); });
}

/// Weights, and the config.json of their names.
constexpr std::pair<const char*, const char*> kClipWeights[] = {{"model.safetensors", "config.json"},
                                                                {"original.safetensors", "original_config.json"}};

/// The same weights under the names of their release.
std::unique_ptr<models::VideoVae> open_original(const CaseContext& context, const Row& row) {
  const auto& [weights, name] = kClipWeights[1];
  const auto path = context.folder / name;
  const models::ReadFields fields;
  const Settings config(read_case_object(path));
  auto vae = job::open_vae_as(context.folder / weights, config.text(), path.string(), row.tiling);
  config.read("_class_name");
  const std::vector<std::string> unread = config.unread(fields.paths());
  check_input(unread.empty(), "verify",
              path.string() + ": " + (unread.empty() ? "" : unread.front()) + " is not known to this build");
  return vae;
}

std::unique_ptr<models::VideoVae> open(const CaseContext& context, const Row& row) {
  Json config = context.config.peek();
  config.erase("cases");
  config.update(row.given.peek());
  row.given.text();  // the reader of config.json takes it
  return job::open_vae_as(context.folder / "model.safetensors", config.dump(),
                          (context.folder / "config.json").string(), row.tiling);
}

}  // namespace

CaseResults verify_clips(const CaseContext& context) {
  const bool scaled = context.description.kind().starts_with("hunyuan15");
  const std::vector<Row> rows = context.config.contains("cases") ? listed_rows(context)
                                : scaled                         ? scaled_rows(context)
                                                                 : named_rows(context);
  CaseResults results;
  for (const auto& [weights, config] : kClipWeights)
    for (const auto& path : context.case_files()) {
      const bool original = weights != kClipWeights[0].first;
      if (original && !(scaled && std::filesystem::exists(context.folder / weights))) continue;
      CaseFile file(context.name, path, weights);
      for (const Row& row : rows) {
        if (row.given.contains("frames") && file.has(row.video))
          check_input(row.given.at("frames") == file.tensor(row.video).size(2), "verify",
                      (context.folder / "config.json").string() + ": cases." + row.name +
                          ".frames is not the number of frames of " + row.video);
        const auto vae = original ? open_original(context, row) : open(context, row);
        const auto* stages = dynamic_cast<const models::TwoStageVae*>(vae.get());
        if (stages && file.has(row.in("eps2d")))
          check_stages(*stages, file, row, context.bound("out"));
        else
          check_row(*vae, file, row, context.bound("out"));
        if (scaled && row.moments == "out.moments") check_latents(*vae, file, context.bound("out"));
      }
      file.fail_the_rest();
      results.push_back(std::move(file));
    }
  return results;
}

}  // namespace tessera::tools
