#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/families/registry.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {

namespace {

template <auto member>
constexpr Read run = into<&Recipe::run, member>;
template <auto member>
constexpr Read model = into<&Recipe::model, member>;

void read_out(Recipe& recipe, const Given& given) {
  if (given.text.empty())
    throw UserError(Exit::usage, "recipe", given.key + " is empty",
                    "name a folder for this run; it is made where it does not exist");
  recipe.run.out = given.text;
}

/// "NAME-TYPE" for every type of every family.
std::vector<std::string> typed_families() {
  std::vector<std::string> names;
  for (const families::Family& family : families::all())
    for (const std::string& type : family.types) names.push_back(family.name + "-" + type);
  return names;
}

Kind kind_of(families::ConfigKey::Kind kind) {
  using Of = families::ConfigKey::Kind;
  return kind == Of::text      ? Kind::text
         : kind == Of::integer ? Kind::integer
         : kind == Of::number  ? Kind::number
                               : Kind::list;
}

const Needs kOnGpus = {[](const Facts& f) { return f.recipe.run.device != "cpu"; },
                       "run.device = \"cpu\" sums in the order of the ranks and gives the same bits each time"};

bool loads_weights(const Facts& f) { return f.recipe.model.init != "random"; }

}  // namespace

std::vector<Setting> run_settings() {
  return {
      {"run.out", Kind::text, "runs/run", "folder that the run writes to", read_out},
      {"run.seed", Kind::integer, "0", "seed of initial weights, data order, noise and timesteps",
       run<&Recipe::Run::seed>},
      {"run.steps",
       Kind::integer,
       "1000",
       "optimiser steps of the whole run",
       run<&Recipe::Run::steps>,
       {.range = at_least(1)}},
      {"run.resume", Kind::text, "auto",
       "auto: resume from the newest complete checkpoint in run.out; no: start at step 0, after moving earlier checkpoints to abandoned-1; or a checkpoint folder; or a .pt of another trainer with \"model\", \"optimizer\" (AdamW) and \"step\", or a folder epoch*-global_step* of ColossalAI's",
       named<&Recipe::run, &Recipe::Run::resume>},
      {"run.started_in", Kind::text, "",
       "folder in which the run was started, written to RUN/recipe.toml: relative paths begin there"},
      {"run.resume_changes",
       Kind::choice,
       "refuse",
       "whether a run may resume from a checkpoint of another model, base, adapters, experts or objective",
       nullptr,
       {.choices = "refuse|allow"}},
      {"run.on_nan",
       Kind::choice,
       "stop",
       "on a NaN or infinite loss: stop the run or skip the step (100 skipped in a row stop it too)",
       run<&Recipe::Run::on_nan>,
       {.choices = "stop|skip", .in_stages = true}},
      {"run.spike",
       Kind::number,
       "50",
       "a finite loss or gradient norm above this many times its running median is told, and proves no checkpoint; 0: none is",
       run<&Recipe::Run::spike>,
       {.range = at_least(0)}},
      {"run.on_event", Kind::text, "",
       "command that gets each line of metrics.jsonl on its standard input (/bin/sh starts it once, beside rank 0; the run never waits for it); empty: none",
       run<&Recipe::Run::on_event>},
      {"run.device",
       Kind::choice,
       "auto",
       "device that computes; auto: the GPU if this build can use it, else the CPU",
       run<&Recipe::Run::device>,
       {.choices = "auto|cpu|cuda"}},
      {"run.sums",
       Kind::choice,
       "in_order",
       "order of sums over GPUs; in_order: by rank, with the same bits each time; library: NCCL's, faster, but its bits may differ each time",
       run<&Recipe::Run::sums>,
       {.choices = "in_order|library", .needs = {kOnGpus}}},
      {"run.deterministic",
       Kind::choice,
       "false",
       "on a GPU: use LibTorch's deterministic kernels; an operator without one ends the run, and the error names it",
       run<&Recipe::Run::deterministic>,
       {.choices = "true|false", .needs = {kOnGpus}}},
  };
}

std::vector<Setting> model_settings() {
  std::vector<Setting> rows = {
      {"model.preset", Kind::text, "", "model size, e.g. " + families::standard().preset,
       model<&Recipe::Model::preset>},
      {"model.path",
       Kind::text,
       "",
       "folder or file of weights; official or diffusers names; or a model of the hub that is in its cache: ORG/NAME",
       weights_path<&Recipe::model, &Recipe::Model::path>,
       {.needs = {{loads_weights, "but for its config.json: model.init = \"random\" leaves its weights unread"}}}},
      {"model.family", Kind::text, "",
       "model family; empty: that of the preset, the weights or the config.json, else " + families::standard().name +
           "; " + families::listed(typed_families(), "or") + " override the type found there",
       model<&Recipe::Model::family>},
      {"model.init",
       Kind::choice,
       "auto",
       "initial weights; auto: load model.path where it is given, else random",
       model<&Recipe::Model::init>,
       {.choices = "auto|load|random"}},
      {"model.extra_tensors",
       Kind::choice,
       "refuse",
       "tensors of model.path that the model has no parameter for: refuse them, or ignore them",
       nullptr,
       {.choices = "refuse|ignore"}},
  };
  for (const families::Family& family : families::all())
    for (const families::ConfigKey& key : family.config_keys)
      if (const std::string name = "model.config." + key.name;
          std::ranges::find(rows, name, &Setting::key) == rows.end())
        rows.push_back({name, kind_of(key.kind), "", key.help});
  return rows;
}

}  // namespace tessera::recipe
