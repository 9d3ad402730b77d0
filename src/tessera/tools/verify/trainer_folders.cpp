// Kind "opensora_checkpoint": folders that one of ColossalAI's trainers saved, by torch.save and by its writer beside the
// run, and what listing.json says of their files: weights, masters, average, moments, step and order. A mesh means nothing
// here.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/foreign_states.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/models/named_weights.h"
#include "tessera/models/registry.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;
using at::Tensor;
using checkpoint::WeightSet;
using Expected = std::map<std::string, Tensor>;

constexpr const char* kMasters = "master.safetensors";
constexpr const char* kMoments[] = {"exp_avg", "exp_avg_sq"};

Tensor whole_number(int64_t value) { return at::tensor(value, at::kLong); }

/// As safetensors or PyTorch names it.
Tensor dtype_number(const std::string& name) {
  const auto dtype = checkpoint::parse_dtype(name == "bfloat16" ? "BF16" : name == "float32" ? "F32" : name);
  check_input(dtype.has_value(), "verify", "listing.json: there is no dtype " + name);
  return whole_number(static_cast<int64_t>(*dtype));
}

/// One of the case's folders. What it lacks is an error of the input.
struct Saved {
  std::string form;  ///< "checkpoint_sync"
  fs::path folder;
  Json files;  ///< of listing.json
  std::unique_ptr<checkpoint::ForeignStates> states;
  std::optional<WeightSet> weights, masters, average;

  /// What a run goes on from.
  const WeightSet& best() const { return masters ? *masters : *weights; }
};

Saved open_saved(const CaseContext& context, const std::string& mode, const Json& about) {
  Saved saved;
  saved.form = "checkpoint_" + mode, saved.files = about.at("files");
  saved.folder = context.folder / saved.form / about.at("folder").get<std::string>();
  saved.states = checkpoint::open_foreign_states(saved.folder.string());
  saved.weights = checkpoint::open_weights(saved.folder / "model");
  if (saved.files.contains(kMasters)) {
    saved.masters = checkpoint::open_weights(saved.folder);
    check_input(fs::exists(saved.folder / kMasters), "verify", saved.folder.string() + ": has no " + kMasters,
                "copy the case again, whole");
  }
  saved.average = saved.states->average();
  const bool averages = saved.files.contains("ema.pt") || saved.files.contains("ema.safetensors");
  check_input(saved.average.has_value() || !averages, "verify", saved.folder.string() + ": its average is missing",
              "copy the case again, whole");
  return saved;
}

Tensor values_of(const WeightSet& weights, const std::string& name) {
  const Tensor values = at::empty(weights.at(name).shape, at::kFloat);
  weights.read_f32(name, 0, values.numel(), values.mutable_data_ptr<float>());
  return values;
}

/// Undefined where there is none.
Tensor moment_of(const Saved& saved, int64_t number, const char* kind) {
  const auto moment = saved.states->find(std::to_string(number), kind);
  if (!moment) return {};
  const Tensor values = at::empty(moment->shape, at::kFloat);
  moment->read(values.mutable_data_ptr<float>());
  return values;
}

int64_t place_of(const std::vector<std::string>& params, const std::string& name) {
  const auto found = std::ranges::find(params, name);
  return found == params.end() ? -1 : found - params.begin();
}

Tensor places_of(const std::vector<std::string>& params, const std::vector<std::string>& names) {
  std::vector<int64_t> places;
  for (const std::string& name : names) places.push_back(place_of(params, name));
  return whole_numbers(places);
}

/// The recorded values of some parameters.
CaseFile check_probes(const CaseContext& context, const Saved& saved, const std::vector<std::string>& params) {
  CaseFile file(context.name, context.case_files().front(), saved.form);
  for (const std::string& name : context.config.at("run").at("probe").get<std::vector<std::string>>()) {
    file.compare("expect." + name, values_of(*saved.weights, name), 0.0);
    if (saved.masters) file.compare("expect_master." + name, values_of(*saved.masters, name), 0.0);
    for (const char* kind : kMoments) {
      const std::string expected = std::string("expect_") + kind + "." + name;
      const Tensor moment = moment_of(saved, place_of(params, name), kind);
      moment.defined() ? file.compare(expected, moment, 0.0) : file.fail(expected);
    }
  }
  file.leave_out("expect_master.", "this form of the folder was saved without masters");
  return file;
}

Tensor listed_shape(const Json& entry) { return whole_numbers(entry.at(1).get<std::vector<int64_t>>()); }

/// An entry of a piece of the optimiser: {"exp_avg": ..., ...} of torch.save under the parameter's number, or a tensor
/// "state.NUMBER.exp_avg".
void list_moments(const std::string& name, const Json& entry, Expected& all) {
  const std::string begin = "state.";
  for (const std::string kind : kMoments) {
    const std::string end = "." + kind, shape = "out.shape." + kind + ".";
    if (entry.is_object())
      all[shape + name] = listed_shape(entry.at(kind));
    else if (name.starts_with(begin) && name.ends_with(end))
      all[shape + name.substr(begin.size(), name.size() - begin.size() - end.size())] = listed_shape(entry);
  }
}

/// What listing.json says of the tensors of a folder: dtype and shape by part and name, of moments the shape by kind and
/// number; the number of updates, and the order of the parameters.
Expected listed(const Saved& saved, const std::vector<std::string>& params) {
  Expected all;
  for (const auto& [path, about] : saved.files.items()) {
    const std::string part = path.substr(0, path.find_first_of("/."));
    const Json& entries = about.at(about.contains("tensors") ? "tensors" : "content");
    if (path == "running_states.json") all["out.step"] = whole_number(entries.at("actual_update_step").get<int64_t>());
    if (path == "model/model.safetensors.index.json") {
      std::vector<std::string> names;
      for (const auto& [name, piece] : entries.at("weight_map").items()) names.push_back(name);
      all["out.order"] = places_of(params, names);
    }
    if (path.ends_with(".json") || !entries.is_object()) continue;
    for (const auto& [name, entry] : entries.items()) {
      if (part == "optimizer") list_moments(name, entry, all);
      if (part != "model" && part != "master" && part != "ema") continue;
      all["out.dtype." + part + "." + name] = dtype_number(entry.at(0).get<std::string>());
      all["out.shape." + part + "." + name] = listed_shape(entry);
    }
  }
  return all;
}

CaseFile check_listing(const CaseContext& context, const Saved& saved, const std::vector<std::string>& params) {
  const Expected expected = listed(saved, params);
  CaseFile file(context.name + "/" + saved.form, context.folder / "listing.json", expected);
  const auto check = [&](const std::string& part, const std::optional<WeightSet>& weights) {
    if (!weights) return;
    for (const std::string& name : weights->names()) {
      const auto info = weights->at(name);
      file.compare("out.dtype." + part + "." + name, whole_number(static_cast<int64_t>(info.dtype)), 0.0);
      file.compare("out.shape." + part + "." + name, whole_numbers(info.shape), 0.0);
    }
  };
  check("model", saved.weights);
  check("master", saved.masters);
  check("ema", saved.average);
  for (const char* kind : kMoments)
    for (size_t i = 0; i < params.size(); ++i)
      if (const auto moment = saved.states->find(std::to_string(i), kind))
        file.compare("out.shape." + (kind + ("." + std::to_string(i))), whole_numbers(moment->shape), 0.0);
  file.compare("out.step", whole_number(saved.states->step()), 0.0);
  file.compare("out.order", places_of(params, saved.states->order()), 0.0);
  file.fail_the_rest();
  file.note("not_read", "lr_scheduler, sampler, groups of parameters, total_size, and the step beside each moment");
  file.note("values_of_the_average", "the case has none");
  return file;
}

/// Both forms hold the same weights and moments, each read by a reader of its own.
CaseFile check_alike(const CaseContext& context, const Saved& one, const Saved& other,
                     const std::vector<std::string>& params) {
  const auto all_of = [&](const Saved& saved) {
    Expected all;
    for (const std::string& name : saved.weights->names()) all["out.model." + name] = values_of(*saved.weights, name);
    for (const char* kind : kMoments)
      for (size_t i = 0; i < params.size(); ++i)
        if (const Tensor moment = moment_of(saved, static_cast<int64_t>(i), kind); moment.defined())
          all["out." + (kind + ("." + params[i]))] = moment;
    return all;
  };
  CaseFile file(context.name + "/" + other.form, other.folder, all_of(one));
  for (const auto& [name, value] : all_of(other)) file.compare(name, value, 0.0);
  file.fail_the_rest();
  return file;
}

/// That the model of config.json has these weights, all of them and no others, as resuming does. Throws UserError (input).
void check_model(const CaseContext& context, const Saved& saved) {
  const std::string hint = "is config.json that of these weights?";
  const auto model = models::make_denoiser({.config = (context.folder / "config.json").string()});
  const models::NamedWeights named(
      saved.best().path().string(), model->units(),
      [&](const std::string& name, const std::string& naming) { return model->foreign_name(name, naming); },
      models::kDenoiserNamings);
  named.check(model->units(), [&](const auto&, const auto&) { return hint; });
  named.check_unknown(model->units(), hint);
}

}  // namespace

CaseResults verify_trainer_folders(const CaseContext& context) {
  constexpr int64_t kMost = int64_t{64} << 20;
  const fs::path path = context.folder / "listing.json";
  const Settings run = context.config.at("run");
  for (const char* of_trainer : {"size_per_shard", "epoch", "step", "global_step", "actual_update_step", "seed",
                                 "replicas", "warmup_steps", "optim", "ema_world", "ema_rank"})
    run.read(of_trainer);  // what its folders say of these is compared
  const Json listing =
      parse_ordered_json(read_foreign(path, kMost, "verify", "give the folder of a golden case"), path.string());
  const auto params = context.config.at("params").get<std::vector<std::string>>();
  std::vector<Saved> all;
  for (const auto& [mode, about] : listing.items()) all.push_back(open_saved(context, mode, about));
  CaseResults results;
  for (const Saved& saved : all) {
    check_model(context, saved);
    results.push_back(check_probes(context, saved, params));
    results.push_back(check_listing(context, saved, params));
    if (&saved != &all.front()) results.push_back(check_alike(context, all.front(), saved, params));
  }
  return results;
}

}  // namespace tessera::tools
