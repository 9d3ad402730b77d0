// Kinds of speech models: hidden states, and the rows of sound made of them. Ranks repeat the work.
#include "tessera/job/audio_encoder.h"
#include "tessera/base/check.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

CaseResults verify_audio_encoder(const CaseContext& context, const models::AudioEncoderMake& make) {
  const at::NoGradGuard no_grad;
  CaseResults results;
  for (const char* weights : {"model.safetensors", "diffusers.safetensors"}) {
    if (!std::filesystem::exists(context.folder / weights)) continue;
    const auto encoder = job::open_audio_weights(make, context.folder / weights, context.folder / "config.json");
    for (const auto& path : context.case_files()) {
      CaseFile file(context.name, path, weights);
      file.compare_all(make.verify.results(*encoder, file), context.tolerance("out"));
      results.push_back(std::move(file));
    }
  }
  check_input(!results.empty(), "verify", context.folder.string() + ": no model.safetensors");
  return results;
}

}  // namespace tessera::tools
