// What a VACE model is given, from pixels: the channels of its context. Also its golden cases.
#include "tessera/base/check.h"
#include "tessera/models/wan/vace.h"

namespace tessera::models::wan {

using at::Tensor;

namespace {

/// [T, H, W] -> [cells of rows * columns, T', h, w]: the values of each cell's pixels, of the frame nearest to the middle
/// of those that a latent frame stands for.
Tensor mask_channels(const Tensor& mask, int64_t frames, int64_t height, int64_t width) {
  const int64_t count = mask.size(0), rows = mask.size(1) / height, columns = mask.size(2) / width;
  std::vector<int64_t> nearest;
  for (int64_t i = 0; i < frames; ++i) nearest.push_back((2 * i + 1) * count / (2 * frames));
  return mask.index_select(0, at::tensor(nearest, at::kLong))
      .reshape({frames, height, rows, width, columns})
      .permute({2, 4, 0, 1, 3})
      .reshape({rows * columns, frames, height, width});
}

}  // namespace

Tensor letterboxed(const Tensor& picture, int64_t height, int64_t width, double around) {
  const int64_t h = picture.size(1), w = picture.size(2);
  if (h == height && w == width) return picture.unsqueeze(1);
  const double scale = std::min(static_cast<double>(height) / static_cast<double>(h),
                                static_cast<double>(width) / static_cast<double>(w));
  const auto scaled = [&](int64_t side) {
    return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(side) * scale));
  };
  const int64_t to_h = scaled(h), to_w = scaled(w), top = (height - to_h) / 2, left = (width - to_w) / 2;
  const Tensor canvas = at::full({3, height, width}, around, at::kFloat);
  canvas.slice(1, top, top + to_h)
      .slice(2, left, left + to_w)
      .copy_(at::upsample_bilinear2d(picture.unsqueeze(0), {to_h, to_w}, /*align_corners=*/false)[0]);
  return canvas.unsqueeze(1);
}

Tensor vace_context(const net::VideoCodec& codec, const VaceSource& source) {
  const Tensor changed = (source.mask > 0.5).to(at::kFloat);
  const Tensor kept = codec.encode(source.video * (1 - changed)), made = codec.encode(source.video * changed);
  const int64_t channels = kept.size(0), f = kept.size(1), h = kept.size(2), w = kept.size(3);
  const Tensor mask = mask_channels(source.shown[0], f, h, w);
  const auto count = static_cast<int64_t>(source.references.size());
  const Tensor context = at::zeros({2 * channels + mask.size(0), count + f, h, w}, at::kFloat);
  for (int64_t r = 0; r < count; ++r)
    context.slice(0, 0, channels).slice(1, r, r + 1).copy_(codec.encode(source.references[static_cast<size_t>(r)]));
  context.slice(1, count).copy_(at::cat({kept, made, mask}));
  return context;
}

namespace {

std::vector<net::Sample> vace_samples(const CaseTensors& file, const std::string&) {
  const Tensor t = file.tensor("in.t").to(at::kDouble);
  check_input(t.dim() == 1, "verify", file.label() + ": expected in.t [B], one timestep a sample");
  std::vector<net::Sample> samples;
  for (size_t i = 0; i < static_cast<size_t>(t.size(0)); ++i) {
    net::Sample sample{.x = file.tensor(of_sample("in.x", i)),
                       .t = t[static_cast<int64_t>(i)].item<double>(),
                       .context = file.tensor(of_sample("in.context", i)),
                       .target = file.tensor(of_sample("in.target", i)),
                       .extra = {{"vace_context", file.tensor(of_sample("in.vace_context", i))}}};
    samples.push_back(std::move(sample));
  }
  return samples;
}

NamedTensors vace_input_grads(const std::vector<std::map<std::string, Tensor>>& of_samples, const CaseTensors&) {
  NamedTensors named;
  for (size_t i = 0; i < of_samples.size(); ++i)
    for (const char* name : {"x", "context", "vace_context"})
      named.emplace_back(of_sample(std::string("grad_in.") + name, i), of_samples[i].at(name));
  return named;
}

void scaled_by_layer(net::Sample& sample, const CaseTensors& file, int64_t) {
  sample.extra["vace_scale"] = file.tensor("in.per_layer_scale");
}

/// A run of VACE's pipeline on pixels.
NamedTensors vace_prepared(const CaseTensors& file, const net::VideoCodec& codec) {
  const Tensor video = file.tensor("in.video"), mask = file.tensor("in.mask");
  const int64_t count = video.size(1), height = video.size(2), width = video.size(3);
  const int64_t frames = codec.latent_shape(count, height, width)[1];
  NamedTensors named;
  VaceSource source{.video = video, .mask = mask, .shown = mask, .references = {}};
  named.emplace_back("out.no_ref.vace_context", vace_context(codec, source));
  for (size_t i = 0; file.has(of_sample("in.ref_image", i)); ++i) {
    const Tensor picture = file.tensor(of_sample("in.ref_image", i)).permute({2, 0, 1}).to(at::kFloat);
    source.references.push_back(letterboxed((picture / 255 - 0.5) / 0.5, height, width));
    named.emplace_back(of_sample("out.ref_canvas", i), source.references.back());
  }
  named.emplace_back("out.vace_context", vace_context(codec, source));
  source.video = at::zeros_like(video);
  source.mask = source.shown = at::ones_like(mask);
  named.emplace_back("out.no_video.vace_context", vace_context(codec, source));
  const Tensor numbers = at::arange(count, at::kFloat).view({count, 1, 1}).expand({count, 8, 8});
  named.emplace_back("out.mask_index", mask_channels(numbers, frames, 1, 1).select(0, 0).flatten().to(at::kLong));
  if (file.has("in.z_sampled")) {
    const Tensor sampled = file.tensor("in.z_sampled");
    named.emplace_back("out.decoded", codec.decode(sampled.slice(1, sampled.size(1) - frames)).clamp(-1, 1));
  }
  return named;
}

/// Runs of VideoX-Fun's trainer, by the draws of each: pictures of subjects, the whole frame in their place, whether the
/// clip is filled in where the mask is, and then, whether the pictures are left out.
NamedTensors vace_trained(const CaseTensors& file, const net::VideoCodec& codec) {
  const Tensor video = file.tensor("in.video"), control = file.tensor("in.control"), mask = file.tensor("in.mask");
  const Tensor subjects = file.tensor("in.subjects"), flags = file.tensor("in.subject_flags");
  NamedTensors named;
  for (const std::string& draws_of : file.names("in.draws.")) {
    const std::string run = draws_of.substr(std::string_view("in.draws.").size());
    const Tensor draws = file.tensor(draws_of).to(at::kLong);
    const auto drawn = [&](int64_t i) {
      check_input(i < draws.numel(), "verify",
                  file.label() + ": " + draws_of + " ends before its draw " + std::to_string(i));
      return draws[i].item<int64_t>();
    };
    VaceSource source{.video = control, .mask = mask, .shown = at::ones_like(mask), .references = {}};
    for (int64_t i = 0; i < flags.numel(); ++i)
      if (flags[i].item<int64_t>() != 0 && static_cast<int64_t>(source.references.size()) < drawn(0))
        source.references.push_back(subjects.slice(1, i, i + 1));
    if (drawn(1) != 0) source.references = {file.tensor("in.photo")};
    if (drawn(2) != 0 || (control == -1).all().item<bool>()) {
      source.video = video * (mask < 0.5);
      source.shown = mask;
      if (drawn(3) != 0) source.references.clear();
    }
    const Tensor context = vace_context(codec, source), latent = codec.encode(video);
    const int64_t references = context.size(1) - latent.size(1);
    named.emplace_back("out." + run + ".vace_context", context);
    named.emplace_back("out." + run + ".latents",
                       at::cat({context.slice(0, 0, latent.size(0)).slice(1, 0, references), latent}, 1));
  }
  return named;
}

}  // namespace

DenoiserCase vace_case() {
  const auto scaled = [](const CaseTensors& file, const std::string& about) {
    std::vector<net::Sample> all = vace_samples(file, about);
    if (!file.has("in.vace_context_scale")) return all;
    const double scale = file.tensor("in.vace_context_scale").item<double>();
    for (net::Sample& sample : all) sample.extra["vace_scale"] = at::full({1}, scale, at::kFloat);
    return all;
  };
  return {.kind = "dit_vace",
          .samples = scaled,
          .outputs = outputs_of_samples,
          .input_grads = vace_input_grads,
          .weights = {"model.safetensors", "diffusers.safetensors"},
          .calls = {{"out.per_layer.", scaled_by_layer, "in.per_layer_scale"}}};
}

std::vector<InputCase> vace_input_cases() {
  return {{.kind = "dit_vace",
           .files = "prep",
           .tolerance = "prep_out",
           .results = vace_prepared,
           .bounds = {{"out.ref_canvas.", 1e-6}}},
          {.kind = "vace_training", .files = "train", .tolerance = "out", .results = vace_trained}};
}

}  // namespace tessera::models::wan
