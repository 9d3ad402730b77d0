#pragma once
// What a recipe can name: the presets of models and encoders, the machines of plans, the optimisers.
//
//   for (const Entry& entry : entries_of("presets")) entry.name, entry.facts;     // "sana-1.6b", {"parameters", "1.6 B"}
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::job {

struct Entry {
  std::string name;                                        ///< what the recipe's key takes
  std::vector<std::pair<std::string, std::string>> facts;  ///< heading and value; all entries of a kind have the same
};

struct Kind {
  std::string_view name;  ///< "presets"
  std::string_view key;   ///< of the recipe
  std::vector<Entry> (*entries)();
};

/// presets, autoencoders, encoders, profiles, optimizers.
const std::vector<Kind>& catalogue();
/// Throws UserError (usage) naming the nearest kind.
const Kind& catalogue_kind(std::string_view name);

/// Of presets that were released: repository, files with their sizes, the command that fetches them.
std::vector<Entry> preset_files();

/// The encoders that a preset takes, by name. Of a released size the released ones that make embeddings, and latents of
/// as many channels, as the model reads; empty where there is none. Of a size of ours the family's defaults.
struct Partners {
  std::string autoencoder, text_encoder;
};
Partners partners_of(const std::string& preset);

}  // namespace tessera::job
