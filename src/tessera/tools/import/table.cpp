// docs/coming-from.md, written from the tables that translate.
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/import.h"

namespace tessera::tools {

namespace {

constexpr const char* kPageHead = R"(# Coming from another trainer

*This page is printed by `tessera import --table` from the tables that translate.*

    tessera import ds_config.json                       # prints a recipe; -o recipe.toml writes it
    tessera import --from "accelerate launch --num_processes 8 train.py --dataset_base_path D ..."
    tessera import train.sh                             # one command in a script
    tessera train recipe.toml --deepspeed ds_config.json
    tessera train --task s2v-14B --ckpt_dir D --dit_fsdp --ulysses_size 8 --batch_size 32 ... --data.path CLIPS
    tessera sample --task t2v-A14B --ckpt_dir D --size "1280*720" --prompt "two cats"

Every option is either in effect, as a key of the recipe with the option in a comment behind it; or needs no key, with the reason; or is refused,
with the reason. `import` prints the rest of a recipe with something refused and says so; `train` and `sample` do not run with it. An option that its
program does not have is refused naming the nearest one. Keys are typed as in a recipe and win over everything else: `--train.lr 1e-5`.

`train.global_batch` is samples of an optimiser step over all ranks. Other programs count them a rank: their batch and accumulation are multiplied by the ranks
that the command starts, divided by those that share a sample (`mesh.pp`, `cp`, `sp`, `tp`). `--ranks N` says how many where the command does not.

A value that the other program has of itself (its schedule, its clipping) is set as well and named so; with a recipe, what the recipe says counts.
)";

/// A table_cell: bars would end it.
std::string table_cell(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

}  // namespace

const std::vector<const Dialect*>& dialects() {
  static const std::vector<const Dialect*> all = {
      &training_line(),          &generate_line(),         &deepspeed_config(),      &accelerate_config(),
      &torchrun_launcher(),      &diffsynth_command(),     &musubi_command(),        &musubi_dataset(),
      &diffusion_pipe_command(), &diffusion_pipe_config(), &diffusion_pipe_dataset()};
  return all;
}

std::string import_table() {
  std::string text = kPageHead;
  for (const Dialect* dialect : dialects()) {
    std::string name = dialect->name;
    name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
    text += "\n## " + name + "\n\n| option | becomes |\n|---|---|\n";
    for (const Rule& rule : dialect->rules) text += "| `" + rule.option + "` | " + table_cell(rule.becomes) + " |\n";
  }
  return text;
}

}  // namespace tessera::tools
