#include "tessera/tools/import/import.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

/// Keys of two tables under one name, the second one's over the first's, wherever they stand: [general] and [[datasets]].
void tables_as_one(std::vector<Given>& given, std::string_view general, std::string_view first) {
  std::vector<Given> out;
  std::set<std::string> own;
  for (Given& g : given) {
    if (g.typed.empty()) g.typed = g.name;
    if (!general.empty()) strip_prefix(g.name, general);
    if (strip_prefix(g.name, first)) {
      own.insert(g.name);
      std::erase_if(out, [&](const Given& other) { return other.name == g.name; });
    } else if (own.contains(g.name)) {
      continue;
    }
    out.push_back(std::move(g));
  }
  given = std::move(out);
}

/// The options of a file with its `set`-th data set alone, as if it were the first; none where there is no such set.
std::vector<Given> with_set(const std::vector<Given>& given, const std::string& list, size_t set) {
  const std::string own = list + std::to_string(set) + ".";
  if (std::ranges::none_of(given, [&](const Given& g) { return g.name.starts_with(own); })) return {};
  std::vector<Given> of_set;
  for (Given g : given) {
    if (g.name.starts_with(list) && !g.name.starts_with(own)) continue;
    g.typed = g.name;
    if (strip_prefix(g.name, own)) g.name.insert(0, list + "0.");
    of_set.push_back(std::move(g));
  }
  return of_set;
}

void keys_as_flags(std::vector<Given>& given) {
  for (Given& g : given) {
    g.typed = g.name;
    g.name = "--" + g.name.substr(g.name.rfind('.') + 1);  // musubi-tuner ignores the names of sections
    if (g.value == "true") g.value.clear();
  }
  std::erase_if(given, [](const Given& g) { return g.value == "false"; });
}

struct FileForm {
  const char* ending;
  const Dialect& (*dialect)();
  void (*normalise)(std::vector<Given>&);
  const char* sets = nullptr;  ///< the list of its data sets
};
const FileForm kFiles[] = {
    {".json", deepspeed_config, nullptr},
    {".json", accelerate_config, bare_words},
    {".json", colossalai_plugin, name_plugin_arguments},
    {".json", simpletuner_config, simpletuner_names},
    {".json", onetrainer_config, nullptr},
    {".yaml", accelerate_config, bare_words},
    {".yml", accelerate_config, bare_words},
    {".toml", diffusion_pipe_config, nullptr},
    {".toml", diffusion_pipe_dataset, [](std::vector<Given>& g) { tables_as_one(g, "", "directory.0."); },
     "directory."},
    {".toml", musubi_dataset, [](std::vector<Given>& g) { tables_as_one(g, "general.", "datasets.0."); }, "datasets."},
    {".toml", musubi_command, keys_as_flags},
    {".toml", accelerate_config, bare_words},
    {".yaml", ai_toolkit_config, ai_toolkit_names, "config.process.0.datasets."},
    {".yml", ai_toolkit_config, ai_toolkit_names, "config.process.0.datasets."},
    {".yaml", sana_config, nullptr},
    {".yml", sana_config, nullptr},
};

/// Options that the dialect knows.
size_t known_options(const Dialect& dialect, const std::vector<Given>& given) {
  return static_cast<size_t>(std::count_if(given.begin(), given.end(), [&](const Given& g) {
    return std::any_of(dialect.rules.begin(), dialect.rules.end(),
                       [&](const Rule& r) { return r.option == g.name || g.name.starts_with(r.option + "."); });
  }));
}

/// Options that are keys of a Tessera recipe.
size_t known_keys(const std::vector<Given>& given) {
  return static_cast<size_t>(
      std::ranges::count_if(given, [](const Given& g) { return recipe::recipe_table().find(g.name) != nullptr; }));
}

/// Programs that are recognised and not read; the rows `typical` are of options that no program has that is read.
const std::vector<Dialect>& unread_programs() {
  static const std::vector<Dialect> all = [] {
    std::vector<Dialect> programs;
    for (const char* table : {"kohya", "finetrainers", "torchtitan"}) programs.push_back(read_dialect("unread", table));
    return programs;
  }();
  return all;
}

/// Throws UserError (usage) where the options are of one of them: two typical ones, or one and more that it knows than
/// `known`, which is of the nearest program that is read.
void refuse_unread(const std::vector<Given>& given, const std::string& what, size_t known) {
  for (const Dialect& program : unread_programs()) {
    size_t typical = 0, all = 0;
    std::string counterparts;
    for (const Rule& rule : program.rules)
      for (const Given& g : given) {
        if (g.name != rule.option) continue;
        ++all;
        if (rule.becomes == "typical")
          ++typical;
        else
          counterparts += "\n  " + (g.typed.empty() ? g.name : g.typed) + ": " + rule.becomes;
      }
    if (typical < 2 && !(typical == 1 && all > known)) continue;
    throw UserError(Exit::usage, "import", what + " is " + program.from + ", which import does not read",
                    counterparts.empty() ? "none of its options has a counterpart in a recipe"
                                         : "these of its options have a counterpart in a recipe:" + counterparts);
  }
}

const Dialect& of_command(const CommandLine& line) {
  const std::string script = line.script.substr(line.script.rfind('/') + 1);
  if (script.starts_with("wan_cache"))
    throw UserError(Exit::usage, "import", script + " fills a cache",
                    "tessera prepare RECIPE does: import the command that trains");
  if (script == "generate.py") return generate_line();
  if (script == "train_dreambooth_lora_sana.py") return dreambooth_command();
  if (script.starts_with("train_dreambooth"))
    throw UserError(Exit::usage, "import", script + " trains another model",
                    "of these scripts train_dreambooth_lora_sana.py is read");
  if (line.words.size() > 1 && line.words[0] == "--config" && line.words[1].ends_with(".py")) return opensora_config();
  const Dialect* best = nullptr;
  size_t most = 0;
  for (const auto& dialect : {diffsynth_command, musubi_command, training_line, generate_line, diffusion_pipe_command,
                              sana_command, dreambooth_command, videox_command, hunyuan_command}) {
    std::vector<Given> options;
    for (const std::string& word : line.words)
      if (word.starts_with("--")) options.push_back({word.substr(0, word.find('=')), ""});
    if (const size_t n = known_options(dialect(), options); n > most) most = n, best = &dialect();
  }
  std::vector<Given> flags;
  for (const std::string& word : line.words)
    if (word.starts_with("--")) flags.push_back({word.substr(0, word.find('=')), ""});
  refuse_unread(flags, script.empty() ? "this command" : script, most);
  if (best) return *best;
  throw UserError(
      Exit::usage, "import", "no option of this command is known" + (script.empty() ? "" : ": " + script),
      "commands of DiffSynth, musubi-tuner, diffusion-pipe, VideoX-Fun, Sana, Open-Sora, HunyuanVideo-1.5 and generate.py are read; tessera import --table "
      "lists their options");
}

// ---- the table of all options ------------------------------------------------------------------------------------------

/// A cell of a Markdown table: bars would end it.
std::string table_cell(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

bool details_another(const Rule& rule) { return std::string_view(rule.becomes).starts_with("it belongs to "); }

std::string counts_of(const Dialect& dialect) {
  const auto refused =
      std::ranges::count_if(dialect.rules, [](const Rule& rule) { return rule.becomes.starts_with("refused: "); });
  return std::to_string(dialect.rules.size()) + " options are known, " + std::to_string(refused) +
         " of them always refused; any other is named as unknown.\n\n";
}

/// A row for each outcome, in the order of the rules, with all options that have it.
std::string rows_of(const Dialect& dialect) {
  std::string text;
  for (size_t i = 0; i < dialect.rules.size(); ++i) {
    const Rule& rule = dialect.rules[i];
    const auto same = [&](const Rule& other) { return other.becomes == rule.becomes; };
    const auto begin = dialect.rules.begin(), here = begin + static_cast<long>(i);
    if (details_another(rule) || std::any_of(begin, here, same)) continue;
    std::string options;
    for (const Rule& other : dialect.rules)
      if (same(other)) options += (options.empty() ? "`" : ", `") + other.option + "`";
    text += "| " + options + " | " + table_cell(rule.becomes) + " |\n";
  }
  return text;
}

}  // namespace

Translation import_file(const std::string& path, const ImportContext& context) {
  ImportContext inside = context;
  inside.folder = fs::path(path).parent_path().string();
  const std::string ending = fs::path(path).extension().string();
  if (ending == ".sh" || ending == ".txt") {
    check_input(fs::is_regular_file(path), "import", path + ": there is no such file", "check the path");
    return import_command(checkpoint::read_text(path), inside);
  }
  const std::vector<Given> given = read_config(path);
  if (ending == ".py" && known_options(opensora_config(), given) + known_options(opensora1_config(), given) > 0) {
    Translation result = translate_opensora_config(given, inside);
    result.from += ", " + path;
    return result;
  }
  const FileForm* best = nullptr;
  size_t most = 0;
  std::vector<Given> options;
  for (const FileForm& form : kFiles) {
    if (ending != form.ending) continue;
    std::vector<Given> tried = given;
    if (form.normalise) form.normalise(tried);
    if (const size_t n = known_options(form.dialect(), tried); n > most)
      most = n, best = &form, options = std::move(tried);
  }
  std::vector<Given> flags = given;
  keys_as_flags(flags);
  for (const std::vector<Given>& names : {given, flags}) refuse_unread(names, path, most);
  if (ending == ".toml" && known_keys(given) > most)
    throw UserError(Exit::usage, "import", path + " is already a Tessera recipe",
                    "tessera train " + path + " trains it, tessera plan " + path + " plans it");
  if (!best)
    throw UserError(
        Exit::usage, "import", path + ": no option in it is known",
        "the .json of DeepSpeed, SimpleTuner or OneTrainer, the .yaml of accelerate, ai-toolkit or Sana, the .toml of musubi-tuner or "
        "diffusion-pipe, Open-Sora's .py are read");
  std::vector<Translation> sets;
  for (size_t s = 0; best->sets; ++s) {
    std::vector<Given> own = with_set(given, best->sets, s);
    if (own.empty()) break;
    best->normalise(own);
    sets.push_back(translate(best->dialect(), std::move(own), inside));
  }
  if (sets.size() < 2) sets = {translate(best->dialect(), std::move(options), inside)};
  Translation result = of_data_sets(sets);
  result.from += ", " + path;
  return result;
}

void put_instruction_beside(Translation& translation, const std::string& recipe) {
  for (Translation::Setting& setting : translation.settings) {
    if (setting.key != "data.instruction" || setting.value.find('\n') == std::string::npos) continue;
    const fs::path file = fs::path(recipe).replace_extension(".instruction.txt");
    checkpoint::write_text(file, setting.value);
    setting.value = file.string();
  }
}

Translation import_command(const std::string& text, const ImportContext& context) {
  const CommandLine line = read_command(text);
  const Dialect& dialect = of_command(line);
  ImportContext inside = context;
  Translation launcher;
  if (!line.launcher_words.empty()) {
    launcher = translate_launcher(line, context);
    if (inside.ranks == 0) inside.ranks = launcher.ranks;
    inside.accumulation = launcher.accumulation;
  }
  const bool opensora = &dialect == &opensora_config();
  std::vector<Given> given = opensora ? std::vector<Given>{} : read_options(dialect, line.words);
  if (&dialect == &musubi_command())  // keys of its file are flags, and flags win
    for (const Given& g : std::vector<Given>(given))
      if (g.name == "--config_file") {
        std::vector<Given> file = read_config(file_beside(context, g.value));
        keys_as_flags(file);
        given.insert(given.begin(), file.begin(), file.end());
      }
  Translation result = opensora                      ? translate_opensora(line, inside)
                       : &dialect == &sana_command() ? translate_sana(line, std::move(given), inside)
                                                     : translate(dialect, std::move(given), inside);
  result.merge(launcher);
  result.merge(translate_fsdp_variables(line, inside));
  for (const std::string& variable : line.variables)
    if (!is_fsdp_variable(variable))
      result.implied.push_back({variable, "a variable: set it where tessera is started"});
  return result;
}

const std::vector<const Dialect*>& dialects() {
  static const std::vector<const Dialect*> all = {
      &training_line(),          &generate_line(),         &deepspeed_config(),       &accelerate_config(),
      &torchrun_launcher(),      &diffsynth_command(),     &musubi_command(),         &musubi_dataset(),
      &diffusion_pipe_command(), &diffusion_pipe_config(), &diffusion_pipe_dataset(), &sana_config(),
      &opensora_config(),        &opensora1_config(),      &colossalai_plugin(),      &dreambooth_command(),
      &ai_toolkit_config(),      &simpletuner_config(),    &simpletuner_dataset(),    &simpletuner_lycoris(),
      &onetrainer_config(),      &onetrainer_concept(),    &videox_command(),         &hunyuan_command()};
  return all;
}

std::string import_table(const std::string& program) {
  std::string text;
  for (const Dialect* dialect : dialects()) {
    std::string name = dialect->name;
    name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
    if (lower_case(name).find(lower_case(program)) == std::string::npos) continue;
    text += (text.empty() ? "" : "\n") + ("## " + name) + "\n\n" + counts_of(*dialect) +
            "| option | converted to |\n|---|---|\n" + rows_of(*dialect);
  }
  if (!text.empty()) return text;
  std::string names;
  for (const Dialect* dialect : dialects()) names += (names.empty() ? "" : ", ") + dialect->name;
  throw UserError(Exit::usage, "import", "--table " + program + ": no program whose options are read is called that",
                  "give a part of one of these names: " + names);
}

}  // namespace tessera::tools
