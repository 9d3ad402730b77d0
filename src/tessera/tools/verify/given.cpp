// Kinds of the frames that a clip is given in training and sampling, from recorded draws: beside the noisy latent (a
// mask and latents), or without noise among the noisy frames. Everything is exact, and a mesh means nothing here.
#include <functional>

#include "tessera/base/check.h"
#include "tessera/base/text.h"
#include "tessera/diffusion/given_frames.h"
#include "tessera/diffusion/training_sample.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/models/common/patches.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using families::GivenFrames;

/// `known` throws UserError for a kind that there is not, which no draw may have hit.
std::vector<families::Weighted> weighted(const Settings& config, const std::function<void(const std::string&)>& known) {
  std::vector<families::Weighted> weights;
  for (const auto& [kind, weight] : config.items()) {
    known(kind);
    weights.push_back({kind, weight.get<double>()});
  }
  return weights;
}

CaseResults one(CaseFile file) {
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

/// Samples of a training run, with what was encoded of each in the order of the program's calls. Clips are never padded
/// here: of a run that pads, which frames were encoded is not compared.
void check_run(CaseFile& file, const std::string& name, const Settings& run) {
  const std::string in = "in." + name + ".", out = "out." + name + ".";
  run.read("python_random_seed");  // its draws are inputs
  if (!file.has(in + "u")) run.read("chosen");
  const bool images = !file.has(in + "u");
  const Tensor u = images ? Tensor() : file.tensor(in + "u");
  const auto weights = weighted(run.at("config_before"), families::places_of);
  std::vector<families::Weighted> left = weights;
  const auto frames = run.at("frames").get<int64_t>();
  const bool causal = run.at("causal").get<bool>(), padded = run.at("pad").get<bool>();
  size_t calls = 0;
  const auto encoded = [&] { return file.tensor(in + "enc" + std::to_string(calls++))[0]; };
  std::vector<Tensor> latents, conds, packed[2];
  for (int64_t s = 0; s < (images ? file.tensor(in + "enc0").size(0) : u.size(0)); ++s) {
    latents.push_back(images ? file.tensor(in + "enc0")[s] : encoded());
    const int64_t latent_frames = latents.back().size(1);
    if (!images) left = families::fitting(weights, latent_frames, causal);
    const std::string kind =
        images ? families::kind_giving(false, false, false) : families::chosen(left, u[s].item<double>());
    if (!images && run.contains("chosen") && kind != run.at("chosen").at(static_cast<size_t>(s)).get<std::string>())
      file.fail(out + "cond: another kind of sample " + std::to_string(s) + ", " + kind);
    const auto given = families::given_frames(kind, frames, latent_frames, causal);
    std::vector<Tensor> pieces;
    for (const GivenFrames& part : given) {
      if (part.count == 0) continue;
      const Settings call = run.at("encodes").at(calls);
      if (!padded && call.at("sample") != s)
        file.fail(out + "cond: encoded for another sample than " + std::to_string(s));
      if (call.at("frames").get<std::vector<int64_t>>() != std::vector{part.begin, part.begin + part.count} && !padded)
        file.fail(out + "cond: other frames of sample " + std::to_string(s));
      pieces.push_back(encoded());
    }
    conds.push_back(diffusion::condition(latents.back(), given, pieces));
    for (const int64_t patch : {1, 2}) packed[patch - 1].push_back(models::to_rows(conds.back(), {1, patch, patch}));
  }
  run.read("encodes");  // those of whole clips, and of pictures
  if (run.contains("config_after")) {
    std::string names, expected;
    for (const auto& [kind, weight] : weighted(run.at("config_after"), families::places_of)) expected += kind + " ";
    for (const auto& [kind, weight] : left) names += kind + " ";
    if (names != expected) file.fail(out + "cond: kinds that fit a clip are " + names + ", not " + expected);
  }
  file.compare(out + "x0", at::stack(latents), 0.0);
  file.compare(out + "cond", at::stack(conds), 0.0);
  for (const int64_t patch : {1, 2})
    file.compare(out + "cond_packed" + std::to_string(patch), at::stack(packed[patch - 1]), 0.0);
}

/// Two samples of the sampler, the second without references.
void check_references(CaseFile& file, const std::string& name, const Settings& run) {
  const std::string out = "out." + name + ".";
  std::vector<Tensor> references, conds;
  const auto lengths = run.at("ref_latent_frames").get<std::vector<int64_t>>();
  for (size_t i = 0; i < lengths.size(); ++i) {
    references.push_back(file.tensor("in." + name + ".ref" + std::to_string(i)));
    check_input(references.back().size(1) == lengths[i], "verify",
                "config.json: inference." + name + ".ref_latent_frames are not those of its references");
  }
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

/// Which samples a recorded draw leaves something out of: those below its share.
std::vector<char> left_out(const CaseFile& file, const std::string& draw, double share) {
  const Tensor draws = file.tensor("in.drop.u_" + draw);
  std::vector<char> samples;
  for (int64_t s = 0; s < draws.numel(); ++s) samples.push_back(draws[s].item<double>() < share);
  return samples;
}

/// `shares`: of captions, and of pooled captions. Training has draws of its own, which a share of 1 or 0 makes sure. The
/// case has all captions at one length: the last row is repeated.
void check_dropped(CaseFile& file, const Settings& shares) {
  const auto in = [&](const char* name) { return file.tensor(std::string("in.drop.") + name); };
  const Tensor captions = in("txt"), pooled = in("vec");
  const auto all = shares.items();
  std::string names;
  for (const auto& [name, share] : all) names += (names.empty() ? "" : ", ") + printable(name);
  check_input(all.size() == 2, "verify",
              "config.json: dropout has shares of " + names + ", expected those of captions and of pooled captions");
  const std::vector<char> no_caption = left_out(file, all[0].first, all[0].second),
                          no_pooled = left_out(file, all[1].first, all[1].second);
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

void check_masks(CaseFile& file, const std::string& name, const Settings& run, Mask mask) {
  const std::string in = "in." + name + ".";
  const Tensor u = file.tensor(in + "u"), whole = file.tensor(in + "ints"), real = file.tensor(in + "uniform"),
               of_frame = file.tensor(in + "rand");
  std::vector<families::Weighted> ratios = weighted(run.at("mask_ratios"), families::mask_kind);
  std::vector<Tensor> rows;
  for (int64_t s = 0; s < u.size(0); ++s) {
    const std::string kind = families::masked_by(ratios, u[s].item<double>());
    if (kind != run.at("names").at(static_cast<size_t>(s)).get<std::string>())
      file.fail("out." + name + ".mask: another kind of sample " + std::to_string(s));
    rows.push_back(row_of(mask(kind, run.at("frames").get<int64_t>(), recorded(whole, real, of_frame, s))));
  }
  file.compare("out." + name + ".mask", at::stack(rows), 0.0);
}

void check_beside(CaseFile& file, const Settings& run) {
  const Tensor u = file.tensor("in.index.u"), frames = file.tensor("in.index.latent_frames"),
               edge = file.tensor("in.index.edge_u"), whole = file.tensor("in.index.int");
  const auto kinds = weighted(run.at("mask_types"), families::beside_kind);
  const Tensor masks = at::zeros({u.size(0), frames.max().item<int64_t>()}, at::kLong);
  for (int64_t s = 0; s < u.size(0); ++s) {
    const std::string kind = families::chosen(kinds, u[s].item<double>());
    if (run.contains("names") && kind != run.at("names").at(static_cast<size_t>(s)).get<std::string>())
      file.fail("out.index.mask: another kind of sample " + std::to_string(s) + ", " + kind);
    const families::MaskDraws draws{[&](int64_t, int64_t) { return whole[s].item<int64_t>(); },
                                    [&](double, double) { return edge[s].item<double>(); }, nullptr};
    const auto count = frames[s].item<int64_t>();
    masks[s].narrow(0, 0, count).copy_(row_of(families::frames_beside(kind, count, draws)));
  }
  file.compare("out.index.mask", masks, 0.0);
}

}  // namespace

CaseResults verify_given_frames(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  for (const auto& [name, run] : context.config.at("runs").items()) check_run(file, name, run);
  for (const auto& [name, run] : context.config.at("inference").items()) check_references(file, name, run);
  check_dropped(file, context.config.at("dropout"));
  for (const char* of_latents : {"latent_channels", "compression"})
    context.config.read(of_latents);  // which are inputs
  return one(std::move(file));
}

CaseResults verify_frame_masks(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  for (const auto& [name, run] : context.config.at("runs").items()) {
    if (name == "index") {
      check_input(run.value("release", std::string("1.3")) == "1.3", "verify",
                  "config.json: runs.index.release is not 1.3");
      check_beside(file, run);
      continue;
    }
    check_masks(file, name, run,
                run.at("release") == std::string("1.2") ? families::frame_mask_of_1_2 : families::frame_mask);
  }
  const families::MaskDraws none;
  file.compare("out.all_masked_v12", row_of(families::frame_mask_of_1_2("image_head_tail", 2, none)), 0.0);
  file.compare("out.all_masked_v13", row_of(families::frame_mask("image_head_tail", 2, none)), 0.0);
  return one(std::move(file));
}

}  // namespace tessera::tools
