#include "tessera/families/releases.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace tessera::families {

namespace {

const ReleasePart kT5 = {"models_t5_umt5-xxl-enc-bf16.pth", 11.4}, kTokenizer = {"google/umt5-xxl/", 0.02},
                  kVae21 = {"Wan2.1_VAE.pth", 0.5}, kVae22 = {"Wan2.2_VAE.pth", 2.8},
                  kClip = {"models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth", 4.8},
                  kWav2vec = {"wav2vec2-large-xlsr-53-english/", 1.3};

/// Wan's denoiser in one folder, with its encoders.
std::vector<ReleasePart> wan_parts(double gigabytes, std::vector<ReleasePart> further,
                                   const ReleasePart& vae = kVae21) {
  std::vector<ReleasePart> parts = {{"diffusion_pytorch_model*.safetensors", gigabytes}, kT5, vae, kTokenizer};
  parts.insert(parts.end(), further.begin(), further.end());
  return parts;
}

std::vector<ReleasePart> expert_parts(double gigabytes) {
  return {{"high_noise_model/", gigabytes}, {"low_noise_model/", gigabytes}, kT5, kVae21, kTokenizer};
}

/// A pipeline of diffusers with Gemma 2 2B in bf16.
std::vector<ReleasePart> sana_parts(double gigabytes, double vae) {
  return {{"transformer/", gigabytes}, {"text_encoder/", 5.2}, {"vae/", vae}, {"tokenizer/", 0.04}};
}

/// diffusers' form of HunyuanVideo-1.5, with what reads pictures. The official repository has all its denoisers in one
/// folder, transformer/NAME.
Release hunyuan_release(const std::string& preset, const std::string& name) {
  return {preset,
          "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-" + name,
          {{"transformer/", 16.7},
           {"text_encoder/", 14.1},
           {"text_encoder_2/", 0.9},
           {"vae/", 2.5},
           {"tokenizer/", 0.02},
           {"tokenizer_2/", 0.01},
           {"image_encoder/", 0.9}},
          {name, "hunyuanvideo1.5_" + name}};
}

/// Small letters, and one sign for all separators.
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name)
    text += std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                                                        : '-';
  return text;
}

std::string last_part(std::string_view repository) { return std::string(repository.substr(repository.rfind('/') + 1)); }

/// Characters of the longest name of the release that `component` begins with; 0: none.
size_t matched(const Release& release, std::string_view component) {
  size_t longest = 0;
  const auto consider = [&](const std::string& name) {
    if (name.size() > longest && begins_with_name(component, name)) longest = name.size();
  };
  consider(last_part(release.repository));
  for (const std::string& name : release.names) consider(name);
  return longest;
}

}  // namespace

double Release::gigabytes() const {
  double sum = 0;
  for (const ReleasePart& part : parts) sum += part.gigabytes;
  return sum;
}

const std::vector<Release>& releases() {
  static const std::vector<Release> table = {
      {"wan2.1-t2v-1.3b", "Wan-AI/Wan2.1-T2V-1.3B", wan_parts(5.7, {})},
      {"wan2.1-t2v-14b", "Wan-AI/Wan2.1-T2V-14B", wan_parts(57.2, {})},
      {"wan2.1-i2v-14b-480p", "Wan-AI/Wan2.1-I2V-14B-480P", wan_parts(65.6, {kClip}), {"wan2.1_i2v_480p_14B"}},
      {"wan2.1-i2v-14b-720p", "Wan-AI/Wan2.1-I2V-14B-720P", wan_parts(65.6, {kClip}), {"wan2.1_i2v_720p_14B"}},
      {"wan2.1-flf2v-14b-720p", "Wan-AI/Wan2.1-FLF2V-14B-720P", wan_parts(65.6, {kClip}), {"wan2.1_flf2v_720p_14B"}},
      {"wan2.2-t2v-a14b",
       "Wan-AI/Wan2.2-T2V-A14B",
       expert_parts(57.2),
       {"wan2.2_t2v_high_noise_14B", "wan2.2_t2v_low_noise_14B"},
       true},
      {"wan2.2-i2v-a14b",
       "Wan-AI/Wan2.2-I2V-A14B",
       expert_parts(57.2),
       {"wan2.2_i2v_high_noise_14B", "wan2.2_i2v_low_noise_14B"},
       true},
      {"wan2.2-ti2v-5b", "Wan-AI/Wan2.2-TI2V-5B", wan_parts(20.0, {}, kVae22)},
      {"wan2.2-s2v-14b", "Wan-AI/Wan2.2-S2V-14B", wan_parts(32.6, {kWav2vec})},
      {"wan2.2-animate-14b", "Wan-AI/Wan2.2-Animate-14B", wan_parts(34.5, {kClip}), {"wan2.2_animate_14B"}},
      {"wan2.1-vace-1.3b", "Wan-AI/Wan2.1-VACE-1.3B", wan_parts(7.2, {}), {"VACE-Wan2.1-1.3B", "wan2.1_vace_1.3B"}},
      {"wan2.1-vace-14b", "Wan-AI/Wan2.1-VACE-14B", wan_parts(69.4, {}), {"wan2.1_vace_14B"}},
      {"wan2.2-vace-fun-a14b", "alibaba-pai/Wan2.2-VACE-Fun-A14B", expert_parts(34.7), {"Wan2.2-VACE-Fun"}, true},
      {"wan2.1-fun-1.3b-inp", "alibaba-pai/Wan2.1-Fun-1.3B-InP", wan_parts(3.1, {kClip}), {"wan2.1_fun_inp_1.3B"}},
      {"wan2.1-fun-14b-inp", "alibaba-pai/Wan2.1-Fun-14B-InP", wan_parts(32.8, {kClip}), {"wan2.1_fun_inp_14B"}},
      {"wan2.1-fun-1.3b-control",
       "alibaba-pai/Wan2.1-Fun-1.3B-Control",
       wan_parts(3.1, {kClip}),
       {"wan2.1_fun_control_1.3B"}},
      {"wan2.1-fun-14b-control",
       "alibaba-pai/Wan2.1-Fun-14B-Control",
       wan_parts(32.8, {kClip}),
       {"wan2.1_fun_control_14B"}},
      {"wan2.1-fun-v1.1-1.3b-control", "alibaba-pai/Wan2.1-Fun-V1.1-1.3B-Control", wan_parts(3.1, {kClip})},
      {"wan2.1-fun-v1.1-14b-control", "alibaba-pai/Wan2.1-Fun-V1.1-14B-Control", wan_parts(32.8, {kClip})},
      {"wan2.1-fun-v1.1-1.3b-control-camera",
       "alibaba-pai/Wan2.1-Fun-V1.1-1.3B-Control-Camera",
       wan_parts(3.1, {kClip}),
       {"wan2.1_fun_camera_v1.1_1.3B"}},
      {"wan2.1-fun-v1.1-14b-control-camera",
       "alibaba-pai/Wan2.1-Fun-V1.1-14B-Control-Camera",
       wan_parts(32.9, {kClip}),
       {"wan2.1_fun_camera_v1.1_14B"}},
      {"wan2.2-fun-a14b-inp", "alibaba-pai/Wan2.2-Fun-A14B-InP", expert_parts(28.6), {}, true},
      {"wan2.2-fun-a14b-control", "alibaba-pai/Wan2.2-Fun-A14B-Control", expert_parts(28.6), {}, true},
      {"wan2.2-fun-a14b-control-camera", "alibaba-pai/Wan2.2-Fun-A14B-Control-Camera", expert_parts(28.7), {}, true},
      {"wan2.2-fun-5b-inp", "alibaba-pai/Wan2.2-Fun-5B-InP", wan_parts(10.0, {}, kVae22)},
      {"wan2.2-fun-5b-control", "alibaba-pai/Wan2.2-Fun-5B-Control", wan_parts(10.0, {}, kVae22)},
      {"wan2.2-fun-5b-control-camera", "alibaba-pai/Wan2.2-Fun-5B-Control-Camera", wan_parts(10.0, {}, kVae22)},
      {"sana-0.6b", "Efficient-Large-Model/Sana_600M_1024px_diffusers", sana_parts(1.2, 1.3), {"Sana_600M"}},
      {"sana-1.6b",
       "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers",
       sana_parts(3.2, 1.3),
       {"Sana_1600M_1024px", "Sana_1600M_512px", "Sana_1600M"}},
      {"sana-1.6b-2k",
       "Efficient-Large-Model/Sana_1600M_2Kpx_BF16_diffusers",
       sana_parts(3.2, 1.3),
       {"Sana_1600M_2Kpx"}},
      {"sana-1.6b-4k",
       "Efficient-Large-Model/Sana_1600M_4Kpx_BF16_diffusers",
       sana_parts(3.2, 1.3),
       {"Sana_1600M_4Kpx"}},
      {"sana1.5-1.6b", "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers", sana_parts(3.2, 1.3), {"SANA1.5_1.6B"}},
      {"sana1.5-4.8b", "Efficient-Large-Model/SANA1.5_4.8B_1024px_diffusers", sana_parts(9.6, 1.3), {"SANA1.5_4.8B"}},
      {"sana-sprint-0.6b",
       "Efficient-Large-Model/Sana_Sprint_0.6B_1024px_diffusers",
       sana_parts(1.2, 1.3),
       {"Sana_Sprint_0.6B"}},
      {"sana-sprint-1.6b",
       "Efficient-Large-Model/Sana_Sprint_1.6B_1024px_diffusers",
       sana_parts(3.2, 1.3),
       {"Sana_Sprint_1.6B"}},
      {"sana-video-2b-480p",
       "Efficient-Large-Model/SANA-Video_2B_480p_diffusers",
       sana_parts(4.1, 0.5),
       {"SANA-Video_2B"}},
      {"opensora2-11b",
       "hpcai-tech/Open-Sora-v2",
       {{"Open_Sora_v2.safetensors", 23.8},
        {"hunyuan_vae.safetensors", 1.0},
        {"google/t5-v1_1-xxl/", 9.5},
        {"openai/clip-vit-large-patch14/", 1.7}},
       {"Open_Sora_v2", "Open-Sora-v2"}},
      {"opensora1.2",
       "hpcai-tech/OpenSora-STDiT-v3",
       {{"model.safetensors", 4.5}},
       {},
       false,
       {"hpcai-tech/OpenSora-VAE-v1.2", "DeepFloyd/t5-v1_1-xxl"}},
      {"opensora1.3",
       "hpcai-tech/OpenSora-STDiT-v4",
       {{"model.safetensors", 4.5}},
       {},
       false,
       {"hpcai-tech/OpenSora-VAE-v1.3", "DeepFloyd/t5-v1_1-xxl"}},
      hunyuan_release("hunyuan1.5-480p-t2v", "480p_t2v"),
      hunyuan_release("hunyuan1.5-480p-i2v", "480p_i2v"),
      hunyuan_release("hunyuan1.5-720p-t2v", "720p_t2v"),
      hunyuan_release("hunyuan1.5-720p-i2v", "720p_i2v"),
      hunyuan_release("hunyuan1.5-480p-i2v-step-distilled", "480p_i2v_step_distilled"),
  };
  return table;
}

std::string repository_of(const Release& release, std::string_view folder) {
  constexpr std::string_view kDiffusers = "-Diffusers";
  const bool both = release.repository.starts_with("Wan-AI/");
  return release.repository + std::string(both && folder.ends_with(kDiffusers) ? kDiffusers : "");
}

bool begins_with_name(std::string_view name, std::string_view known) {
  const std::string text = plain(name), begin = plain(known);
  return text.starts_with(begin) && (text.size() == begin.size() || text[begin.size()] == '-');
}

const Release* release_at(std::string_view path, std::string* folder) {
  for (std::filesystem::path rest = std::filesystem::path(path).lexically_normal(); rest.has_relative_path();
       rest = rest.parent_path()) {
    std::string component = rest.filename().string();
    // the hub's cache: models--Wan-AI--Wan2.1-T2V-1.3B
    if (const size_t dashes = component.rfind("--"); dashes != component.npos) component.erase(0, dashes + 2);
    const Release* best = nullptr;
    size_t longest = 0;
    for (const Release& release : releases())
      if (const size_t found = matched(release, component); found > longest) best = &release, longest = found;
    if (best && folder) *folder = rest.string();
    if (best) return best;
  }
  return nullptr;
}

const Release* release_of_preset(std::string_view preset) {
  const auto found = std::ranges::find(releases(), preset, &Release::preset);
  return found == releases().end() ? nullptr : &*found;
}

std::string download_line(std::string_view repository, const std::string& folder) {
  return "hf download " + std::string(repository) + " --local-dir " + (folder.empty() ? last_part(repository) : folder);
}

}  // namespace tessera::families
