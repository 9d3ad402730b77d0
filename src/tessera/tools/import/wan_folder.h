#pragma once
// Where the parts of a released Wan model lie.
//
//   const WanTask& task = wan_task("t2v-A14B");
//   set_wan_folder(translator, task, "Wan2.2-T2V-A14B", {"--ckpt_dir"});   // model.path, data.vae, data.tokenizer ...
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/families/wan.h"
#include "tessera/tools/import/dialect.h"

namespace tessera::tools {

using families::WanTask;

using families::kDiffSynthCommon;
using families::kDiffSynthTokenizer;

/// Throws UserError (usage) naming the nearest for an unknown task, and the reason for one that is not there.
const WanTask& wan_task(const std::string& name);

/// The keys that name a release's parts. A folder that is there is looked into, and what it lacks is said; one that is
/// not is taken to be laid out as the official release. Throws UserError (input) when the folder is of another task.
void set_wan_folder(Translator& t, const WanTask& task, const std::string& folder,
                    const std::vector<std::string>& options);

/// The keys of the encoders beside a model of no task that is told, in a folder as set_wan_folder takes it; what is
/// elsewhere is left to the caller. Of a folder that is not here Wan 2.1's are named, but for CLIP.
enum class TextEncoder { in_folder, elsewhere };
void set_wan_encoders(Translator& t, const std::string& folder, const std::vector<std::string>& options,
                      TextEncoder text);

/// The encoders beside weights that were named by their files, where they are there and no key names others: in the
/// folder of the weights, or above it if that is an expert's.
void find_encoders_beside(Translator& t, const std::string& weights);

/// Where DiffSynth keeps a file of a release, below models/: T5, both VAEs and CLIP converted in kDiffSynthCommon, unless
/// that is switched off there and the release's own file was fetched.
std::string kept_by_diffsynth(const std::filesystem::path& own);
/// The encoders that it keeps for all models, of which one takes those of its release; where no key names others.
void find_converted_encoders(Translator& t, const std::string& weights);

/// What holds all these shards of one model: the file, their folder, or the folder of both experts. Throws UserError
/// (usage) naming `option` for files of two models.
std::string folder_of_shards(const std::vector<std::string>& files, const std::string& option);

/// The file of SentencePiece in a tokenizer's folder.
std::string tokenizer_in(const std::string& folder);

}  // namespace tessera::tools
