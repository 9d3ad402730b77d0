#pragma once
// The parameters of the speech-to-video denoiser that the other Wan denoisers do not have (parameters.h).
#include "tessera/models/common/initial.h"
#include "tessera/models/wan/s2v_config.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::models::wan {

/// The usual stem; the pose's and the motion frames' patches; the mask; the audio encoder.
plan::UnitSpec s2v_stem_spec(const S2vConfig& config);
/// The injector that follows block config.inject_after[index].
plan::UnitSpec injector_spec(const S2vConfig& config, size_t index);

/// As in the official code with zero_init: audio, pose and mask have no effect at first.
Initial s2v_initial_values(const plan::ParamSpec& param, bool released);

}  // namespace tessera::models::wan
