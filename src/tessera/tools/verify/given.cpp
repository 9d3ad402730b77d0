// Kinds of the frames that a clip is given in training and sampling, from recorded draws: beside the noisy latent (a
// mask and latents), or without noise among the noisy frames. Everything is exact, and a mesh means nothing here.
#include "tessera/diffusion/given_frames.h"
#include "tessera/diffusion/training_sample.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/models/common/patches.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using families::GivenFrames;

std::vector<families::Weighted> weighted(const Json& config) {
  std::vector<families::Weighted> weights;
  for (const auto& [kind, weight] : config.items()) weights.push_back({kind, weight.get<double>()});
  return weights;
}

CaseResults one(CaseFile file) {
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

/// Samples of a training run, with what was encoded of each in the order of the program's calls. Clips are never padded
/// here: of a run that pads, which frames were encoded is not compared.
void check_run(CaseFile& file, const std::string& name, const Json& run) {
  const std::string in = "in." + name + ".", out = "out." + name + ".";
  const bool images = !file.has(in + "u");
  const Tensor u = images ? Tensor() : file.tensor(in + "u");
  const auto weights = weighted(run.at("config_before"));
  const auto frames = run.at("frames").get<int64_t>();
  const bool causal = run.at("causal").get<bool>(), padded = run.at("pad").get<bool>();
  size_t calls = 0;
  const auto encoded = [&] { return file.tensor(in + "enc" + std::to_string(calls++))[0]; };
  std::vector<Tensor> latents, conds, packed[2];
  for (int64_t s = 0; s < (images ? file.tensor(in + "enc0").size(0) : u.size(0)); ++s) {
    latents.push_back(images ? file.tensor(in + "enc0")[s] : encoded());
    const int64_t latent_frames = latents.back().size(1);
    const std::string kind =
        images ? families::kind_giving(false, false, false)
               : families::chosen(families::fitting(weights, latent_frames, causal), u[s].item<double>());
    const auto given = families::given_frames(kind, frames, latent_frames, causal);
    std::vector<Tensor> pieces;
    for (const GivenFrames& part : given) {
      if (part.count == 0) continue;
      if (!padded && run.at("encodes").at(calls).at("frames") != Json({part.begin, part.begin + part.count}))
        file.fail(out + "cond: other frames of sample " + std::to_string(s));
      pieces.push_back(encoded());
    }
    conds.push_back(diffusion::condition(latents.back(), given, pieces));
    for (const int64_t patch : {1, 2}) packed[patch - 1].push_back(models::to_rows(conds.back(), {1, patch, patch}));
  }
  file.compare(out + "x0", at::stack(latents), 0.0);
  file.compare(out + "cond", at::stack(conds), 0.0);
  for (const int64_t patch : {1, 2})
    file.compare(out + "cond_packed" + std::to_string(patch), at::stack(packed[patch - 1]), 0.0);
}

/// Two samples of the sampler, the second without references.
void check_references(CaseFile& file, const std::string& name, const Json& run) {
  const std::string out = "out." + name + ".";
  std::vector<Tensor> references, conds;
  for (size_t i = 0; i < run.at("ref_latent_frames").size(); ++i)
    references.push_back(file.tensor("in." + name + ".ref" + std::to_string(i)));
  auto shape = references.front().sizes().vec();
  shape[1] = run.at("latent_frames").get<int64_t>();
  for (const bool with : {true, false})
    conds.push_back(diffusion::reference_condition(run.at("condition").get<std::string>(), shape,
                                                   with ? references : std::vector<Tensor>(),
                                                   run.at("causal").get<bool>()));
  const Tensor both = at::stack(conds);
  file.compare(out + "masks", both.narrow(1, 0, 1), 0.0);
  file.compare(out + "masked", both.narrow(1, 1, both.size(1) - 1), 0.0);
}

/// Which samples a recorded draw leaves something out of: those below its share, `entry` of the configuration.
std::vector<char> left_out(const CaseFile& file, const Json::const_iterator& entry) {
  const Tensor draws = file.tensor("in.drop.u_" + entry.key());
  std::vector<char> samples;
  for (int64_t s = 0; s < draws.numel(); ++s) samples.push_back(draws[s].item<double>() < entry->get<double>());
  return samples;
}

/// `shares`: of captions, and of pooled captions. Training has draws of its own, which a share of 1 or 0 makes sure. The
/// case has all captions at one length: the last row is repeated.
void check_dropped(CaseFile& file, const Json& shares) {
  const auto in = [&](const char* name) { return file.tensor(std::string("in.drop.") + name); };
  const Tensor captions = in("txt"), pooled = in("vec");
  const std::vector<char> no_caption = left_out(file, shares.begin()), no_pooled = left_out(file, ++shares.begin());
  std::vector<Tensor> texts, vectors;
  for (int64_t s = 0; s < captions.size(0); ++s) {
    diffusion::NoiseSettings settings;
    settings.caption_dropout = no_caption.at(static_cast<size_t>(s));
    settings.pooled_dropout = no_pooled.at(static_cast<size_t>(s));
    settings.null_context = in("null_txt")[0], settings.null_pooled = in("null_vec")[0];
    const diffusion::CleanSample clean{at::zeros({1, 1, 1, 1}), captions[s], {{"pooled", pooled[s]}}};
    const net::Sample made = diffusion::noised(settings, {}, clean, /*step=*/1, /*place=*/s).input;
    const Tensor& rows = made.context;
    texts.push_back(at::cat({rows, rows.slice(0, rows.size(0) - 1).expand({captions.size(1) - rows.size(0), -1})}));
    vectors.push_back(made.extra.at("pooled"));
  }
  file.compare("out.drop.txt", at::stack(texts), 0.0);
  file.compare("out.drop.vec", at::stack(vectors), 0.0);
}

/// Recorded numbers of sample `s`, in the order in which they were drawn.
families::MaskDraws recorded(const Tensor& whole, const Tensor& real, const Tensor& of_frame, int64_t s) {
  const auto next = std::make_shared<int64_t>(0);
  return {[=](int64_t, int64_t) { return whole[s][(*next)++].item<int64_t>(); },
          [=](double, double) { return real[s].item<double>(); },
          [=](int64_t frame) { return of_frame[s][frame].item<double>(); }};
}

Tensor row_of(const std::vector<char>& mask) {
  const Tensor row = at::empty({static_cast<int64_t>(mask.size())}, at::kLong);
  std::copy(mask.begin(), mask.end(), row.mutable_data_ptr<int64_t>());
  return row;
}

using Mask = std::vector<char> (*)(const std::string& kind, int64_t frames, const families::MaskDraws& draws);

void check_masks(CaseFile& file, const std::string& name, const Json& run, Mask mask) {
  const std::string in = "in." + name + ".";
  const Tensor u = file.tensor(in + "u"), whole = file.tensor(in + "ints"), real = file.tensor(in + "uniform"),
               of_frame = file.tensor(in + "rand");
  std::vector<families::Weighted> ratios = weighted(run.at("mask_ratios"));
  std::vector<Tensor> rows;
  for (int64_t s = 0; s < u.size(0); ++s) {
    const std::string kind = families::masked_by(ratios, u[s].item<double>());
    if (Json(kind) != run.at("names").at(static_cast<size_t>(s)))
      file.fail("out." + name + ".mask: another kind of sample " + std::to_string(s));
    rows.push_back(row_of(mask(kind, run.at("frames").get<int64_t>(), recorded(whole, real, of_frame, s))));
  }
  file.compare("out." + name + ".mask", at::stack(rows), 0.0);
}

void check_beside(CaseFile& file, const Json& run) {
  const Tensor u = file.tensor("in.index.u"), frames = file.tensor("in.index.latent_frames"),
               edge = file.tensor("in.index.edge_u"), whole = file.tensor("in.index.int");
  const Tensor masks = at::zeros({u.size(0), frames.max().item<int64_t>()}, at::kLong);
  for (int64_t s = 0; s < u.size(0); ++s) {
    const families::MaskDraws draws{[&](int64_t, int64_t) { return whole[s].item<int64_t>(); },
                                    [&](double, double) { return edge[s].item<double>(); }, nullptr};
    const auto count = frames[s].item<int64_t>();
    masks[s]
        .narrow(0, 0, count)
        .copy_(row_of(families::frames_beside(families::chosen(weighted(run.at("mask_types")), u[s].item<double>()),
                                              count, draws)));
  }
  file.compare("out.index.mask", masks, 0.0);
}

}  // namespace

CaseResults verify_given_frames(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  for (const auto& [name, run] : context.config.at("runs").items()) check_run(file, name, run);
  for (const auto& [name, run] : context.config.at("inference").items()) check_references(file, name, run);
  check_dropped(file, context.config.at("dropout"));
  return one(std::move(file));
}

CaseResults verify_frame_masks(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  for (const auto& [name, run] : context.config.at("runs").items()) {
    if (name == "index") {
      check_beside(file, run);
      continue;
    }
    check_masks(file, name, run, run.at("release") == "1.2" ? families::frame_mask_of_1_2 : families::frame_mask);
  }
  const families::MaskDraws none;
  file.compare("out.all_masked_v12", row_of(families::frame_mask_of_1_2("image_head_tail", 2, none)), 0.0);
  file.compare("out.all_masked_v13", row_of(families::frame_mask("image_head_tail", 2, none)), 0.0);
  return one(std::move(file));
}

}  // namespace tessera::tools
