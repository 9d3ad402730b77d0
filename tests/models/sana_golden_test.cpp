#include "models/denoiser_golden.h"
#include "tessera/models/common/family.h"

namespace tessera::models::sana {

TEST(SanaGolden, OutputsLossAndGradientsMatchUnderBothNamings) {
  TESSERA_NEED_GOLDENS();
  const std::vector<DenoiserCase> kinds = sana::family().cases;
  for (const char* weights : {"model.safetensors", "original.safetensors"}) {
    for (const char* folder : {"sana", "sana_qknorm", "sana_sprint"}) compare_with_case(kinds[0], folder, weights);
    for (const char* folder : {"sana_video", "sana_video_i2v"}) compare_with_case(kinds[1], folder, weights);
  }
}

}  // namespace tessera::models::sana
