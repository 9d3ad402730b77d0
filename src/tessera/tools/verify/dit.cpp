// Kinds "dit" and "dit_moe": a diffusion transformer's, or two experts', outputs, loss and gradients through the
// engine, on any mesh.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/job/lora_run.h"
#include "tessera/models/common/golden_case.h"
#include "tessera/models/lora_names.h"
#include "tessera/models/merge_lora.h"
#include "tessera/models/registry.h"
#include "tessera/tools/verify/dit_run.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

constexpr const char* kDitWeights[] = {"model.safetensors", "diffusers.safetensors"};

std::unique_ptr<net::Denoiser> model_of(const CaseContext& context) {
  return models::make_denoiser({.config = (context.folder / "config.json").string()});
}

/// Inputs of the case that are extras of sample i: in.<name>.<i>, and row i of in.<name> of the whole batch.
std::map<std::string, at::Tensor> read_dit_extras(const CaseFile& file, int64_t i, int64_t samples) {
  std::map<std::string, at::Tensor> extras;
  const std::string end = "." + std::to_string(i);
  for (const std::string& full : file.names("in.")) {
    const std::string name = full.substr(3);
    const bool plain = name.starts_with("x.") || name.starts_with("context.") || name.starts_with("target.") ||
                       name == "t" || name == "seq_len";
    if (plain) continue;
    if (name.find('.') == name.npos) {
      const at::Tensor all = file.tensor(full);  // [B or a multiple of it, rows, width]
      if (all.dim() == 3) extras[name] = all.reshape({samples, -1, all.size(2)})[i];
    } else if (name.ends_with(end)) {
      extras[name.substr(0, name.size() - end.size())] = file.tensor(full);
    }
  }
  return extras;
}

}  // namespace

std::vector<net::Sample> read_samples(const CaseFile& file, const net::Denoiser& model) {
  const at::Tensor t = file.tensor("in.t").to(at::kDouble);
  const std::string where = file.case_name() + "/" + file.file_name();
  check_input(t.dim() == 1 || t.dim() == 2, "verify",
              where + ": in.t has " + std::to_string(t.dim()) + " dimensions, expected one timestep a sample, or one " +
                  "for each of its tokens");
  std::vector<net::Sample> samples;
  for (int64_t i = 0; i < t.size(0); ++i) {
    const std::string n = std::to_string(i);
    net::Sample sample;
    sample.x = file.tensor("in.x." + n);
    sample.context = file.tensor("in.context." + n);
    sample.extra = read_dit_extras(file, i, t.size(0));
    if (t.dim() == 1) {
      sample.t = t[i].item<double>();
    } else {  // what stands after a sample's own tokens is padding
      const auto s = sample.x.sizes();
      const int64_t tokens = model.token_count({s[0], s[1], s[2], s[3]});
      check_input(tokens <= t.size(1), "verify",
                  where + ": in.t has " + std::to_string(t.size(1)) + " timesteps a sample, sample " + n + " has " +
                      std::to_string(tokens) + " tokens");
      sample.extra["t"] = t[i].slice(0, 0, tokens);
    }
    sample.target = file.tensor("in.target." + n);
    samples.push_back(std::move(sample));
  }
  return samples;
}

namespace {

void compare_input_grads(const DitRun& run, double tolerance, CaseFile& file) {
  for (size_t i = 0; i < run.input_grads.size(); ++i) {
    for (const auto& [name, value] : run.input_grads[i]) {
      if (file.has("in." + name)) continue;  // one tensor for all samples: below
      file.compare("grad_in." + name + "." + std::to_string(i), value, by_largest(tolerance));
    }
  }
  for (const auto& [name, first] : run.input_grads.front()) {
    if (!file.has("in." + name)) continue;
    std::vector<at::Tensor> rows;
    for (const auto& grads : run.input_grads) rows.push_back(grads.at(name));
    const at::Tensor all = at::stack(rows).reshape(file.tensor("in." + name).sizes());
    file.compare("grad_in." + name, all, by_largest(tolerance));
  }
}

void check_dit_file(const CaseContext& context, const std::string& weights, CaseResults& results,
                    const fs::path& path) {
  CaseFile file(context.name, path, weights);
  const auto model = model_of(context);
  const std::vector<net::Sample> samples = read_samples(file, *model);
  const DitRun run = run_dit(context, *model, samples, context.folder / weights, samples.size());
  for (size_t i = 0; i < samples.size(); ++i)
    file.compare("out." + std::to_string(i), run.outputs[i], context.tolerance("out"));
  file.compare("out.loss", at::scalar_tensor(run.loss, at::kFloat), context.tolerance("loss"));
  // A case may leave gradients out as a whole, not one of them.
  if (!file.names("grad_in.").empty()) compare_input_grads(run, context.tolerance("grad_in"), file);
  if (!file.names("grad.").empty())
    for (const auto& [name, value] : run.grads)
      file.compare("grad." + name, value, by_largest(context.tolerance("grad")));
  results.push_back(std::move(file));
}

/// Two denoisers, of which the timestep chooses one: high noise from the boundary on.
void check_experts(const CaseContext& context, const std::string& weights, CaseResults& results, const fs::path& path) {
  CaseFile file(context.name, path, weights);
  const at::Tensor t = file.tensor("in.t").to(at::kDouble);
  const auto config = [&](const char* key) {
    check_input(context.config.contains(key), "verify", (context.folder / "config.json").string() + " has no " + key);
    return context.config.at(key);
  };
  const auto experts = config("experts").get<std::vector<std::string>>();  // high noise first
  const double boundary = config("boundary").get<double>() * context.config.value("num_train_timesteps", 1000.0);
  check_input(experts.size() == 2, "verify",
              "config.json: experts names " + std::to_string(experts.size()) + " folders");
  std::vector<int64_t> serves;
  for (int64_t i = 0; i < t.size(0); ++i) serves.push_back(t[i].item<double>() >= boundary ? 0 : 1);
  file.compare("out.expert", at::tensor(serves, at::kLong), 0.0);

  const auto model = model_of(context);
  double loss = 0;
  for (int64_t e = 0; e < 2; ++e) {
    std::vector<net::Sample> samples;
    std::vector<int64_t> places;
    for (int64_t i = 0; i < t.size(0); ++i) {
      if (serves[i] != e) continue;
      net::Sample sample;
      sample.x = file.tensor("in.x");
      sample.t = t[i].item<double>();
      sample.context = file.tensor("in.context");
      sample.target = file.tensor("in.target");
      samples.push_back(std::move(sample));
      places.push_back(i);
    }
    if (samples.empty()) continue;
    const DitRun run = run_dit(context, *model, samples, context.folder / experts[e] / weights, serves.size());
    loss += run.loss;
    for (size_t i = 0; i < places.size(); ++i)
      file.compare("out." + std::to_string(places[i]), run.outputs[i], context.tolerance("out"));
    const std::string prefix = "grad." + experts[e] + ".";
    if (!file.names(prefix).empty())
      for (const auto& [name, value] : run.grads)
        file.compare(prefix + name, value, by_largest(context.tolerance("grad")));
  }
  file.compare("out.loss", at::scalar_tensor(loss, at::kFloat), context.tolerance("loss"));
  results.push_back(std::move(file));
}

using DitCheck = void (*)(const CaseContext&, const std::string&, CaseResults&, const fs::path&);

/// Every case file with the weights of both namings; `part`: the folder to look for the second in.
CaseResults check_dit_files(const CaseContext& context, const fs::path& part, DitCheck check) {
  CaseResults results;
  for (const std::string weights : kDitWeights) {
    if (weights != kDitWeights[0] && !fs::exists(part / weights)) continue;
    for (const auto& path : context.case_files()) check(context, weights, results, path);
  }
  return results;
}

/// The allowed difference for a largest value: cases of diffusers' models give a share of it and a least one for
/// outputs (and the loss), and for gradients; ours a bound of outputs, and a share of gradients.
std::function<double(double)> bound_of(const CaseContext& context, const std::string& key) {
  const std::string group = key.starts_with("grad") ? "grad" : "out";
  if (context.description.has_rule(group)) return context.bound(group);
  if (group == "grad") return by_largest(context.tolerance(key));
  return [bound = context.tolerance(key)](double) { return bound; };
}

/// Of a case of a family's own kind, whose config may be completed by its tensors.
std::unique_ptr<net::Denoiser> own_model(const CaseContext& context, const models::DenoiserCase& kind,
                                         const CaseFile& file) {
  const std::string config = context.config.text();
  return kind.config ? models::make_denoiser({.config_text = kind.config(config, file)}) : model_of(context);
}

/// A LoRA as diffusers writes it, on the base that was checked: outputs, loss, its gradients, and weights that it is
/// merged into.
void check_own_adapter(const CaseContext& context, const models::DenoiserCase& kind,
                       const std::vector<net::Sample>& samples, CaseFile& file) {
  check_input(context.config.contains("_lora"), "verify", (context.folder / "config.json").string() + " has no _lora");
  const Settings about = context.config.at("_lora");
  check_input(about.contains("r") && about.contains("lora_alpha") && about.contains("target_modules"), "verify",
              (context.folder / "config.json").string() + ": _lora lacks r, lora_alpha or target_modules");
  const models::AdapterRule rule{.rank = about.at("r").get<int64_t>(),
                                 .alpha = about.at("lora_alpha").get<double>(),
                                 .targets = about.at("target_modules").get<std::vector<std::string>>()};
  const auto model = own_model(context, kind, file);
  const std::vector<std::string> modules = models::adapt(*model, rule);
  const std::filesystem::path adapter = context.folder / kind.adapter, base = context.folder / file.weights();
  const DitRun run = run_dit(context, *model, samples, base, samples.size(),
                             job::adapter_values(rule, modules, adapter, models::form_of(*model)));
  for (const auto& [name, value] : kind.outputs(run.outputs)) file.compare(name, value, bound_of(context, "out"));
  file.compare("out.loss", at::scalar_tensor(run.loss, at::kFloat), bound_of(context, "loss"));
  for (const auto& [name, value] : run.grads) {
    const bool down = name.ends_with(net::kLoraA);
    const std::string module = name.substr(0, name.size() - std::string_view(down ? net::kLoraA : net::kLoraB).size());
    file.compare("grad." + *models::lora_tensor_name(module, down ? models::LoraPart::down : models::LoraPart::up,
                                                     "diffusers", models::form_of(*model)),
                 value, bound_of(context, "grad"));
  }
  const checkpoint::WeightSet weights = checkpoint::open_weights(base);
  constexpr std::string_view kMerged = "out.merged.";
  const models::Shapes stored_shapes = checkpoint::stored_shapes(weights);
  const models::Identity identity = models::identify(stored_shapes);
  const models::LoraMerge merge({adapter}, {},
                                {identity.form, models::official_shapes(identity, stored_shapes), base.string()});
  for (const std::string& merged : file.names(std::string(kMerged))) {
    std::string stored = merged.substr(kMerged.size());
    if (!weights.contains(stored)) stored += ".weight";
    const at::Tensor value = at::empty(weights.at(stored).shape, at::kFloat);
    weights.read_f32(stored, 0, value.numel(), value.mutable_data_ptr<float>());
    file.compare(merged, merge.apply(identity.official(stored).value_or(stored), value), bound_of(context, "out"));
  }
}

/// A case of a family's own kind.
void check_own_file(const CaseContext& context, const models::DenoiserCase& kind, const net::Denoiser& model,
                    CaseFile& file) {
  const Settings& all = context.description.json;
  const Settings files = all.contains("files") ? all.at("files") : Settings(Json::object());
  const auto zero = all.value("grads_that_are_zero_in_exact_arithmetic", std::vector<std::string>());
  const std::vector<net::Sample> samples = kind.samples(file, files.value(file.file_name(), std::string()));
  const DitRun run = run_dit(context, model, samples, context.folder / file.weights(), samples.size());
  if (!kind.adapter.empty()) {
    for (const auto& [name, value] : kind.outputs(run.outputs))
      file.compare(name + "_base", value, bound_of(context, "out"));
    return check_own_adapter(context, kind, samples, file);
  }
  for (const auto& [name, value] : kind.outputs(run.outputs)) file.compare(name, value, bound_of(context, "out"));
  file.compare("out.loss", at::scalar_tensor(run.loss, at::kFloat), bound_of(context, "loss"));
  // A case may leave gradients out as a whole, not one of them.
  if (!file.names("grad_in.").empty())
    for (const auto& [name, value] : kind.input_grads(run.input_grads, file))
      file.compare(name, value, bound_of(context, "grad_in"));
  if (!file.names("grad.").empty())
    for (const auto& [name, value] : models::stored_together(
             run.grads, [&](const std::string& name) { return model.foreign_name(name, kind.grad_naming); })) {
      // of what is zero in exact arithmetic the case has the rounding: ours need only be as small
      const bool rounding = std::ranges::find(zero, name) != zero.end();
      const std::string part = "grad_part." + name;  // its first values in each dimension
      if (file.has(part)) {
        at::Tensor first = value;
        const auto sizes = file.tensor(part).sizes().vec();
        for (size_t axis = 0; axis < sizes.size(); ++axis)
          first = first.slice(static_cast<int64_t>(axis), 0, sizes[axis]);
        file.compare(part, first, bound_of(context, "grad"));
        continue;
      }
      file.compare("grad." + name, value, [bound = bound_of(context, "grad"), rounding](double most) {
        return rounding ? std::max(bound(most), 4 * most) : bound(most);
      });
    }
  if (kind.inputs) file.compare_all(kind.inputs(model, samples), bound_of(context, "out"));
  for (const models::DenoiserCall& call : kind.calls) {
    if (!call.input.empty() && !file.has(call.input)) continue;
    std::vector<net::Sample> changed = samples;
    for (size_t i = 0; i < changed.size(); ++i) call.change(changed[i], file, static_cast<int64_t>(i));
    const bool of_all = call.output.find('.') == call.output.npos;
    if (of_all && file.names(call.output + ".").empty()) continue;
    const DitRun other = run_dit(context, model, changed, context.folder / file.weights(), changed.size());
    const models::NamedTensors named = kind.outputs(other.outputs);
    const bool of_samples = call.output.ends_with('.');
    const size_t count = of_samples || of_all ? named.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      const std::string& name = named[i].first;
      file.compare(of_samples ? call.output + std::to_string(i)
                   : of_all   ? call.output + name.substr(name.find('.'))
                              : call.output,
                   named[i].second, bound_of(context, "out"));
    }
  }
}

}  // namespace

CaseResults verify_denoiser(const CaseContext& context, const models::DenoiserCase& kind) {
  CaseResults results;
  for (const std::string& weights : kind.weights) {
    if (weights != kind.weights.front() && !fs::exists(context.folder / weights)) continue;
    for (const fs::path& path : context.case_files()) {
      CaseFile file(context.name, path, weights);
      check_own_file(context, kind, *own_model(context, kind, file), file);
      results.push_back(std::move(file));
    }
  }
  return results;
}

CaseResults verify_dit(const CaseContext& context) { return check_dit_files(context, context.folder, check_dit_file); }

CaseResults verify_dit_moe(const CaseContext& context) {
  const auto experts = context.config.value("experts", std::vector<std::string>());  // check_experts says what is wrong
  const fs::path first = experts.empty() ? "" : experts[0];
  return check_dit_files(context, context.folder / first, check_experts);
}

}  // namespace tessera::tools
