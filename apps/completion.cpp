// `tessera completion SHELL`: a script that completes commands, flags, recipe keys and their choices, all from the
// tables that the program itself parses with.
#include <cstdio>
#include <functional>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/recipe/recipe.h"
#include "tessera/recipe/recipe_table.h"

namespace tessera::apps {

namespace {

/// A flag as a shell sees it.
struct Offered {
  std::string name;  ///< with its dashes
  std::string help;
  bool takes_value = false;
  std::string choices;  ///< with spaces between; empty: a file's name
};

/// "mp4|gif|frames" is a list of choices, "FILE|DIR" the kind of a value.
std::string choices_of(const std::string& value) {
  std::string choices;
  for (char c : value) {
    if (c >= 'A' && c <= 'Z') return "";
    choices += c == '|' ? ' ' : c;
  }
  return choices.find(' ') == std::string::npos ? "" : choices;
}

std::vector<Offered> own_flags(const Command& command) {
  std::vector<Offered> offered;
  for (const Flag& flag : command.flags) {
    const bool takes_value = !flag.value.empty() && flag.value != kOptionalPicture;
    offered.push_back({flag.name, flag.help, takes_value, choices_of(flag.value)});
    if (!flag.alias.empty()) offered.push_back({flag.alias, flag.help, !flag.value.empty(), ""});
  }
  for (const Flag& flag : command.foreign)
    offered.push_back({flag.name, flag.help, !flag.value.empty() && flag.value != kOptionalBool, ""});
  offered.push_back({"--help", "help on the command", false, ""});
  return offered;
}

std::vector<Offered> recipe_flags() {
  std::vector<Offered> offered = {{"--mesh", "AXIS=N[,AXIS=N...]", true, ""}};
  for (const Option& option : recipe::recipe_table().options())
    offered.push_back({"--" + option.name, option.help, true, choices_of(option.choices)});
  return offered;
}

std::string replaced(const std::string& text, char from, const std::string& to) {
  std::string out;
  for (char c : text) out += c == from ? to : std::string(1, c);
  return out;
}
std::string quoted(const std::string& text) { return "'" + replaced(text, '\'', "'\\''") + "'"; }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string names(const std::vector<Offered>& offered) {
  std::string out;
  for (const Offered& o : offered) out += (out.empty() ? "" : " ") + o.name;
  return out;
}

/// `--format) WHAT "mp4 gif frames"; return ;;` for each flag with choices, once a name.
std::string choice_cases(const std::string& indent, const std::function<std::string(const std::string&)>& what) {
  std::string out, seen = " ";
  const auto add = [&](const std::vector<Offered>& offered) {
    for (const Offered& o : offered) {
      if (o.choices.empty() || seen.find(" " + o.name + " ") != std::string::npos) continue;
      seen += o.name + " ";
      out += indent + o.name + ") " + what(o.choices) + "; return ;;\n";
    }
  };
  for (const Command& command : commands()) add(own_flags(command));
  add(recipe_flags());
  return out;
}

std::string bash() {
  std::string known;
  for (const Command& command : commands()) known += (known.empty() ? "" : "|") + command.name;
  std::string out =
      "# bash completion of tessera:  source <(tessera completion bash)\n_tessera() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} i\n"
      "  local command=${COMP_WORDS[1]} flags=\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W '" +
      replaced(known, '|', " ") + "' -- \"$cur\"))\n    return\n  fi\n";
  out +=
      "  if [ \"$command\" = launch ]; then  # what is launched has flags of its own\n"
      "    for ((i = 2; i < COMP_CWORD; ++i)); do\n      case ${COMP_WORDS[i]} in\n        " +
      known + ") command=${COMP_WORDS[i]}; break ;;\n      esac\n    done\n  fi\n";
  out +=
      "  case $prev in\n" +
      choice_cases("    ", [](const std::string& c) { return "COMPREPLY=($(compgen -W '" + c + "' -- \"$cur\"))"; }) +
      "  esac\n  if [[ $cur == -* ]]; then\n    case $command in\n";
  for (const Command& command : commands())
    out += "      " + command.name + ") flags='" + names(own_flags(command)) + "'" +
           (command.recipe_keys ? "\" $_tessera_keys\"" : "") + " ;;\n";
  out +=
      "    esac\n    COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
      "  elif [ \"$command\" = launch ]; then\n    COMPREPLY=($(compgen -W '" +
      replaced(known, '|', " ") +
      "' -- \"$cur\"))\n"
      "  else\n    COMPREPLY=($(compgen -f -- \"$cur\"))\n  fi\n}\n_tessera_keys='" +
      names(recipe_flags()) + "'\ncomplete -o filenames -F _tessera tessera\n";
  return out;
}

std::string zsh_list(const std::string& name, const std::vector<Offered>& offered) {
  std::string out = "  " + name + "=(\n";
  for (const Offered& o : offered) out += "    " + quoted(o.name + ":" + o.help) + "\n";
  return out + "  )\n";
}

std::string zsh() {
  std::string out =
      "#compdef tessera\n# zsh completion of tessera:  tessera completion zsh > DIR_OF_FPATH/_tessera\n"
      "_tessera() {\n  local -a commands flags keys\n  commands=(\n";
  for (const Command& command : commands())
    out += "    " + quoted(command.name + ":" + first_line(command.summary)) + "\n";
  out += "  )\n" + zsh_list("keys", recipe_flags());
  out +=
      "  (( CURRENT == 2 )) && { _describe command commands; return }\n"
      "  local command=$words[2] word\n"
      "  if [[ $command == launch ]]; then\n"
      "    for word in ${words[3,CURRENT-1]}; do\n"
      "      [[ -n ${commands[(r)$word:*]} ]] && { command=$word; break }\n    done\n  fi\n"
      "  case $words[CURRENT-1] in\n" +
      choice_cases("    ", [](const std::string& c) { return "compadd " + c; }) + "  esac\n  case $command in\n";
  for (const Command& command : commands()) {
    out += "  " + command.name + ")\n" + zsh_list("flags", own_flags(command));
    if (command.recipe_keys) out += "  flags+=($keys)\n";
    out += "  ;;\n";
  }
  return out +
         "  esac\n  if [[ $PREFIX == -* ]]; then _describe flag flags\n"
         "  elif [[ $command == launch ]]; then _describe command commands\n  else _files\n  fi\n}\n"
         "if [[ $funcstack[1] == _tessera ]]; then _tessera; else compdef _tessera tessera; fi\n";
}

std::string fish() {
  const auto text = [](const std::string& t) { return "'" + replaced(replaced(t, '\\', "\\\\"), '\'', "\\'") + "'"; };
  std::string out = "# fish completion of tessera:  tessera completion fish | source\n";
  const auto flag = [&](const std::string& condition, const Offered& o) {
    const bool is_long = o.name.starts_with("--");
    out += "complete -c tessera -n " + text(condition) + (is_long ? " -l " : " -s ") + o.name.substr(is_long ? 2 : 1);
    if (o.takes_value) out += o.choices.empty() ? " -r" : " -x -a " + text(o.choices);
    out += " -d " + text(o.help) + "\n";
  };
  std::string with_recipe;
  for (const Command& command : commands()) {
    out += "complete -c tessera -n __fish_use_subcommand -f -a " + command.name + " -d " +
           text(first_line(command.summary)) + "\n";
    if (command.name != "launch")
      out += "complete -c tessera -n '__fish_seen_subcommand_from launch' -a " + command.name + "\n";
    for (const Offered& o : own_flags(command)) flag("__fish_seen_subcommand_from " + command.name, o);
    if (command.recipe_keys) with_recipe += " " + command.name;
  }
  for (const Offered& o : recipe_flags()) flag("__fish_seen_subcommand_from" + with_recipe, o);
  return out;
}

int run_completion(const Arguments& arguments) {
  static const std::vector<std::pair<std::string, std::string (*)()>> shells = {
      {"bash", bash}, {"zsh", zsh}, {"fish", fish}};
  const std::string& wanted = arguments.only_word("shell");
  std::vector<std::string> known;
  for (const auto& [name, script] : shells) {
    known.push_back(name);
    if (name != wanted) continue;
    std::fputs(script().c_str(), stdout);
    return 0;
  }
  throw UserError(Exit::usage, "completion", "no completion for '" + wanted + "'",
                  "did you mean " + nearest(wanted, known).front() + "? There are bash, zsh and fish");
}

}  // namespace

Command completion_command() {
  Command c;
  c.name = "completion";
  c.summary = "Prints a shell script that completes commands, flags and keys.";
  c.usage = "completion bash|zsh|fish";
  c.example = "source <(tessera completion bash)";
  c.run = run_completion;
  return c;
}

}  // namespace tessera::apps
