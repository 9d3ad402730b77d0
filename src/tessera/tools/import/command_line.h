#pragma once
// A command line of another program, as it is typed or stands in a script: variables, launcher, script, options.
//
//   CommandLine line = read_command("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 2 train.py --lr 1e-4");
//   std::vector<Given> options = read_options(diffsynth(), line.words);
#include <string>
#include <vector>

#include "tessera/tools/import/dialect.h"

namespace tessera::tools {

struct CommandLine {
  std::vector<std::string> variables;  ///< "NAME=VALUE"
  std::string launcher;                ///< "accelerate", "torchrun", "deepspeed", "colossalai", "python", or empty
  std::vector<std::string> launcher_words;
  std::string script;              ///< "examples/wanvideo/train_wan_t2v.py"; empty: options alone
  std::vector<std::string> words;  ///< after it
};

/// Words as a shell makes them: quotes, backslashes, lines that go on, comments. Throws UserError (usage) for a quote
/// that does not end.
std::vector<std::string> shell_words(const std::string& text);

/// Of a script that is more than a command, the first that starts ranks, with the script's variables ($NAME, ${NAME})
/// filled in; "$@" stands for nothing. `bash X.sh C.yaml ...` is X.sh with --config_path C.yaml, `X.py C.py ...` is X.py
/// with --config C.py. Throws UserError (usage) naming a variable that is not set, and where several lines start a
/// trainer, with their numbers.
CommandLine read_command(const std::string& text);

/// Options with what belongs to them by the dialect's table; --name=value as well. An unknown one takes the words up to
/// the next option. Throws UserError (usage) for words that belong to none and for options that lack their value.
std::vector<Given> read_options(const Dialect& dialect, const std::vector<std::string>& words);

}  // namespace tessera::tools
