#pragma once
// Converts a training checkpoint of another trainer to ours, to resume from it: a file, torch.save({"model",
// "optimizer", "step"}), or a folder epoch*-global_step* of ColossalAI's trainers, as Open-Sora's (forms:
// checkpoint/foreign_states.h).
//
//   if (is_foreign_checkpoint(recipe.run.resume)) folder = adopt(recipe, job, facts, ranks);
//
// torch's AdamW has its moments by the number of the parameter ("optimizer.state.0.exp_avg"), FSDP.optim_state_dict by
// its name; both are read, of any floating dtype. Nothing else of the file counts: rates, order of the data and random
// numbers are those of the recipe at that step.
#include <filesystem>

#include "tessera/job/job.h"
#include "tessera/train/ranks.h"

namespace tessera::train {

/// Whether run.resume names a file or a trainer's folder, not a checkpoint of ours or a word.
bool is_foreign_checkpoint(const std::string& asked);

/// Writes weights, moments and step of what run.resume names to run.out/adopted/step-000500, a checkpoint from which a run
/// of any layout resumes, and gives the folder; one that was made of the same file before is kept. All ranks together:
/// each converts a part. `facts`: of this run. Throws UserError: (input) for a file that is none, lacks a tensor, has
/// another shape, or pickles of sharded tensors; (usage) for runs whose state such a file cannot have: adapters,
/// experts, another optimiser than AdamW.
std::filesystem::path adopt(const recipe::Recipe& recipe, const job::Job& job, const Values& facts, Ranks& ranks);

}  // namespace tessera::train
