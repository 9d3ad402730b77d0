#pragma once
// Configurations and command lines of other trainers, recognised by their options and made into a recipe.
//
//   Translation t = import_file("ds_config.json", {.ranks = 8});
//   Translation t = import_command("accelerate launch --num_processes 8 train.py --dataset_base_path D ...", {});
//   std::cout << t.to_toml();
#include <string>

#include "tessera/tools/import/dialect.h"

namespace tessera::tools {

/// A DeepSpeed .json, accelerate's .yaml, the .toml of musubi-tuner or diffusion-pipe and of their data sets, or a
/// script (.sh, .txt) of one command. Throws UserError (input) for a file that is not there, (usage) for one that is of
/// none of them and for options that its program does not have.
Translation import_file(const std::string& path, const ImportContext& context);

/// One command with its launcher. Files that it names are read when they are there.
Translation import_command(const std::string& text, const ImportContext& context);

/// An instruction of several lines goes into a file beside the recipe that will be written at `recipe`
/// (RECIPE.instruction.txt for RECIPE.toml), and the recipe names it. Throws UserError (disk).
void put_instruction_beside(Translation& translation, const std::string& recipe);

/// A Markdown table of the options of each program whose title has `program` in it, of all where it is empty. Throws
/// UserError (usage) where none has.
std::string import_table(const std::string& program = {});

}  // namespace tessera::tools
