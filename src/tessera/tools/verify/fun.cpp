// Of VideoX-Fun's models, what its pipelines and trainers make of pixels, masks, pictures and cameras. Every rank computes
// the same.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/data/camera.h"
#include "tessera/families/frames/pixel_masks.h"
#include "tessera/job/codec.h"
#include "tessera/models/common/camera_rays.h"
#include "tessera/models/registry.h"
#include "tessera/prepare/encoded.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using at::Tensor;
namespace fs = std::filesystem;

/// The autoencoder that the file's entry in case.json names: "VAE weights: ../wan21_vae/model.safetensors".
std::unique_ptr<models::VideoVae> vae_of(const CaseContext& context, const std::string& file) {
  const Settings files = context.description.json.at("files");
  const std::string about = files.value(file, std::string()), mark = "VAE weights: ";
  const size_t at = about.find(mark);
  check_input(at != about.npos, "verify",
              (context.folder / "case.json").string() + ": files." + file + " names no VAE weights");
  const std::string rest = about.substr(at + mark.size());
  const fs::path weights = context.folder / rest.substr(0, rest.find_first_of(" ,;)"));
  return job::open_vae(weights, weights.parent_path() / "config.json", {});
}

Tensor camera_tensor(const std::vector<data::CameraRow>& rows, int64_t height, int64_t width) {
  const std::vector<float> numbers = data::camera_numbers(rows, {height, width});
  return at::tensor(numbers, at::kFloat).view({-1, data::kCameraNumbers});
}

std::vector<data::CameraRow> camera_rows(const Tensor& stored) {
  check_input(stored.dim() == 2 && stored.size(1) == 19 && stored.size(0) > 0, "verify",
              "in.camera " + c10::str(stored.sizes()) + ": expected [frames, 19]");
  const Tensor numbers = stored.to(at::kDouble).contiguous();
  std::vector<data::CameraRow> rows(static_cast<size_t>(stored.size(0)));
  for (size_t f = 0; f < rows.size(); ++f) std::copy_n(numbers.const_data_ptr<double>() + 19 * f, 19, rows[f].begin());
  return rows;
}

/// Pictures of a file are in 0..1.
Tensor pixels(const CaseFile& file, const std::string& name) { return file.tensor("in." + name) * 2 - 1; }

/// One run of a pipeline: what the file has of its inputs and outputs.
class PipelineRun {
 public:
  PipelineRun(const CaseContext& context, CaseFile& file, const models::VideoVae& vae, const net::Conditions& takes,
              std::string name)
      : bound_(context.tolerance("prep_out")), file_(file), vae_(vae), takes_(takes), name_(std::move(name)) {}

  void check() {
    const auto shape = file_.tensor("in.latents").sizes().vec();
    std::vector<Tensor> y;
    // a run that is named for its lack of a control video has none; all others have the file's
    if (takes_.control_dim > 0)
      y.push_back(name_ == "no_control" ? at::zeros(shape, at::kFloat) : vae_.encode(pixels(file_, "control")));
    const Tensor mask = mask_of(shape);
    if (takes_.mask_channels > 0)
      y.push_back(prepare::given_latent(vae_, pixels(file_, "video"), mask));
    else
      y.push_back(start(shape));
    const Tensor all = at::cat(y);
    compare("y", all);
    if (has("full_ref")) compare("full_ref", reference());
    if (has("seq_len"))
      file_.compare(out("seq_len"), at::scalar_tensor(shape[1] * shape[2] * shape[3] / 4, at::kLong), 0.0);
    if (has("t")) check_first(shape, all, mask);
  }

 private:
  std::string out(const char* what) const { return "out." + name_ + "." + what; }
  bool has(const char* what) const { return file_.has(out(what)); }
  void compare(const char* what, const Tensor& computed) { file_.compare(out(what), computed, bound_); }

  /// 1: to be made. A run without a mask of its own makes everything.
  Tensor mask_of(at::IntArrayRef latent) const {
    const std::string name = "in.mask." + name_;
    if (file_.has(name)) return file_.tensor(name).gt(127.5).to(at::kFloat);
    return file_.has("in.video") ? at::ones_like(file_.tensor("in.video")[0].unsqueeze(0))
                                 : at::ones({1, models::camera_frames(latent[1]), 8, 8});
  }
  Tensor start(at::IntArrayRef latent) const {
    if (name_ == "control_only") return at::zeros(latent, at::kFloat);
    return prepare::in_front(vae_.encode(pixels(file_, "start_image")), latent[1]);
  }
  /// A run that is named for its lack of pictures has a reference of zeros.
  Tensor reference() const {
    const Tensor latent = vae_.encode(pixels(file_, "ref_image")).squeeze(1);
    return name_ == "control_only" || name_ == "none" ? at::zeros_like(latent) : latent;
  }
  /// Of a model with a timestep a token: the first step, at 1000, with a given first frame in place of the noise.
  void check_first(at::IntArrayRef latent, const Tensor& y, const Tensor& mask) {
    const Tensor noise = file_.tensor("in.latents");
    const Tensor cells = prepare::made_cells(mask, {latent[0], latent[1], latent[2], latent[3]});
    const double t = file_.tensor(out("t")).max().item<double>();
    compare("t", (cells.slice(2, 0, std::nullopt, 2).slice(3, 0, std::nullopt, 2) * t).flatten());
    const Tensor x = prepare::with_first(noise, y.slice(0, -latent[0]), cells);
    compare("x", x);
    if (has("after_step")) compare("after_step", x);  // a step with a prediction of zeros
  }

  const double bound_;
  CaseFile& file_;
  const models::VideoVae& vae_;
  const net::Conditions takes_;
  const std::string name_;
};

void check_prepared(const CaseContext& context, const net::Conditions& takes, CaseFile& file) {
  const auto vae = vae_of(context, file.file_name());
  std::vector<std::string> runs;
  for (const std::string& name : file.names("out.")) {
    const std::string run = name.substr(4, name.find('.', 4) - 4);
    if (name.ends_with(".y") && std::ranges::find(runs, run) == runs.end()) runs.push_back(run);
  }
  for (const std::string& run : runs) PipelineRun(context, file, *vae, takes, run).check();
  if (!file.has("in.camera")) return;
  const auto shape = file.tensor("in.latents").sizes().vec();
  const Tensor rays = models::camera_rays(camera_tensor(camera_rows(file.tensor("in.camera")),
                                                        shape[2] * takes.camera_scale, shape[3] * takes.camera_scale),
                                          shape[2] * takes.camera_scale, shape[3] * takes.camera_scale);
  file.compare("out.y_camera", models::rays_by_latent_frame(rays), context.tolerance("plucker"));
}

void check_directions(const CaseContext& context, CaseFile& file) {
  const std::string of_rows = "out.rows.", of_rays = "out.plucker.";
  for (const std::string& name : file.names(of_rows)) {
    const auto rows = data::named_camera(name.substr(of_rows.size()), data::kCameraSpeed, file.tensor(name).size(0));
    const Tensor computed = at::empty({static_cast<int64_t>(rows.size()), 19}, at::kDouble);
    for (size_t f = 0; f < rows.size(); ++f)
      std::copy(rows[f].begin(), rows[f].end(), computed.mutable_data_ptr<double>() + 19 * f);
    file.compare(name, computed, context.tolerance("plucker"));
  }
  for (const std::string& name : file.names(of_rays)) {
    const auto shape = file.tensor(name).sizes().vec();
    const auto rows = data::named_camera(name.substr(of_rays.size()), data::kCameraSpeed, shape[0]);
    file.compare(name, models::camera_rays(camera_tensor(rows, shape[1], shape[2]), shape[1], shape[2]),
                 context.tolerance("plucker"));
  }
}

/// Recorded numbers in their order.
families::PixelDraws recorded(const Tensor& numbers) {
  const auto next = std::make_shared<int64_t>(0);
  const auto number = [=] {
    check_input(*next < numbers.numel(), "verify", "a mask draws more numbers than the case has");
    return numbers[(*next)++].item<double>();
  };
  return {[=](int64_t, int64_t) { return static_cast<int64_t>(number()); }, number,
          [=](int64_t, int64_t count) {
            std::vector<int64_t> chosen;
            for (int64_t i = 0; i < count; ++i) chosen.push_back(static_cast<int64_t>(number()));
            return chosen;
          },
          nullptr};
}

void check_masks(CaseFile& file) {
  constexpr int kNoise = 5;
  for (const std::string& name : file.names("in.draws.")) {
    const int kind = std::stoi(name.substr(9));
    const std::string out = "out.mask." + std::to_string(kind);
    const auto shape = file.tensor(out).sizes().vec();
    check_input(shape.size() == 4, "verify", file.label() + ": " + out + ": expected [frames, 1, height, width]");
    if (kind == kNoise) {
      file.leave_out(out, "each pixel is a draw of its own, which the case has not");
      continue;
    }
    const std::vector<uint8_t> mask =
        families::pixel_mask(kind, {shape[0], shape[2], shape[3]}, recorded(file.tensor(name)));
    const Tensor computed = at::empty(shape, at::kByte);
    std::copy(mask.begin(), mask.end(), computed.mutable_data_ptr<uint8_t>());
    file.compare(out, computed, 0.0);
  }
}

/// What a trainer makes of its batch's pixels and draws.
void check_conditions(const CaseContext& context, CaseFile& file) {
  const double bound = context.tolerance("out");
  const auto vae = vae_of(context, file.file_name());
  const auto draws = [&](const char* name, int64_t i) {
    return file.tensor(std::string("in.") + name)[i].item<double>();
  };
  std::vector<Tensor> latents, inpaint, control, control_with_mask, references, flags, kept;
  int64_t rand = 0;
  for (int64_t i = 0; i < file.tensor("in.clip_idx").size(0); ++i) {
    const std::string n = std::to_string(i);
    const Tensor video = file.tensor("in.video." + n), mask = file.tensor("in.mask." + n);
    latents.push_back(vae->encode(video));
    const bool nothing = mask.eq(1).all().item<bool>();
    const bool zero = nothing && draws("rand", rand++) < families::ConditionShares().nothing;
    const Tensor given = prepare::given_latent(*vae, video, mask, /*nothing_is_zero=*/zero);
    flags.push_back(at::scalar_tensor(zero ? 0.0 : 1.0, at::kFloat));
    inpaint.push_back(given);
    Tensor moved = vae->encode(file.tensor("in.control." + n));
    if (draws("drop_control", i) != 0) moved = at::zeros_like(moved);
    const auto frame = static_cast<int64_t>(draws("clip_idx", i));
    const Tensor picture = vae->encode(video.slice(1, frame, frame + 1)), absent = at::zeros_like(picture);
    // the same picture is the begin of the clip or what it refers to, never both
    const Tensor start = frame == 0 && draws("drop_first", i) == 0 ? picture : absent;
    references.push_back((frame != 0 && draws("drop_ref", i) == 0 ? picture : absent).squeeze(1));
    control.push_back(at::cat({moved, prepare::in_front(start, latents.back().size(1))}));
    control_with_mask.push_back(at::cat({moved, given}));
    kept.push_back(at::scalar_tensor(draws("drop_clip", i) == 0 ? 1 : 0, at::kLong));
  }
  for (const auto& [name, values] :
       std::initializer_list<std::pair<const char*, const std::vector<Tensor>&>>{{"latents", latents},
                                                                                 {"inp.y", inpaint},
                                                                                 {"inp.t2v_flag", flags},
                                                                                 {"control.y", control},
                                                                                 {"control.full_ref", references},
                                                                                 {"control22.y", control_with_mask},
                                                                                 {"control22.full_ref", references}})
    file.compare(std::string("out.") + name, at::stack(values), bound);
  file.compare("out.clip_kept", at::stack(kept), 0.0);
}

/// A given first frame in the noisy latents. The trainer takes it out of all of a batch if one sample makes its first
/// frame; a run here gives it to each sample by itself (diffusion/training_sample.h), the recorded batch is followed.
void check_first_frames(const CaseContext& context, CaseFile& file) {
  for (const std::string& name : file.names("out.five.")) {
    if (!name.ends_with(".noisy_before")) continue;
    const std::string run = name.substr(0, name.rfind('.') + 1);
    const Tensor before = file.tensor(name), y = file.tensor(run + "y"), cells = file.tensor(run + "mask_conditions"),
                 times = file.tensor(run + "t");
    bool all = true;
    for (int64_t s = 0; s < before.size(0); ++s) all = all && prepare::gives_first(cells[s]);
    std::vector<Tensor> noisy, t;
    for (int64_t s = 0; s < before.size(0); ++s) {
      const Tensor made = all ? cells[s] : at::ones_like(cells[s]);
      noisy.push_back(prepare::with_first(before[s], y[s].slice(0, -before.size(1)), made));
      t.push_back((made.slice(2, 0, std::nullopt, 2).slice(3, 0, std::nullopt, 2) * times[s].max()).flatten());
    }
    file.compare(run + "noisy", at::stack(noisy), context.tolerance("out"));
    file.compare(run + "t", at::stack(t), context.tolerance("out"));
    for (const char* input : {"noisy_before", "y", "mask_conditions"}) file.leave_out(run + input, "the step's input");
  }
}

/// The mean of squares, of which those of differences above 50 count as 0.
void check_loss(const CaseContext& context, CaseFile& file) {
  constexpr double kMost = 50;
  if (!file.has("out.loss.value")) return;
  const Tensor off = file.tensor("out.loss.pred").to(at::kDouble) - file.tensor("out.loss.target").to(at::kDouble);
  const Tensor loss = (off * off * off.abs().le(kMost)).mean().to(at::kFloat);
  file.compare("out.loss.value", loss, [bound = context.tolerance("loss")](double most) { return bound * most; });
  for (const char* input : {"pred", "target"}) file.leave_out(std::string("out.loss.") + input, "the loss's input");
}

template <class Check>
void with_file(const CaseContext& context, const char* name, CaseResults& results, const Check& check) {
  if (!fs::exists(context.folder / name)) return;
  CaseFile file(context.name, context.folder / name);
  check(file);
  results.push_back(std::move(file));
}

}  // namespace

CaseResults verify_fun_inputs(const CaseContext& context) {
  const auto model = models::make_denoiser({.config = (context.folder / "config.json").string()});
  for (const char* of_inputs : {"prep_out", "plucker"}) context.description.json.at("tolerance").read(of_inputs);
  CaseResults results;
  with_file(context, "prep.safetensors", results,
            [&](CaseFile& file) { check_prepared(context, model->conditions(), file); });
  with_file(context, "directions.safetensors", results, [&](CaseFile& file) { check_directions(context, file); });
  return results;
}

CaseResults verify_fun_training(const CaseContext& context) {
  context.description.json.at("tolerance").read("masks");  // they are exact
  CaseResults results;
  with_file(context, "masks.safetensors", results, check_masks);
  with_file(context, "train.safetensors", results, [&](CaseFile& file) {
    check_conditions(context, file);
    check_first_frames(context, file);
    check_loss(context, file);
  });
  check_input(!results.empty(), "verify",
              context.folder.string() + ": neither masks.safetensors nor train.safetensors");
  return results;
}

}  // namespace tessera::tools
