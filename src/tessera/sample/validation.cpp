#include "tessera/sample/validation.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/clip_format.h"
#include "tessera/job/codec.h"
#include "tessera/prepare/pictures.h"

namespace tessera::sample {

namespace {

/// A learned embedding of no prompt has as many rows as the longest prompt: as many as the prompt has are used, as where
/// it was learned. A prompt that was written has its own.
prepare::EncodedText beside(const prepare::EncodedText& prompt, prepare::EncodedText negative,
                            const std::string& text) {
  if (text.empty())
    negative.context = negative.context.slice(0, 0, std::min(negative.context.size(0), prompt.context.size(0)));
  return negative;
}

/// Frames that are given beside the noisy ones may read the caption of no words.
std::map<std::string, at::Tensor> with_null(std::map<std::string, at::Tensor> extra, const prepare::EncodedText& null) {
  if (extra.count("mask_index")) extra["y_null"] = null.context;
  return extra;
}

/// A sampler whose shift is that of the video's size takes it from the latent: its tokens a frame, or its area, and its
/// frames.
double shift_of(const recipe::Recipe& recipe, const job::Job& job, const std::array<int64_t, 4>& latent) {
  if (diffusion::shifts_by_area(recipe.sample.sampler))
    return diffusion::area_shift(latent, job::overlapping_piece(*job.codec),
                                 static_cast<double>(recipe.data.height * recipe.data.width));
  if (!diffusion::shifts_by_size(recipe.sample.sampler)) return recipe.diffusion.shift;
  const auto tokens = [&](int64_t frames) { return job.model->token_count({latent[0], frames, latent[2], latent[3]}); };
  return diffusion::size_shift(static_cast<double>(tokens(2) - tokens(1)), latent[1]);
}

constexpr const char* kNextTimestep = "t_r";  // of models that go from one timestep to the next

/// The model is told the size and the rate of the video where it takes them, and room for the next timestep is there.
std::map<std::string, at::Tensor> with_size(const recipe::Recipe& recipe, const job::Job& job,
                                            const std::array<int64_t, 4>& latent,
                                            std::map<std::string, at::Tensor> extra) {
  const std::set<std::string> takes = prepare::inputs_of(*job.model, latent);
  if (takes.contains(kNextTimestep)) extra[kNextTimestep] = at::zeros({1}, at::kFloat);
  prepare::tell_size(takes,
                     {.height = static_cast<double>(recipe.data.height),
                      .width = static_cast<double>(recipe.data.width),
                      .rate = recipe.data.frames > 1 ? recipe.data.fps : 0},
                     extra);
  return extra;
}

}  // namespace

Denoising::Denoising(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, int prompt,
                     prepare::EncodedText text, prepare::EncodedText negative, std::map<std::string, at::Tensor> extra,
                     int64_t clip)
    : recipe_(recipe),
      job_(job),
      shapes_(shapes),
      seed_(static_cast<uint64_t>(recipe.sample.seed + clip)),
      prompt_(prompt),
      text_(std::move(text)),
      negative_(beside(text_, std::move(negative), recipe.sample.negative_prompt)),
      extra_(with_null(with_size(recipe, job, shapes.latent, std::move(extra)), negative_)),
      sampler_(diffusion::make_sampler(recipe.sample.sampler, static_cast<int>(recipe.sample.steps),
                                       shift_of(recipe, job, shapes.latent))),
      x_(at::empty(job.model->with_references(at::empty(shapes.latent, at::kFloat), extra_).sizes(), at::kFloat)) {
  RandomKey(seed_, Purpose::sample, static_cast<uint64_t>(prompt))
      .normal(x_.mutable_data_ptr<float>(), 0, static_cast<size_t>(x_.numel()));
  bounds_ = {0, x_.size(1)};
  begin_chunk();
  sampler_->use_noise([this](int step) {
    return noise_of_part(step + static_cast<int64_t>(chunk_) * sampler_->steps());  // behind those of finished chunks
  });
}

/// The `number`-th of those beside the clip's first.
at::Tensor Denoising::noise_of_part(int64_t number) const {
  at::Tensor noise = at::empty(part_.sizes(), at::kFloat);
  RandomKey(seed_, Purpose::sample, static_cast<uint64_t>(prompt_), static_cast<uint64_t>(number) + 1)
      .normal(noise.mutable_data_ptr<float>(), 0, static_cast<size_t>(noise.numel()));
  return noise;
}

void Denoising::in_chunks(int64_t frames, int64_t reach) {
  bounds_ = net::chunk_bounds(x_.size(1), frames);
  for (int branch = 0; branch < shapes_.guidance_branches; ++branch) {
    histories_.push_back(std::make_shared<net::History>());
    histories_.back()->reach = reach;
  }
  left_.resize(histories_.size());
  for (size_t branch = 0; branch < left_.size(); ++branch) histories_[branch]->storing = &left_[branch];
  begin_chunk();
}

void Denoising::begin_chunk() {
  part_ = x_.slice(1, bounds_[chunk_], bounds_[chunk_ + 1]);
  if (!histories_.empty()) part_ = part_.contiguous();
  next_ = 0;
}

void Denoising::end_chunk() {
  if (histories_.empty())
    x_ = part_.slice(1, part_.size(1) - shapes_.latent[1]).contiguous();  // the clip's frames, behind references
  else
    x_.slice(1, bounds_[chunk_], bounds_[chunk_ + 1]).copy_(part_);
  if (++chunk_ + 1 < bounds_.size()) begin_chunk();
}

/// A pass at the clean end, of which later chunks read the states.
void Denoising::store_chunk(const RunBranches& run) {
  net::Sample sample;
  sample.x = part_;
  if (const double sigma = recipe_.sample.cache_noise; sigma > 0) {
    constexpr int64_t kBehindSteps = int64_t{1} << 32;  // of the noise that samplers take
    sample.x = (1 - sigma) * part_ + sigma * noise_of_part(kBehindSteps + static_cast<int64_t>(chunk_));
  }
  sample.extra = extra_;
  run(pack_branches(std::move(sample)), 0, text_.context);
  for (size_t branch = 0; branch < left_.size(); ++branch) histories_[branch]->finish(std::exchange(left_[branch], {}));
  end_chunk();
}

/// Without the text, which differs.
std::vector<net::Batch> Denoising::pack_branches(net::Sample sample) {
  if (!histories_.empty()) {
    sample.extra["first_frame"] = at::tensor({bounds_[chunk_]}, at::kLong);
    if (chunk_ > 0) sample.extra.erase("image_latent");
  }
  set_text(sample, text_);
  std::vector<net::Batch> branches = {job_.model->pack({sample})};
  if (shapes_.guidance_branches > 1) {
    set_text(sample, negative_);
    sample.extra.erase("audio");  // the second branch has silence, and a black face
    if (const auto face = sample.extra.find("face"); face != sample.extra.end())
      face->second = at::full_like(face->second, -1);
    branches.push_back(job_.model->pack({sample}));
  }
  if (shapes_.guidance_branches > 2) {
    for (const char* given : {"image_latent", "cond"}) sample.extra.erase(given);
    branches.push_back(job_.model->pack({sample}));
  }
  for (size_t branch = 0; branch < histories_.size(); ++branch) branches[branch].tokens.history = histories_[branch];
  return branches;
}

void Denoising::pass(const RunBranches& run) {
  const bool denoised = next_ == sampler_->steps();
  if (denoised && !histories_.empty()) return store_chunk(run);
  if (denoised) {
    measure_audio_effect(run);
    return end_chunk();
  }
  net::Sample sample;
  sample.x = part_;
  sample.extra = extra_;
  const std::vector<double>& timesteps = sampler_->timesteps();
  sample.t = timesteps[next_];
  if (const auto told = sample.extra.find(kNextTimestep); told != sample.extra.end()) {
    const size_t following = static_cast<size_t>(next_) + 1;  // behind the last step there is no noise
    told->second = at::full({1}, following < timesteps.size() ? timesteps[following] : 0.0, at::kFloat);
  }
  const double t = sample.t;
  if (extra_.count("audio") && next_ == sampler_->steps() / 2) {
    middle_sample_ = sample;
    set_text(middle_sample_, text_);
  }
  const std::vector<net::Batch> branches = pack_branches(std::move(sample));
  const std::vector<at::Tensor> out = run(branches, t, text_.context);
  at::Tensor velocity = job_.model->unpack(out[0], branches[0])[0];
  if (extra_.count("audio") && next_ == sampler_->steps() / 2) middle_velocity_ = velocity;
  if (out.size() > 1) velocity = guided(branches, out);
  part_ = sampler_->step(next_++, part_, velocity);
  hold_first_frame();
  const bool last_chunk = chunk_ + 2 == bounds_.size();
  const bool one_more = histories_.empty() ? job_.model->conditions().audio_dim > 0 : !last_chunk;
  if (next_ == sampler_->steps() && !one_more) end_chunk();
}

void Denoising::set_text(net::Sample& sample, const prepare::EncodedText& text) const {
  sample.context = text.context;
  if (text.pooled.defined()) sample.extra["pooled"] = text.pooled;
  sample.extra.erase("glyphs");  // of the other branch's text
  if (text.glyphs.defined()) sample.extra["glyphs"] = text.glyphs;
}

at::Tensor Denoising::guided(const std::vector<net::Batch>& branches, const std::vector<at::Tensor>& out) const {
  const auto velocity = [&](size_t branch) { return job_.model->unpack(out[branch], branches[branch])[0]; };
  const diffusion::TwoGuidances scales{recipe_.sample.guidance, recipe_.sample.image_guidance,
                                       recipe_.sample.alternate_guidance, recipe_.sample.image_guidance_by_frame};
  if (out.size() == 2) return diffusion::guided(velocity(1), velocity(0), scales.text_at(next_));
  return diffusion::guided(velocity(2), velocity(1), velocity(0), scales, next_, sampler_->steps());
}

void Denoising::measure_audio_effect(const RunBranches& run) {
  middle_sample_.extra.erase("audio");
  const net::Batch silent = job_.model->pack({middle_sample_});
  const std::vector<net::Batch> branches(static_cast<size_t>(shapes_.guidance_branches), silent);
  const at::Tensor velocity = job_.model->unpack(run(branches, middle_sample_.t, text_.context)[0], silent)[0];
  audio_effect_ = ((middle_velocity_ - velocity).norm() / velocity.norm()).item<double>();
}

/// A given first frame stays unchanged, whatever the model predicts for it: from the first step on, or where the model
/// reads it elsewhere after the last.
void Denoising::hold_first_frame() {
  const bool last_step = next_ == sampler_->steps();
  if (extra_.count("mask_index")) return;  // what is given beside the noisy frames is predicted, too
  if (const auto cond = extra_.find("cond"); cond != extra_.end() && last_step) {
    const at::Tensor& given =
        cond->second;  // a mask, and latents; of a video it goes on from it is as it was predicted
    const std::string kind = prepare::sampled_condition(recipe_.diffusion, recipe_.sample, job_.model->conditions());
    if (families::places_of(kind).pictures) part_ = at::where(given.slice(0, 0, 1) > 0, given.slice(0, 1), part_);
    return;
  }
  const auto given = extra_.find("image_latent");
  if (given == extra_.end() || chunk_ > 0 || (job_.model->conditions().clean_beside && !last_step)) return;
  part_ = at::cat({given->second, part_.slice(1, 1)}, 1);
}

Validation::Validation(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes,
                       const prepare::PreparedData& data, std::filesystem::path out)
    : recipe_(recipe), job_(job), shapes_(shapes), data_(data), chain_(job, recipe), out_(std::move(out)) {}

void Validation::pass(int64_t, const RunBranches& run) {
  if (clip_ == 0 && !denoising_)
    made_ = chain_.begin_in_run(data_.prompt_pictures(prompt_)), extra_ = data_.prompt_extra(prompt_);
  if (!denoising_)
    denoising_.emplace(recipe_, job_, shapes_, prompt_, data_.prompt_encoded(prompt_), data_.negative(), extra_, clip_);
  denoising_->pass(run);
  if (!denoising_->done()) return;
  finished_ = Finished{prompt_, clip_, clip_ + 1 == made_.clips, denoising_->latent(), denoising_->audio_effect()};
  denoising_.reset();
  clip_ = finished_->last ? 0 : clip_ + 1;
  if (!finished_->last) return;
  prompt_ = (prompt_ + 1) % data_.prompts();
  extra_.clear();
}

void Validation::go_on(comm::Group& world) {
  if (next_.empty()) {  // of a rank that makes none, or could not: it writes no sample then
    next_ = chain_.next(made_, clip_, extra_, data_.prompt_pictures(prompt_), /*first=*/false);
    made_.done = 0;
  }
  share(next_, world);
  for (auto& [name, value] : next_) extra_[name] = value;
  next_.clear();
}

std::optional<Validation::Finished> Validation::take_finished() { return std::exchange(finished_, std::nullopt); }

std::filesystem::path Validation::file(const std::filesystem::path& out, int64_t step, int prompt) {
  char name[64];
  std::snprintf(name, sizeof name, "step-%06lld-%d.mp4", static_cast<long long>(step), prompt);
  return out / "samples" / name;
}

std::optional<report::RunLog::Sample> Validation::write(int64_t step, const Finished& finished) {
  if (made_.done < finished.clip) return std::nullopt;  // a clip before it could not be made
  const auto put_codec_away = [&] {
    // Steps on cached samples do not need it; beside those of host encoders it is host memory, and read anew.
    if (!recipe_.data.online() || recipe_.data.encoders == recipe::Encoders::host) job::release(*job_.codec);
  };
  chain_.append(made_, extra_, finished.latent);
  if (!finished.last) {
    next_ = chain_.next(made_, finished.clip + 1, extra_, data_.prompt_pictures(finished.prompt), /*first=*/true);
    put_codec_away();
    return std::nullopt;
  }
  const std::filesystem::path file = this->file(out_, step, finished.prompt);
  const data::Frames frames = std::move(made_.frames);
  data::write_mp4(file, frames, data_.prompt_sound(finished.prompt));
  draw_grid(step, finished.prompt, frames);
  // A prompt that is a clip's own caption has a reference, of the length of one: the clip as reconstructed by the
  // autoencoder.
  std::optional<double> psnr;
  if (const int64_t clip = data_.clip_of_prompt(finished.prompt); clip >= 0 && finished.clip == 0)
    psnr = data::psnr(frames, reconstruction(finished.prompt, clip));
  put_codec_away();
  return report::RunLog::Sample{.step = step,
                                .prompt = finished.prompt,
                                .file = file.string(),
                                .text = data_.prompt_text(finished.prompt),
                                .psnr = psnr,
                                .audio_effect = finished.audio_effect,
                                .picture = report::picture_of(frames)};
}

namespace {

constexpr int kCell = 192;           // pixels of a cell of the grid along its longer side
constexpr size_t kColumns = 16;      // of the grid
constexpr int kGap = 2, kBand = 14;  // between cells; above them, for the steps

data::Frames cell_of(const data::Frames& frames) {
  const data::Frames small = data::thumbnail(frames, kCell, 3);
  data::Frames cell{1, small.height, small.width, 0, {}};
  const uint8_t* middle = small.frame(small.count / 2);
  cell.rgb.assign(middle, middle + small.frame_bytes());
  return data::enlarged(cell, std::max(1, kCell / std::max(cell.height, cell.width)));
}

void put(const data::Frames& cell, int top, int left, data::Frames& onto) {
  for (int y = 0; y < cell.height; ++y)
    std::copy_n(cell.rgb.data() + static_cast<size_t>(y) * cell.width * 3, static_cast<size_t>(cell.width) * 3,
                onto.rgb.data() + (static_cast<size_t>(top + y) * onto.width + left) * 3);
}

/// Digits of three by five points, each of two by two pixels.
void put_number(int64_t number, int top, int left, data::Frames& onto) {
  constexpr int kRows[10][5] = {{7, 5, 5, 5, 7}, {2, 6, 2, 2, 7}, {7, 1, 7, 4, 7}, {7, 1, 3, 1, 7}, {5, 5, 7, 1, 1},
                                {7, 4, 7, 1, 7}, {7, 4, 7, 5, 7}, {7, 1, 1, 2, 2}, {7, 5, 7, 5, 7}, {7, 5, 7, 1, 7}};
  for (const char digit : std::to_string(number)) {
    for (int y = 0; y < 10; ++y)
      for (int x = 0; x < 6; ++x) {
        const int at_x = left + x, at_y = top + y;
        if ((kRows[digit - '0'][y / 2] >> (2 - x / 2) & 1) && at_x < onto.width && at_y < onto.height)
          std::fill_n(onto.rgb.data() + (static_cast<size_t>(at_y) * onto.width + at_x) * 3, 3, uint8_t{255});
      }
    left += 8;
  }
}

/// The steps of which samples are there, some of very many.
std::vector<int64_t> steps_of(const std::filesystem::path& folder) {
  std::set<int64_t> steps;
  std::error_code unseen;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unseen)) {
    long long step = 0;
    int prompt = 0, end = 0;
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "step-%lld-%d.mp4%n", &step, &prompt, &end) == 2 && end == std::ssize(name))
      steps.insert(step);
  }
  std::vector<int64_t> all(steps.begin(), steps.end()), some;
  if (all.size() <= kColumns) return all;
  for (size_t i = 0; i < kColumns; ++i) some.push_back(all[i * (all.size() - 1) / (kColumns - 1)]);
  return some;
}

}  // namespace

void Validation::draw_grid(int64_t step, int prompt, const data::Frames& frames) {
  cells_[{step, prompt}] = cell_of(frames);
  const std::filesystem::path folder = out_ / "samples";
  const std::vector<int64_t> steps = steps_of(folder);
  const int rows = data_.prompts();
  int width = 0, height = 0;  // stages may have other shapes
  for (const int64_t shown : steps)
    for (int row = 0; row < rows; ++row) {
      const std::filesystem::path sample = file(out_, shown, row);
      if (!cells_.contains({shown, row}) && std::filesystem::exists(sample)) {
        try {
          cells_[{shown, row}] = cell_of(data::decode_clip(sample, {}));
        } catch (const UserError&) {  // its place stays empty, whatever became of the file
        }
      }
      const auto cell = cells_.find({shown, row});
      if (cell == cells_.end()) continue;
      width = std::max(width, cell->second.width + kGap), height = std::max(height, cell->second.height + kGap);
    }
  data::Frames grid{1, kBand + rows * height, static_cast<int>(std::ssize(steps)) * width, 0, {}};
  grid.rgb.assign(grid.frame_bytes(), uint8_t{40});
  for (int column = 0; column < std::ssize(steps); ++column) {
    const int64_t shown = steps[static_cast<size_t>(column)];
    put_number(shown, 2, column * width + 2, grid);
    for (int row = 0; row < rows; ++row)
      if (const auto cell = cells_.find({shown, row}); cell != cells_.end())
        put(cell->second, kBand + row * height, column * width, grid);
  }
  const std::vector<uint8_t> bytes = data::write_jpeg(grid, 0);
  checkpoint::write_text(folder / "grid.jpg", std::string(bytes.begin(), bytes.end()));
}

const data::Frames& Validation::reconstruction(int prompt, int64_t clip) {
  if (const auto known = reconstructions_.find(prompt); known != reconstructions_.end()) return known->second;
  const std::filesystem::path folder = out_ / "references";
  const std::string name = "-" + std::to_string(prompt) + ".mp4";
  checkpoint::make_folder(folder, "check run.out");
  data::write_mp4(folder / ("source" + name), data_.frames(clip));
  const data::Frames frames = frames_of(recipe_.data, job::decode(*job_.codec, data_.latent(clip)));
  data::write_mp4(folder / ("reconstruction" + name), frames);
  return reconstructions_.emplace(prompt, frames).first->second;
}

}  // namespace tessera::sample
