#include "tessera/tools/import/import.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/sana_parts.h"
#include "tessera/tools/options/command_line.h"
#include "tessera/tools/options/config_file.h"
#include "tessera/tools/options/fsdp_words.h"
#include "tessera/tools/options/python_config.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

bool strip_prefix(std::string& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.erase(0, prefix.size());
  return true;
}

/// Keys of two tables under one name, the second one's over the first's: [general] and [[datasets]].
void tables_as_one(std::vector<Given>& given, std::string_view general, std::string_view first) {
  std::vector<Given> out;
  for (Given& g : given) {
    g.typed = g.name;
    if (!general.empty()) strip_prefix(g.name, general);
    if (strip_prefix(g.name, first)) std::erase_if(out, [&](const Given& other) { return other.name == g.name; });
    out.push_back(std::move(g));
  }
  given = std::move(out);
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
};
const FileForm kFiles[] = {
    {".json", deepspeed_config, nullptr},
    {".json", accelerate_config, bare_words},
    {".yaml", accelerate_config, bare_words},
    {".yml", accelerate_config, bare_words},
    {".toml", diffusion_pipe_config, nullptr},
    {".toml", diffusion_pipe_dataset, [](std::vector<Given>& g) { tables_as_one(g, "", "directory.0."); }},
    {".toml", musubi_dataset, [](std::vector<Given>& g) { tables_as_one(g, "general.", "datasets.0."); }},
    {".toml", musubi_command, keys_as_flags},
    {".toml", accelerate_config, bare_words},
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
                              sana_command, dreambooth_command}) {
    std::vector<Given> options;
    for (const std::string& word : line.words)
      if (word.starts_with("--")) options.push_back({word.substr(0, word.find('=')), ""});
    if (const size_t n = known_options(dialect(), options); n > most) most = n, best = &dialect();
  }
  if (best) return *best;
  throw UserError(
      Exit::usage, "import", "no option of this command is known" + (script.empty() ? "" : ": " + script),
      "commands of DiffSynth, musubi-tuner, diffusion-pipe, Sana, Open-Sora and generate.py are read; tessera import --table "
      "lists their options");
}

/// FSDP's variables as accelerate reads them, where they say that FSDP is used.
bool is_fsdp_variable(const std::string& variable) {
  return variable.starts_with("FSDP_") || variable.starts_with("ACCELERATE_");
}
Translation fsdp_variables(const CommandLine& line, const ImportContext& context) {
  std::vector<Given> given;
  for (const std::string& variable : line.variables) {
    if (!is_fsdp_variable(variable)) continue;
    const size_t equal = variable.find('=');
    std::string name = lower_case(variable.substr(0, equal));
    if (!strip_prefix(name, "fsdp_")) strip_prefix(name, "accelerate_");
    if (name == "transformer_cls_to_wrap") name = "transformer_layer_cls_to_wrap";
    given.push_back({name, variable.substr(equal + 1), variable.substr(0, equal)});
  }
  return translate(accelerate_config(), std::move(given), context);
}

/// Flags of train.py are the keys of its YAML, which stand below them.
Translation translate_sana(const CommandLine& line, std::vector<Given> flags, const ImportContext& context) {
  std::vector<Given> given;
  Translation result;
  for (const Given& flag : flags)
    if (flag.name == "--config_path") {
      for (Given& g : read_config(file_beside(context, flag.value))) given.push_back(std::move(g));
      result.implied.push_back({flag.shown(), "its keys; flags win"});
    }
  for (Given& flag : flags) {
    if (flag.name == "--config_path") continue;
    flag.typed = flag.name;
    strip_prefix(flag.name, "--");
    given.push_back(std::move(flag));
  }
  const std::string script = line.script.substr(line.script.rfind('/') + 1);
  if (script.starts_with("train_scm_ladd")) result.refused.push_back({script, kSprint});
  result.merge(translate(sana_config(), std::move(given), context));
  result.from = sana_command().from;
  return result;
}

/// A configuration of Open-Sora, of 1.x or 2.0 by what it has.
Translation translate_opensora_config(std::vector<Given> given, const ImportContext& context) {
  const bool first = is_opensora1(given);
  if (first)
    opensora1_options(given);
  else
    opensora_options(given);
  return translate(first ? opensora1_config() : opensora_config(), std::move(given), context);
}

/// Flags stand over the names of the file: --optim.lr 1e-5, with - or _ between words.
Translation translate_opensora(const CommandLine& line, const ImportContext& context) {
  const std::string file = file_beside(context, line.words[1]);
  nlohmann::ordered_json config = read_python_config(file);
  const bool first = is_opensora1(flat_options(config, file));
  for (size_t i = 2; i < line.words.size(); ++i) {
    std::string name = line.words[i];
    const bool is_switch = first && (name == "--start-from-scratch" || name == "--record-time");
    if (!strip_prefix(name, "--") || name.empty() || (!is_switch && i + 1 == line.words.size()))
      throw UserError(Exit::usage, "import", "'" + line.words[i] + "': expected --NAME VALUE",
                      "every flag of this trainer has a value, --wandb True");
    std::ranges::replace(name, '-', '_');
    if (first) name = opensora1_key(name);
    nlohmann::ordered_json* at = &config;
    for (size_t begin = 0, dot = 0; dot != std::string::npos; begin = dot + 1) {
      dot = name.find('.', begin);
      if (!at->is_object()) *at = nlohmann::ordered_json::object();
      at = &(*at)[name.substr(begin, dot - begin)];
    }
    *at = is_switch ? nlohmann::ordered_json(true) : python_value(line.words[++i]);
  }
  Translation result = translate_opensora_config(flat_options(config, file), context);
  result.from = "a command of Open-Sora's train.py";
  return result;
}

/// What starts the ranks, by its own table.
Translation launcher_options(const CommandLine& line, const ImportContext& context) {
  const bool accelerate = line.launcher == "accelerate";
  const Dialect& dialect = accelerate ? accelerate_config() : torchrun_launcher();
  if (!accelerate) return translate(dialect, read_options(dialect, line.launcher_words), context);
  Dialect flags = dialect;  // the same words, as flags
  for (Rule& rule : flags.rules) rule.option = "--" + rule.option;
  const size_t count = flags.rules.size();
  for (size_t i = 0; i < count; ++i) {
    Rule fsdp = flags.rules[i];
    fsdp.option = "--fsdp_" + fsdp.option.substr(2);
    flags.rules.push_back(std::move(fsdp));
  }
  std::vector<Given> given = read_options(flags, line.launcher_words);
  bare_words(given);
  return translate(dialect, std::move(given), context);
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
  if (ending == ".toml" && known_keys(given) > most)
    throw UserError(Exit::usage, "import", path + " is already a Tessera recipe",
                    "tessera train " + path + " trains it, tessera plan " + path + " plans it");
  if (!best)
    throw UserError(
        Exit::usage, "import", path + ": no option in it is known",
        "a DeepSpeed .json, the .yaml of accelerate or Sana, the .toml of musubi-tuner or diffusion-pipe, Open-Sora's "
        ".py are read");
  Translation result = translate(best->dialect(), std::move(options), inside);
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
    launcher = launcher_options(line, context);
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
  result.merge(fsdp_variables(line, inside));
  for (const std::string& variable : line.variables)
    if (!is_fsdp_variable(variable))
      result.implied.push_back({variable, "a variable: set it where tessera is started"});
  return result;
}

}  // namespace tessera::tools
