#pragma once
// The options of every trainer that `tessera import` reads: one function, file and table for each.
//
//   const Dialect& d = deepspeed_config();
#include "tessera/tools/options/dialect.h"

namespace tessera::tools {

const Dialect& deepspeed_config();        ///< ds_config.json
const Dialect& accelerate_config();       ///< accelerate's YAML and flags, and FSDP's words by themselves
const Dialect& torchrun_launcher();       ///< torchrun, deepspeed's own launcher and ColossalAI's
const Dialect& diffsynth_command();       ///< DiffSynth-Studio, its old form and its new one
const Dialect& musubi_command();          ///< musubi-tuner's wan_train_network.py
const Dialect& musubi_dataset();          ///< its data set TOML
const Dialect& diffusion_pipe_command();  ///< deepspeed train.py --deepspeed --config c.toml
const Dialect& diffusion_pipe_config();   ///< that TOML
const Dialect& diffusion_pipe_dataset();  ///< the data set TOML it names
const Dialect& training_line();           ///< --task s2v-14B --ckpt_dir D ... --max_steps N
const Dialect& sana_config();             ///< NVlabs' YAML of Sana, and its keys without their dashes
const Dialect& sana_command();        ///< torchrun train.py --config_path C.yaml --train.lr ...: those keys as flags
const Dialect& opensora_config();     ///< Open-Sora 2.0\'s configurations in Python, and flags over them
const Dialect& opensora1_config();    ///< those of 1.2 and 1.3
const Dialect& dreambooth_command();  ///< diffusers' train_dreambooth_lora_sana.py
const Dialect& generate_line();       ///< Wan's generate.py

/// "bucket_config.256px.33", one option a bucket, as one "bucket_config" with items 33x256px=SHARE,BATCH.
/// Throws UserError (usage) where its model is of neither version.
void opensora_options(std::vector<Given>& given);
/// Whether a configuration is one of 1.x, by its tables.
bool is_opensora1(const std::vector<Given>& given);
/// Likewise for 1.x, with buckets in the words of 2.0. Throws UserError (usage) for models that are not there.
void opensora1_options(std::vector<Given>& given);
/// The key that a flag of 1.x's train.py, with _ for -, stands for: "data_path" is dataset.data_path.
std::string opensora1_key(const std::string& flag);

/// In the order of the docs.
const std::vector<const Dialect*>& dialects();

}  // namespace tessera::tools
