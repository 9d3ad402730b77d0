#pragma once
// The family's row of the registry: presets, what a config.json is of, files, golden cases.
//
//   std::unique_ptr<net::Denoiser> model = wan::family().from_preset("wan2.1-t2v-1.3b");
#include "tessera/models/common/family.h"

namespace tessera::models::wan {

Family family();

/// Golden cases of Wan's further models: "dit_s2v" has image and clip as two tensors, the denoiser takes them as one
/// latent; "dit_fun", of VideoX-Fun's, has stacked inputs under the names of its class.
DenoiserCase s2v_case();
DenoiserCase fun_case();

/// "in.x.2": the name in a case of what sample 2 has.
std::string of_sample(const std::string& name, size_t sample);
/// "out.0", "out.1", ...
NamedTensors outputs_of_samples(const std::vector<at::Tensor>& predictions);

}  // namespace tessera::models::wan
