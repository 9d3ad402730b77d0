// Kind "longsana_attention": clips made a chunk of frames at a time, with the states that finished chunks leave, or with
// all chunks in one pass; and the rollout of a few steps a chunk.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/diffusion/distillation.h"
#include "tessera/models/common/golden_case.h"
#include "tessera/tools/verify/step_network.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using Outputs = StepNetwork::Outputs;
using GradientsByName = std::map<std::string, Tensor>;

/// The settings of a case.
struct ChunkRule {
  int64_t base = 1, reach = 0;  ///< frames of a chunk, and how many chunks before its own one reads; 0: all
  std::vector<double> steps;    ///< timesteps of the rollout
  std::vector<double> sigmas;
  bool one_exit = false;    ///< all chunks end at the first one's step
  bool stores_end = false;  ///< what is stored comes from the last step, whichever ends the chunk

  double sigma(double t) const { return diffusion::nearest_sigma(sigmas, t); }
};

ChunkRule chunk_rule(const Settings& settings) {
  ChunkRule rule;
  rule.base = settings.at("num_frame_per_block");
  rule.steps = settings.at("denoising_step_list").get<std::vector<double>>();
  if (!rule.steps.empty() && rule.steps.back() == 0) rule.steps.pop_back();
  rule.sigmas = diffusion::shifted_sigmas(settings.at("timestep_shift"));
  rule.reach = settings.value("num_cached_blocks", int64_t{-1});
  rule.one_exit = settings.value("same_step_across_blocks", false);
  rule.stores_end = settings.value("update_kv_cache_by_end", false);
  check_input(rule.base > 0 && !rule.steps.empty(), "verify",
              "num_frame_per_block is not above 0, or denoising_step_list has no step");
  return rule;
}

class ChunkCase {
 public:
  ChunkCase(const CaseContext& context, CaseFile& file)
      : context_(context),
        file_(file),
        rule_(chunk_rule(context.config.at("_longsana"))),
        network_(context, StepNetwork::described(context), "model.safetensors"),
        bound_(context.bound("out")) {}

  void check() {
    const std::vector<int64_t> bounds = net::chunk_bounds(file_.tensor("in.noisy").size(2), rule_.base);
    file_.compare("out.sigmas", at::tensor(rule_.sigmas, at::kDouble).to(at::kFloat), bound_);
    file_.compare("out.chunks", whole_numbers(bounds), 0.0);
    check_cached("cached", bounds, rule_.reach);
    if (file_.has("out.window.sample")) check_cached("window", bounds, 1);
    check_whole("whole", bounds, /*same=*/false);
    if (file_.has("out.whole_same.sample")) check_whole("whole_same", bounds, /*same=*/true);
    if (file_.has("in.rollout.noise")) check_rollout();
  }

 private:
  Tensor caption(int64_t i) const {
    return file_.tensor("in.text")[i].index_select(0, at::nonzero(file_.tensor("in.text_mask")[i]).flatten());
  }
  net::Sample chunk_sample(const Tensor& x, double t, int64_t first, int64_t caption_of) const {
    net::Sample sample;
    sample.x = x.contiguous();
    sample.t = t;
    sample.context = caption(caption_of);
    sample.extra["first_frame"] = whole_numbers({first});
    return sample;
  }
  /// A pass that leaves what later chunks read.
  void store(net::History& history, const std::vector<net::Sample>& samples) {
    net::History::Left left;
    history.storing = &left;
    network_.forward(samples);
    history.storing = nullptr;
    history.finished.push_back(std::move(left));
  }

  void check_cached(const std::string& run, const std::vector<int64_t>& bounds, int64_t reach) {
    const Tensor noisy = file_.tensor("in.noisy"), clean = file_.tensor("in.clean"), target = file_.tensor("in.target"),
                 t = file_.tensor("in.timestep_chunks").to(at::kDouble);
    const auto history = std::make_shared<net::History>();
    history->reach = reach;
    network_.follow(history);
    const bool graded = !file_.names("grad." + run + ".").empty();
    GradientsByName gradients;
    std::vector<Tensor> chunks;
    for (size_t c = 0; c + 1 < bounds.size(); ++c) {
      const auto part = [&](const Tensor& of, int64_t i) { return of[i].slice(1, bounds[c], bounds[c + 1]); };
      std::vector<net::Sample> samples, finished;
      for (int64_t i = 0; i < noisy.size(0); ++i) {
        samples.push_back(chunk_sample(part(noisy, i), t[i][static_cast<int64_t>(c)].item<double>(), bounds[c], i));
        finished.push_back(chunk_sample(part(clean, i), 0, bounds[c], i));
      }
      const std::vector<Outputs> said = network_.forward(samples);
      std::vector<Tensor> all;
      std::vector<Outputs> at;
      for (int64_t i = 0; i < noisy.size(0); ++i) {
        all.push_back(said[static_cast<size_t>(i)].prediction);
        at.push_back({(all.back() - part(target, i)) * (2.0 / static_cast<double>(target.numel()))});
      }
      chunks.push_back(at::stack(all));
      if (graded) add(gradients, network_.backward(samples, at).parameters);
      store(*history, finished);
    }
    network_.follow(nullptr);
    compare_run(run, at::cat(chunks, 2), gradients);
    compare_states(run, *history, noisy.size(0));
  }

  void check_whole(const std::string& run, const std::vector<int64_t>& bounds, bool same) {
    const Tensor noisy = file_.tensor("in.noisy"), target = file_.tensor("in.target"),
                 t = file_.tensor("in.timestep_chunks").to(at::kDouble);
    std::vector<net::Sample> samples;
    for (int64_t i = 0; i < noisy.size(0); ++i) {
      net::Sample sample = chunk_sample(noisy[i], t[i][0].item<double>(), 0, i);
      sample.extra["chunks"] = whole_numbers({bounds.begin(), bounds.end() - 1});
      if (!same) {
        const Tensor frames = at::empty({noisy.size(2)}, at::kDouble);
        for (size_t c = 0; c + 1 < bounds.size(); ++c)
          frames.slice(0, bounds[c], bounds[c + 1]).fill_(t[i][static_cast<int64_t>(c)]);
        sample.extra["t"] = frames;
      }
      samples.push_back(std::move(sample));
    }
    std::vector<Tensor> all;
    for (const Outputs& out : network_.forward(samples)) all.push_back(out.prediction);
    const Tensor sample = at::stack(all), at_sample = (sample - target) * (2.0 / static_cast<double>(target.numel()));
    GradientsByName gradients;
    if (!file_.names("grad." + run + ".").empty()) {
      std::vector<Outputs> at;
      for (int64_t i = 0; i < noisy.size(0); ++i) at.push_back({at_sample[i]});
      gradients = network_.backward(samples, at).parameters;
    }
    compare_run(run, sample, gradients);
  }

  /// Each chunk from noise in a few steps, of which one ends it. These have the gradient, in one pass over the clip.
  void check_rollout() {
    const Tensor noise = file_.tensor("in.rollout.noise"), target = file_.tensor("in.rollout.target"),
                 exits = file_.tensor("in.rollout.exit");
    check_input(noise.size(0) == 1, "verify", file_.label() + ": in.rollout.noise has more than one clip");
    const std::vector<int64_t> bounds = net::chunk_bounds(noise.size(2), rule_.base);
    const auto history = std::make_shared<net::History>();
    history->reach = rule_.reach;
    network_.follow(history);
    std::vector<Tensor> chunks, ends;
    const Tensor times = at::empty({noise.size(2)}, at::kDouble), sigmas = at::empty_like(times);
    for (size_t c = 0; c + 1 < bounds.size(); ++c) {
      const std::string in = "in.rollout." + std::to_string(c) + ".";
      const auto drawn = [&](const std::string& name) { return file_.tensor(in + name).transpose(0, 1); };
      const auto part = [&](const Tensor& of) { return of[0].slice(1, bounds[c], bounds[c + 1]); };
      const auto exit = exits[rule_.one_exit ? 0 : static_cast<int64_t>(c)].item<int64_t>();
      check_input(exit >= 0 && exit < std::ssize(rule_.steps), "verify",
                  file_.label() + ": in.rollout.exit is no step of denoising_step_list");
      const int64_t last = rule_.stores_end ? std::ssize(rule_.steps) - 1 : exit;
      Tensor x = part(noise), x0;
      for (int64_t k = 0; k <= last; ++k) {
        const double t = rule_.steps[static_cast<size_t>(k)], sigma = rule_.sigma(t);
        const std::vector<net::Sample> samples = {chunk_sample(x, t, bounds[c], 0)};
        x0 = x - sigma * network_.forward(samples)[0].prediction;
        if (k == exit) {
          chunks.push_back(x0), ends.push_back(x);
          times.slice(0, bounds[c], bounds[c + 1]).fill_(t), sigmas.slice(0, bounds[c], bounds[c + 1]).fill_(sigma);
        }
        if (k == last) break;
        const double next = rule_.sigma(rule_.steps[static_cast<size_t>(k) + 1]);
        x = (1 - next) * x0 + next * drawn("noise." + std::to_string(k));
      }
      const double least = rule_.sigma(0);
      store(*history, {chunk_sample((1 - least) * x0 + least * drawn("cache_noise"), 0, bounds[c], 0)});
    }
    history->of_all = true;
    net::Sample all = chunk_sample(at::cat(ends, 1), 0, 0, 0);
    all.extra["chunks"] = whole_numbers({bounds.begin(), bounds.end() - 1}), all.extra["t"] = times;
    const Tensor by_frame = sigmas.view({1, -1, 1, 1}), end = all.x - by_frame * network_.forward({all})[0].prediction,
                 at = ((end - target[0]) * by_frame * (-2.0 / static_cast<double>(target.numel()))).to(at::kFloat);
    const GradientsByName gradients = network_.backward({all}, {{at}}).parameters;
    history->of_all = false;
    network_.follow(nullptr);
    const Tensor x0 = at::cat(chunks, 1).unsqueeze(0);
    file_.compare("out.rollout.x0", x0, bound_);
    file_.compare("out.rollout.x0", end.unsqueeze(0).to(at::kFloat), bound_);
    file_.compare("out.rollout.loss", (x0 - target).to(at::kDouble).square().mean().to(at::kFloat), bound_);
    compare_gradients("rollout", gradients);
    compare_states("rollout", *history, 1);
  }

  static void add(GradientsByName& sum, const GradientsByName& part) {
    for (const auto& [name, g] : part) sum[name] = sum.contains(name) ? sum[name] + g : g;
  }

  void compare_run(const std::string& run, const Tensor& sample, const GradientsByName& gradients) {
    const std::string loss = "out." + run + ".loss";
    file_.compare("out." + run + ".sample", sample, bound_);
    if (file_.has(loss))
      file_.compare(loss, (sample - file_.tensor("in.target")).to(at::kDouble).square().mean().to(at::kFloat), bound_);
    compare_gradients(run, gradients);
  }
  void compare_gradients(const std::string& run, const GradientsByName& gradients) {
    for (const auto& [parameter, value] : models::stored_together(
             {gradients.begin(), gradients.end()},
             [&](const std::string& name) { return network_.model().foreign_name(name, "diffusers"); }))
      file_.compare("grad." + run + "." + parameter, value, context_.bound("grad"));
  }

  /// What each chunk has left: every rank has its heads, blocks and samples of it.
  void compare_states(const std::string& run, const net::History& history, int64_t samples) {
    if (file_.names("out." + run + ".state.").empty()) return;
    std::vector<std::string> blocks;
    for (const auto& unit : network_.model().units())
      if (unit->spec().kind == "block") blocks.push_back(unit->spec().name);
    const plan::Plan plan = plan_of_case({}, context_.mesh, samples);
    const auto slice = plan.slice(context_.mesh.dp_rank(context_.rank), 0);
    const int64_t tp_rank = context_.mesh.coordinate(context_.rank, Axis::tp);
    for (size_t c = 0; c < history.finished.size(); ++c)
      for (size_t b = 0; b < blocks.size(); ++b) {
        const std::string out = "out." + run + ".state." + std::to_string(c) + "." + std::to_string(b) + ".";
        const Tensor like = file_.tensor(out + "vk"), frame = file_.tensor(out + "conv");
        const int64_t heads = like.size(1), d = like.size(2);
        Shared shared;
        std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
        const auto name_of = [](int64_t s, int64_t h) { return std::to_string(s) + "." + std::to_string(h); };
        for (int64_t s = 0; s < samples; ++s) {
          for (int64_t h = 0; h < heads; ++h) shapes.emplace_back(name_of(s, h), std::vector<int64_t>{d + 1, d});
          shapes.emplace_back(name_of(s, -1), std::vector<int64_t>{frame.size(3), frame.size(1)});
        }
        const net::History::Left& left = history.finished[c];
        const auto states = left.states.find(blocks[b] + ".attn"), rows = left.frames.find(blocks[b] + ".mlp.t_rows");
        if (slice.count > 0 && states != left.states.end() && rows != left.frames.end())
          for (int64_t s = 0; s < slice.count; ++s) {
            const Tensor own = states->second[s];
            for (int64_t h = 0; h < own.size(0); ++h)
              shared.put(name_of(slice.first + s, tp_rank * own.size(0) + h), own[h]);
            shared.put(name_of(slice.first + s, -1), rows->second.slice(0, s * frame.size(3), (s + 1) * frame.size(3)));
          }
        const auto all = shared.gather(*context_.comm, shapes);
        std::vector<Tensor> products, sums, frames;
        for (int64_t s = 0; s < samples; ++s) {
          for (int64_t h = 0; h < heads; ++h) {
            products.push_back(all.at(name_of(s, h)).narrow(0, 0, d).t());
            sums.push_back(all.at(name_of(s, h)).narrow(0, d, 1));
          }
          frames.push_back(all.at(name_of(s, -1)).t().unsqueeze(1));
        }
        file_.compare(out + "vk", at::stack(products).view({samples, heads, d, d}), bound_);
        file_.compare(out + "k_sum", at::stack(sums).view({samples, heads, 1, d}), bound_);
        file_.compare(out + "conv", at::stack(frames), bound_);
      }
  }

  const CaseContext& context_;
  CaseFile& file_;
  const ChunkRule rule_;
  StepNetwork network_;
  const std::function<double(double)> bound_;
};

}  // namespace

CaseResults verify_chunks(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  ChunkCase(context, file).check();
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
