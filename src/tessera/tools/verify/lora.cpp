// Kind "lora": one adapter in the namings of several programs, on the base of another case. Every file gives the same
// outputs, loss and gradients of A and B; one that does not say its alpha gives those of scale 1. Kinds "loha" and "lokr":
// the same of factors, and layers alone with the weight that a merge gives.
#include <cmath>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/job/lora_run.h"
#include "tessera/models/lora_file.h"
#include "tessera/models/registry.h"
#include "tessera/ops/frozen.h"
#include "tessera/tools/verify/dit_run.h"
#include "tessera/tools/verify/optimiser_case.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> adapter_files(const fs::path& folder, const std::string& kind) {
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(folder)) {
    const std::string name = item.path().filename().string();
    if (name.starts_with(kind) && name.ends_with(".safetensors")) files.push_back(item.path());
  }
  std::sort(files.begin(), files.end());
  check_input(!files.empty(), "verify", folder.string() + ": there is no " + kind + "*.safetensors");
  return files;
}

template <class Value>
Value field(const CaseContext& context, const Settings& object, const char* key) {
  check_input(object.contains(key), "verify", (context.folder / "config.json").string() + " has no " + key);
  return object.at(key).get<Value>();
}

std::string config_text(const CaseContext& context) {
  check_input(context.config.contains("base_config"), "verify",
              (context.folder / "config.json").string() + " has no base_config");
  return context.config.at("base_config").text();
}

void check_adapter(const CaseContext& context, const fs::path& path, const fs::path& adapter, CaseResults& results) {
  CaseFile file(context.name, path, adapter.filename().string());
  const models::LoraFile lora = models::LoraFile::open(adapter);
  // DiffSynth's form has no place for alpha: the scale is a factor of B there, and still the one of the case.
  const bool scaled = lora.has_alpha() || lora.naming() == "diffsynth";
  const auto rank = field<int64_t>(context, context.config, "rank");
  const models::AdapterRule rule{
      .rank = rank,
      .alpha = scaled ? field<double>(context, context.config, "alpha") : static_cast<double>(rank),
      .targets = field<std::vector<std::string>>(context, context.config, "target_modules")};
  const auto model = models::make_denoiser({.config_text = config_text(context)});
  const std::vector<std::string> modules = models::adapt(*model, rule);
  if (context.config.contains("modules")) {
    auto listed = context.config.at("modules").get<std::vector<std::string>>(), found = modules;
    std::ranges::sort(listed), std::ranges::sort(found);
    check_input(listed == found, "verify",
                "target_modules match " + std::to_string(found.size()) + " modules, and not those " +
                    std::to_string(listed.size()) + " that config.json lists");
  }

  const std::vector<net::Sample> samples = read_samples(file, *model);
  const fs::path base = context.folder / field<std::string>(context, context.config, "base") / "model.safetensors";
  const DitRun run = run_dit(context, *model, samples, base, samples.size(),
                             job::adapter_values(rule, modules, adapter, models::form_of(*model)));
  const std::string out = scaled ? "out." : "out_scale1.";
  for (size_t i = 0; i < samples.size(); ++i)
    file.compare(out + std::to_string(i), run.outputs[i], context.tolerance("out"));
  if (scaled) {
    file.compare("out.loss", at::scalar_tensor(run.loss, at::kFloat), context.tolerance("loss"));
    for (const auto& [name, value] : run.grads)
      file.compare("grad." + name, value, by_largest(context.tolerance("grad")));
  }
  file.leave_out(scaled ? "out_scale1." : "out.",
                 scaled ? "of files that do not say their alpha" : "of files that say their alpha");
  file.leave_out("grad.", "of files that say their alpha");
  results.push_back(std::move(file));
}

// ---- LoHa and LoKr ----------------------------------------------------------------------------------------------------

/// A layer with its adapter: as training computes it where it is a linear, else as the merged weight does.
class FactoredLayer {
 public:
  FactoredLayer(const CaseContext& context, CaseFile& file, const std::string& name, const RunSettings& run)
      : context_(context), file_(file), name_(name), run_(run) {
    for (const char* off : {"dropout", "rank_dropout", "module_dropout"}) run.expect(off, 0.0);
    for (const char* off : {"use_scalar", "weight_decompose", "bypass_mode"}) run.expect(off, false);
    for (size_t i = 0; i < std::size(models::kFactorEndings); ++i) {
      const std::string ending(models::kFactorEndings[i]);
      if (!file.has("in." + name + ending)) continue;
      const auto part = static_cast<models::LoraPart>(static_cast<size_t>(models::kFirstFactor) + i);
      factors_.emplace(part, file.tensor("in." + name + ending).requires_grad_());
    }
    check_input(!factors_.empty(), "verify", name + ": the case has no factors that are known");
  }

  void check() {
    const double rank = run_.at("rank"), given = run_.value("alpha", 0.0), alpha = given == 0 ? rank : given;
    const bool rs = run_.value("rs_lora", false),
               whole = has(models::LoraPart::lokr_w1) && has(models::LoraPart::lokr_w2);
    const double scale = whole ? 1 : alpha / (rs ? std::sqrt(rank) : rank);
    const double stored = whole ? rank : rs ? alpha * std::sqrt(rank) : alpha;
    check_input(file_.tensor("in." + name_ + ".alpha").item<double>() == stored, "verify",
                name_ + ": in." + name_ + ".alpha is not " + std::to_string(stored));
    check_shapes();
    scale_ = scale * run_.value("multiplier", 1.0);
    const at::Tensor base = in("base.weight"), change = models::weight_change(factors_).view_as(base);
    merged_ = base + scale_ * change;
    const auto out = context_.bound("out");
    file_.compare("out." + name_ + ".merged", merged_.detach(), out);
    const bool defect = has(models::LoraPart::lokr_t2) || (has(models::LoraPart::lokr_w2) && base.dim() == 5);
    if (!defect && file_.has("out." + name_ + ".comfy"))
      file_.compare("out." + name_ + ".comfy", (base + scale * change).detach(), out);
    if (file_.has("out." + name_ + ".comfy_noalpha"))
      file_.compare("out." + name_ + ".comfy_noalpha", (base + change).detach(), out);
    file_.leave_out("out." + name_ + ".comfy", "ComfyUI does not apply this form: see the case's notes");
    file_.leave_out("out." + name_ + ".lycoris_get_merged", "it has the scale twice");
    base.dim() == 2 ? train_linear() : train_convolution();
  }

 private:
  bool has(models::LoraPart part) const { return factors_.contains(part); }
  at::Tensor in(const std::string& what) const { return file_.tensor("in." + name_ + "." + what); }
  std::string ending(models::LoraPart part) const {
    return std::string(models::kFactorEndings[static_cast<size_t>(part) - static_cast<size_t>(models::kFirstFactor)]);
  }

  /// The sizes are those that training chooses.
  void check_shapes() const {
    const int64_t factor = run_.value("factor", int64_t{-1}), rank = run_.at("rank");
    const auto kernel = run_.value("kernel", std::vector<int64_t>{});
    const bool both = run_.value("decompose_both", false), full = run_.value("full_matrix", false),
               unbalanced = run_.value("unbalanced_factorization", false);
    if (!kernel.empty() || context_.description.kind() != "lokr") return;
    models::AdapterRule rule{
        .rank = rank, .kind = "lokr", .factor = factor, .decompose_both = both, .full_matrix = full};
    rule.unbalanced = unbalanced;
    for (const plan::ParamSpec& param :
         models::adapter_params(rule, {"m.weight", {run_.at("out").get<int64_t>(), run_.at("in").get<int64_t>()}})) {
      const std::string key = "in." + name_ + param.name.substr(1);
      check_input(file_.has(key) && file_.tensor(key).sizes() == at::IntArrayRef(param.shape), "verify",
                  key + " has not the size that training gives it");
    }
  }

  void compare(const at::Tensor& y, const at::Tensor& dx, const std::map<models::LoraPart, at::Tensor>& grads) {
    file_.compare("out." + name_ + ".y", y.detach(), context_.bound("out"));
    file_.compare("out." + name_ + ".loss", (y - in("target")).square().mean().detach(), context_.bound("out"));
    file_.compare("grad_in." + name_ + ".x", dx, context_.bound("grad"));
    for (const auto& [part, grad] : grads) file_.compare("grad." + name_ + ending(part), grad, context_.bound("grad"));
  }

  void train_linear() {
    run_.expect("layer", "linear");
    for (const char* shape : {"use_tucker", "batch", "in", "out"})
      if (run_.has(shape)) run_.at(shape).json();
    const at::Tensor x = in("x"), target = in("target"), base = in("base.weight"), bias = in("base.bias");
    const at::Tensor rows = x.flatten(0, -2).contiguous().requires_grad_(), anchor = at::zeros({1}).requires_grad_();
    ops::WeightSite weight{.value = base, .frozen = true}, shift{.value = bias, .frozen = true};
    std::map<models::LoraPart, ops::WeightSite> sites;
    for (const auto& [part, value] : factors_)
      sites[part] = {.value = value.detach(), .grad = at::zeros_like(value.detach())};
    const auto half = [&](const std::string& name) {
      ops::Adapter::Half made;
      for (auto& [part, site] : sites) {
        if (ending(part) == name) made.whole = &site;
        if (ending(part) == name + net::kLeft) made.a = &site;
        if (ending(part) == name + net::kRight) made.b = &site;
      }
      return made;
    };
    const net::ChangeKind& kind = net::kChangeKinds[has(models::LoraPart::hada_w1_a) ? 0 : 1];
    const ops::Adapter adapter{
        .scale = scale_, .kind = kind.kind, .first = half(kind.first), .second = half(kind.second)};
    const at::Tensor y = ops::frozen_linear(rows, weight, &shift, &adapter, anchor);
    const at::Tensor shaped = y.view(target.sizes());
    (shaped - target).square().mean().backward();
    std::map<models::LoraPart, at::Tensor> grads;
    for (const auto& [part, site] : sites) grads.emplace(part, site.grad);
    compare(shaped, rows.grad().view(x.sizes()), grads);
  }

  void train_convolution() {
    const std::string layer = run_.at("layer");
    const auto stride = run_.at("stride").get<std::vector<int64_t>>(),
               padding = run_.at("padding").get<std::vector<int64_t>>();
    for (const char* shape : {"use_tucker", "batch", "in", "out"})
      if (run_.has(shape)) run_.at(shape).json();
    check_input(layer == "conv2d" || layer == "conv3d", "verify", "layer " + layer + ": not known to this build");
    const at::Tensor x = in("x").requires_grad_();
    const at::Tensor y = layer == "conv2d" ? at::conv2d(x, merged_, in("base.bias"), stride, padding)
                                           : at::conv3d(x, merged_, in("base.bias"), stride, padding);
    (y - in("target")).square().mean().backward();
    std::map<models::LoraPart, at::Tensor> grads;
    for (const auto& [part, value] : factors_) grads.emplace(part, value.grad());
    compare(y, x.grad(), grads);
  }

  const CaseContext& context_;
  CaseFile& file_;
  const std::string name_;
  const RunSettings& run_;
  std::map<models::LoraPart, at::Tensor> factors_;
  double scale_ = 1;
  at::Tensor merged_;
};

/// An adapter file on a denoiser. Which values are its own follows from its name.
void check_factor_file(const CaseContext& context, const fs::path& path, const fs::path& adapter,
                       CaseResults& results) {
  constexpr double kOut = 1e-4, kLoss = 1e-5, kGrad = 1e-4;  // in words in the case
  const std::string kind = context.description.kind(), file_name = adapter.filename().string();
  const auto is = [&](const char* part) { return file_name.find(part) != file_name.npos; };
  const std::string tag = is("aitoolkit") ? "full_fp16" : is("full") ? "full" : is("noalpha") ? "scale1" : "low";
  const Settings settings = context.config.at("wan");
  CaseFile file(context.name, path, file_name);
  models::AdapterRule rule{.rank = settings.at("rank"), .alpha = settings.at("alpha")};
  rule.kind = kind;
  rule.targets = settings.at("modules").get<std::vector<std::string>>();
  rule.factor = settings.value("factor", int64_t{-1});
  const int64_t full_rank = settings.value("full_rank", int64_t{0});
  const double full_alpha = settings.value("full_alpha", 1.0);
  if (is("full")) rule.rank = full_rank, rule.alpha = full_alpha;
  if (tag == "scale1") rule.alpha = static_cast<double>(rule.rank);
  const fs::path base = context.folder / settings.at("base").get<std::string>();
  const auto model = models::make_denoiser({.config_text = checkpoint::read_text(base / "config.json")});
  const std::vector<std::string> modules = models::adapt(*model, rule);
  const std::vector<net::Sample> samples = read_samples(file, *model);
  const DitRun run = run_dit(context, *model, samples, base / "model.safetensors", samples.size(),
                             job::adapter_values(rule, modules, adapter, models::form_of(*model)));
  const std::string out = "out." + tag + ".";
  for (size_t i = 0; i < samples.size(); ++i) file.compare(out + std::to_string(i), run.outputs[i], kOut);
  if (file.has(out + "loss")) file.compare(out + "loss", at::scalar_tensor(run.loss, at::kFloat), kLoss);
  const bool as_stored = models::LoraFile::open(adapter).has_alpha();  // else the scale is in a factor
  for (const auto& [name, value] : run.grads)
    if (as_stored && file.has("grad." + tag + "." + name))
      file.compare("grad." + tag + "." + name, value, by_largest(kGrad));
  for (const char* other : {"out.", "grad."}) file.leave_out(other, "of other files");
  results.push_back(std::move(file));
}

}  // namespace

CaseResults verify_lora(const CaseContext& context) {
  CaseResults results;
  for (const fs::path& adapter : adapter_files(context.folder, "lora"))
    for (const auto& path : context.case_files()) check_adapter(context, path, adapter, results);
  return results;
}

CaseResults verify_factors(const CaseContext& context) {
  CaseResults results;
  const std::string kind = context.description.kind();
  CaseFile layers(context.name, context.folder / "case.safetensors");
  std::set<std::string> runs;
  for (const std::string& key : layers.names("in."))
    if (const size_t end = key.find('.', 3); end != key.npos) runs.insert(key.substr(3, end - 3));
  for (const std::string& name : runs)
    check_run_of(layers, context.config, name,
                 [&](const RunSettings& run) { FactoredLayer(context, layers, name, run).check(); });
  results.push_back(std::move(layers));
  const fs::path whole = context.folder / "case_wan.safetensors";
  if (fs::exists(whole))
    for (const fs::path& adapter : adapter_files(context.folder, kind))
      check_factor_file(context, whole, adapter, results);
  return results;
}

}  // namespace tessera::tools
