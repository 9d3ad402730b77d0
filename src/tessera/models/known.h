#pragma once
// The registry's table: every family of denoisers, encoder and autoencoder there is, a line each.
//
//   for (const Family& family : families()) ... family.presets() ...
#include <deque>

#include "tessera/models/common/family.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models {

const std::deque<Family>& families();
/// Adds a row after those of this folder. Call it before the first model is made.
void add_family(const Family& family);

const std::vector<TextEncoderMake>& text_encoders();
const std::vector<AudioEncoderMake>& audio_encoders();
const std::vector<AutoencoderMake>& autoencoders();
const std::vector<BuiltInCodec>& built_in_codecs();

/// The forms of all families and of the image encoders, in the order in which files are compared with them.
std::vector<const WeightForm*> weight_forms();

}  // namespace tessera::models
