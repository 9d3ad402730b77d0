// docs/coming-from.md, written from the tables that translate.
#include <algorithm>

#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/import.h"

namespace tessera::tools {

namespace {

constexpr const char* kPageHead = R"(# Coming from another trainer

This page lists the options of other trainers that `tessera import` reads, each with its recipe key. `tessera import --table` prints it.

    tessera import ds_config.json                       # prints a recipe; -o recipe.toml writes it
    tessera import --from "accelerate launch --num_processes 8 train.py --dataset_base_path D ..."
    tessera import train.sh                             # a script with one command, its variables filled in
    tessera import Sana_1600M_img1024.yaml --ranks 8 -o recipe.toml
    tessera import --from "bash train_scripts/train.sh CONFIG.yaml --train.train_batch_size=32"
    tessera train recipe.toml --deepspeed ds_config.json
    tessera train --task s2v-14B --ckpt_dir D --dit_fsdp --ulysses_size 8 --batch_size 32 ... --data.path CLIPS
    tessera sample --task t2v-A14B --ckpt_dir D --size "1280*720" --prompt "two cats"

Every option is converted to a recipe key (the recipe names the option in a comment), not needed, or refused; the last two come with
the reason. If an option is refused, `import` still prints the rest of the recipe; `train` and `sample` stop. An unknown option is
refused with the nearest known one. Recipe keys typed as flags win over everything else: `--train.lr 1e-5`.

`train.global_batch` counts samples of an optimiser step over all ranks. Other programs count them per rank, so their batch and
accumulation are multiplied by the number of ranks that the command starts, divided by the ranks that share a sample (`mesh.pp`, `cp`,
`sp`, `tp`). `--ranks N` gives the number where the command does not.

Defaults of the other program (its schedule, its clipping, the dtype it computes in) are written to the recipe as well, with a
comment. If you pass a recipe too, its values win over these defaults.

`model.path` reads the other trainer's weights as they are: NVlabs' `epoch_1_step_500.pth` (its `state_dict`), the
`pytorch_model_fsdp.bin` of NVlabs' FSDP runs, or a diffusers folder. `tessera convert FILE.pth OUT --ema` extracts the average of the
weights from such a file.

A table for each program follows. Options that only detail another option of the table are left out.
)";

/// A table_cell: bars would end it.
std::string table_cell(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

bool details_another(const Rule& rule) { return std::string_view(rule.becomes).starts_with("it belongs to "); }

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

const std::vector<const Dialect*>& dialects() {
  static const std::vector<const Dialect*> all = {
      &training_line(),          &generate_line(),         &deepspeed_config(),       &accelerate_config(),
      &torchrun_launcher(),      &diffsynth_command(),     &musubi_command(),         &musubi_dataset(),
      &diffusion_pipe_command(), &diffusion_pipe_config(), &diffusion_pipe_dataset(), &sana_config(),
      &opensora_config(),        &opensora1_config(),      &dreambooth_command()};
  return all;
}

std::string import_table() {
  std::string text = kPageHead;
  for (const Dialect* dialect : dialects()) {
    std::string name = dialect->name;
    name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
    text += "\n## " + name + "\n\n| option | converted to |\n|---|---|\n" + rows_of(*dialect);
  }
  return text;
}

}  // namespace tessera::tools
