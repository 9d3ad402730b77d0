#pragma once
// The result of importing another trainer's options: recipe keys that they set, options that need none, and refused
// ones.
//
//   Translation t = import_file("ds_config.json", {});
//   std::cout << t.to_toml();              // lr = 1e-4    # optimizer.params.lr = 1e-4
//   load_recipe("", t.overrides());
#include <string>
#include <vector>

#include "tessera/recipe/recipe.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::tools {

struct Translation {
  struct Setting {
    std::string key, value;  ///< of a recipe
    std::string because;     ///< the options it comes from, and how where that is more than a copy
    bool assumed = false;    ///< no option said it: it is what the other program does of itself
  };
  struct Remark {
    std::string option;  ///< as it was given
    std::string why;
  };

  std::string from;               ///< "a DeepSpeed configuration"
  std::vector<Setting> settings;  ///< each key once; what is said replaces what is assumed
  std::vector<Remark> implied;    ///< holds without a key
  /// What has no effect though training goes on: logging and monitoring that is not there, files that are missing.
  std::vector<Remark> warned;
  std::vector<Remark> refused;  ///< cannot be had, with the reason
  /// What the configuration's writer has to mend: an option that its program does not have, two that say different things.
  std::vector<Remark> mistakes;
  int ranks = 0;         ///< that the command starts; 0: not said
  int accumulation = 1;  ///< that the launcher's configuration says, for the trainer's batch
  std::string file;      ///< of a sampled clip (generate.py); empty: not said
  std::string prompt;    ///< of it

  /// A key that is set twice with two values keeps the first, and is a mistake that names both options.
  void set(const std::string& key, const std::string& value, const std::string& because, bool assumed = false);
  const Setting* find(const std::string& key) const;
  /// Adds what another file of the same command says.
  void merge(const Translation& other);
  recipe::Overrides overrides() const;
  /// The recipe, each key with the options it comes from, and a comment for every other option.
  std::string to_toml() const;
  /// A line an option, for the log; without `warned` and `mistakes`.
  std::vector<std::string> lines() const;
  /// Throws UserError (usage) that names every mistake and everything refused; `act` is the command that cannot go on.
  void refuse_to(const std::string& act) const;
};

/// The data sets of one configuration, each as it was translated by itself, as [[data.set]]: what they all say alike stays
/// in [data], and what a run has once is that of the first. What a set alone may have is said by keys of data.set.0. One
/// set without such keys stays as it is.
Translation of_data_sets(const std::vector<Translation>& sets);

}  // namespace tessera::tools
