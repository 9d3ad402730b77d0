#include "tessera/sample/with_lora.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/options.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/models/merge_lora.h"
#include "tessera/models/registry.h"
#include "tessera/recipe/setting.h"

namespace tessera::sample {

namespace fs = std::filesystem;

namespace {

models::LoraMerge merge_for(const std::vector<LoraStrength>& loras, const job::Job& job, size_t expert, bool one_each) {
  const bool several = job.experts.several(), own_file = one_each && several && loras.size() == job.experts.size();
  std::vector<fs::path> files;
  std::vector<double> strengths;
  for (size_t i = 0; i < loras.size(); ++i) {
    if (own_file && i != expert) continue;
    const fs::path file = loras[i].file, own = file / job.experts.list[expert].folder;
    files.push_back(several && fs::is_directory(own) ? own : file);
    strengths.push_back(loras[i].strength);
  }
  models::Shapes shapes;
  for (const auto& unit : job.model->units())
    for (const plan::ParamSpec& param : unit->spec().params) shapes[param.name] = param.shape;
  return models::LoraMerge(files, strengths, {models::form_of(*job.model), shapes, job.name});
}

/// What of a parameter the part's rank of tp has, contiguous.
at::Tensor piece_of(const engine::Store& store, const engine::Store::Part& part, at::Tensor whole) {
  const auto box = store.box(part);
  for (size_t d = 0; d < box.size(); ++d)
    whole = whole.narrow(static_cast<int64_t>(d), box[d].first, box[d].second - box[d].first);
  return whole.contiguous();
}

void add_to_unit(const models::LoraMerge& merge, engine::Store& store, comm::Comm& comm, int unit) {
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
  recipe::read_value(loras, {"--lora", text});
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

void add_loras(const std::vector<LoraStrength>& loras, const job::Job& job, engine::Store& store, comm::Comm& comm,
               bool one_each) {
  if (loras.empty()) return;
  job::each_expert(store, job.experts, [&](size_t e, const std::string&) {
    const models::LoraMerge merge = merge_for(loras, job, e, one_each);
    for (int u = 0; u < store.units(); ++u) add_to_unit(merge, store, comm, u);
  });
  for (const LoraStrength& lora : loras) {
    char strength[32];
    std::snprintf(strength, sizeof strength, "%g", lora.strength);
    log::info("sample: with " + lora.file + " at strength " + strength);
  }
}

void check_loras(const std::vector<LoraStrength>& loras, const job::Job& job) {
  for (size_t e = 0; e < job.experts.size() && !loras.empty(); ++e) merge_for(loras, job, e, /*one_each=*/true);
}

/// What of an expert's weights the LoRAs will change, as it was. Frozen buffers whole, in the form in which they are stored;
/// of trained ones the parameters that are touched, as fp32, which sets every form of masters to the bits that it was read
/// from.
struct SamplerWeights::Kept {
  struct Buffer {
    int unit, buffer;
    at::Tensor bytes;
  };
  struct Trained {
    engine::Store::Part part;
    std::vector<float> values;
  };
  std::vector<Buffer> frozen;
  std::vector<Trained> trained;

  Kept(const models::LoraMerge& merge, engine::Store& store) {
    store.await_fill();
    for (const engine::Store::Part& part : store.parts()) {
      if (!store.fills(part) || !merge.touches(store.spec(part.unit).params[static_cast<size_t>(part.param)].name))
        continue;
      if (store.layout(part.unit).buffers[static_cast<size_t>(part.buffer)].trainable) {
        Trained& kept = trained.emplace_back(part, std::vector<float>(static_cast<size_t>(part.end - part.begin)));
        store.read_masters(part, 0, part.end - part.begin, kept.values.data());
      } else if (frozen.empty() || frozen.back().unit != part.unit || frozen.back().buffer != part.buffer) {
        const at::Tensor held = store.shard(part.unit, part.buffer);
        frozen.push_back({part.unit, part.buffer, at::empty_like(held, held.options().device(at::kCPU)).copy_(held)});
      }
    }
  }

  void put_back(engine::Store& store) const {
    store.begin_fill();
    for (const Buffer& kept : frozen) store.shard(kept.unit, kept.buffer).copy_(kept.bytes);
    for (const Trained& kept : trained)
      store.set_masters(kept.part, 0, kept.part.end - kept.part.begin, kept.values.data());
  }
};

SamplerWeights::SamplerWeights(const recipe::Recipe::Sample& sample, const job::Job& job, engine::Store& store,
                               comm::Comm& comm)
    : job_(job), store_(store), averaged_(store, comm, sample.weights == "ema") {
  if (sample.loras.empty()) return;
  job::each_expert(store, job.experts, [&](size_t e, const std::string&) {
    const models::LoraMerge merge = merge_for(sample.loras, job, e, /*one_each=*/true);
    kept_.push_back(std::make_unique<Kept>(merge, store));
    for (int u = 0; u < store.units(); ++u) add_to_unit(merge, store, comm, u);
  });
  store.flush_disk();
}

SamplerWeights::~SamplerWeights() noexcept(false) {
  if (kept_.empty() || std::uncaught_exceptions() > 0) return;
  job::each_expert(store_, job_.experts, [&](size_t e, const std::string&) { kept_[e]->put_back(store_); });
  store_.flush_disk();
}

}  // namespace tessera::sample
