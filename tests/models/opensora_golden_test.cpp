#include "models/denoiser_golden.h"
#include "tessera/models/common/family.h"

namespace tessera::models::opensora {

TEST(OpenSoraGolden, OutputsLossAndGradientsMatchInEveryFormOfItsFiles) {
  TESSERA_NEED_GOLDENS();
  const std::vector<DenoiserCase> kinds = opensora::family().cases;
  for (const char* folder : {"opensora2", "opensora2_fused"}) compare_with_case(kinds[0], folder, "model.safetensors");
  for (const std::string& weights : kinds[1].weights) compare_with_case(kinds[1], "opensora2_flux", weights);
}

}  // namespace tessera::models::opensora
