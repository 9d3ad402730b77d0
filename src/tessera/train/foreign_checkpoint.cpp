#include "tessera/train/foreign_checkpoint.h"

#include <array>
#include <charconv>
#include <map>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/resume.h"
#include "tessera/checkpoint/torch_file.h"
#include "tessera/checkpoint/training.h"
#include "tessera/models/registry.h"
#include "tessera/train/run_facts.h"
#include "tessera/weights/named_weights.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

using checkpoint::TorchFile, checkpoint::TorchTree;

constexpr const char* kAdoptedFrom = "adopted_from";  // of Manifest::extra: the file, its bytes and its time
constexpr const char* kMoments[] = {"exp_avg", "exp_avg_sq"};
constexpr const char* kWhole =
    "save whole states: StateDictType.FULL_STATE_DICT with FSDP.optim_state_dict, or torch.distributed.checkpoint's "
    "get_state_dict with full_state_dict = True";

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw UserError(Exit::input, "run.resume", what, hint);
}

/// A pickle names the classes of its values; those of sharded tensors hold a rank's part, and where to find the others.
TorchTree open_tree(const std::string& file) {
  try {
    return TorchTree(file);
  } catch (const UserError& error) {
    const std::string text = error.what();
    for (const char* sharded : {"ShardedTensor", "DTensor"})
      if (text.find(sharded) != std::string::npos)
        refuse(file + ": holds a " + sharded + ", a rank's part of a tensor (" + text + ")", kWhole);
    throw;
  }
}

int64_t step_of(const TorchTree& tree) {
  int64_t step = -1;
  const auto found = tree.metadata().find("step");
  if (found != tree.metadata().end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
    if (error != std::errc() || end != text.data() + text.size()) step = -1;
  }
  if (step < 0)
    refuse(tree.path().string() + ": has no step, expected a dict {\"model\", \"optimizer\", \"step\"}",
           "save the number of steps that are done as \"step\"; weights alone are model.path");
  return step;
}

/// What identifies the file: a conversion is made once.
std::string identity(const fs::path& file) {
  return fs::weakly_canonical(fs::absolute(file)).string() + ", " + std::to_string(fs::file_size(file)) + " bytes, " +
         std::to_string(fs::last_write_time(file).time_since_epoch().count());
}

/// The file's tensors by the parameters of the model.
class Adopted {
 public:
  Adopted(const recipe::Recipe& recipe, const job::Job& job)
      : tree_(open_tree(recipe.run.resume)),
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
  }

  int64_t step() const { return step_of(tree_); }

  /// What rank `rank` of `world` converts.
  std::vector<checkpoint::Piece> pieces(int rank, int world) {
    std::vector<checkpoint::Piece> list;
    for (size_t p = static_cast<size_t>(rank); p < params_.size(); p += static_cast<size_t>(world)) {
      const Param& param = params_[p];
      const int64_t count = param.spec->numel();
      list.push_back(piece(param, "param",
                           [this, &param, count](float* to) { weights_.set().read_f32(param.name, 0, count, to); }));
      for (size_t m = 0; m < std::size(kMoments); ++m)
        list.push_back(piece(param, kMoments[m],
                             [this, &param, count, m](float* to) { tree_.read_f32(*param.moments[m], 0, count, to); }));
    }
    return list;
  }

 private:
  struct Param {
    const plan::ParamSpec* spec;
    std::string name;                                  // in the file
    std::array<const TorchFile::Entry*, 2> moments{};  // kMoments
    int number = -1;                                   // of model.parameters()
  };

  /// torch numbers parameters as the model registers them, which is the order of the state_dict without its buffers.
  void number() {
    std::map<std::string, Param*> by_name;
    for (Param& param : params_) by_name[param.name] = &param;
    const TorchFile model = TorchFile::open(tree_.path());
    int next = 0;
    for (const TorchFile::Entry& entry : model.entries())
      if (const auto found = by_name.find(entry.name); found != by_name.end()) found->second->number = next++;
  }

  void find_moments(Param& param) const {
    const std::string file = tree_.path().string(), state = "optimizer.state.",
                      by_number = std::to_string(param.number);
    const std::string key = tree_.find(state + param.name + ".exp_avg") ? param.name : by_number;
    for (size_t m = 0; m < std::size(kMoments); ++m) {
      const std::string place = state + key + "." + kMoments[m];
      const TorchFile::Entry* entry = param.moments[m] = tree_.find(place);
      if (!entry)
        refuse(file + ": has no " + place + " (nor " + state + param.name + "." + kMoments[m] + ") for " +
                   param.spec->name,
               "expected torch's AdamW state of every parameter, by number or by name: optimizer.state_dict() or "
               "FSDP.optim_state_dict; to begin with new moments, give the file as model.path");
      if (entry->shape != param.spec->shape)
        refuse(file + ": " + place + ": expected " + checkpoint::shape_text(param.spec->shape) + " of " +
                   param.spec->name + ", found " + checkpoint::shape_text(entry->shape),
               "were the parameters given to the optimiser in another order than model.parameters()? Save its state by "
               "name: FSDP.optim_state_dict");
    }
    if (key != by_number) return;
    // Several groups are numbered one after the other: which parameters each has the file does not tell.
    const auto groups = tree_.metadata().find("optimizer.param_groups");
    if (groups != tree_.metadata().end() && groups->second != "1")
      refuse(
          file + ": its optimiser has " + groups->second +
              " groups of parameters and numbers them group by group, so which number is which parameter is not told",
          "save its state by name: FSDP.optim_state_dict, or get_optimizer_state_dict");
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

  const TorchTree tree_;
  const weights::NamedWeights weights_;
  std::vector<Param> params_;
  std::vector<float> values_;  // of the piece that was fetched last
};

void check_run(const recipe::Recipe& recipe, const job::Job& job) {
  const auto refused = [&](const std::string& why) {
    throw UserError(Exit::usage, "run.resume", recipe.run.resume + ": a file of another trainer, and " + why,
                    "resume from a folder of checkpoints/, or give the file's weights as model.path");
  };
  if (recipe.lora.on) refused("train.mode = \"lora\": it has no adapters by the names of this run");
  if (job.experts.several()) refused("the run trains several experts: such a file is of one model");
  if (recipe.values.at("train.optimizer") != "adamw")
    refused("train.optimizer = \"" + recipe.values.at("train.optimizer") + "\": AdamW's moments are read");
}

}  // namespace

bool is_foreign_checkpoint(const std::string& asked) {
  std::error_code none;
  return asked != "auto" && asked != "no" && fs::is_regular_file(asked, none);
}

fs::path adopt(const recipe::Recipe& recipe, const job::Job& job, const Values& facts, comm::Comm& comm,
               const comm::Rendezvous& place) {
  check_run(recipe, job);
  const std::string file = recipe.run.resume, of = identity(file);
  comm.check_agreement("file to resume from", of);
  Adopted adopted(recipe, job);
  const int64_t step = adopted.step();
  const fs::path folder = fs::path(recipe.run.out) / "adopted", partial = checkpoint::partial_folder(folder, step),
                 final = checkpoint::step_folder(folder, step);
  bool there = false;
  if (place.rank == 0 && fs::exists(final / "manifest.json"))
    there = checkpoint::load_manifest(final).extra.value(kAdoptedFrom, std::string()) == of;
  if (place.rank == 0 && !there) {
    checkpoint::make_folder(folder, "check run.out");
    fs::remove_all(partial), fs::remove_all(final);
  }
  auto& world = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  if (world.all_gather_doubles({there ? 1. : 0.})[0][0] > 0) return final;
  checkpoint::save_rank(partial, place.rank, adopted.pieces(place.rank, place.world));
  world.all_gather_doubles({0});  // all have saved
  if (place.rank == 0) {
    checkpoint::Manifest manifest;
    manifest.step = step;
    manifest.seed = static_cast<uint64_t>(recipe.run.seed);
    manifest.extra["updates"] = step;
    manifest.extra[kAdoptedFrom] = of;
    save_facts(facts, {}, manifest);  // of another recipe nothing is known
    checkpoint::commit(partial, final, place.world, manifest);
    log::info("run.resume = " + file + ": weights, AdamW's moments and step " + std::to_string(step) +
              " are adopted, as the checkpoint " + final.string());
  }
  world.all_gather_doubles({0});
  return final;
}

}  // namespace tessera::train
