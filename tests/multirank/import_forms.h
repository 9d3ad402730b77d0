#pragma once
// Files of other trainers for every family of Wan models that each can name.
//
//   for (const FileForm& form : kForms) train_by(run, form, folder, small);
#include <string>
#include <vector>

namespace tessera::testing {

/// A form of another trainer's file, for a family. $D is the folder of the release, $C the clips.
struct FileForm {
  const char* task;
  const char* name;  ///< of the file
  std::string text;
  std::string command = {};  ///< that names it as $F; empty: the file alone is imported
};

inline const std::string kPipe =
    "output_dir = 'x'\nmax_steps = 1\nmicro_batch_size_per_gpu = 1\n[optimizer]\ntype = "
    "'adamw_optimi'\nlr = 1e-4\n[model]\ntype = 'wan'\n";
inline const std::string kMusubi = "[run]\ndataset_config = '$C.toml'\nmax_train_steps = 1\nlearning_rate = 1e-4\n";
inline const std::string kMusubiCommand = "accelerate launch src/musubi_tuner/wan_train_network.py --config_file $F";
inline const std::string kZero3 = R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
                              "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0})";

/// The families that each form can name: of two experts diffusion-pipe trains one, and neither knows S2V.
inline const std::vector<FileForm> kForms = {
    {"t2v-1.3B", "pipe.toml", kPipe + "ckpt_path = '$D'\n[adapter]\ntype = 'lora'\nrank = 4\n"},
    {"i2v-14B", "pipe.toml", kPipe + "ckpt_path = '$D'\n"},
    {"flf2v-14B", "pipe.toml", kPipe + "ckpt_path = '$D'\n[adapter]\ntype = 'lora'\nrank = 4\n"},
    {"ti2v-5B", "pipe.toml", kPipe + "ckpt_path = '$D'\n"},
    {"t2v-A14B", "pipe.toml",
     kPipe + "ckpt_path = '$D'\ntransformer_path = '$D/low_noise_model'\nmin_t = 0\nmax_t = 0.875\n"},
    {"i2v-A14B", "pipe.toml",
     kPipe + "ckpt_path = '$D'\ntransformer_path = '$D/high_noise_model'\nmin_t = 0.9\nmax_t = 1\n"},
    {"t2v-1.3B", "musubi.toml", kMusubi + "task = 't2v-1.3B'\ndit = '$D'\n", kMusubiCommand},
    {"i2v-14B", "musubi.toml", kMusubi + "task = 'i2v-14B'\ndit = '$D'\n", kMusubiCommand},
    {"flf2v-14B", "musubi.toml", kMusubi + "task = 'flf2v-14B'\ndit = '$D'\n", kMusubiCommand},
    {"t2v-A14B", "musubi.toml",
     kMusubi + "task = 't2v-A14B'\ndit = '$D/low_noise_model'\ndit_high_noise = '$D/high_noise_model'\n"
               "timestep_boundary = 875\n",
     kMusubiCommand},
    {"i2v-A14B", "musubi.toml",
     kMusubi + "task = 'i2v-A14B'\ndit = '$D/low_noise_model'\ndit_high_noise = '$D/high_noise_model'\n"
               "network_module = 'networks.lora_wan'\nnetwork_dim = 4\n",
     kMusubiCommand},
    {"i2v-14B", "zero.json", kZero3},
    {"flf2v-14B", "zero.json", kZero3},
    {"t2v-A14B", "zero.json", kZero3},
    {"i2v-A14B", "zero.json", kZero3},
    {"ti2v-5B", "zero.json", kZero3}};

}  // namespace tessera::testing
