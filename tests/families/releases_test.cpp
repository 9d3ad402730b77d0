// Releases by the names that people's folders and files have.
#include "tessera/families/releases.h"

#include <gtest/gtest.h>

#include <set>

namespace tessera::families {
namespace {

std::string preset_at(std::string_view path) {
  const Release* release = release_at(path);
  return release ? release->preset : "none";
}

TEST(Releases, AreFoundByTheNamesOfFoldersAndFiles) {
  for (const auto& [path, preset] : std::vector<std::pair<std::string, std::string>>{
           {"Wan2.1-T2V-1.3B", "wan2.1-t2v-1.3b"},
           {"Wan2.1-T2V-1.3B/", "wan2.1-t2v-1.3b"},
           {"/data/ckpts/Wan2.1-T2V-14B", "wan2.1-t2v-14b"},
           {"Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "wan2.1-t2v-1.3b"},
           {"Wan-AI/Wan2.1-T2V-1.3B/google/umt5-xxl/spiece.model", "wan2.1-t2v-1.3b"},
           {"models/Wan-AI/Wan2.1-I2V-14B-480P", "wan2.1-i2v-14b-480p"},
           {"models/Wan-AI/Wan2.1-I2V-14B-720P-Diffusers/transformer", "wan2.1-i2v-14b-720p"},
           {"Wan2.1-FLF2V-14B-720P", "wan2.1-flf2v-14b-720p"},
           {"Wan2.2-T2V-A14B/high_noise_model", "wan2.2-t2v-a14b"},
           {"wan2.2-i2v-a14b", "wan2.2-i2v-a14b"},
           {"hub/models--Wan-AI--Wan2.2-TI2V-5B/snapshots/0123abc", "wan2.2-ti2v-5b"},
           {"Wan2.2-S2V-14B/wav2vec2-large-xlsr-53-english", "wan2.2-s2v-14b"},
           {"Wan2.1-VACE-14B-diffusers/transformer", "wan2.1-vace-14b"},
           {"wan2.2_animate_14B_bf16.safetensors", "wan2.2-animate-14b"},
           {"wan2.1_vace_1.3B_fp16.safetensors", "wan2.1-vace-1.3b"},
           {"Wan2.2-VACE-Fun-A14B/low_noise_model", "wan2.2-vace-fun-a14b"},
           {"ComfyUI/models/diffusion_models/wan2.1_t2v_1.3B_bf16.safetensors", "wan2.1-t2v-1.3b"},
           {"wan2.1_i2v_480p_14B_fp8_e4m3fn.safetensors", "wan2.1-i2v-14b-480p"},
           {"wan2.2_t2v_low_noise_14B_fp16.safetensors", "wan2.2-t2v-a14b"},
           {"Wan2_1-T2V-14B_fp8_e4m3fn.safetensors", "wan2.1-t2v-14b"},
           {"Sana_1600M_1024px_BF16_diffusers", "sana-1.6b"},
           {"Efficient-Large-Model/Sana_1600M_1024px_MultiLing/checkpoints/Sana_1600M_1024px_MultiLing.pth",
            "sana-1.6b"},
           {"Sana_1600M_4Kpx_BF16", "sana-1.6b-4k"},
           {"Sana_600M_512px_diffusers", "sana-0.6b"},
           {"SANA1.5_4.8B_1024px", "sana1.5-4.8b"},
           {"Sana_Sprint_1.6B_1024px_diffusers/vae", "sana-sprint-1.6b"},
           {"SANA-Video_2B_480p", "sana-video-2b-480p"},
           {"hpcai-tech/Open-Sora-v2", "opensora2-11b"},
           {"ckpts/Open_Sora_v2.safetensors", "opensora2-11b"},
           {"hpcai-tech/OpenSora-STDiT-v3", "opensora1.2"},
           {"OpenSora-STDiT-v4", "opensora1.3"},
           {"tencent/HunyuanVideo-1.5/transformer/720p_i2v", "hunyuan1.5-720p-i2v"},
           {"HunyuanVideo-1.5/transformer/480p_i2v_step_distilled/config.json", "hunyuan1.5-480p-i2v-step-distilled"},
           {"HunyuanVideo-1.5-Diffusers-480p_t2v/transformer", "hunyuan1.5-480p-t2v"},
           {"diffusion_models/hunyuanvideo1.5_720p_t2v_fp16.safetensors", "hunyuan1.5-720p-t2v"},
           {"", "none"},
           {"/", "none"},
           {"my-model", "none"},
           {"Wan2.1-T2V-1.3Bx", "none"},  // another name, not a longer one
           {"Wan2.1-T2V-140B", "none"},
           {"Wan2.1-VACE-140B", "none"}})
    EXPECT_EQ(preset_at(path), preset) << path;
}

TEST(Releases, TellTheFolderAndTheCommandThatFillsIt) {
  std::string folder;
  ASSERT_TRUE(release_at("/data/Wan2.1-T2V-1.3B/google/umt5-xxl/spiece.model", &folder));
  EXPECT_EQ(folder, "/data/Wan2.1-T2V-1.3B");
  EXPECT_EQ(download_line("Wan-AI/Wan2.1-T2V-1.3B", folder),
            "hf download Wan-AI/Wan2.1-T2V-1.3B --local-dir /data/Wan2.1-T2V-1.3B");
  EXPECT_EQ(download_line("hpcai-tech/Open-Sora-v2"), "hf download hpcai-tech/Open-Sora-v2 --local-dir Open-Sora-v2");
}

TEST(Releases, EachIsOfAPresetOfItsOwnAndHasFiles) {
  std::set<std::string> presets, repositories;
  for (const Release& release : releases()) {
    EXPECT_TRUE(presets.insert(release.preset).second) << release.preset;
    EXPECT_TRUE(repositories.insert(release.repository).second) << release.repository;
    EXPECT_EQ(release_of_preset(release.preset), &release);
    EXPECT_EQ(preset_at(release.repository), release.preset);
    EXPECT_GT(release.gigabytes(), 1) << release.preset;
    for (const ReleasePart& part : release.parts) EXPECT_GT(part.gigabytes, 0) << part.file;
  }
  EXPECT_EQ(release_of_preset("wan-tiny"), nullptr);
}

}  // namespace
}  // namespace tessera::families
