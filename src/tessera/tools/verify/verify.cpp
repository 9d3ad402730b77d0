#include "tessera/tools/verify/verify.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/file.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/device/failure.h"
#include "tessera/engine/store/meter.h"
#include "tessera/job/device.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/known.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

using CaseFunction = std::function<CaseResults(const CaseContext&)>;
constexpr const char* kFunTraining = "fun_training";          // has no config.json
constexpr const char* kPublishedShapes = "published_shapes";  // has a file for each model in place of config.json
using Kinds = std::map<std::string, CaseFunction>;

Kinds all_kinds() {
  Kinds kinds = {{"dit", verify_dit},
                 {"dit_moe", verify_dit_moe},
                 {"lora", verify_lora},
                 {"loha", verify_factors},
                 {"lokr", verify_factors},
                 {"adamw", verify_adamw},
                 {"lora_plus", verify_rates},
                 {"lr_schedules", verify_lr_schedules},
                 {"flow", verify_flow},
                 {"vae", verify_vae},
                 {"clip_vision", verify_clip_vision},
                 {"siglip_vision", verify_siglip},
                 {"adam8bit", verify_adam8bit},
                 {"lion", verify_optimiser},
                 {"adafactor", verify_optimiser},
                 {"came", verify_optimiser},
                 {"prodigy", verify_optimiser},
                 {"schedule_free", verify_optimiser},
                 {"muon", verify_muon},
                 {"hunyuan15_muon", verify_muon},
                 {"ema", verify_ema},
                 {"grad_scaler", verify_grad_scaler},
                 {"fp8", verify_fp8},
                 {"timestep_kinds", verify_timestep_kinds},
                 {"losses", verify_losses},
                 {"eval_loss", verify_eval_loss},
                 {"retention", verify_retention},
                 {"clip_picks", verify_clip_picks},
                 {"captions", verify_captions},
                 {"tokenizers", verify_tokenizers},
                 {"qwen2_tokenizer", verify_qwen_tokenizer},
                 {"aspect_ratios", verify_aspect_ratios},
                 {kPublishedShapes, verify_published_shapes},
                 {kFunTraining, verify_fun_training},
                 {"opensora_timesteps", verify_size_timesteps},
                 {"opensora_loss", verify_size_loss},
                 {"opensora_condition", verify_given_frames},
                 {"opensora_masks", verify_frame_masks},
                 {"hunyuan15_inputs", verify_picture_inputs},
                 {"opensora_buckets", verify_buckets},
                 {"opensora_checkpoint", verify_trainer_folders},
                 {"sampling_opensora", verify_size_sampling},
                 {"sana_sprint_training", verify_sprint_training},
                 {"sana_sprint_ladd", verify_sprint_ladd},
                 {"longsana_attention", verify_chunks},
                 {"longsana_dmd", verify_matching}};
  for (const models::AutoencoderMake& make : models::autoencoders()) {
    for (const std::string& kind : make.picture_cases) kinds[kind] = verify_pictures;
    for (const std::string& kind : make.clip_cases) kinds[kind] = verify_clips;
  }
  for (const models::Family& family : models::families()) {
    for (const std::string& kind : family.sampling_cases) kinds[kind] = verify_schedulers;
    for (const models::DenoiserCase& kind : family.cases)
      kinds[kind.kind] = [&kind](const CaseContext& context) { return verify_denoiser(context, kind); };
    for (const models::InputCase& kind : family.input_cases)
      kinds[kind.kind] = [&kind, before = kinds[kind.kind]](const CaseContext& context) {
        return verify_inputs(context, kind, before);
      };
  }
  kinds["dit_fun"] = [denoiser = kinds.at("dit_fun")](const CaseContext& context) {
    CaseResults results = denoiser(context), inputs = verify_fun_inputs(context);
    std::ranges::move(inputs, std::back_inserter(results));
    return results;
  };
  for (const models::TextEncoderMake& make : models::text_encoders()) {
    kinds[make.verify.kind] = [&make](const CaseContext& context) { return verify_text_encoder(context, make); };
    if (!make.verify.prompts.empty())
      kinds[make.verify.prompts] = [&make](const CaseContext& context) { return verify_prompts(context, make); };
  }
  for (const models::AudioEncoderMake& make : models::audio_encoders())
    kinds[make.verify.kind] = [&make](const CaseContext& context) { return verify_audio_encoder(context, make); };
  return kinds;
}

/// Null: this build does not know the kind, which one of several cases may have: goldens of later versions lie beside others.
/// Nothing else of the case is read then.
const CaseFunction* function_of(const Kinds& kinds, const fs::path& folder, bool of_several, int rank) {
  const std::string kind = CaseDescription(folder / "case.json").kind();
  if (const auto it = kinds.find(kind); it != kinds.end()) return &it->second;
  const std::string what = (folder / "case.json").string() + ": kind '" + printable(kind) + "' is not known";
  std::string known;
  for (const auto& [name, function] : kinds) known += (known.empty() ? "" : ", ") + name;
  if (!of_several) throw UserError(Exit::input, "verify", what, "known kinds: " + known);
  if (rank == 0) log::error(what + "; the other cases are compared");
  return nullptr;
}

/// Whether cases of the kind may have nothing of a model.
bool is_of_inputs(const std::string& kind) {
  return std::ranges::any_of(models::families(), [&](const models::Family& family) {
    return std::ranges::find(family.input_cases, kind, &models::InputCase::kind) != family.input_cases.end();
  });
}

CaseContext open_case(const fs::path& folder) {
  CaseContext context;
  context.folder = folder;
  context.name = fs::absolute(folder).lexically_normal().filename().string();
  if (context.name.empty()) context.name = fs::absolute(folder).lexically_normal().parent_path().filename().string();
  context.description = CaseDescription(folder / "case.json");
  const std::string kind = context.description.kind();
  const bool may_lack = is_of_inputs(kind) && !fs::exists(folder / "config.json");
  if (kind != kPublishedShapes && kind != kFunTraining && !may_lack)
    context.config = Settings(read_case_object(folder / "config.json"));
  return context;
}

void print(const CaseFile& file) {
  size_t failed = 0;
  const Comparison* worst = nullptr;  // nearest to, or farthest beyond, its bound
  const auto excess = [](const Comparison& c) {
    return std::isnan(c.max_abs) ? 1e300 : c.max_abs / std::max(c.bound, 1e-300);
  };
  for (const auto& c : file.comparisons()) {
    failed += !c.ok;
    if (!worst || excess(c) > excess(*worst)) worst = &c;
  }
  const std::string label =
      file.case_name() + "/" + file.file_name() + (file.weights().empty() ? "" : " (" + file.weights() + ")");
  std::printf("%-4s %-55s %4zu tensors", file.passed() ? "ok" : "FAIL", label.c_str(), file.comparisons().size());
  if (worst) std::printf(", worst %s: %.3g of %.3g", printable(worst->name).c_str(), worst->max_abs, worst->bound);
  std::printf("\n");
  std::fflush(stdout);  // a program that ends at a later case has told of those before
  for (const auto& [key, value] : file.notes().items())
    if (value.is_number() || value.is_string())
      std::printf("       %s: %s\n", key.c_str(),
                  printable(value.is_string() ? value.get<std::string>() : value.dump()).c_str());
  for (const std::string& run : file.refused()) std::printf("       refused: %s\n", printable(run).c_str());
  const Json left_out = file.not_compared();
  for (const auto& [why, names] : left_out.items())
    std::printf("       not compared: %zu expected value%s, %s%s%s%s\n", names.size(), names.size() > 1 ? "s" : "",
                printable(names.front().dump()).c_str(), names.size() > 1 ? " ..." : "", why.empty() ? "" : ": ",
                why.c_str());
  if (failed == 0) return;
  for (const auto& c : file.comparisons())
    if (!c.ok) std::printf("       %s: differs by %.3g, allowed %.3g\n", printable(c.name).c_str(), c.max_abs, c.bound);
}

void store(const CaseFile& file, const fs::path& folder) {
  checkpoint::make_folder(folder / file.case_name(), "check --write");
  std::vector<checkpoint::TensorData> tensors;
  std::vector<at::Tensor> alive;
  for (const auto& [name, value] : file.computed()) {
    alive.push_back(value.contiguous());
    tensors.push_back({name, file_dtype(value.scalar_type()), value.sizes().vec(), alive.back().const_data_ptr()});
  }
  const fs::path name = fs::path(file.file_name()).replace_extension(".safetensors");
  checkpoint::write_safetensors(folder / file.case_name() / name, tensors);
}

/// What to say of settings that nobody has read, which would have changed what is expected. Empty: there are none.
std::string unread_settings(const CaseContext& context, const models::ReadFields& fields) {
  context.config.read("_class_name");
  for (const auto& [key, value] : context.config.items())
    if (is_measure(key)) value.read();
  const std::pair<const char*, std::vector<std::string>> files[] = {
      {"config.json", context.config.unread(fields.paths())}, {"case.json", context.description.unread()}};
  for (const auto& [file, unread] : files) {
    std::string names;
    for (const std::string& name : unread) names += (names.empty() ? "" : ", ") + name;
    if (!unread.empty())
      return (context.folder / file).string() + ": " + printable(names) + (unread.size() > 1 ? " are" : " is") +
             " not known to this build, which would compare as if " + (unread.size() > 1 ? "they were" : "it were") +
             " not there";
  }
  return {};
}

/// Tensors of a case that do not go together are the case's fault, not ours. None: it has a setting that this build does not
/// know, which one of several cases may have.
std::optional<CaseResults> compute(const CaseFunction& kind, const CaseContext& context, bool of_several) {
  try {
    const models::ReadFields fields;
    context.config.text();  // readers of models take it, from the file or from here
    CaseResults results = kind(context);
    const std::string unread = unread_settings(context, fields);
    if (unread.empty()) return results;
    check_input(of_several, "verify", unread,
                "is it the name of another setting, or does the case need a newer build?");
    if (context.rank == 0) log::error(unread + "; the other cases are compared");
    return std::nullopt;
  } catch (const UserError& error) {
    const std::string words = error.what();
    if (words.find(context.folder.string()) != words.npos) throw;
    // fields of config.json that were read as those of a recipe, or as tiles
    constexpr const char* kOfCase[] = {"[models.vae]", "[models.config]", "[conditions]", "[masks]"};
    const bool of_case = std::ranges::any_of(kOfCase, [&](const char* place) { return words.starts_with(place); });
    throw UserError(of_case ? Exit::input : error.code(), "verify",
                    (context.folder / "config.json").string() + ": " + words);
  } catch (const c10::Error& error) {
    if (device::has_failed()) throw;
    const std::string words = error.what_without_backtrace();
    throw UserError(Exit::input, "verify",
                    context.folder.string() + ": its tensors do not go together: " + words.substr(0, words.find('\n')),
                    "compare their shapes with config.json");
  } catch (const Json::exception& error) {
    throw UserError(Exit::input, "verify",
                    context.folder.string() + ": case.json or config.json lacks a field, or has one of another type: " +
                        printable(error.what()),
                    "compare them with those of another case of kind " + context.description.kind());
  }
}

/// Says which expected values nothing was compared with, so that none of them passes unseen, and why.
void note_left_out(CaseFile& file) {
  Json reasons = file.not_compared(), all = Json::array();
  for (const auto& [why, names] : reasons.items()) all.insert(all.end(), names.begin(), names.end());
  if (all.empty()) return;
  file.note("not_compared", all);
  reasons.erase("");
  file.note("not_compared_because", reasons);
}

/// A text of every computed value's bits, for comparing ranks.
std::string fingerprint(const CaseResults& results) {
  std::string bits;
  for (const auto& file : results)
    for (const auto& [name, value] : file.computed()) {
      const at::Tensor dense = value.contiguous();
      bits.append(name).append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
    }
  return bits;
}

}  // namespace

int verify(const VerifyOptions& options) {
  engine::Meter::install();
  const comm::Rendezvous place = comm::rendezvous_from_env();
  log::set_rank(place.rank, place.world);
  check_input(!options.cases.empty(), "verify", "no case given", "tessera verify CASE...");
  if (options.mesh.world() != place.world)
    throw UserError(Exit::usage, "verify",
                    "--mesh " + options.mesh.to_string() + " has " + std::to_string(options.mesh.world()) + " ranks, " +
                        std::to_string(place.world) + " were started",
                    "start as many, or run it outside a launcher");
  job::choose_device(options.device, place);
  job::reserve_device(place, 0);
  comm::Comm comm(place, options.mesh);
  job::check_devices(comm);
  const Kinds kinds = all_kinds();
  bool passed = true, all_known = true, refused = false;
  Json report = Json::array();
  const bool of_several = options.cases.size() > 1;
  for (const auto& folder : options.cases) {
    const CaseFunction* function = function_of(kinds, folder, of_several, place.rank);
    all_known = all_known && function;
    if (!function) continue;
    CaseContext context = open_case(folder);
    context.comm = &comm;
    context.mesh = options.mesh;
    context.rank = place.rank;
    std::optional<CaseResults> computed = compute(*function, context, of_several);
    all_known = all_known && computed;
    if (!computed) continue;
    CaseResults& results = *computed;
    size_t compared = 0;
    for (auto& file : results) compared += file.comparisons().size(), note_left_out(file);
    const bool any =
        compared > 0 || std::ranges::any_of(results, [](const CaseFile& f) { return !f.refused().empty(); });
    check_input(any, "verify", folder.string() + ": nothing to compare",
                "the case has no expected values of kind " + context.description.kind());
    std::set<std::string> stored;
    comm.check_agreement("verify " + context.name, fingerprint(results));
    for (const auto& file : results) {
      passed = passed && file.passed();
      refused = refused || !file.refused().empty();
      report.push_back(file.to_json());
      if (place.rank != 0) continue;
      print(file);
      // The same tensors come from every set of weights; the first one is stored.
      if (!options.write.empty() && stored.insert(file.case_name() + "/" + file.file_name()).second)
        store(file, options.write);
    }
  }
  if (place.rank == 0 && !options.json.empty()) checkpoint::write_text(options.json, report.dump(1) + "\n");
  if (place.world > 1) comm.barrier();
  return static_cast<int>(!passed ? Exit::comparison : all_known && !refused ? Exit::done : Exit::input);
}

}  // namespace tessera::tools
