#pragma once
// The programs whose options `tessera import` reads: for each a table of options (PROGRAM.toml) and a source with the
// functions that its rows name.
//
//   const Dialect& d = deepspeed_config();
#include "tessera/tools/import/command_line.h"
#include "tessera/tools/import/dialect.h"

namespace tessera::tools {

// accelerate
const Dialect& accelerate_config();  ///< accelerate's YAML and flags, and FSDP's words by themselves
const Dialect& torchrun_launcher();  ///< torchrun, deepspeed's own launcher and ColossalAI's
/// Reads FSDP's words in the forms that trainers publish: takes away what stands before a word (fsdp_config., fsdp_, --),
/// and makes an option of each argument of a call ("fsdp.mixed_precision" = "MixedPrecision(param_dtype=torch.bfloat16)" is
/// param_dtype). An argument without a name is an option by itself: partial(checkpoint_wrapper, ...). Throws UserError
/// (usage) for a call that does not end.
void bare_words(std::vector<Given>& given);
/// What starts the ranks of a command.
Translation translate_launcher(const CommandLine& line, const ImportContext& context);
/// FSDP's variables (FSDP_..., ACCELERATE_...) as accelerate reads them, where they say that FSDP is used.
Translation translate_fsdp_variables(const CommandLine& line, const ImportContext& context);
bool is_fsdp_variable(const std::string& variable);

// diffsynth, deepspeed
const Dialect& diffsynth_command();  ///< DiffSynth-Studio, its old form and its new one
const Dialect& deepspeed_config();   ///< ds_config.json

// musubi
const Dialect& musubi_command();  ///< musubi-tuner's wan_train_network.py
const Dialect& musubi_dataset();  ///< its data set TOML

// diffusion_pipe
const Dialect& diffusion_pipe_command();  ///< deepspeed train.py --deepspeed --config c.toml
const Dialect& diffusion_pipe_config();   ///< that TOML
const Dialect& diffusion_pipe_dataset();  ///< the data set TOML it names

// ai_toolkit
const Dialect& ai_toolkit_config();  ///< its YAML
/// Takes away what stands before the names of the one process and the one data set that are read.
void ai_toolkit_names(std::vector<Given>& given);

// diffusers
const Dialect& dreambooth_command();  ///< train_dreambooth_lora_sana.py

// sana
const Dialect& sana_config();   ///< NVlabs' YAML of Sana, and its keys without their dashes
const Dialect& sana_command();  ///< torchrun train.py --config_path C.yaml --train.lr ...: those keys as flags
/// Flags of train.py are the keys of its YAML, which stand below them.
Translation translate_sana(const CommandLine& line, std::vector<Given> flags, const ImportContext& context);

// simpletuner
const Dialect& simpletuner_config();   ///< config.json
const Dialect& simpletuner_dataset();  ///< an entry of the multidatabackend.json that it names
const Dialect& simpletuner_lycoris();  ///< the lycoris_config.json that it names
/// Its keys without their dashes.
void simpletuner_names(std::vector<Given>& given);

// onetrainer
const Dialect& onetrainer_config();   ///< its config.json, which may have the concepts in it
const Dialect& onetrainer_concept();  ///< an entry of its concepts.json

// videox_fun
const Dialect& videox_command();  ///< VideoX-Fun's train.py and train_lora.py of Wan

// opensora
const Dialect& opensora_config();   ///< Open-Sora 2.0's configurations in Python, and flags over them
const Dialect& opensora1_config();  ///< those of 1.2 and 1.3
/// A configuration of Open-Sora, of 1.x or 2.0 by what it has. Throws UserError (usage) for models that are not there.
Translation translate_opensora_config(std::vector<Given> given, const ImportContext& context);
/// Flags stand over the names of the file: --optim.lr 1e-5, with - or _ between words.
Translation translate_opensora(const CommandLine& line, const ImportContext& context);

const Dialect& colossalai_plugin();  ///< HybridParallelPlugin's arguments, as plugin_config.*
/// Names the arguments of a plugin so, where a file has them by themselves.
void name_plugin_arguments(std::vector<Given>& given);

// hunyuan
const Dialect& hunyuan_command();  ///< HunyuanVideo-1.5's train.py

// wan
const Dialect& generate_line();  ///< Wan's generate.py
const Dialect& training_line();  ///< --task s2v-14B --ckpt_dir D ... --max_steps N

/// In the order of `tessera import --table`.
const std::vector<const Dialect*>& dialects();

}  // namespace tessera::tools
