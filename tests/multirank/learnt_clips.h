#pragma once
// Painted clips and pictures with captions, and whether a small model has learnt them by heart.
//
//   write_captioned(folder, "clip0", painted({17, 32, 48, 24, {}}, [](int frame, int x, int y) { ... }), "a red disc");
//   ...                                                        // a run with samples of all captions at its end
//   expect_learnt(run, "full", captions, 22, 3);
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "program.h"
#include "tessera/data/video.h"

namespace tessera::testing {

/// Frames of these sizes, each pixel of the colour that `colour(frame, x, y)` gives, cut to 0..255.
inline data::Frames painted(data::Frames frames, const std::function<std::array<int, 3>(int, int, int)>& colour) {
  for (int frame = 0; frame < frames.count; ++frame)
    for (int y = 0; y < frames.height; ++y)
      for (int x = 0; x < frames.width; ++x)
        for (const int value : colour(frame, x, y))
          frames.rgb.push_back(static_cast<uint8_t>(std::clamp(value, 0, 255)));
  return frames;
}

/// FOLDER/STEM.mp4, or .png of one frame, and the caption beside it. Makes the folder.
inline void write_captioned(const std::filesystem::path& folder, const std::string& stem, const data::Frames& frames,
                            const std::string& caption) {
  std::filesystem::create_directories(folder);
  if (frames.count == 1) {
    const std::vector<uint8_t> png = data::write_png(frames, 0);
    std::ofstream(folder / (stem + ".png"), std::ios::binary) << std::string(png.begin(), png.end());
  } else {
    data::write_mp4(folder / (stem + ".mp4"), frames);
  }
  std::ofstream(folder / (stem + ".txt")) << caption;
}

/// A clip of each caption in the folder, painted by `colour(clip, frame, x, y)`. Returns the captions as `sample.prompts`.
inline std::string write_painted(const std::filesystem::path& folder, const std::vector<std::string>& captions,
                                 const data::Frames& frames,
                                 const std::function<std::array<int, 3>(size_t, int, int, int)>& colour) {
  std::string prompts;
  for (size_t i = 0; i < captions.size(); ++i) {
    const auto of_clip = [&](int frame, int x, int y) { return colour(i, frame, x, y); };
    write_captioned(folder, "clip" + std::to_string(i), painted(frames, of_clip), captions[i]);
    prompts += (i > 0 ? "," : "") + captions[i];
  }
  return prompts;
}

/// The autoencoder of a golden case, whose latents are brought to a spread of about one, as published ones are by their
/// config: the keys of its config that are in `scales` are replaced. Without that a clip is a small part of what the denoiser
/// predicts, and what it learns of the noise outweighs it.
inline std::string scaled_vae(const std::filesystem::path& folder, const std::string& name,
                              const nlohmann::json& scales) {
  const std::filesystem::path golden = std::filesystem::path(TESSERA_GOLDENS) / name, copy = folder / name;
  std::filesystem::create_directories(copy);
  std::filesystem::copy_file(golden / "model.safetensors", copy / "model.safetensors");
  nlohmann::json config = json_of(golden / "config.json");
  config.update(scales);
  std::ofstream(copy / "config.json") << config.dump(1);
  return copy.string();
}

/// What the decoder makes of the first clips' own latents: the most that a denoiser can reach, as a random decoder does not
/// undo its encoder.
inline std::vector<data::Frames> reconstructions(const TinyRun& run, const std::string& name, size_t clips) {
  std::vector<data::Frames> made;
  for (size_t i = 0; i < clips; ++i)
    made.push_back(data::decode_clip(run.out(name) + "/references/reconstruction-" + std::to_string(i) + ".mp4", {}));
  return made;
}

/// The last samples, one of each caption, are at least `psnr` dB from the reconstructions of their own clips, and nearer to
/// them by `nearer` dB than to those of the others.
inline void expect_learnt(const TinyRun& run, const std::string& name, const std::vector<std::string>& captions,
                          double psnr, double nearer) {
  auto samples = run.metrics(name, "sample");
  ASSERT_GE(samples.size(), captions.size());
  samples.erase(samples.begin(), samples.end() - static_cast<ptrdiff_t>(captions.size()));
  const std::vector<data::Frames> own = reconstructions(run, name, captions.size());
  for (size_t i = 0; i < captions.size(); ++i) {
    const double reached = samples[i].at("psnr").get<double>();
    std::printf("%s, %s: %.1f dB\n", name.c_str(), captions[i].c_str(), reached);
    EXPECT_GE(reached, psnr) << captions[i];
    const data::Frames sampled = data::decode_clip(samples[i].at("file").get<std::string>(), {});
    ASSERT_EQ(sampled.count, own[i].count);
    for (size_t other = 0; other < captions.size(); ++other) {
      if (other == i) continue;
      EXPECT_GT(data::psnr(sampled, own[i]), data::psnr(sampled, own[other]) + nearer)
          << captions[i] << " against " << captions[other];
    }
  }
}

/// How far the run's samples, `count` of them, are from the picture that is nearest to each: their mean, in dB.
inline double decibels_from_the_nearest(const TinyRun& run, const std::string& name,
                                        const std::vector<data::Frames>& pictures, size_t count) {
  double sum = 0;
  const auto samples = run.metrics(name, "sample");
  EXPECT_EQ(samples.size(), count) << name;
  for (const auto& sample : samples) {
    const data::Frames made = data::decode_clip(sample.at("file").get<std::string>(), {});
    double nearest = 0;
    for (const data::Frames& picture : pictures) nearest = std::max(nearest, data::psnr(made, picture));
    sum += nearest / static_cast<double>(count);
  }
  std::printf("%s: %.2f dB from the nearest picture\n", name.c_str(), sum);
  return sum;
}

}  // namespace tessera::testing
