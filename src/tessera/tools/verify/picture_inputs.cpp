// Kind "hunyuan15_inputs": what HunyuanVideo-1.5's trainer and sampler make for its model, from recorded draws and pictures:
// timesteps, noisy latents with the given one and its mask, paths of the sampler, sizes and cuts of pictures. A mesh means
// nothing here.
#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/base/check.h"
#include "tessera/data/aspect_ratios.h"
#include "tessera/diffusion/sampler.h"
#include "tessera/diffusion/training_sample.h"
#include "tessera/job/codec.h"
#include "tessera/models/common/patches.h"
#include "tessera/models/common/picture_resize.h"
#include "tessera/models/registry.h"
#include "tessera/tools/verify/by_size.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using Bound = std::function<double(double)>;

constexpr double kSteps = 1000;
constexpr double kEdge = 1e-5;  // the least and, from 1, the largest sigma that the program draws, before the shift
constexpr double kUniformBelow = 0.3;
const models::Patch kCell = {1, 1, 1};

/// Before the shift, from the draws of one sample in their order.
double sigma_of(const std::string& kind, const std::vector<double>& draws) {
  const auto sigmoid = [](double normal) { return 1 / (1 + std::exp(-normal)); };
  const auto inside = [](double u) { return kEdge + (1 - 2 * kEdge) * u; };
  const auto draw = [&](size_t number) {
    check_input(number < draws.size(), "verify", kind + " has fewer draws than it needs");
    return draws[number];
  };
  if (kind == "lognorm") return inside(sigmoid(draw(0)));
  if (kind == "uniform") return inside(draw(0));
  if (kind == "mode") return inside(diffusion::mode_of(draw(0), diffusion::Options{}.mode_scale));
  check_input(kind == "mix", "verify", "timesteps of kind '" + kind + "' are not known to this build");
  return draw(2) > kUniformBelow ? inside(sigmoid(draw(0))) : inside(draw(1));
}

void check_timesteps(CaseFile& file, const Settings& runs, const Bound& bound) {
  for (const auto& [name, run] : runs.items()) {
    const auto kind = run.at("kind").get<std::string>();
    const auto count = run.at("draws").get<int64_t>();
    std::vector<Tensor> draws;
    for (int64_t k = 0; k < count; ++k) draws.push_back(file.tensor("in.draw." + name + "." + std::to_string(k)));
    check_input(!draws.empty(), "verify", "config.json: timesteps." + name + " has no draws");
    std::vector<double> timesteps;
    for (int64_t i = 0; i < draws.front().numel(); ++i) {
      std::vector<double> own;
      for (const Tensor& all : draws) own.push_back(all[i].item<double>());
      timesteps.push_back(kSteps * diffusion::shift_sigma(sigma_of(kind, own), run.at("shift")));
    }
    file.compare("out.t." + name, doubles(timesteps), bound);
  }
}

/// What the model's stem gets of the video's tokens, as [2 C + 1, f, h, w].
Tensor stem_input(const net::Denoiser& model, const net::Sample& sample) {
  const net::Batch batch = model.pack({sample});
  const auto [begin, end] = batch.predictions_of(0);
  const Tensor rows = batch.inputs[0].slice(0, begin, end).contiguous();
  std::array<int64_t, 4> shape = batch.shapes[0];
  shape[0] = rows.size(1);
  return models::from_rows(rows, shape, kCell);
}

/// A batch of a training step, each sample as image to video and as text to video.
void check_batch(CaseFile& file, const Bound& bound) {
  const Tensor latents = file.tensor("in.latents"), noise = file.tensor("in.noise"), t = file.tensor("in.t"),
               predictions = file.tensor("in.pred");
  const int64_t channels = latents.size(1);
  const auto model = models::make_denoiser(
      {.preset = "hunyuan-tiny", .config_text = Json{{"in_channels", channels}, {"out_channels", channels}}.dump()});
  const auto rows = [](const Tensor& latent) { return models::to_rows(latent, kCell).to(at::kFloat).contiguous(); };
  std::vector<Tensor> noisy, targets, with, without, inputs;
  double loss = 0;
  for (int64_t i = 0; i < latents.size(0); ++i) {
    noisy.push_back(diffusion::add_noise(latents[i], noise[i], t[i].item<double>() / kSteps));
    targets.push_back(diffusion::velocity(latents[i], noise[i]));
    const Tensor prediction = rows(predictions[i]);
    loss += loss_of_rows(prediction, rows(targets.back()), 1, at::zeros_like(prediction), {});
    for (const double share : {1.0, 0.0}) {  // of samples that are given their first frame
      diffusion::NoiseSettings settings;
      settings.image_share = share;
      const diffusion::CleanSample clean{latents[i], at::zeros({1, model->context_dim()}), {}};
      net::Sample sample = diffusion::noised(settings, model->conditions(), clean, /*step=*/1, /*place=*/i).input;
      sample.x = noisy.back();
      const Tensor input = stem_input(*model, sample);
      (share > 0 ? with : without).push_back(input.slice(0, channels));
      if (share > 0) inputs.push_back(input);
    }
  }
  file.compare("out.noised", at::stack(noisy), bound);
  file.compare("out.target", at::stack(targets), bound);
  file.compare("out.loss", at::scalar_tensor(loss / static_cast<double>(latents.size(0)), at::kDouble), bound);
  file.compare("out.cond_i2v", at::stack(with), bound);
  file.compare("out.cond_t2v", at::stack(without), bound);
  file.compare("out.input_i2v", at::stack(inputs), bound);
}

void check_sampling(CaseFile& file, const Settings& runs, const Bound& bound) {
  for (const auto& [name, run] : runs.items()) {
    const auto sampler = diffusion::make_sampler("euler", run.at("steps"), run.at("shift"));
    const double guidance = run.at("guidance");
    std::vector<double> following(sampler->timesteps().begin() + 1, sampler->timesteps().end());
    following.push_back(0);  // behind the last step there is no noise
    Tensor x = file.tensor("in.x." + name);
    std::vector<Tensor> path;
    for (int i = 0; i < sampler->steps(); ++i) {
      const double t = sampler->timesteps()[static_cast<size_t>(i)];
      const auto velocity = [&](const Tensor& at) { return at::sin(at) * 0.3 + 0.1 * t / kSteps; };
      x = sampler->step(i, x, guidance > 1 ? diffusion::guided(velocity(-x), velocity(x), guidance) : velocity(x));
      path.push_back(x);
    }
    file.compare("out.sigmas." + name, doubles(sampler->sigmas()), bound);
    file.compare("out.timesteps." + name, doubles(sampler->timesteps()), bound);
    file.compare("out.timesteps_r." + name, doubles(following), bound);
    file.compare("out.trajectory." + name, at::stack(path), bound);
  }
}

void check_pictures(CaseFile& file, const Settings& sizes, const Bound& bound) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string number = "." + std::to_string(i);
    const Tensor cut = models::covering(file.tensor("in.picture" + number), sizes.at(i).at(0), sizes.at(i).at(1));
    data::Frames frame{1, static_cast<int>(cut.size(0)), static_cast<int>(cut.size(1)), 0, {}};
    frame.rgb.assign(cut.const_data_ptr<uint8_t>(), cut.const_data_ptr<uint8_t>() + cut.numel());
    file.compare("out.cropped" + number, cut, 0.0);
    file.compare("out.cond_pixels" + number, job::to_pixels(frame).select(1, 0), bound);
  }
}

std::vector<data::Bucket> shapes_of(const std::string& base) { return data::aspect_buckets("CELLS_" + base); }

/// Shapes of each number of pixels, and the one that a picture or a ratio comes to.
CaseFile check_sizes(const CaseContext& context) {
  const auto path = context.folder / "sizes.json";
  const Settings all(read_case_object(path)), rows = all.at("rows");
  std::map<std::string, Tensor> expected, found;
  for (const auto& [base, listed] : all.at("buckets").items()) {
    std::vector<data::Bucket> shapes = shapes_of(base);
    std::ranges::sort(shapes, std::greater(), &data::Bucket::ratio);  // ours begin with the square
    std::vector<int64_t> sides, ours;
    for (const auto& shape : listed.get<std::vector<std::vector<int64_t>>>())
      sides.insert(sides.end(), shape.begin(), shape.end());
    for (const data::Bucket& shape : shapes) ours.push_back(shape.height), ours.push_back(shape.width);
    expected["buckets." + base] = whole_numbers(sides), found["buckets." + base] = whole_numbers(ours);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const Settings row = rows.at(i);
    const std::vector<data::Bucket> shapes = shapes_of(std::to_string(row.at("base").get<int64_t>()));
    const data::BucketChoice choice = data::choose_bucket(
        shapes, {.height = row.at("height"), .width = row.at("width"), .frames = 1, .image = true}, /*max_crop=*/1);
    const data::Bucket& chosen = shapes.at(static_cast<size_t>(choice.bucket));
    const std::string name = "rows." + std::to_string(i);
    expected[name] = whole_numbers(row.at("size"));
    found[name] = whole_numbers({chosen.height, chosen.width});
    row.read("diffusers");  // which chooses other shapes for some
  }
  CaseFile file(context.name, path, std::move(expected));
  for (const auto& [name, value] : found) file.compare(name, value, 0.0);
  if (const auto unread = all.unread({}); !unread.empty())
    file.refuse_run("sizes.json", "sizes.json: " + unread.front() + " is not known to this build");
  return file;
}

}  // namespace

CaseResults verify_picture_inputs(const CaseContext& context) {
  check_input(context.config.value("num_train_timesteps", kSteps) == kSteps, "verify",
              context.name + ": config.json: num_train_timesteps, this build has 1000");
  const Bound bound = context.bound("out");
  CaseFile file(context.name, context.case_files().front());
  check_timesteps(file, context.config.at("timesteps"), bound);
  check_batch(file, bound);
  check_sampling(file, context.config.at("sampling"), bound);
  check_pictures(file, context.config.at("crops"), bound);
  file.fail_the_rest();
  CaseResults results;
  results.push_back(std::move(file));
  results.push_back(check_sizes(context));
  return results;
}

}  // namespace tessera::tools
