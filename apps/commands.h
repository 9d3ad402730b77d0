#pragma once
// The subcommands: one file each, parse and call one function.
#include <string>
#include <utility>
#include <vector>

namespace tessera::apps {

/// A flag of a command itself (recipe keys are flags of every command that takes a recipe).
struct Flag {
  std::string name;   ///< "--json"
  std::string value;  ///< "FILE"; empty: a switch
  std::string help;
  std::string alias = {};              ///< "-n"
  std::vector<std::string> also = {};  ///< what other programs call it: taken, not shown
};

/// A flag of a similar program that this one does not have, and what to do instead.
struct Elsewhere {
  std::string name, instead;
};

/// The value of a flag that may be followed by true or false.
inline constexpr const char* kOptionalBool = "[true|false]";
/// The value of a flag that may be followed by the file of a picture, known by its ending.
inline constexpr const char* kOptionalPicture = "[FILE]";

struct Command {
  std::string name, summary, usage, example;
  bool recipe_keys = false;        ///< accepts --table.key VALUE
  std::vector<Flag> foreign = {};  ///< options of other programs that it takes beside its own (foreign.h)
  bool rest_is_verbatim = false;   ///< everything from the first word on belongs to another command (launch)
  std::vector<Flag> flags;
  std::vector<Elsewhere> elsewhere = {};
  int (*run)(const struct Arguments&) = nullptr;
};

/// What was typed after the command's name.
struct Arguments {
  const Command* command = nullptr;
  std::vector<std::string> words;                              ///< without a dash: RECIPE, CASE...
  std::vector<std::pair<std::string, std::string>> flags;      ///< name without alias, value ("" for a switch)
  std::vector<std::pair<std::string, std::string>> foreign;    ///< options of other programs
  std::vector<std::pair<std::string, std::string>> overrides;  ///< recipe keys, and "mesh"
  std::vector<std::string> all;                                ///< as typed

  bool has(const std::string& flag) const;
  std::string value(const std::string& flag, const std::string& absent = {}) const;
  std::vector<std::string> values(const std::string& flag) const;
  /// The flag's number, at least 0. Throws UserError (usage) for other text.
  double number(const std::string& flag, double absent) const;
  /// The one word that must be there. Throws UserError (usage) saying what is missing.
  const std::string& only_word(const std::string& what) const;
};

const std::vector<Command>& commands();
/// Does what main() does, with the arguments of a rank.
[[noreturn]] void run_rank(const std::vector<std::string>& arguments, int threads);
/// Throws UserError (usage) naming the nearest flag or key.
Arguments parse(const Command& command, const std::vector<std::string>& typed);

Command launch_command();
Command train_command();
Command prepare_command();
Command sample_command();
Command plan_command();
Command verify_command();
Command probe_command();
Command simulate_command();
Command bench_command();
Command top_command();
Command report_command();
Command completion_command();
Command man_command();
Command import_command();
Command inspect_command();
Command list_command();
Command convert_command();

// What --help and --version print (help.cpp): of a command as much as fits a terminal, of its recipe keys a table at a time
// or all.
//
//   tessera train --help            its flags and the keys that most runs set
//   tessera train --help plan       every key of [plan]
//   tessera train --help-all        every key, and the options of other programs that are taken
std::string help(const Command& command);
/// Throws UserError (usage) naming the nearest table.
std::string help_on(const Command& command, const std::string& table);
std::string help_all(const Command& command);
/// Two lines: the program's version and commit, and LibTorch's version with the vector instructions it found.
std::string version();

}  // namespace tessera::apps
