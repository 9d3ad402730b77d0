#include "tessera/train/validation.h"

#include "tessera/base/random.h"
#include "tessera/data/image.h"

namespace tessera::train {

Denoising::Denoising(const Recipe& recipe, const Job& job, int prompt, at::Tensor context, at::Tensor negative)
    : recipe_(recipe),
      job_(job),
      context_(std::move(context)),
      negative_(std::move(negative)),
      sampler_(diffusion::make_sampler(recipe.sample.sampler, static_cast<int>(recipe.sample.steps),
                                       recipe.diffusion.shift)),
      x_(at::empty(job.latent, at::kFloat)) {
  RandomKey(static_cast<uint64_t>(recipe.sample.seed), Purpose::sample, static_cast<uint64_t>(prompt))
      .normal(x_.mutable_data_ptr<float>(), 0, static_cast<size_t>(x_.numel()));
}

void Denoising::pass(const RunBranches& run) {
  net::Sample sample;
  sample.x = x_;
  sample.t = sampler_->timesteps()[next_];
  sample.context = context_;
  std::vector<net::Batch> branches = {job_.model->pack({sample})};
  if (job_.guidance_branches > 1) {
    sample.context = negative_;
    branches.push_back(job_.model->pack({sample}));
  }
  const std::vector<at::Tensor> out = run(branches);
  at::Tensor velocity = job_.model->unpack(out[0], branches[0])[0];
  if (out.size() > 1)
    velocity = diffusion::guided(job_.model->unpack(out[1], branches[1])[0], velocity, recipe_.sample.guidance);
  x_ = sampler_->step(next_++, x_, velocity);
}

Validation::Validation(const Recipe& recipe, const Job& job, const PreparedData& data, std::filesystem::path out)
    : recipe_(recipe), job_(job), data_(data), out_(std::move(out)) {}

void Validation::pass(int64_t, const RunBranches& run) {
  if (!denoising_) denoising_.emplace(recipe_, job_, prompt_, data_.prompt_context(prompt_), data_.negative_context());
  denoising_->pass(run);
  if (!denoising_->done()) return;
  finished_ = Finished{prompt_, denoising_->latent()};
  denoising_.reset();
  prompt_ = (prompt_ + 1) % data_.prompts();
}

std::optional<Validation::Finished> Validation::take_finished() { return std::exchange(finished_, std::nullopt); }

void Validation::write(int64_t step, const Finished& finished, RunLog& log) {
  char name[64];
  std::snprintf(name, sizeof name, "step-%06lld-%d.mp4", static_cast<long long>(step), finished.prompt);
  const std::filesystem::path file = out_ / "samples" / name;
  const data::Frames frames = to_frames(job_.codec->decode(finished.latent), recipe_.data.fps);
  data::write_mp4(file, frames);
  // A prompt that is a clip's own caption has a truth to be held against: the clip as the autoencoder shows it.
  std::optional<double> psnr;
  if (const int64_t clip = data_.clip_of_prompt(finished.prompt); clip >= 0)
    psnr = data::psnr(frames, reconstruction(finished.prompt, clip));
  log.sample({step, finished.prompt, file.string(), data_.prompt_text(finished.prompt), psnr}, frames);
}

const data::Frames& Validation::reconstruction(int prompt, int64_t clip) {
  if (const auto known = reconstructions_.find(prompt); known != reconstructions_.end()) return known->second;
  const std::filesystem::path folder = out_ / "references";
  const std::string name = "-" + std::to_string(prompt) + ".mp4";
  std::filesystem::create_directories(folder);
  data::write_mp4(folder / ("source" + name), data_.frames(clip));
  const data::Frames frames = to_frames(job_.codec->decode(data_.sample(clip).latent), recipe_.data.fps);
  data::write_mp4(folder / ("reconstruction" + name), frames);
  return reconstructions_.emplace(prompt, frames).first->second;
}

data::Frames to_frames(const at::Tensor& pixels, double fps) {
  const at::Tensor bytes =
      pixels.clamp(-1, 1).add(1).mul(127.5).round().to(at::kByte).permute({1, 2, 3, 0}).contiguous();
  data::Frames frames;
  frames.count = static_cast<int>(bytes.size(0));
  frames.height = static_cast<int>(bytes.size(1));
  frames.width = static_cast<int>(bytes.size(2));
  frames.fps = fps;
  frames.rgb.assign(bytes.const_data_ptr<uint8_t>(), bytes.const_data_ptr<uint8_t>() + bytes.numel());
  return frames;
}

at::Tensor to_pixels(const data::Frames& frames) {
  at::Tensor bytes = at::empty({frames.count, frames.height, frames.width, 3}, at::kByte);
  std::copy(frames.rgb.begin(), frames.rgb.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes.to(at::kFloat).div(127.5).sub(1).permute({3, 0, 1, 2}).contiguous();
}

}  // namespace tessera::train
