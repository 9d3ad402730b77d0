#include "tessera/train/export.h"

#include <algorithm>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/box.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/engine/store/average.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/job/null_caption.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/registry.h"
#include "tessera/recipe/parameter_keys.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

/// A model folder in diffusers' form: files of at most so many bytes, filled unit by unit in the model's order.
class ModelFolder {
 public:
  ModelFolder(const net::Denoiser& model, std::filesystem::path folder, int64_t file_bytes, const std::string& naming)
      : model_(model), folder_(std::move(folder)), naming_(naming.empty() ? model.file_naming() : naming) {
    checkpoint::make_folder(folder_, "check run.out");
    int64_t filled = 0;
    const models::WeightForm* form = models::form_of(model);
    if (naming_ == "official" && form && form->constants) constants_ = form->constants(shapes());
    for (const auto& unit : model.units()) {
      std::vector<checkpoint::TensorInfo> tensors;
      for (const plan::ParamSpec& param : unit->spec().params) {
        const std::string name = stored_name(param.name);
        const auto part = checkpoint::row_part(foreign_name(param.name));
        const auto same = [&](const checkpoint::TensorInfo& other) { return other.name == name; };
        if (std::ranges::none_of(tensors, same))
          tensors.push_back({name, DType::f32,
                             part ? checkpoint::stored_shape(*part, param.shape)
                                  : models::shape_under(form, param.name, naming_, param.shape)});
      }
      if (units_.empty())
        for (const auto& [name, constant] : constants_) tensors.push_back({name, DType::f32, constant.shape});
      int64_t bytes = 0;
      for (const checkpoint::TensorInfo& tensor : tensors) bytes += tensor.bytes();
      if (files_.empty() || (filled > 0 && filled + bytes > file_bytes)) files_.emplace_back(), filled = 0;
      filled += bytes, total_ += bytes;
      files_.back().insert(files_.back().end(), tensors.begin(), tensors.end());
      units_.push_back({files_.size() - 1, std::move(tensors)});
    }
  }

  /// The next unit, fp32, under the parameters' own names.
  void add_unit(const std::vector<checkpoint::TensorData>& own) {
    const Unit& unit = units_.at(next_++);
    if (!writer_ || unit.file != file_) open(unit.file);
    std::map<std::string, std::vector<float>> wholes;  // of parameters that files hold together
    std::map<std::string, const void*> values;
    for (const auto& [name, constant] : constants_) values[name] = constant.values.data();
    for (const checkpoint::TensorData& tensor : own) {
      const std::string name = stored_name(tensor.name);
      const auto part = checkpoint::row_part(foreign_name(tensor.name));
      if (!part) {
        values[name] = tensor.data;
        continue;
      }
      const checkpoint::Shape stored = checkpoint::stored_shape(*part, tensor.shape);
      std::vector<float>& whole = wholes[name];
      whole.resize(static_cast<size_t>(checkpoint::volume(checkpoint::whole_box(stored))));
      checkpoint::put_part(*part, stored, sizeof(float), tensor.data, whole.data());
      values[name] = whole.data();
    }
    for (const checkpoint::TensorInfo& tensor : unit.tensors) writer_->write(values.at(tensor.name), tensor.bytes());
  }

  /// The files of an export that had another number of them go.
  void finish() {
    check_internal(next_ == units_.size(), "export", "units are missing");
    writer_->commit();
    checkpoint::write_text(folder_ / "config.json", config());
    std::set<std::string> ours;
    nlohmann::json places;
    for (size_t i = 0; i < files_.size(); ++i) {
      ours.insert(file_name(i));
      for (const checkpoint::TensorInfo& tensor : files_[i]) places[tensor.name] = file_name(i);
    }
    if (files_.size() > 1) {
      const nlohmann::json index = {{"metadata", {{"total_size", total_}}}, {"weight_map", places}};
      checkpoint::write_text(folder_ / (std::string(kStem) + ".safetensors.index.json"), index.dump(2) + "\n");
      ours.insert(std::string(kStem) + ".safetensors.index.json");
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(kStem) && !name.ends_with(".partial") && !ours.contains(name))
        std::filesystem::remove(entry.path());
    }
  }

 private:
  static constexpr const char* kStem = "diffusion_pytorch_model";
  struct Unit {
    size_t file;
    std::vector<checkpoint::TensorInfo> tensors;
  };

  std::string foreign_name(const std::string& name) const { return model_.foreign_name(name, naming_); }
  /// In the form that belongs to the names.
  std::string config() const {
    const std::string own = model_.config_json();
    if (naming_ == model_.file_naming()) return own;
    return models::config_for(naming_, models::identify(shapes()), shapes(), own, "config.json");
  }
  models::Shapes shapes() const {
    models::Shapes shapes;
    for (const auto& unit : model_.units())
      for (const plan::ParamSpec& param : unit->spec().params) shapes[param.name] = param.shape;
    return shapes;
  }
  std::string stored_name(const std::string& name) const { return checkpoint::whole_name(foreign_name(name)); }
  std::string file_name(size_t file) const {
    if (files_.size() == 1) return std::string(kStem) + ".safetensors";
    char name[96];
    std::snprintf(name, sizeof name, "%s-%05zu-of-%05zu.safetensors", kStem, file + 1, files_.size());
    return name;
  }
  void open(size_t file) {
    if (writer_) writer_->commit();
    file_ = file;
    writer_.emplace(folder_ / file_name(file), files_[file], checkpoint::own_metadata());
  }

  const net::Denoiser& model_;
  const std::filesystem::path folder_;
  const std::string naming_;
  std::map<std::string, models::ConstantTensor> constants_;  // in the first file
  std::vector<std::vector<checkpoint::TensorInfo>> files_;
  std::vector<Unit> units_;
  int64_t total_ = 0;
  size_t next_ = 0, file_ = 0;
  std::optional<checkpoint::SafetensorsWriter> writer_;
};

/// Host work of one rank between collectives. A failure there must not leave the other ranks waiting in a collective, and
/// need not end the run.
class HostWork {
 public:
  /// Nothing more is run after what failed.
  template <class Act>
  void run(const Act& act) {
    if (failure_) return;
    try {
      act();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  void finish() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
};

}  // namespace

std::string export_naming(const std::string& path) {
  std::error_code unseen;
  if (path.empty() || !std::filesystem::exists(path, unseen) ||
      std::filesystem::exists(std::filesystem::path(path) / "manifest.json", unseen))
    return {};
  try {
    const models::Identity base = models::identify(checkpoint::stored_shapes(checkpoint::open_weights(path)));
    const bool renamed = base.kind == models::ModelKind::denoiser && base.form->config && base.naming == "diffusers";
    return renamed ? base.naming : "";
  } catch (const UserError&) {  // moved or changed since the run began
    return {};
  }
}

void export_model(const net::Denoiser& model, engine::Store& store, comm::Comm& comm, int rank,
                  const std::filesystem::path& folder, const std::string& naming) {
  HostWork work;
  std::optional<ModelFolder> written;
  if (rank == 0) work.run([&] { written.emplace(model, folder, kExportedFileBytes, naming); });
  for (int u = 0; u < store.units(); ++u) {
    std::vector<checkpoint::TensorData> tensors;
    engine::whole_unit(
        store, comm, u, /*gradients=*/false,
        [&](const plan::ParamSpec& param, const at::Tensor& value) {
          if (rank == 0) tensors.push_back({param.name, DType::f32, param.shape, value.const_data_ptr()});
        },
        [&] {
          if (rank == 0) work.run([&] { written->add_unit(tensors); });
        });
  }
  if (rank == 0) work.run([&] { written->finish(); });
  work.finish();
}

void export_saved(const net::Denoiser& model, const models::Source& saved, const std::filesystem::path& folder,
                  const std::string& naming, int64_t file_bytes) {
  ModelFolder written(model, folder, file_bytes, naming);
  for (const auto& unit : model.units()) {
    std::vector<std::vector<float>> values;
    std::vector<checkpoint::TensorData> tensors;
    for (const plan::ParamSpec& param : unit->spec().params) {
      values.emplace_back(static_cast<size_t>(param.numel()));
      saved.read({param.name, DType::f32, param.shape}, values.back().data());
      tensors.push_back({param.name, DType::f32, param.shape, values.back().data()});
    }
    written.add_unit(tensors);
  }
  written.finish();
}

job::LoraFacts Exports::lora_facts(int64_t step, const job::Expert& expert) const {
  return {.base = job.name,
          .step = step,
          .samples = data[parts.index()].samples->size(),
          .form = models::form_of(*job.model),
          .weights = expert.path};
}

/// What other programs load, from the parts that were just saved.
Exit Exports::saved_parts(int64_t step, const fs::path& checkpoint, const fs::path& out) const {
  const std::string then =
      "the checkpoint is complete without it, and the next start repeats it if it goes on from there";
  const recipe::Recipe& now = parts.recipe();
  return folder.attempt(step, "export", then, [&] {
    const auto saved = std::make_shared<checkpoint::TrainingCheckpoint>(checkpoint);
    for (size_t e = 0; e < job.experts.models(); ++e) {
      const job::Expert& expert = job.experts.list[e];
      const models::Source source = models::open_training(saved, job.experts.several() ? expert.folder + "." : "");
      const fs::path to = job.experts.models() > 1 ? out / expert.folder : out;
      if (now.lora.on) {
        job::save_lora(now, lora_facts(step, expert), models::LoraFile::of(source, models::form_of(*job.model)), to);
      } else {
        export_saved(*job.model, source, to, export_naming(expert.path));
        job::save_null_caption(now, *job.model, to);
      }
    }
  });
}

void Exports::beside(int64_t step, const fs::path& checkpoint) const {
  if (!parts.recipe().lora.on || !parts.recipe().exports_saves()) return;
  const fs::path lora = checkpoint / "lora";
  std::error_code ignored;  // what is there is no whole export
  if (saved_parts(step, checkpoint, lora) != Exit::done) fs::remove_all(lora, ignored);
}

void Exports::behind(int64_t step, const fs::path& checkpoint) const {
  if (!parts.recipe().exports_saves()) return;
  const fs::path final = checkpoint::step_folder(folder.out / checkpoint::kExports, step);
  const std::string then = "the next start repeats it if it goes on from there";
  folder.attempt(step, "export", then, [&] {
    const checkpoint::PartialFolder partial(final, "check run.out");
    if (saved_parts(step, checkpoint, partial.path()) != Exit::done) return;
    save_beside_experts(partial.path());
    checkpoint::publish(partial.path(), final);
  });
}

bool Exports::has(int64_t step) const {
  return fs::exists(checkpoint::step_folder(folder.out / checkpoint::kExports, step));
}

/// What a folder of several experts has beside theirs. Of rank 0.
void Exports::save_beside_experts(const fs::path& model) const {
  if (job.experts.models() > 1 && !job.experts.gated)
    checkpoint::write_text(model / checkpoint::kExpertsFile,
                           checkpoint::experts_text({job.experts.boundary, recipe.diffusion.shift}));
  experts.save_model(model);
}

Exit Exports::model() const {
  Exit code = Exit::done;
  const int64_t step = recipe.run.steps;
  const auto attempted = [&](const std::function<void()>& act) {
    if (const Exit failed = folder.attempt(step, "export", kNextStart, act); failed != Exit::done) code = failed;
  };
  const fs::path trained = folder.out / "model", average = folder.out / "model_ema";
  const bool own_average = recipe::is_schedule_free(recipe);  // which is the result
  const auto exported = [&](const fs::path& model) {
    job::each_expert(store, job.experts, [&](size_t e, const std::string&) {
      if (e >= job.experts.models()) return;
      const engine::AveragedWeights averaged(store, folder.ranks.comm, own_average || model != trained);
      const job::Expert& expert = job.experts.list[e];
      const fs::path to = job.experts.models() > 1 ? model / expert.folder : model;
      attempted([&] {
        if (recipe.lora.on)
          return job::export_lora(recipe, lora_facts(step, expert), store, folder.ranks.comm, folder.ranks.rank(), to);
        export_model(*job.model, store, folder.ranks.comm, folder.ranks.rank(), to,
                     folder.ranks.first() ? export_naming(expert.path) : "");
        if (folder.ranks.first()) job::save_null_caption(recipe, *job.model, to);
      });
    });
    if (folder.ranks.first()) attempted([&] { save_beside_experts(model); });
  };
  exported(trained);
  if (parts.planned().plan().states.ema && !own_average)
    exported(average);
  else if (folder.ranks.first() && fs::exists(average))
    log::warn(average.string() + " is of an earlier part of this run: train.ema is 0 now, so no average was exported");
  return code;
}

}  // namespace tessera::train
