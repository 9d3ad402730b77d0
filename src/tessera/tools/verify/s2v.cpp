// Kind "dit_s2v": the speech-to-video denoiser through the engine, on any mesh. The case has picture and clip apart,
// the denoiser takes them as one latent.
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/tools/verify/dit_run.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

std::string at_sample(const char* name, size_t i) { return std::string(name) + "." + std::to_string(i); }

/// Cases of a clip that begins a video have motion latents that are not to be used; their files say so.
bool drops_motion(const CaseContext& context, const fs::path& path) {
  const std::string file = path.filename().string();
  const Json files = context.description.value("files", Json::object());
  const std::string text = files.value(file, std::string());
  return file.find("_drop") != file.npos || text.find("drop_motion_frames=True") != text.npos;
}

std::vector<net::Sample> read_s2v_samples(const CaseFile& file, bool drop_motion) {
  const at::Tensor t = file.tensor("in.t").to(at::kDouble), audio = file.tensor("in.audio_input");
  check_input(
      t.dim() == 1 && audio.dim() == 4 && audio.size(0) == t.size(0), "verify",
      file.case_name() + "/" + file.file_name() + ": expected in.t [B] and in.audio_input [B, layers, dim, rows]");
  const auto first_added = [](const at::Tensor& clip) { return at::constant_pad_nd(clip, {0, 0, 0, 0, 1, 0}); };
  std::vector<net::Sample> samples;
  for (size_t i = 0; i < static_cast<size_t>(t.size(0)); ++i) {
    const auto n = static_cast<int64_t>(i);
    net::Sample sample;
    sample.t = t[n].item<double>();
    sample.context = file.tensor(at_sample("in.context", i));
    sample.x = at::cat({file.tensor(at_sample("in.ref_latents", i)), file.tensor(at_sample("in.x", i))}, 1);
    sample.target = first_added(file.tensor(at_sample("in.target", i)));
    sample.extra["pose"] = first_added(file.tensor(at_sample("in.cond_states", i)));
    sample.extra["audio"] = audio[n].transpose(1, 2).contiguous();
    if (!drop_motion) sample.extra["motion"] = file.tensor(at_sample("in.motion_latents", i));
    samples.push_back(std::move(sample));
  }
  return samples;
}

void compare_s2v_input_grads(const DitRun& run, double tolerance, CaseFile& file) {
  const auto bound = by_largest(tolerance);
  std::vector<at::Tensor> audio;
  for (size_t i = 0; i < run.input_grads.size(); ++i) {
    const auto& grads = run.input_grads[i];
    const at::Tensor& x = grads.at("x");
    file.compare(at_sample("grad_in.ref_latents", i), x.slice(1, 0, 1), bound);
    file.compare(at_sample("grad_in.x", i), x.slice(1, 1), bound);
    file.compare(at_sample("grad_in.context", i), grads.at("context"), bound);
    file.compare(at_sample("grad_in.cond_states", i), grads.at("pose").slice(1, 1), bound);
    if (grads.count("motion")) file.compare(at_sample("grad_in.motion_latents", i), grads.at("motion"), bound);
    audio.push_back(grads.at("audio").transpose(1, 2));
  }
  file.compare("grad_in.audio_input", at::stack(audio), bound);
}

}  // namespace

CaseResults verify_dit_s2v(const CaseContext& context) {
  CaseResults results;
  const auto model = models::make_denoiser({.config_text = context.config.dump()});
  for (const fs::path& path : context.case_files()) {
    CaseFile file(context.name, path, "model.safetensors");
    const std::vector<net::Sample> samples = read_s2v_samples(file, drops_motion(context, path));
    const DitRun run = run_dit(context, *model, samples, context.folder / "model.safetensors", samples.size());
    for (size_t i = 0; i < samples.size(); ++i)
      file.compare(at_sample("out", i), run.outputs[i].slice(1, 1), context.tolerance("out"));
    file.compare("out.loss", at::scalar_tensor(run.loss, at::kFloat), context.tolerance("loss"));
    // A case may leave gradients out as a whole, not one of them.
    if (!file.names("grad_in.").empty()) compare_s2v_input_grads(run, context.tolerance("grad_in"), file);
    if (!file.names("grad.").empty())
      for (const auto& [name, value] : run.grads)
        file.compare("grad." + name, value, by_largest(context.tolerance("grad")));
    results.push_back(std::move(file));
  }
  return results;
}

}  // namespace tessera::tools
