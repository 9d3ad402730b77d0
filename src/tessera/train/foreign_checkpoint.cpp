// Converts a training checkpoint of another trainer to ours, to resume from it: a file, torch.save({"model",
// "optimizer", "step"}), or a folder epoch*-global_step* of ColossalAI's trainers, as Open-Sora's (forms:
// checkpoint/foreign_states.h).
//
//   if (is_foreign_checkpoint(recipe.run.resume)) folder = adopt(recipe, job, facts, ranks);
//
// torch's AdamW has its moments by the number of the parameter ("optimizer.state.0.exp_avg"), FSDP.optim_state_dict by
// its name; both are read, of any floating dtype. Nothing else of the file counts: rates, order of the data and random
// numbers are those of the recipe at that step.
#include "tessera/train/checkpoints.h"

#include <algorithm>
#include <array>
#include <map>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/foreign_states.h"
#include "tessera/checkpoint/training.h"
#include "tessera/models/named_weights.h"
#include "tessera/models/registry.h"
#include "tessera/plan/states.h"
#include "tessera/train/run_facts.h"

namespace tessera::train {

namespace fs = std::filesystem;
using checkpoint::ForeignStates, checkpoint::refuse_foreign;

namespace {

constexpr const char* kAdoptedFrom = "adopted_from";  // of Manifest::extra: the file, its bytes and its time
constexpr const char* kMoments[] = {"exp_avg", "exp_avg_sq"};

/// The file's tensors by the parameters of the model.
class Adopted {
 public:
  Adopted(const recipe::Recipe& recipe, const job::Job& job)
      : states_(checkpoint::open_foreign_states(recipe.run.resume)),
        weights_(
            recipe.run.resume, job.model->units(),
            [&model = *job.model](const std::string& name, const std::string& naming) {
              return model.foreign_name(name, naming);
            },
            models::kDenoiserNamings) {
    weights_.check(job.model->units(), [](const auto&, const auto&) {
      return std::string("is this a checkpoint of the model that the recipe trains?");
    });
    const auto name = weights_.names();
    for (const auto& unit : job.model->units())
      for (const plan::ParamSpec& param : unit->spec().params) params_.push_back({&param, name(param.name), {}});
    number();
    for (Param& param : params_) find_moments(param);
    if (recipe.train.ema > 0) find_average();
  }

  int64_t step() const { return states_->step(); }
  /// A conversion is made once of the same, and anew where the run has an average that the file can give.
  std::string identity() const { return states_->identity() + (average_ ? ", averaged" : ""); }
  bool averaged() const { return average_.has_value(); }
  /// What has no moments there, for the log; empty: nothing.
  std::string begins_anew() const {
    if (frozen_.empty()) return "";
    const auto count = std::ranges::count(params_, true, &Param::frozen);
    return frozen_ + " has no moments there (" + std::to_string(count) +
           " parameters that its trainer froze): they begin at 0, and it trains from here on";
  }

  /// What rank `rank` of `world` converts.
  std::vector<checkpoint::Piece> pieces(int rank, int world) {
    std::vector<checkpoint::Piece> list;
    for (size_t p = static_cast<size_t>(rank); p < params_.size(); p += static_cast<size_t>(world)) {
      const Param& param = params_[p];
      const int64_t count = param.spec->numel();
      list.push_back(piece(param, "param",
                           [this, &param, count](float* to) { weights_.set().read_f32(param.name, 0, count, to); }));
      for (size_t m = 0; m < std::size(kMoments); ++m) list.push_back(piece(param, kMoments[m], param.moments[m].read));
      if (average_)
        list.push_back(piece(param, std::string(plan::kAverage),
                             [this, &param, count](float* to) { average_->read_f32(param.name, 0, count, to); }));
    }
    return list;
  }

 private:
  struct Param {
    const plan::ParamSpec* spec;
    std::string name;                              // in the file
    std::array<ForeignStates::Moment, 2> moments;  // kMoments
    int number = -1;                               // of model.parameters()
    bool frozen = false;                           // by that trainer: it has no number and no moments
  };

  /// torch numbers parameters as the model registers them, which is the order of the state_dict without its buffers, and
  /// those alone that its optimiser was given.
  void number() {
    std::map<std::string, Param*> by_name;
    for (Param& param : params_) by_name[param.name] = &param;
    std::vector<Param*> ordered;
    for (const std::string& name : states_->order())
      if (const auto found = by_name.find(name); found != by_name.end()) ordered.push_back(found->second);
    frozen_ = frozen_module(ordered);
    int next = 0;
    for (Param* param : ordered)
      if (param->frozen = is_of(param->name, frozen_); !param->frozen) param->number = next++;
  }

  /// Whether the parameter belongs to the module; to "" none does.
  static bool is_of(const std::string& name, const std::string& module) {
    return !module.empty() && name.starts_with(module + ".");
  }

  /// Where the optimiser has fewer parameters than the model: the module without which their shapes are those of its
  /// moments, in order. Empty where there is none.
  std::string frozen_module(const std::vector<Param*>& ordered) const {
    std::vector<checkpoint::Shape> shapes;  // of the moments, up to the last one
    for (size_t i = 0; i < ordered.size(); ++i)
      if (const auto moment = states_->find(std::to_string(i), kMoments[0]))
        shapes.resize(i), shapes.push_back(moment->shape);
    if (shapes.empty() || shapes.size() == ordered.size()) return "";
    std::map<std::string, size_t> modules;
    for (const Param* param : ordered)
      for (size_t dot = param->name.find('.'); dot != std::string::npos; dot = param->name.find('.', dot + 1))
        ++modules[param->name.substr(0, dot)];
    std::vector<std::string> fitting;
    for (const auto& [module, count] : modules) {
      if (count != ordered.size() - shapes.size()) continue;
      size_t next = 0;
      const bool fits = std::ranges::all_of(ordered, [&](const Param* param) {
        return is_of(param->name, module) || param->spec->shape == shapes[next++];
      });
      const bool within = !fitting.empty() && is_of(module, fitting.back());  // the same parameters
      if (fits && !within) fitting.push_back(module);
    }
    if (fitting.size() < 2) return fitting.empty() ? "" : fitting.front();
    std::string all;
    for (const std::string& module : fitting) all += (all.empty() ? "" : ", ") + module;
    refuse_foreign(weights_path_ + ": its optimiser has " + std::to_string(shapes.size()) + " of " +
                       std::to_string(ordered.size()) + " parameters, and their shapes are those without each of " +
                       all + ": the checkpoint does not say which of these was frozen",
                   "save its state by name: FSDP.optim_state_dict; to begin with new moments, give it as model.path");
  }

  void find_moments(Param& param) const {
    if (param.frozen) {
      const int64_t count = param.spec->numel();
      param.moments.fill({param.spec->shape, [count](float* to) { std::fill_n(to, count, 0.0F); }});
      return;
    }
    const std::string &source = weights_path_, by_number = std::to_string(param.number);
    const std::string key = states_->find(param.name, kMoments[0]) ? param.name : by_number;
    for (size_t m = 0; m < std::size(kMoments); ++m) {
      const std::string place = states_->place(key, kMoments[m]);
      const auto moment = states_->find(key, kMoments[m]);
      if (!moment)
        refuse_foreign(source + ": has no " + place + " (nor " + states_->place(param.name, kMoments[m]) + ") for " +
                           param.spec->name,
                       "expected AdamW's state of every parameter, by number or by name: optimizer.state_dict() or "
                       "FSDP.optim_state_dict; to begin with new moments, give it as model.path");
      if (moment->shape != param.spec->shape)
        refuse_foreign(
            source + ": " + place + ": expected " + checkpoint::shape_text(param.spec->shape) + " of " +
                param.spec->name + ", found " + checkpoint::shape_text(moment->shape),
            "were the parameters given to the optimiser in another order than model.parameters(), or some of them "
            "frozen, which have no states and are no module? Save its state by name: FSDP.optim_state_dict; to begin with new "
            "moments, give it as model.path");
      param.moments[m] = *moment;
    }
    // Which parameters each group has the file does not tell.
    if (key == by_number && states_->groups() != 1)
      refuse_foreign(
          source + ": its optimiser has " + std::to_string(states_->groups()) +
              " groups of parameters and numbers them group by group, and does not say which number is which parameter",
          "save its state by name: FSDP.optim_state_dict, or get_optimizer_state_dict");
  }

  void find_average() {
    average_ = states_->average();
    if (!average_) return;
    for (const Param& param : params_) {
      const auto& found = average_->at(param.name);
      if (found.shape != param.spec->shape)
        refuse_foreign(average_->path().string() + ": " + param.name + ": expected " +
                           checkpoint::shape_text(param.spec->shape) + ", found " +
                           checkpoint::shape_text(found.shape) +
                           "; where the average was sharded, that trainer saved the first rank's part alone",
                       "take the file away: the average then begins from the weights");
    }
  }

  checkpoint::Piece piece(const Param& param, const std::string& kind, std::function<void(float*)> read) {
    checkpoint::Piece piece{{param.spec->name, kind, DType::f32, param.spec->shape}, nullptr};
    piece.fetch = [this, count = param.spec->numel(), read = std::move(read)]() -> const void* {
      values_.resize(static_cast<size_t>(count));
      read(values_.data());
      return values_.data();
    };
    return piece;
  }

  const std::unique_ptr<ForeignStates> states_;
  const models::NamedWeights weights_;
  const std::string weights_path_ = weights_.set().path().string();
  std::vector<Param> params_;
  std::string frozen_;  // module that has no moments; empty: none
  std::optional<checkpoint::WeightSet> average_;
  std::vector<float> values_;  // of the piece that was fetched last
};

void check_run(const recipe::Recipe& recipe, const job::Job& job) {
  const auto refused = [&](const std::string& why) {
    throw UserError(
        Exit::usage, "run.resume", recipe.run.resume + ": of another trainer, and " + why,
        "resume from a folder of checkpoints/, or give its weights as model.path, its adapters as lora.init");
  };
  if (recipe.lora.on) refused("train.mode = \"lora\": it has no adapters by the names of this run");
  if (job.experts.several()) refused("the run trains several experts: such a file is of one model");
  if (recipe.values.at("train.optimizer") != "adamw")
    refused("train.optimizer = \"" + recipe.values.at("train.optimizer") + "\": AdamW's moments are read");
}

}  // namespace

bool is_foreign_checkpoint(const std::string& asked) {
  std::error_code none;
  return asked != "auto" && asked != "no" && (fs::is_regular_file(asked, none) || checkpoint::is_trainer_folder(asked));
}

fs::path adopt(const recipe::Recipe& recipe, const job::Job& job, const Values& facts, Ranks& ranks) {
  check_run(recipe, job);
  const std::string file = recipe.run.resume;
  Adopted adopted(recipe, job);
  const std::string of = adopted.identity();
  ranks.comm.check_agreement("file to resume from", of);
  const int64_t step = adopted.step();
  const fs::path folder = fs::path(recipe.run.out) / "adopted", partial = checkpoint::partial_folder(folder, step),
                 final = checkpoint::step_folder(folder, step);
  bool there = false;
  if (ranks.first() && fs::exists(final / "manifest.json"))
    there = checkpoint::load_manifest(final).extra.value(kAdoptedFrom, std::string()) == of;
  if (ranks.first() && !there) {
    checkpoint::make_folder(folder, "check run.out");
    fs::remove_all(partial), fs::remove_all(final);
  }
  if (ranks.of_first(there)) return final;
  checkpoint::save_rank(partial, ranks.rank(), adopted.pieces(ranks.rank(), ranks.place.world));
  ranks.gather({0});  // all have saved
  if (ranks.first()) {
    checkpoint::Manifest manifest;
    manifest.step = step;
    manifest.seed = static_cast<uint64_t>(recipe.run.seed);
    manifest.extra["updates"] = step;
    manifest.extra[kAdoptedFrom] = of;
    save_facts(facts, {}, manifest);  // of another recipe nothing is known
    checkpoint::commit(partial, final, ranks.place.world, manifest);
    log::info("run.resume = " + file + ": weights, AdamW's moments" + (adopted.averaged() ? ", their average" : "") +
              " and step " + std::to_string(step) + " are adopted, as the checkpoint " + final.string());
    if (const std::string anew = adopted.begins_anew(); !anew.empty()) log::warn("run.resume: " + anew);
  }
  ranks.gather({0});
  return final;
}

}  // namespace tessera::train
