// Kind "opensora_timesteps": shifts by a sample's size, and drawn timesteps, of 2.0, 1.2 and 1.3. A mesh means nothing here.
#include <charconv>
#include <cmath>

#include "tessera/models/common/rotary.h"
#include "tessera/tools/verify/by_size.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using diffusion::Options;

std::vector<int64_t> integers(const Tensor& row) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < row.numel(); ++i) values.push_back(row[i].item<int64_t>());
  return values;
}

/// Expected values whose names end with a number after `prefix`, each with this number.
std::vector<std::pair<std::string, double>> numbered(const CaseFile& file, const std::string& prefix) {
  std::vector<std::pair<std::string, double>> found;
  for (const std::string& name : file.names(prefix))
    if (double number = 0;
        std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number).ec == std::errc())
      found.emplace_back(name, number);
  return found;
}

/// Shifts of 2.0's latents in training, of both autoencoders; the first one's.
std::vector<double> check_shifts(CaseFile& file) {
  std::vector<double> first;
  for (const std::string codec : {"hunyuan", "dc_ae"}) {
    const Tensor sizes = file.tensor("in.v2." + codec + ".latent_thw");
    std::vector<double> shifts;
    for (int64_t i = 0; i < sizes.size(0); ++i) {
      const auto thw = integers(sizes[i]);
      shifts.push_back(diffusion::of_size(by_size(1), {16, thw[0], thw[1], thw[2]}).shift);
    }
    file.compare("out.v2." + codec + ".alpha", doubles(shifts), relative(1e-12));
    if (first.empty()) first = shifts;
  }
  return first;
}

/// The share of the clean latent in the noisy one, of each sigma.
Tensor clean_shares(const Tensor& sigmas) {
  const Tensor shares = at::empty_like(sigmas), one = at::ones({}), none = at::zeros({});
  for (int64_t i = 0; i < sigmas.numel(); ++i)
    shares.view(-1)[i] = diffusion::add_noise(one, none, sigmas.view(-1)[i].item<double>());
  return shares;
}

/// Rows of the first three timesteps of each size.
Tensor embedding(const Tensor& sigmas) {
  constexpr int64_t kWidth = 256;
  std::vector<double> t;
  const Tensor first = sigmas.narrow(1, 0, 3).reshape({-1});
  for (int64_t i = 0; i < first.numel(); ++i) t.push_back(1000 * first[i].item<double>());
  return models::timestep_sinusoid(t, kWidth);
}

void check_drawn(CaseFile& file, const CaseContext& context, const std::vector<double>& shifts) {
  constexpr double kEmbedding = 0.008;  // of values of bf16
  const Tensor normal = file.tensor("in.v2.normal");
  std::vector<Tensor> exact, rounded;
  for (const double shift : shifts) {
    exact.push_back(sigmas_of(by_size(shift), normal));
    rounded.push_back(sigmas_of(by_size(shift, true), normal));
  }
  const Tensor t = at::stack(exact), t_bf16 = at::stack(rounded), clean = clean_shares(t_bf16);
  file.compare("out.v2.sigmoid", sigmas_of(by_size(1), normal), context.bound("out"));
  file.compare("out.v2.t", t, context.bound("out"));
  compare_rounded(file, "out.v2.t_bf16", t_bf16, t);
  compare_rounded(file, "out.v2.t_rev_bf16", clean.to(at::kBFloat16).to(at::kFloat), clean);
  file.compare("out.v2.embedding_bf16_compiled", embedding(t_bf16), kEmbedding);
  for (const char* eager : {"out.v2.t1000_bf16", "out.v2.embedding_bf16_eager"})
    file.leave_out(eager, "1000 t is not rounded to bf16, as in the trainer, which compiles it");
  file.leave_out("out.v2.embedding_fp32", "its angles are fp32, those here fp64: up to 1e-4 apart near t = 900");
}

void check_moved(CaseFile& file, const CaseContext& context) {
  const Tensor shifts = file.tensor("in.shift.alpha"), t = file.tensor("in.shift.t");
  std::vector<Tensor> moved;
  for (int64_t a = 0; a < shifts.numel(); ++a) {
    std::vector<double> row;
    for (int64_t i = 0; i < t.numel(); ++i)
      row.push_back(diffusion::shift_sigma(t[i].item<double>(), shifts[a].item<double>()));
    moved.push_back(doubles(row));
  }
  file.compare("out.shift.t", at::stack(moved), context.bound("out"));
}

/// 1.2's and 1.3's shifts by area and frames, and 1.3's draws for the last size.
void check_by_area(CaseFile& file, const CaseContext& context) {
  const auto bound = context.bound("out");
  const std::vector<VideoSize> sizes = video_sizes(context.config.at("hwf"));
  const Tensor given = file.tensor("in.v1.t");
  for (const auto& [name, scale] : numbered(file, "out.v12.fp32.scale"))
    file.compare(name, area_timesteps(sizes, given, scale), bound);
  for (const auto& [name, scale] : numbered(file, "out.v13.fp32.scale"))
    file.compare(name, area_timesteps(sizes, given, scale, shift_of_second), bound);
  const VideoSize picture = {sizes.back()[0], sizes.back()[1], 1};  // whose shift is of the area alone
  file.compare("out.v13.no_temporal", area_timesteps({picture}, file.tensor("in.v13.over.t"), 1, shift_of_second)[0],
               bound);
  Options drawn;
  diffusion::parse_timesteps("by_area", drawn);
  drawn.shift = shift_of_second(sizes.back(), 1);
  const Tensor uniform = file.tensor("in.v13.sample.uniform").to(at::kDouble),
               normal = file.tensor("in.v13.sample.logit_normal").to(at::kDouble);
  for (const auto& [name, u] : {std::pair("uniform", uniform), {"logit_normal", at::sigmoid(normal)}}) {
    std::vector<double> times;
    for (int64_t i = 0; i < u.numel(); ++i) times.push_back(diffusion::draw_of(drawn, u[i].item<double>()).t);
    file.compare(std::string("out.v13.sample.") + name, doubles(times).to(at::kFloat), bound);
  }
  for (const char* rounded : {"out.v12.bf16.", "out.v13.bf16."})
    file.leave_out(rounded, "height, width, frames and shift are not rounded to bf16 here");
  file.leave_out(
      "out.mixed.",
      "the shift is that of each sample's own size here; there the first of a batch decides whether all are pictures");
  file.leave_out("out.v13.over", "there is no uniform_over_threshold here");
}

/// 2.0's in sampling.
void check_schedules(CaseFile& file, const CaseContext& context) {
  const int steps = context.config.at("steps").get<int>();
  const Tensor rows = file.tensor("in.v2.sample.row_seq_frames");
  std::vector<double> shifts;
  std::vector<Tensor> schedules;
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const auto row = integers(rows[i]);
    shifts.push_back(diffusion::size_shift(static_cast<double>(row[1]), row[2]));
    schedules.push_back(doubles(size_schedule(steps, shifts.back())));
  }
  file.compare("out.v2.sample.alpha", doubles(shifts), relative(1e-12));
  file.compare("out.v2.sample.schedule", at::stack(schedules), relative(1e-6));
  for (const auto& [name, shift] : numbered(file, "out.v2.sample.schedule_alpha"))
    file.compare(name, doubles(size_schedule(steps, shift)), relative(1e-6));
}

}  // namespace

CaseResults verify_size_timesteps(const CaseContext& context) {
  context.config.read("hwf_dc_ae");  // in latent cells it is an input
  CaseFile file(context.name, context.case_files().front());
  check_drawn(file, context, check_shifts(file));
  check_moved(file, context);
  check_by_area(file, context);
  check_schedules(file, context);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
