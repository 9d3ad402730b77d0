#pragma once
// Conversions that several importers share: kinds of weight files by name, epochs to steps, learning-rate schedules.
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tools/import/dialect.h"

namespace tessera::tools {

/// Table TABLE of PROGRAM.toml, whose rows may name the functions of this header too: compute_type, optimiser,
/// swapped_blocks, comma_list (of a `key`) and one_item (a list of one, of a `key`).
Dialect dialect_of(const std::string& program, const std::string& table, std::function<void(Translator&)> together = {},
                   Functions functions = {});

/// A function of rows that have no key.
inline Functions::mapped_type plain(void (*function)(Translator&, const Given&)) {
  return [function](Translator& t, const Given& g, const std::string&) { function(t, g); };
}

/// Whether `name` began with `prefix`, which is then gone.
bool strip_prefix(std::string& name, std::string_view prefix);

/// Keys that an expert trained by itself and a LoRA's base have; refused as long as recipes lack them.
inline constexpr const char* kLeastTimestep = "diffusion.min_t";  ///< 0 to 1, after the shift
inline constexpr const char* kMostTimestep = "diffusion.max_t";
inline constexpr const char* kFrozenDtype = "lora.base_dtype";

/// plan.compute_dtype by any program's word for a type ("bf16", "torch.bfloat16", "no"); refused for others. What other
/// programs call mixed precision is this: products and activations are of that type, masters and states fp32.
void set_compute_type(Translator& t, const Given& given);
/// "fp32", "bf16" or "fp16" by the same words; empty for others.
std::string type_word(const std::string& text);

/// Files of weights by what their names tell: the denoiser's, text encoder's, VAE's ... keys are set. `files` may hold
/// the shards of one model, which is then named by their folder.
void set_weight_files(Translator& t, const std::vector<std::string>& files, const std::string& option);

/// run.steps of so many epochs of the data set that the translation names, which is read for it. Refuses `option` where
/// the data set is not here, saying what to set.
void set_epochs(Translator& t, const std::string& option, int64_t epochs);

/// The same of epochs that no option says; where the data set is not here it is told that they cannot be counted.
void assume_epochs(Translator& t, int64_t epochs);

/// Checkpoints every so many epochs, and measurements of the held-out loss: as set_epochs.
void set_checkpoint_epochs(Translator& t, const std::string& option, int64_t epochs);
void set_eval_epochs(Translator& t, const std::string& option, int64_t epochs);

/// Clips of an epoch, of the data sets that were named so far; 0 where one cannot be read.
int64_t clips_an_epoch(Translator& t);

/// checkpoint.keep of so many saves, and of a LoRA's as many of their files: checkpoint.keep_exports. 0 keeps all. Of no
/// `option` it is what the program does of itself, for which `because` is given.
void set_kept(Translator& t, const std::string& count, const std::string& option, const std::string& because = {});

/// train.warmup_steps of a number of steps, or of a share of run.steps, which a number below 1 is, and 1 where `one_is_all`.
/// Refuses a share where the steps are not known.
void set_warm_up(Translator& t, const std::string& option, bool one_is_all = false);

/// train.schedule for the names of diffusers and transformers; refused where there is no such schedule.
void set_schedule(Translator& t, const std::string& option);

// What scripts after diffusers' examples have in common: their options, and 500 steps of warm-up.
/// --lr_scheduler and --lr_warmup_steps; a constant rate has no warm-up.
void set_script_schedule(Translator& t);
/// --adam_beta1 and --adam_beta2.
void set_script_betas(Translator& t);
/// --train_batch_size and --gradient_accumulation_steps, --max_train_steps or --num_train_epochs. `usual` and `epochs`:
/// samples a rank and epochs where none are given.
void set_script_amount(Translator& t, int64_t usual, int64_t epochs);
/// --weighting_scheme with --logit_mean, --logit_std and --mode_scale: none and logit_normal are there. `uniform`: the draws
/// are uniform whatever it says.
void set_script_timesteps(Translator& t, bool uniform = false);

/// The optimisers by the names of their classes; refused otherwise.
void set_optimiser(Translator& t, const std::string& option);

/// lora.targets, in the names of the official weights: "to_q" and "attn1.to_out.0" are those of diffusers.
void set_targets(Translator& t, const std::string& option);

}  // namespace tessera::tools
