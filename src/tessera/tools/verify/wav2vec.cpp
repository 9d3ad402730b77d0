// Kind "wav2vec": hidden states of the speech model, and the rows of sound made of them. Ranks repeat the work.
#include "tessera/base/check.h"
#include "tessera/job/audio_encoder.h"
#include "tessera/models/audio/speech_rows.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

/// out.bucket_B: clips of B frames at 16 a second; out.bucket_fpsF_mM: others, of a third of the rows each.
void compare_rows(const at::Tensor& steady, CaseFile& file, double bound) {
  const auto rows = [&](const std::string& end, double fps, int64_t frames, int64_t around, const std::string& name) {
    const int64_t clips = models::clips_of(steady.size(1), fps, frames), count = clips * frames;
    const at::Tensor picked = models::pick_rows(steady, fps, count, around);
    file.compare(name, picked.transpose(1, 2).unsqueeze(0), bound);
    file.compare("out.indices_fps" + end, at::tensor(models::nearest_rows(fps, count), at::kLong), 0.0);
    return clips;
  };
  for (const std::string& name : file.names("out.bucket_")) {
    const std::string what = name.substr(std::string("out.bucket_").size());
    if (what.starts_with("fps")) continue;
    const int64_t clips = rows("16_" + what, 16, std::stoll(what), 0, name);
    file.compare("out.num_repeat_" + what, at::scalar_tensor(clips, at::kLong), 0.0);
  }
  if (file.has("out.bucket_fps25_m1")) rows("25_20", 25, 20, 1, "out.bucket_fps25_m1");
}

}  // namespace

CaseResults verify_wav2vec(const CaseContext& context) {
  const at::NoGradGuard no_grad;
  CaseResults results;
  const double bound = context.tolerance("out");
  for (const char* weights : {"model.safetensors", "diffusers.safetensors"}) {
    if (!fs::exists(context.folder / weights)) continue;
    const auto encoder = job::open_wav2vec(context.folder / weights, context.folder / "config.json");
    for (const fs::path& path : context.case_files()) {
      CaseFile file(context.name, path, weights);
      const at::Tensor wave = encoder->normalise(file.tensor("in.waveform"));
      file.compare("out.input_values", wave, bound);
      const at::Tensor features = encoder->features(wave);
      file.compare("out.conv_features", features.t(), bound);
      std::vector<at::Tensor> states = encoder->encode(features);
      file.compare("out.last_before_norm", states.back(), bound);
      states.back() = encoder->final_norm(states.back());
      for (size_t i = 0; i < states.size(); ++i) file.compare("out.hidden." + std::to_string(i), states[i], bound);
      const at::Tensor steady = models::to_rate(at::stack(states));
      file.compare("out.feat_30fps", steady, bound);
      file.compare("out.feat_30fps_last", steady.slice(0, -1), bound);
      compare_rows(steady, file, bound);
      results.push_back(std::move(file));
    }
  }
  check_input(!results.empty(), "verify", context.folder.string() + ": no model.safetensors");
  return results;
}

}  // namespace tessera::tools
