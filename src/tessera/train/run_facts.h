#pragma once
// The identity of a run in its checkpoints: facts that a resuming run must share, and the recipe, of which other
// changes are logged.
//
//   Values facts = run_facts(recipe, job);                                // "lora.rank" -> "16", "base" -> "3f2a..."
//   require_same(facts, saved.manifest());                                // before anything of the run is written
//   for (const Change& change : changes(resolved, saved.manifest())) log::info(change.text());
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/job/job.h"

namespace tessera::train {

/// One key that has another value than when a checkpoint was saved.
struct Change {
  std::string key, before, now;
  int64_t step = 0;  ///< of the checkpoint
  /// "changed since step 6: train.lr 1e-3 -> 1e-5"
  std::string text() const;
};

/// The model's config.json key by key, a fingerprint of the base's weights (names, shapes and sampled values, not their
/// path), seed, adapters, experts and objective.
Values run_facts(const recipe::Recipe& recipe, const job::Job& job);

/// The shortest text of a number that is read back as it.
std::string number_text(double value);

/// Whether two values of a key are the same text or number, or lists of the same, however they are written.
bool same_value(const std::string& a, const std::string& b);

/// The texts in a field of a saved object, and the value of a key; none where there is none.
Values values_of(const checkpoint::Json& json, const char* field);
std::string value_of(const Values& values, const std::string& key);

/// Every option of a recipe and of its stages, as text.
Values recipe_values(const recipe::Recipe& recipe);

/// The key beside those of a recipe that says what lay in the folders of its data.
inline constexpr const char* kDataSet = "data set";

/// Writes both into a manifest.
void save_facts(const Values& facts, const Values& recipe, checkpoint::Manifest& manifest);

/// Throws UserError (usage) naming every fact that differs from those of the checkpoint. One that was saved without
/// facts has its seed alone.
void require_same(const Values& facts, const checkpoint::Manifest& saved);

/// What differs in the recipe, and in facts where `run.resume_changes` allowed them to; how a run is resumed does not
/// count. What lies in the folders of its data does where no key of the data differs.
std::vector<Change> changes(const Values& facts, const Values& recipe, const checkpoint::Manifest& saved);

}  // namespace tessera::train
