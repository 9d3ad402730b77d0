// Kind "lora": one adapter in the namings of several programs, on the base of another case. Every file gives the same
// outputs, loss and gradients of A and B; one that does not say its alpha gives those of scale 1.
#include "tessera/base/check.h"
#include "tessera/job/lora_run.h"
#include "tessera/models/identify.h"
#include "tessera/models/registry.h"
#include "tessera/tools/verify/dit_run.h"
#include "tessera/weights/lora_file.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> adapter_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(folder)) {
    const std::string name = item.path().filename().string();
    if (name.starts_with("lora") && name.ends_with(".safetensors")) files.push_back(item.path());
  }
  std::sort(files.begin(), files.end());
  check_input(!files.empty(), "verify", folder.string() + ": there is no lora*.safetensors");
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
  const weights::LoraFile lora = weights::LoraFile::open(adapter);
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

}  // namespace

CaseResults verify_lora(const CaseContext& context) {
  CaseResults results;
  for (const fs::path& adapter : adapter_files(context.folder))
    for (const auto& path : context.case_files()) check_adapter(context, path, adapter, results);
  return results;
}

}  // namespace tessera::tools
