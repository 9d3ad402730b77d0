// What an Animate model is given, from pixels. Also its golden cases: the denoiser, and what the official pipeline and
// VideoX-Fun's trainer give it.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/families/frames/given_frames.h"
#include "tessera/models/wan/animate.h"
#include "tessera/models/wan/vace.h"

namespace tessera::models::wan {

using at::Tensor;

Tensor animate_y(const net::VideoCodec& codec, const AnimateSource& source) {
  constexpr int64_t kRows = 4;  // of a latent frame, one for each of its frames
  Tensor background = source.background;
  Tensor known = 1 - source.made;
  if (source.before.defined()) {
    const int64_t n = source.before.size(1);
    background = at::cat({source.before, background.slice(1, n)}, 1);
    known = at::cat({at::ones_like(known.slice(1, 0, n)), known.slice(1, n)}, 1);
  }
  const Tensor picture = codec.encode(source.reference), latent = codec.encode(background);
  const int64_t f = latent.size(1), h = latent.size(2), w = latent.size(3);
  const int64_t more = kRows * f - known.size(1);  // of the first frame, until the rows are full
  check_internal(more >= 0, "wan.animate", "more than four frames for each latent frame");
  const Tensor all = at::cat({known.slice(1, 0, 1).expand({1, more, -1, -1}), known}, 1)[0];
  const Tensor rows = all.reshape({f, kRows, all.size(1), all.size(2)}).transpose(0, 1);
  const Tensor given = source.nearest ? at::upsample_nearest2d(rows, {h, w})
                                      : at::upsample_bilinear2d(rows, {h, w}, /*align_corners=*/false);
  return at::cat({at::cat({at::ones({kRows, 1, h, w}), picture}), at::cat({given, latent})}, 1).contiguous();
}

namespace {

std::vector<net::Sample> animate_samples(const CaseTensors& file, const std::string&) {
  const Tensor t = file.tensor("in.t").to(at::kDouble), faces = file.tensor("in.face_pixel_values"),
               seen = file.tensor("in.clip_fea");
  check_input(
      t.dim() == 1 && faces.dim() == 5 && faces.size(0) == t.size(0) && seen.size(0) == t.size(0), "verify",
      file.label() + ": expected in.t [B], in.face_pixel_values [B, 3, T, S, S] and in.clip_fea [B, rows, width]");
  std::vector<net::Sample> samples;
  for (size_t i = 0; i < static_cast<size_t>(t.size(0)); ++i) {
    const auto n = static_cast<int64_t>(i);
    net::Sample sample;
    sample.x = file.tensor(of_sample("in.x", i));
    sample.t = t[n].item<double>();
    sample.context = file.tensor(of_sample("in.context", i));
    sample.target = file.tensor(of_sample("in.target", i));
    sample.extra = {{"y", file.tensor(of_sample("in.y", i))},
                    {"pose_latents", file.tensor(of_sample("in.pose_latents", i))},
                    {"clip_fea", seen[n]},
                    {"face", faces[n]}};
    samples.push_back(std::move(sample));
  }
  return samples;
}

NamedTensors animate_input_grads(const std::vector<std::map<std::string, Tensor>>& of_samples, const CaseTensors&) {
  NamedTensors named;
  std::vector<Tensor> faces, seen;
  for (size_t i = 0; i < of_samples.size(); ++i) {
    for (const char* name : {"x", "context", "y", "pose_latents"})
      named.emplace_back("grad_in." + of_sample(name, i), of_samples[i].at(name));
    faces.push_back(of_samples[i].at("face")), seen.push_back(of_samples[i].at("clip_fea"));
  }
  named.emplace_back("grad_in.face_pixel_values", at::stack(faces));
  named.emplace_back("grad_in.clip_fea", at::stack(seen));
  return named;
}

/// What VideoX-Fun's trainer makes of its draws.
NamedTensors animate_trained(const CaseTensors& file, const net::VideoCodec& codec) {
  NamedTensors named;
  const Tensor dropped = file.tensor("in.drop_background");
  for (size_t i = 0; file.has(of_sample("in.video", i)); ++i) {
    const auto in = [&](const char* name) { return file.tensor(of_sample(name, i)); };
    const Tensor video = in("in.video"), latent = codec.encode(video), reference = in("in.reference");
    named.emplace_back(of_sample("out.latents", i), at::cat({codec.encode(reference), latent}, 1));
    named.emplace_back(of_sample("out.pose_latents", i), codec.encode(in("in.pose")));
    for (const auto& [count, out] : {std::pair("in.refert_num", "out.y"), {"in.refert_num_2", "out.other.y"}}) {
      if (!file.has(count)) continue;
      const int64_t before = file.tensor(count).item<int64_t>();
      AnimateSource source{reference, in("in.background"), in("in.mask"), video.slice(1, 0, before)};
      if (dropped[static_cast<int64_t>(i)].item<int64_t>() != 0)
        source = {reference, at::zeros_like(source.background), at::ones_like(source.made), {}};
      named.emplace_back(of_sample(out, i), animate_y(codec, source));
    }
  }
  return named;
}

/// Pixels [N, H, W, 3] of bytes -> [3, N, H, W] in [-1, 1].
Tensor of_bytes(const Tensor& frames) { return frames.permute({3, 0, 1, 2}).to(at::kFloat) / 127.5 - 1; }

Tensor frames_in(const families::Windows& windows, int64_t window, const Tensor& frames) {
  std::vector<int64_t> order;
  for (int64_t i = windows.begin(window); i < windows.end(window); ++i)
    order.push_back(families::to_and_fro(i, frames.size(0)));
  return frames.index_select(0, at::tensor(order, at::kLong));
}

/// What the pipeline gives the model in each of its windows, whose first frames are the last of the window before.
NamedTensors animate_prepared(const CaseTensors& file, const net::VideoCodec& codec) {
  NamedTensors named;
  const Tensor pose = file.tensor("in.pose"), reference = file.tensor("out.reference").unsqueeze(1);
  const int64_t real = pose.size(0), height = pose.size(1), width = pose.size(2);
  named.emplace_back("out.reference", letterboxed(of_bytes(file.tensor("in.reference").unsqueeze(0)).select(1, 0),
                                                  height, width, /*around=*/-1)
                                          .select(1, 0));
  for (const std::string& key : file.names("out.")) {
    if (!key.ends_with(".clips")) continue;
    const std::string run = key.substr(0, key.size() - std::string_view(".clips").size());
    const bool replaces = run == "out.replace";
    const bool first = file.has(run + ".0.y"), second = file.has(run + ".1.previous");
    check_input(first && second, "verify", file.label() + ": " + run + " lacks its windows 0.y and 1.previous");
    const int64_t before = file.tensor(run + ".1.previous").size(1);
    const families::Windows windows{face_frames(file.tensor(run + ".0.y").size(1)), before, real};
    check_input(before < windows.length, "verify",
                file.label() + ": " + run + " gives " + std::to_string(before) + " frames of a window of " +
                    std::to_string(windows.length));
    const auto shape = codec.latent_shape(windows.length, height, width);
    for (int64_t window = 0; window < windows.count(); ++window) {
      const std::string out = run + "." + std::to_string(window) + ".";
      const auto shown = [&](const char* name) { return frames_in(windows, window, file.tensor(name)); };
      AnimateSource source{.reference = reference,
                           .background = at::zeros({3, windows.length, height, width}),
                           .made = at::ones({1, windows.length, height, width}),
                           .before = {},
                           .nearest = true};
      if (replaces) {
        source.background = of_bytes(shown("in.background"));
        source.made = shown("in.mask").select(3, 0).to(at::kFloat).unsqueeze(0) / 255;
      }
      if (window > 0) {
        source.before = file.tensor(out + "previous");
        named.emplace_back(out + "previous", Tensor());  // made by the model, which is not run
      }
      if (file.has(out + "y")) named.emplace_back(out + "y", animate_y(codec, source));
      if (file.has(out + "pose_latents"))
        named.emplace_back(out + "pose_latents", codec.encode(of_bytes(shown("in.pose"))));
      if (file.has(out + "face")) {
        const Tensor face = of_bytes(shown("in.face"));
        const bool corners = file.tensor(out + "face").dim() == 2;
        named.emplace_back(out + "face", corners ? face.select(3, 0).select(2, 0) : face);
      }
    }
    named.emplace_back(run + ".clips", at::scalar_tensor(windows.count(), at::kLong));
    named.emplace_back(run + ".frames", at::scalar_tensor(real, at::kLong));
    named.emplace_back(run + ".seq_len", at::scalar_tensor((shape[1] + 1) * shape[2] * shape[3] / 4, at::kLong));
  }
  return named;
}

}  // namespace

DenoiserCase animate_case() {
  return {.kind = "dit_animate",
          .samples = animate_samples,
          .outputs = outputs_of_samples,
          .input_grads = animate_input_grads,
          .grad_naming = "official"};
}

std::vector<InputCase> animate_input_cases() {
  constexpr double kByte = 1 / 127.5;  // the program resizes bytes in fixed point
  return {{.kind = "dit_animate",
           .files = "prep",
           .tolerance = "prep_out",
           .results = animate_prepared,
           .bounds = {{"out.reference", kByte}}},
          {.kind = "dit_animate", .files = "train", .tolerance = "train_out", .results = animate_trained}};
}

}  // namespace tessera::models::wan
