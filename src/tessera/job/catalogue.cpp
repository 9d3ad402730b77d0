#include "tessera/job/catalogue.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/options.h"
#include "tessera/base/units.h"
#include "tessera/families/registry.h"
#include "tessera/families/releases.h"
#include "tessera/models/known.h"
#include "tessera/models/registry.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/simulate/profile.h"

namespace tessera::job {

namespace {

std::string count_text(int64_t numbers) {
  char text[32];
  if (numbers >= 1'000'000'000)
    std::snprintf(text, sizeof text, "%.1f B", static_cast<double>(numbers) / 1e9);
  else
    std::snprintf(text, sizeof text, "%.1f M", static_cast<double>(numbers) / 1e6);
  return text;
}

template <class Units>
int64_t parameters(const Units& units) {
  int64_t sum = 0;
  for (const auto& unit : units)
    for (const plan::ParamSpec& param : unit->spec().params) sum += param.numel();
  return sum;
}

std::string or_dash(const std::string& name) { return name.empty() ? "-" : name; }

/// The row of models/ that has a preset.
const models::Family& family_of(const std::string& preset) {
  for (const models::Family& family : models::families())
    for (const std::string& name : family.presets())
      if (name == preset) return family;
  throw InternalError("catalogue", "no family has the preset " + preset);
}

std::vector<std::string> text_encoder_presets() {
  std::vector<std::string> all;
  for (const models::TextEncoderMake& make : models::text_encoders())
    for (const std::string& name : make.presets()) all.push_back(name);
  return all;
}

/// Frames of a clip of 512 x 512 that an autoencoder takes as one piece, and its latents: [channels, frames, height, width].
struct Sizes {
  int64_t frames;
  std::array<int64_t, 4> latent;
};
Sizes sizes_of(const net::VideoCodec& codec) {
  try {
    return {17, codec.latent_shape(17, 512, 512)};
  } catch (const UserError&) {  // it takes whole groups of frames alone
    return {16, codec.latent_shape(16, 512, 512)};
  }
}

std::vector<Entry> presets() {
  std::vector<Entry> all;
  for (const std::string& name : models::denoiser_presets()) {
    const auto model = models::make_denoiser({.preset = name});
    const Partners partners = partners_of(name);
    all.push_back({name,
                   {{"parameters", count_text(parameters(model->units()))},
                    {"units", std::to_string(model->units().size())},
                    {"data.vae", or_dash(partners.autoencoder)},
                    {"data.text_encoder", or_dash(partners.text_encoder)},
                    {"trains", model->why_not_trained().empty() ? "yes" : "no"}}});
  }
  return all;
}

std::vector<Entry> autoencoders() {
  std::vector<Entry> all;
  const auto add = [&](const std::string& name, const net::VideoCodec& codec, const std::string& what) {
    const auto [frames, latent] = sizes_of(codec);
    const int64_t alone = frames % 2;  // the first frame, which many autoencoders code by itself
    all.push_back({name,
                   {{"channels", std::to_string(latent[0])},
                    {"frames x height x width of a latent", std::to_string((frames - alone) / (latent[1] - alone)) +
                                                                " x " + std::to_string(512 / latent[2]) + " x " +
                                                                std::to_string(512 / latent[3])},
                    {"weights", what}}});
  };
  for (const models::BuiltInCodec& row : models::built_in_codecs())
    add(row.name, *row.make(row.channels), "none: a wavelet, " + row.name + ":CHANNELS for another number");
  for (const std::string& name : models::autoencoder_presets())
    add(name, *models::make_preset_vae(name, {}), "random by this name; data.vae = PATH reads released ones");
  return all;
}

std::vector<Entry> encoders() {
  std::vector<Entry> all;
  const auto listed = families::names_in(&families::Family::glyph_encoders);
  const std::set<std::string> glyphs(listed.begin(), listed.end());
  for (const std::string& name : text_encoder_presets()) {
    const auto encoder = models::make_text_encoder({.preset = name});
    const bool reads_quotes = glyphs.contains(name);
    all.push_back({name,
                   {{"of", encoder->pooled_row({0}) >= 0 ? "text, in one row: data.pooled_encoder"
                           : reads_quotes                ? "quoted text: data.glyph_encoder"
                                                         : "text"},
                    {"parameters", count_text(parameters(encoder->units()))},
                    {"width", std::to_string(encoder->dim())}}});
  }
  return all;
}

std::vector<Entry> profiles() {
  std::vector<Entry> all;
  for (const plan::Profile& profile : plan::shipped_profiles()) {
    const auto rate =
        profile.device.gemm.contains("bf16") ? profile.device.gemm.at("bf16") : profile.device.gemm.at("fp32");
    char teraflops[32];
    std::snprintf(teraflops, sizeof teraflops, rate.top < 1e12 ? "%.2f" : "%.0f", rate.top / 1e12);
    all.push_back({profile.name,
                   {{"devices", profile.devices > 0 ? std::to_string(profile.devices) : "any"},
                    {"memory of each", profile.device.memory > 0 ? format_bytes(profile.device.memory) : "-"},
                    {"TFLOP/s of products", teraflops},
                    {"host memory", profile.host_memory > 0 ? format_bytes(profile.host_memory) : "-"}}});
  }
  return all;
}

std::vector<Entry> optimizers() {
  std::vector<Entry> all;
  for (const plan::OptimizerRow& row : plan::optimizers())
    all.push_back({std::string(row.name), {{"what it is", std::string(row.what)}}});
  return all;
}

}  // namespace

const std::vector<Kind>& catalogue() {
  static const std::vector<Kind> kinds = {{"presets", "model.preset", presets},
                                          {"autoencoders", "data.vae", autoencoders},
                                          {"encoders", "data.text_encoder", encoders},
                                          {"profiles", "plan.profile", profiles},
                                          {"optimizers", "train.optimizer", optimizers}};
  return kinds;
}

std::vector<Entry> preset_files() {
  const auto amount = [](double gigabytes) {
    char text[32];
    std::snprintf(text, sizeof text, gigabytes < 0.1 ? "%.2f GB" : "%.1f GB", gigabytes);
    return std::string(text);
  };
  std::vector<Entry> all;
  for (const families::Release& release : families::releases()) {
    std::string files, commands = families::download_line(release.repository);
    for (const families::ReleasePart& part : release.parts)
      files += (files.empty() ? "" : ", ") + part.file + " " + amount(part.gigabytes);
    for (const std::string& other : release.elsewhere) commands += "; " + families::download_line(other);
    all.push_back({release.preset,
                   {{"repository", release.repository},
                    {"together", amount(release.gigabytes())},
                    {"files", files},
                    {"fetched by", commands}}});
  }
  return all;
}

const Kind& catalogue_kind(std::string_view name) {
  std::vector<std::string> known;
  for (const Kind& kind : catalogue()) {
    if (kind.name == name) return kind;
    known.emplace_back(kind.name);
  }
  throw UserError(Exit::usage, "list", "'" + std::string(name) + "' cannot be listed",
                  "did you mean " + nearest(std::string(name), known).front() + "?");
}

Partners partners_of(const std::string& preset) {
  const auto model = models::make_denoiser({.preset = preset});
  const families::Family& family = families::of(family_of(preset).name);
  const auto reads = [&](const std::string& name) {
    return models::make_text_encoder({.preset = name})->dim() == model->context_dim();
  };
  const auto released = std::ranges::find_if(family.text_encoders, reads);
  if (released == family.text_encoders.end())  // a size of ours: the family's defaults
    return {family.codec, reads(family.text_encoder) ? family.text_encoder : ""};
  Partners found{.autoencoder = {}, .text_encoder = *released};
  std::vector<std::string> candidates = family.autoencoders;
  if (!candidates.empty())  // else its own are not here: others of as many channels make other latents
    for (const std::string& name : models::autoencoder_presets()) candidates.push_back(name);
  for (const std::string& name : candidates)
    if (found.autoencoder.empty() && sizes_of(*models::make_preset_vae(name, {})).latent[0] == model->in_channels())
      found.autoencoder = name;
  return found;
}

}  // namespace tessera::job
