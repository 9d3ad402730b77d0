#include "tessera/sample/with_lora.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/options.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/models/identify.h"
#include "tessera/weights/merge_lora.h"

namespace tessera::sample {

namespace fs = std::filesystem;

namespace {

LoraStrength parse_lora(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return {text};
  double strength = 0;
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), strength);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(strength))
    throw UserError(Exit::usage, "sample", "--lora " + text + ": '" + text.substr(colon + 1) + "' is no strength",
                    "for example --lora style.safetensors:0.8");
  return {text.substr(0, colon), strength};
}

weights::LoraMerge merge_for(const std::vector<LoraStrength>& loras, const job::Job& job, const job::Expert& expert) {
  std::vector<fs::path> files;
  std::vector<double> strengths;
  for (const LoraStrength& lora : loras) {
    const bool own = job.experts.several() && fs::is_directory(lora.file / expert.folder);
    files.push_back(own ? lora.file / expert.folder : lora.file);
    strengths.push_back(lora.strength);
  }
  models::Shapes shapes;
  for (const auto& unit : job.model->units())
    for (const plan::ParamSpec& param : unit->spec().params) shapes[param.name] = param.shape;
  return weights::LoraMerge(files, strengths, {models::form_of(*job.model), shapes, job.name});
}

/// What of a parameter the part's rank of tp has, contiguous.
at::Tensor piece_of(const engine::Store& store, const engine::Store::Part& part, at::Tensor whole) {
  const auto box = store.box(part);
  for (size_t d = 0; d < box.size(); ++d)
    whole = whole.narrow(static_cast<int64_t>(d), box[d].first, box[d].second - box[d].first);
  return whole.contiguous();
}

void add_to_unit(const weights::LoraMerge& merge, engine::Store& store, comm::Comm& comm, int unit) {
  const auto touches = [&](const plan::ParamSpec& param) { return merge.touches(param.name); };
  if (std::ranges::none_of(store.spec(unit).params, touches)) return;
  std::map<std::string, at::Tensor> merged;
  engine::whole_unit(store, comm, unit, /*gradients=*/false,
                     [&](const plan::ParamSpec& param, const at::Tensor& value) {
                       if (touches(param)) merged[param.name] = merge.apply(param.name, value.clone());
                     });
  store.begin_fill();
  for (const engine::Store::Part& part : store.parts()) {
    const plan::ParamSpec& param = store.spec(part.unit).params[static_cast<size_t>(part.param)];
    if (part.unit != unit || !touches(param)) continue;
    const at::Tensor piece = piece_of(store, part, merged.at(param.name));
    store.set_masters(part, 0, part.end - part.begin, piece.const_data_ptr<float>() + part.begin);
  }
}

}  // namespace

std::vector<LoraStrength> parse_loras(const std::string& text) {
  std::vector<LoraStrength> loras;
  for (const std::string& item : split_list(text)) loras.push_back(parse_lora(item));
  return loras;
}

std::vector<double> parse_strengths(const std::string& text) {
  std::vector<double> strengths;
  for (const std::string& item : split_list(text)) {
    double& strength = strengths.emplace_back();
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), strength);
    if (error != std::errc() || end != item.data() + item.size() || !std::isfinite(strength))
      throw UserError(Exit::usage, "sample", "--strengths " + text + ": '" + item + "' is no strength",
                      "for example --strengths 0,0.5,1");
  }
  return strengths;
}

void add_loras(const std::vector<LoraStrength>& loras, const job::Job& job, engine::Store& store, comm::Comm& comm) {
  if (loras.empty()) return;
  job::each_expert(store, job.experts, [&](size_t e, const std::string&) {
    const weights::LoraMerge merge = merge_for(loras, job, job.experts.list[e]);
    for (int u = 0; u < store.units(); ++u) add_to_unit(merge, store, comm, u);
  });
  for (const LoraStrength& lora : loras) {
    char strength[32];
    std::snprintf(strength, sizeof strength, "%g", lora.strength);
    log::info("sample: with " + lora.file.string() + " at strength " + strength);
  }
}

}  // namespace tessera::sample
