// `tessera man`: the manual page, tessera(1), from the tables of commands and recipe keys.
#include <cstdio>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/recipe/recipe.h"
#include "tessera/recipe/recipe_table.h"

namespace tessera::apps {

namespace {

/// Text as troff takes it: hyphens that can be copied, and no line that looks like a request.
std::string escaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((i == 0 || text[i - 1] == '\n') && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }
std::string item(const std::string& head, const std::string& body) { return ".TP\n" + head + "\n" + body + "\n"; }

std::string command_section(const Command& command) {
  std::string out = ".SS " + escaped("tessera " + command.name) + "\n" + escaped(command.summary) + "\n.PP\n" +
                    bold("tessera " + command.usage) + "\n";
  for (const Flag& flag : command.flags)
    out += item((flag.alias.empty() ? "" : bold(flag.alias) + ", ") + bold(flag.name) +
                    (flag.value.empty() ? "" : " " + italic(flag.value)),
                escaped(flag.help));
  if (command.recipe_keys) out += ".PP\nEvery recipe key is a flag of this command too.\n";
  if (!command.foreign.empty()) {
    out += ".PP\nOptions of other programs, explained by tessera import \\-\\-table:";
    for (const Flag& flag : command.foreign) out += "\n" + bold(flag.name);
    out += "\n";
  }
  return out + ".PP\nExample:\n.PP\n.nf\n.RS\n" + escaped(command.example) + "\n.RE\n.fi\n";
}

std::string recipe_section() {
  std::string out, table;
  for (const Option& option : recipe::recipe_table().options()) {
    const std::string group = option.name.substr(0, option.name.find('.'));
    if (group != table) out += ".SS [" + escaped(group) + "]\n", table = group;
    std::string body = escaped(option.help);
    if (!option.choices.empty()) body += "; one of " + escaped(option.choices);
    if (!option.fallback.empty()) body += "; default " + escaped(option.fallback);
    out += item(bold("--" + option.name), body);
  }
  return out;
}

/// The exit codes of the contract in words.
const std::vector<std::pair<Exit, const char*>> kExits = {
    {Exit::done, "done"},
    {Exit::comparison, "a comparison failed (verify, plan --check)"},
    {Exit::usage, "command line, recipe or mesh"},
    {Exit::input, "unreadable or wrong data, checkpoint or case"},
    {Exit::no_fit, "the plan does not fit"},
    {Exit::rank_lost, "a rank was lost or timed out"},
    {Exit::not_finite, "stopped on NaN or infinity"},
    {Exit::disk, "disk full, or a write failed"},
    {Exit::memory, "the memory budget was exceeded"},
    {Exit::internal, "a fault in tessera: please report it"},
    {Exit::again, "stopped by a signal, with a complete checkpoint: start again to resume"}};

std::string page() {
  std::string out =
      ".TH TESSERA 1 \"\" \"Tessera\" \"User Commands\"\n.SH NAME\ntessera \\- trains video diffusion transformers\n"
      ".SH SYNOPSIS\n" +
      bold("tessera") + " " + italic("COMMAND") + " ...\n.br\n" + bold("tessera launch -n") + " " + italic("N") + " " +
      bold("train") + " " + italic("RECIPE") + " [" + bold("--") + italic("table.key VALUE") +
      " ...]\n.SH DESCRIPTION\n"
      "Tessera trains video diffusion transformers, on one rank or many. A recipe, a TOML file, describes a run;\n"
      "every key of it is a flag as well, and the flag wins. The program predicts memory and time before step 1 and\n"
      "rejects runs that do not fit.\n.SH COMMANDS\n";
  for (const Command& command : commands()) out += command_section(command);
  out += ".SH RECIPE KEYS\nAs flags; in a recipe, " + bold("--train.lr 1e-4") + " is " + bold("lr = 1e-4") + " under " +
         bold("[train]") + ". " + bold("--mesh") + " " + italic("AXIS=N[,AXIS=N...]") + " sets the whole mesh.\n" +
         recipe_section();
  out += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : kExits)
    out += item(bold(std::to_string(static_cast<int>(code))), escaped(meaning));
  out += ".SH FILES\n";
  for (const auto& [file, meaning] : std::initializer_list<std::pair<const char*, const char*>>{
           {"RUN/recipe.toml", "the run with every default filled in; it reproduces the run"},
           {"RUN/plan.toml, RUN/plan.json, RUN/plan.txt", "the plan: to use again, for programs, for people"},
           {"RUN/metrics.jsonl", "loss, time and memory of every step, a JSON object a line"},
           {"RUN/events.out.tfevents.*", "the same for TensorBoard, with samples"},
           {"RUN/samples/, RUN/checkpoints/, RUN/model/", "clips, training checkpoints, the trained weights"},
           {"RUN/report.html", "the report, one page that needs nothing else"}})
    out += item(bold(file), escaped(meaning));
  return out;
}

int run_man(const Arguments& arguments) {
  if (!arguments.words.empty())
    throw UserError(Exit::usage, "man", "'" + arguments.words.front() + "' is one word too many", "tessera man");
  std::fputs(page().c_str(), stdout);
  return 0;
}

}  // namespace

Command man_command() {
  Command c;
  c.name = "man";
  c.summary = "Prints the manual page, in troff.";
  c.usage = "man";
  c.example = "tessera man | man -l -";
  c.run = run_man;
  return c;
}

}  // namespace tessera::apps
