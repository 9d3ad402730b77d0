#include "tessera/models/known.h"

#include "tessera/models/encoders/clip_text.h"
#include "tessera/models/encoders/clip_vision.h"
#include "tessera/models/encoders/gemma2.h"
#include "tessera/models/encoders/qwen2.h"
#include "tessera/models/encoders/umt5.h"
#include "tessera/models/encoders/wav2vec2.h"
#include "tessera/models/vae/dc_ae.h"
#include "tessera/models/vae/haar.h"
#include "tessera/models/vae/hunyuan.h"
#include "tessera/models/vae/hunyuan15.h"
#include "tessera/models/vae/opensora12.h"
#include "tessera/models/vae/opensora13.h"
#include "tessera/models/vae/wan.h"

namespace tessera::models {

namespace {

std::deque<Family>& family_rows() {
  static std::deque<Family> rows = {wan::family(), sana::family(), opensora::family(), stdit::family(),
                                    hunyuan::family()};
  return rows;
}

}  // namespace

const std::deque<Family>& families() { return family_rows(); }
void add_family(const Family& family) { family_rows().push_back(family); }

const std::vector<TextEncoderMake>& text_encoders() {
  static const std::vector<TextEncoderMake> rows = {umt5::text_encoder(),   umt5::t5_text_encoder(),
                                                    gemma2::text_encoder(), clip_text::text_encoder(),
                                                    qwen2::text_encoder(),  umt5::byt5_text_encoder()};
  return rows;
}

const std::vector<AudioEncoderMake>& audio_encoders() {
  static const std::vector<AudioEncoderMake> rows = {wav2vec::audio_encoder()};
  return rows;
}

const std::vector<AutoencoderMake>& autoencoders() {
  static const std::vector<AutoencoderMake> rows = {wan_vae::autoencoder(),        dc_ae::autoencoder(),
                                                    hunyuan_vae::autoencoder(),    dc_ae_video::autoencoder(),
                                                    opensora12_vae::autoencoder(), opensora13_vae::autoencoder(),
                                                    hunyuan15_vae::autoencoder()};
  return rows;
}

const std::vector<BuiltInCodec>& built_in_codecs() {
  static const std::vector<BuiltInCodec> rows = {{"haar", 48, make_haar}};
  return rows;
}

std::vector<const WeightForm*> weight_forms() {
  static const WeightForm image_encoders[] = {clip::weight_form(), clip::siglip_weight_form()};
  std::vector<const WeightForm*> forms;
  for (const Family& family : families())
    for (const WeightForm& form : family.weights) forms.push_back(&form);
  for (const AutoencoderMake& make : autoencoders())
    for (const WeightForm& form : make.weights) forms.push_back(&form);
  for (const TextEncoderMake& make : text_encoders()) forms.push_back(&make.weights);
  for (const WeightForm& form : image_encoders) forms.push_back(&form);
  for (const AudioEncoderMake& make : audio_encoders()) forms.push_back(&make.weights);
  return forms;
}

}  // namespace tessera::models
