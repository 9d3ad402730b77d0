#pragma once
// One golden case being checked: its files, its tolerances, and the comparisons made so far.
#include <filesystem>
#include <map>
#include <optional>

#include "tessera/base/mesh.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/comm/comm.h"
#include "tessera/models/common/family.h"
#include "tessera/models/vae/tiles.h"
#include "tessera/tools/verify/case_json.h"

namespace tessera::tools {

struct Comparison {
  std::string name;
  double max_abs = 0, max_rel = 0, bound = 0;
  bool ok = false;
};

/// The comparisons of one case file. Values are compared in double.
class CaseFile final : public models::CaseTensors {
 public:
  CaseFile(std::string case_name, const std::filesystem::path& path, std::string weights = {});
  /// For a file that is not of tensors: what was expected in it, read by the caller.
  CaseFile(std::string case_name, const std::filesystem::path& path, std::map<std::string, at::Tensor> expected);

  const std::string& case_name() const { return case_name_; }
  std::string file_name() const { return path_.filename().string(); }
  const std::string& weights() const { return weights_; }

  std::string label() const override { return case_name_ + "/" + file_name(); }
  bool has(const std::string& name) const override {
    return file_ ? file_->find(name) != nullptr : expected_.count(name) > 0;
  }
  std::vector<std::string> names(const std::string& prefix) const override;
  /// A tensor of the case, in its own dtype (8-bit floats, and inputs in 16 bits, as fp32). Throws UserError (input) when
  /// it is missing.
  at::Tensor tensor(const std::string& name) const override;

  /// Compares with the expected tensor of that name and remembers the computed one for --write. A missing expectation,
  /// another shape or a NaN fails. `bound` maps the largest expected magnitude to the largest allowed difference.
  void compare(const std::string& name, const at::Tensor& computed, const std::function<double(double)>& bound);
  void compare(const std::string& name, const at::Tensor& computed, double bound) {
    compare(name, computed, [bound](double) { return bound; });
  }
  /// Each of them, whole numbers exactly.
  void compare_all(const models::NamedTensors& computed, const std::function<double(double)>& bound);
  void compare_all(const models::NamedTensors& computed, double bound) {
    compare_all(computed, [bound](double) { return bound; });
  }
  /// The same with a bound for each element, made from the expected tensor (doubles of its shape). `nan`: a NaN is
  /// right where one is expected.
  void compare_each(const std::string& name, const at::Tensor& computed,
                    const std::function<at::Tensor(const at::Tensor& expected)>& bounds, bool nan = false);
  /// Any other rule: fills max_abs, bound and ok from two tensors of one shape and no NaN.
  void judge(const std::string& name, const at::Tensor& computed,
             const std::function<void(const at::Tensor& expected, const at::Tensor& found, Comparison& c)>& rule);
  /// Remembers a computed value for --write that is not compared.
  void keep(const std::string& name, const at::Tensor& computed) { computed_.emplace_back(name, computed); }
  /// A field of the report beside the comparisons: what was left out, and why.
  void note(const std::string& key, Json value) { notes_[key] = std::move(value); }
  const Json& notes() const { return notes_; }
  /// Books a failure that is not a difference of values.
  void fail(const std::string& name);
  /// Says why expected values whose names begin like this are not compared; those that are compared all the same, or that
  /// the case lacks, are not reported.
  void leave_out(const std::string& prefix, const std::string& why) { left_out_.emplace_back(prefix, why); }
  /// By the reason, "" where none was given: names of expected values that nothing was compared with.
  Json not_compared() const;
  /// Books a failure of each of these, for cases that are compared whole.
  void fail_the_rest();
  /// Takes back what was compared of a run, whose settings this build has not, and says why: the case ends with exit
  /// code 3 where nothing else differs.
  void refuse_run(const std::string& run, const std::string& why);
  const std::vector<std::string>& refused() const { return refused_; }  ///< "RUN: why"

  bool passed() const;
  const std::vector<Comparison>& comparisons() const { return comparisons_; }
  const std::vector<std::pair<std::string, at::Tensor>>& computed() const { return computed_; }
  Json to_json() const;

 private:
  std::string case_name_, weights_;
  std::filesystem::path path_;
  std::optional<checkpoint::SafetensorsFile> file_;
  std::map<std::string, at::Tensor> expected_;  ///< where there is no such file
  Json notes_ = Json::object();
  std::vector<std::pair<std::string, std::string>> left_out_;  ///< how names begin, and why
  std::vector<Comparison> comparisons_;
  std::vector<std::pair<std::string, at::Tensor>> computed_;
  std::vector<std::string> refused_;
};

/// [n] int64.
at::Tensor whole_numbers(const std::vector<int64_t>& values);
at::Tensor bytes_of(const std::string& text);  ///< of dtype uint8

/// The dtype under which a computed tensor is stored.
DType file_dtype(at::ScalarType dtype);

/// What a kind's function gets.
struct CaseContext {
  std::filesystem::path folder;
  std::string name;
  CaseDescription description;
  Settings config;  ///< config.json
  comm::Comm* comm = nullptr;
  Mesh mesh;
  int rank = 0;
  std::filesystem::path write;  ///< empty: nothing is stored

  double tolerance(const std::string& key) const { return description.tolerance(key); }
  std::function<double(double)> bound(const std::string& key) const { return description.bound(key); }
  std::vector<std::filesystem::path> case_files() const;  ///< case*.safetensors, sorted
};

using CaseResults = std::vector<CaseFile>;
/// Arguments of diffusers' enable_tiling, under "_tiling" of config.json; none: no tiles.
models::Tiling diffusers_tiling(const CaseContext& context);
// What checks a kind; the list of kinds is in verify.cpp.
CaseResults verify_dit(const CaseContext& context);
CaseResults verify_dit_moe(const CaseContext& context);
CaseResults verify_lora(const CaseContext& context);
/// LoHa and LoKr: layers alone, and adapters of a denoiser.
CaseResults verify_factors(const CaseContext& context);
CaseResults verify_adamw(const CaseContext& context);
/// Rates by group: LoRA+, patterns, parts of a model.
CaseResults verify_rates(const CaseContext& context);
CaseResults verify_lr_schedules(const CaseContext& context);
CaseResults verify_flow(const CaseContext& context);
// Of an objective whose shift follows from a sample's size.
CaseResults verify_size_timesteps(const CaseContext& context);
CaseResults verify_size_loss(const CaseContext& context);
CaseResults verify_size_sampling(const CaseContext& context);
CaseResults verify_buckets(const CaseContext& context);
// Of frames that are given.
CaseResults verify_given_frames(const CaseContext& context);
CaseResults verify_frame_masks(const CaseContext& context);
/// And of pictures that a sample begins with: what one program's trainer and sampler make for its model.
CaseResults verify_picture_inputs(const CaseContext& context);
// Of folders that another trainer saved.
CaseResults verify_trainer_folders(const CaseContext& context);
CaseResults verify_vae(const CaseContext& context);
CaseResults verify_pictures(const CaseContext& context);
CaseResults verify_clips(const CaseContext& context);
CaseResults verify_clip_vision(const CaseContext& context);
CaseResults verify_siglip(const CaseContext& context);
CaseResults verify_optimiser(const CaseContext& context);
/// Muon, of PyTorch, of Jordan and of HunyuanVideo-1.5.
CaseResults verify_muon(const CaseContext& context);
CaseResults verify_ema(const CaseContext& context);
CaseResults verify_adam8bit(const CaseContext& context);
CaseResults verify_tokenizers(const CaseContext& context);
CaseResults verify_qwen_tokenizer(const CaseContext& context);
CaseResults verify_aspect_ratios(const CaseContext& context);
CaseResults verify_published_shapes(const CaseContext& context);
CaseResults verify_grad_scaler(const CaseContext& context);
CaseResults verify_fp8(const CaseContext& context);
// VideoX-Fun's: what its pipelines make for a denoiser, beside a case of the denoiser; what its trainers make.
CaseResults verify_fun_inputs(const CaseContext& context);
CaseResults verify_fun_training(const CaseContext& context);
// What other trainers have beside their models: timesteps, losses, what is held out, kept and picked.
CaseResults verify_timestep_kinds(const CaseContext& context);
CaseResults verify_losses(const CaseContext& context);
CaseResults verify_eval_loss(const CaseContext& context);
CaseResults verify_retention(const CaseContext& context);
CaseResults verify_clip_picks(const CaseContext& context);
CaseResults verify_captions(const CaseContext& context);
// Of steps with several networks: a student with its teacher and heads, a critic beside a frozen score.
CaseResults verify_sprint_training(const CaseContext& context);
CaseResults verify_sprint_ladd(const CaseContext& context);
CaseResults verify_matching(const CaseContext& context);
/// Clips that are made a chunk of frames at a time.
CaseResults verify_chunks(const CaseContext& context);
// Kinds that a model's folder brings.
CaseResults verify_schedulers(const CaseContext& context);
/// What `before`, where there is any, checks of the case's other files comes first.
CaseResults verify_inputs(const CaseContext& context, const models::InputCase& kind,
                          const std::function<CaseResults(const CaseContext&)>& before);
CaseResults verify_denoiser(const CaseContext& context, const models::DenoiserCase& kind);
CaseResults verify_text_encoder(const CaseContext& context, const models::TextEncoderMake& make);
CaseResults verify_prompts(const CaseContext& context, const models::TextEncoderMake& make);
/// The prompts that a case of an encoder has beside its own tensors: conversations, and what is written in quotes.
void check_prompts(const CaseContext& context, const models::TextEncoderMake& make, CaseFile& file);
CaseResults check_glyphs(const CaseContext& context);  ///< their texts and tokens alone
CaseResults verify_audio_encoder(const CaseContext& context, const models::AudioEncoderMake& make);

}  // namespace tessera::tools
