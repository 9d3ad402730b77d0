#include "tessera/diffusion/training_sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/diffusion/given_frames.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/families/frames/pixel_masks.h"

namespace tessera::diffusion {

namespace {

/// Indices of these draws in the sample's timestep stream, beyond the draws of the timestep itself.
constexpr uint64_t kConditionDraw = 1000, kCaptionDraw = 1001, kPooledDraw = 1002, kGivenDraw = 1003, kMaskDraw = 1004,
                   kDropDraw = 1005, kWholeDraw = 1006, kGuidanceDraw = 1007, kLargestDraw = 1008, kLeaveDraw = 1100;
constexpr uint64_t kBesideDraw =
    4000;  // and the numbers behind it: normal ones, of which each is of a block of its own
/// Of the frames of a mask: those of a kind, and one a frame.
constexpr uint64_t kMaskDraws = 2000, kFrameDraws = 3000;

/// Whether the sample trains continuation from a clean first frame. A clip of one latent frame has none.
bool begins_clean(const NoiseSettings& settings, const net::Conditions& takes, const at::Tensor& latent, int64_t step,
                  int64_t place) {
  if (!takes.clean_first || latent.size(1) < 2) return false;
  if (takes.takes_images())
    return false;  // its pictures say so: a frame that y gives is clean (prepare/conditioner.cpp)
  if (!settings.conditions.empty() || !settings.mask_ratios.empty() || !settings.mask_types.empty()) return false;
  if (takes.always_clean) return true;
  return RandomKey(settings.seed, Purpose::timestep, step, place).uniform(kConditionDraw) < settings.image_share;
}

bool drops(double share, uint64_t draw, const NoiseSettings& settings, int64_t step, int64_t place) {
  return share > 0 && RandomKey(settings.seed, Purpose::timestep, step, place).uniform(draw) < share;
}

/// As many rows as the caption in whose place they stand: a learned one has as many as the longest caption, and the
/// programs that learned it show the model those that the caption's mask leaves.
at::Tensor in_place_of(const at::Tensor& caption, const at::Tensor& null_context) {
  return null_context.slice(0, 0, std::min(null_context.size(0), caption.size(0)));
}

void drop_caption(TrainingSample& sample, const NoiseSettings& settings) {
  sample.input.context = in_place_of(sample.input.context, settings.null_context);
  sample.input.extra.erase("glyphs");
  if (settings.null_glyphs.defined()) sample.input.extra["glyphs"] = settings.null_glyphs;
}

void drop_by_draw(TrainingSample& sample, const NoiseSettings& settings, int64_t step, int64_t place) {
  if (drops(settings.caption_dropout, kCaptionDraw, settings, step, place)) drop_caption(sample, settings);
}

at::Tensor noise_of(const NoiseSettings& settings, const CleanSample& clean, int64_t step, int64_t place) {
  const at::Tensor noise = at::empty(clean.latent.sizes(), at::kFloat);
  RandomKey(settings.seed, Purpose::noise, step, place).normal(noise.mutable_data_ptr<float>(), 0, noise.numel());
  return noise;
}

/// Features of a picture go where the sample is not given its first frame.
void leave_unseen(TrainingSample& sample, const net::Conditions& takes, const CleanSample& clean) {
  const bool begins = std::ranges::any_of(clean.given, [](const families::GivenFrames& given) {
    return given.at == 0 && given.latents > 0 && !given.noisy;
  });
  if (takes.image_with_first && !begins && !sample.input.extra.count("image_latent"))
    sample.input.extra.erase(takes.image_extra);
}

/// The same sample with the caption of no words, of which targets are moved away.
void guide(TrainingSample& sample, const NoiseSettings& settings, const CleanSample& clean, double draw) {
  const Guidance& guidance = settings.loss.guidance;
  sample.guidance = guidance.at(draw, sample.input.t), sample.zero_guidance = guidance.zero;
  sample.weight *= guidance.weight;
  net::Sample& input = sample.unguided.emplace(sample.input);
  input.context = in_place_of(clean.context, settings.blank_context);
  input.extra.erase("glyphs");
  if (settings.blank_pooled.defined()) input.extra["pooled"] = settings.blank_pooled;
}

/// Of a sample whose frames are drawn.
families::MaskDraws frame_draws(const RandomKey& key) {
  const auto next = std::make_shared<uint64_t>(kMaskDraws);
  return {[=](int64_t least, int64_t most) {
            return least + static_cast<int64_t>(key.below((*next)++, static_cast<uint64_t>(most - least + 1)));
          },
          [=](double least, double most) { return least + (most - least) * key.uniform((*next)++); },
          [=](int64_t frame) { return key.uniform(kFrameDraws + static_cast<uint64_t>(frame)); }};
}

/// The frames of the sample that have noise, by draws of its own.
std::vector<char> noised_frames(const NoiseSettings& settings, int64_t frames, int64_t step, int64_t place) {
  const RandomKey key(settings.seed, Purpose::timestep, step, place);
  return families::frame_mask(families::masked_by(settings.mask_ratios, key.uniform(kMaskDraw)), frames,
                              frame_draws(key));
}

/// The frames of the sample that are given beside the noisy ones, of 1.3; pictures have none.
struct Beside {
  std::vector<char> given;
  bool noisy = false;
};
Beside drawn_beside(const NoiseSettings& settings, int64_t frames, int64_t step, int64_t place) {
  if (frames < 2) return {};
  const RandomKey key(settings.seed, Purpose::timestep, step, place);
  const std::string kind = families::chosen(settings.mask_types, key.uniform(kGivenDraw));
  Beside beside{families::frames_beside(kind, frames, frame_draws(key))};
  beside.noisy = families::gives_noisy(kind, beside.given);
  return beside;
}

/// [Note: frames beside] As 1.3's trainer has it: every sample says which frames are given, also that none is, because the
/// model adds the biases of both embedders then. Where some are, captions are dropped by settings.drop_condition alone,
/// and the mask of the frames stays when their latents are left out.
void give_beside(TrainingSample& sample, const NoiseSettings& settings, const CleanSample& clean, const Beside& beside,
                 int64_t step, int64_t place) {
  auto& extra = sample.input.extra;
  const at::Tensor index = frame_index(beside.given);
  extra["mask_index"] = index;
  if (index.numel() == 0) return;
  const at::Tensor null = in_place_of(clean.context, settings.null_context);
  std::string drop = "keep";
  if (!settings.drop_condition.empty())
    drop = families::chosen(settings.drop_condition,
                            RandomKey(settings.seed, Purpose::timestep, step, place).uniform(kDropDraw));
  check_internal(!beside.noisy || !clean.pieces.empty(), "condition", "the latent of noisy frames is missing");
  const BesideInput input =
      beside_input(drop, beside.noisy ? clean.pieces.front() : clean.latent, index, clean.context, null);
  sample.input.context = input.context;
  extra["y_null"] = null;
  if (input.cond.defined()) extra["cond"] = input.cond;
}

/// Conditions by their names in settings.condition_dropout, each by a draw of its own: zeros, as where a row has none.
void leave_out(TrainingSample& sample, const NoiseSettings& settings, const net::Conditions& takes, int64_t step,
               int64_t place) {
  const std::vector<std::string>& names = families::droppable_conditions();
  for (size_t i = 0; i < names.size(); ++i) {
    const auto of = std::ranges::find(settings.condition_dropout, names[i], &families::Weighted::name);
    if (of == settings.condition_dropout.end() || !drops(of->weight, kLeaveDraw + i, settings, step, place)) continue;
    const std::string extra = names[i] == "start" ? "y" : names[i] == "image" ? takes.image_extra : names[i];
    if (const auto found = sample.input.extra.find(extra); found != sample.input.extra.end())
      found->second = at::zeros_like(found->second);
  }
}

/// Frames that are given have no noise, and do not count: the loss is the mean over the others.
void give_frames(TrainingSample& sample, const at::Tensor& latent, const std::vector<char>& noised) {
  const auto frames = static_cast<int64_t>(noised.size());
  const auto trained = static_cast<double>(std::ranges::count(noised, 1));
  const at::Tensor mask = at::ones({frames}, at::kFloat);
  for (int64_t f = 0; f < frames; ++f) {
    const bool given = !noised[static_cast<size_t>(f)];
    sample.frame_weights.push_back(given ? 0 : static_cast<double>(frames) / trained);
    if (!given) continue;
    mask[f] = 0;
    sample.input.x.select(1, f).copy_(latent.select(1, f));
  }
  sample.input.extra["x_mask"] = mask;
}

/// Every sample of a run with masks has weights, so that all take the same memory. Frames in front of the clip's, which are
/// references, count as without a mask.
void weigh_places(TrainingSample& sample, const MaskRule& rule, const CleanSample& clean, bool whole) {
  if (!rule.on) return;
  at::Tensor mask = at::full(clean.latent.sizes().slice(1), rule.inverted ? 0.0 : 1.0, at::kFloat);
  if (clean.mask.defined() && !whole) mask.slice(0, mask.size(0) - clean.mask.size(0)).copy_(clean.mask);
  sample.weights = mask_weights(mask, rule, sample.frame_weights);
}

/// Of a frame, where the sample says them; else 0.
double pixels_of(const std::map<std::string, at::Tensor>& extra) {
  const auto height = extra.find("height"), width = extra.find("width");
  return height == extra.end() || width == extra.end() ? 0
                                                       : height->second.item<double>() * width->second.item<double>();
}

}  // namespace

std::vector<families::GivenFrames> given_frames(const NoiseSettings& settings, const net::Conditions& takes,
                                                int64_t frames, int64_t latent_frames, int64_t step, int64_t place) {
  if (reads_beside(takes)) {
    if (settings.mask_types.empty() || !drawn_beside(settings, latent_frames, step, place).noisy) return {};
    return {{0, frames, 0, latent_frames, true}};
  }
  if (settings.conditions.empty() || !takes.given_frames || latent_frames < 2) return {};
  const bool causal = families::is_causal(frames, latent_frames);
  const double u = RandomKey(settings.seed, Purpose::timestep, step, place).uniform(kGivenDraw);
  const std::string kind = families::chosen(families::fitting(settings.conditions, latent_frames, causal), u);
  return families::given_frames(kind, frames, latent_frames, causal);
}

int64_t host_bytes(const TrainingSample& sample) {
  size_t bytes = sample.input.x.nbytes() + sample.input.context.nbytes() + sample.velocity.nbytes();
  if (sample.weights.defined()) bytes += sample.weights.nbytes();
  for (const auto& [name, value] : sample.input.extra) bytes += value.nbytes();
  if (sample.call) bytes += sample.call->scaled.nbytes();
  return static_cast<int64_t>(bytes);
}

namespace {

constexpr int64_t kBlock = 64;  // where a tensor of a message begins

/// The tensors of a sample by name, in the order of its message.
std::vector<std::pair<std::string, at::Tensor>> named_tensors(const TrainingSample& sample) {
  std::vector<std::pair<std::string, at::Tensor>> all = {{"x", sample.input.x},
                                                         {"context", sample.input.context},
                                                         {"velocity", sample.velocity},
                                                         {"weights", sample.weights}};
  for (const auto& [name, value] : sample.input.extra) all.emplace_back("extra." + name, value);
  std::erase_if(all, [](const auto& named) { return !named.second.defined(); });
  return all;
}

/// What a message begins with, written to `bytes` or read from it.
class MessageHead {
 public:
  explicit MessageHead(std::vector<char> bytes = {}) : bytes_(std::move(bytes)) {}
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const char* from = reinterpret_cast<const char*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }
  template <class T>
  T take() {
    check_internal(next_ + sizeof(T) <= bytes_.size(), "diffusion.message", "the head of a sample's message is cut");
    T value;
    std::memcpy(&value, bytes_.data() + next_, sizeof(T));
    next_ += sizeof(T);
    return value;
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<char> bytes_;
  size_t next_ = 0;
};

/// The numbers of a sample beside its tensors, by `act` on each: written or read.
template <class Sample, class Act>
void each_number(Sample& sample, Act&& act) {
  act(sample.input.t), act(sample.input.weight), act(sample.weight), act(sample.form), act(sample.index);
  act(sample.set), act(sample.from_base), act(sample.twin);
}

MessageHead head_of(int64_t place, const TrainingSample& sample) {
  MessageHead head;
  head.put(place);
  each_number(sample, [&](const auto& number) { head.put(number); });
  head.put(static_cast<int64_t>(sample.frame_weights.size()));
  for (const double weight : sample.frame_weights) head.put(weight);
  const auto tensors = named_tensors(sample);
  head.put(static_cast<int64_t>(tensors.size()));
  for (const auto& [name, tensor] : tensors) {
    head.put(static_cast<int64_t>(name.size()));
    for (const char letter : name) head.put(letter);
    head.put(tensor.scalar_type());
    head.put(tensor.dim());
    for (const int64_t size : tensor.sizes()) head.put(size);
  }
  return head;
}

/// Behind the number of its bytes.
int64_t head_bytes(const MessageHead& head) {
  return round_up(static_cast<int64_t>(sizeof(int64_t) + head.bytes().size()), kMessageHead);
}

}  // namespace

int64_t message_bytes(const TrainingSample& sample) {
  int64_t bytes = head_bytes(head_of(0, sample));
  for (const auto& [name, tensor] : named_tensors(sample))
    bytes += round_up(static_cast<int64_t>(tensor.nbytes()), kBlock);
  return bytes;
}

void write_message(int64_t place, const TrainingSample& sample, char* to) {
  const MessageHead head = head_of(place, sample);
  const auto size = static_cast<int64_t>(head.bytes().size());
  std::memcpy(to, &size, sizeof size);
  std::memcpy(to + sizeof size, head.bytes().data(), head.bytes().size());
  to += head_bytes(head);
  for (const auto& [name, tensor] : named_tensors(sample)) {
    const at::Tensor values = tensor.contiguous();
    if (values.nbytes() > 0) std::memcpy(to, values.const_data_ptr(), values.nbytes());
    to += round_up(static_cast<int64_t>(values.nbytes()), kBlock);
  }
}

std::pair<int64_t, std::shared_ptr<const TrainingSample>> read_message(const at::Tensor& message) {
  const char* bytes = static_cast<const char*>(message.const_data_ptr());
  int64_t size = 0;
  std::memcpy(&size, bytes, sizeof size);
  check_internal(
      size > 0 && size <= message.numel() - static_cast<int64_t>(sizeof size), "diffusion.message",
      "a sample's message of " + std::to_string(message.numel()) + " bytes has a head of " + std::to_string(size));
  MessageHead head({bytes + sizeof size, bytes + sizeof size + size});
  const auto sample = std::make_shared<TrainingSample>();
  const auto place = head.take<int64_t>();
  each_number(*sample, [&](auto& number) { number = head.take<std::remove_reference_t<decltype(number)>>(); });
  for (auto frames = head.take<int64_t>(); frames > 0; --frames) sample->frame_weights.push_back(head.take<double>());
  int64_t at = head_bytes(head);
  for (auto tensors = head.take<int64_t>(); tensors > 0; --tensors) {
    std::string name(static_cast<size_t>(head.take<int64_t>()), ' ');
    for (char& letter : name) letter = head.take<char>();
    const auto type = head.take<at::ScalarType>();
    std::vector<int64_t> sizes(static_cast<size_t>(head.take<int64_t>()));
    for (int64_t& each : sizes) each = head.take<int64_t>();
    const int64_t own = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
    const at::Tensor values = own == 0 ? at::empty(sizes, type) : message.narrow(0, at, own).view(type).view(sizes);
    at += round_up(own, kBlock);
    if (name == "x")
      sample->input.x = values;
    else if (name == "context")
      sample->input.context = values;
    else if (name == "velocity")
      sample->velocity = values;
    else if (name == "weights")
      sample->weights = values;
    else
      sample->input.extra[name.substr(std::string_view("extra.").size())] = values;
  }
  check_internal(at == message.numel(), "diffusion.message",
                 "a sample's message has " + std::to_string(message.numel()) + " bytes, and its tensors end at " +
                     std::to_string(at));
  return {place, sample};
}

double normal_beside(uint64_t seed, int64_t step, int64_t place, int number) {
  const RandomKey key(seed, Purpose::timestep, static_cast<uint64_t>(step), static_cast<uint64_t>(place));
  return key.normal(kBesideDraw + 8 * static_cast<uint64_t>(number));
}

at::Tensor noise_beside(uint64_t seed, int64_t step, int64_t place, int number, at::IntArrayRef sizes) {
  at::Tensor noise = at::empty(sizes, at::kFloat);
  RandomKey(seed, Purpose::noise, static_cast<uint64_t>(step), static_cast<uint64_t>(place))
      .normal(noise.mutable_data_ptr<float>(), static_cast<uint64_t>(number) << 40, static_cast<size_t>(noise.numel()));
  return noise;
}

namespace {

/// Of a teacher, one of those that there are.
double drawn_guidance(const NoiseSettings& settings, int64_t step, int64_t place) {
  const std::vector<double>& all = settings.angles.guidance;
  return all[RandomKey(settings.seed, Purpose::timestep, step, place).below(kGuidanceDraw, all.size())];
}
void add_unguided(TrainingSample& sample, const NoiseSettings& settings) {
  sample.unguided = sample.input;
  sample.unguided->context = in_place_of(sample.input.context, settings.blank_context);
}

/// The network's timestep is 1000 s, whatever its sinusoid is made of; the target is the clip's own dx_t / dt, for which a
/// teacher has its own.
TrainingSample at_an_angle(const NoiseSettings& settings, const CleanSample& clean, int64_t step, int64_t place) {
  const AngleDraws& draws = settings.angles;
  const RandomKey key(settings.seed, Purpose::timestep, step, place);
  const at::Tensor noise = draws.second ? noise_beside(settings.seed, step, place, 1, clean.latent.sizes())
                                        : noise_of(settings, clean, step, place);
  const double normal = draws.second ? normal_beside(settings.seed, step, place, 1) : key.normal(0),
               sigma = draws.flow.sigma_data;
  const bool largest = draws.second && key.uniform(kLargestDraw) < draws.largest_share;
  const double t = largest ? draws.largest : drawn_angle(normal, draws.mean, draws.std);
  TrainingSample sample;
  sample.call = draws.flow.call(draws.flow.noisy(sigma * clean.latent, noise, t), t);
  sample.input.x = sample.call->z;
  sample.input.t = 1000 * sample.call->s;
  sample.input.context = clean.context;
  sample.input.extra = clean.extra;
  drop_by_draw(sample, settings, step, place);
  sample.velocity = sigma * (std::cos(t) * noise - std::sin(t) * clean.latent);
  if (draws.guidance.empty()) return sample;
  sample.guidance = drawn_guidance(settings, step, place);
  sample.input.extra["guidance"] = at::tensor({sample.guidance}, at::kDouble);
  add_unguided(sample, settings);
  return sample;
}

/// Noise of each frame's own timestep. A first frame that is given has its own, too, and no part in the loss.
void noise_by_frame(TrainingSample& sample, const NoiseSettings& settings, const Options& timesteps,
                    const CleanSample& clean, const at::Tensor& noise, int64_t step, int64_t place) {
  const auto given = sample.input.extra.find("image_latent");
  const bool first_given = given != sample.input.extra.end();
  const std::vector<TrainingDraw> drawn =
      draw_frames(timesteps, settings.chunks, clean.latent.size(1), first_given, settings.seed, step, place);
  const auto frames = static_cast<int64_t>(drawn.size());
  const at::Tensor t = at::empty({frames}, at::kDouble);
  double sum = 0;
  for (int64_t f = 0; f < frames; ++f) {
    const TrainingDraw& own = drawn[static_cast<size_t>(f)];
    t[f] = own.t, sum += own.t;
    sample.frame_weights.push_back(first_given && f == 0 ? 0 : own.weight);
    sample.input.x.select(1, f).copy_(
        add_noise(clean.latent.select(1, f), noise.select(1, f), own.sigma, timesteps.least_noise));
  }
  if (std::all_of(drawn.begin() + first_given, drawn.end(), [](const TrainingDraw& own) { return own.weight == 1; }))
    sample.frame_weights.clear();
  if (first_given)
    given->second = add_noise(given->second, noise.slice(1, 0, 1), drawn[0].sigma, timesteps.least_noise);
  sample.input.extra["t"] = t;
  sample.input.t = sum / static_cast<double>(frames);  // of the statistics
  sample.weight = 1;
}

}  // namespace

TrainingSample noised(const NoiseSettings& settings, const net::Conditions& conditions, const CleanSample& clean,
                      int64_t step, int64_t place) {
  if (settings.angles.on) return at_an_angle(settings, clean, step, place);
  const Options timesteps = of_size(settings.timesteps, clean.latent.sizes(), pixels_of(clean.extra));
  const TrainingDraw drawn = draw(timesteps, settings.seed, step, place);
  const at::Tensor noise = noise_of(settings, clean, step, place);
  TrainingSample sample;
  sample.input.x = add_noise(clean.latent, noise, drawn.sigma, timesteps.least_noise);
  sample.input.t = drawn.t;
  sample.input.context = clean.context;
  sample.input.extra = clean.extra;
  drop_by_draw(sample, settings, step, place);
  if (drops(settings.pooled_dropout, kPooledDraw, settings, step, place))
    sample.input.extra["pooled"] = settings.null_pooled;
  leave_out(sample, settings, conditions, step, place);
  if (begins_clean(settings, conditions, clean.latent, step, place) && !clean.extra.count("image_latent"))
    sample.input.extra["image_latent"] = clean.latent.slice(1, 0, 1).contiguous();
  leave_unseen(sample, conditions, clean);
  Beside beside;
  if (reads_beside(conditions)) {
    if (!settings.mask_types.empty()) {
      beside = drawn_beside(settings, clean.latent.size(1), step, place);
      give_beside(sample, settings, clean, beside, step, place);
    }
  } else if (!clean.given.empty()) {
    sample.input.extra["cond"] = condition(clean.latent, clean.given, clean.pieces);
  }
  const bool masked = std::ranges::count(beside.given, 1) == 0 && clean.latent.size(1) > 1;
  if (!settings.mask_ratios.empty() && conditions.frame_masks && masked) {
    const std::vector<char> mask = noised_frames(settings, clean.latent.size(1), step, place);
    if (std::ranges::count(mask, 0) > 0) give_frames(sample, clean.latent, mask);
  }
  sample.velocity = velocity(clean.latent, noise, timesteps.least_noise);
  sample.weight = drawn.weight;
  sample.form = settings.loss.at(drawn.t);
  const bool by_frame = settings.chunks.on() && conditions.chunks_in_time && clean.latent.size(1) > 1;
  if (by_frame) noise_by_frame(sample, settings, timesteps, clean, noise, step, place);
  weigh_places(sample, settings.loss.masks, clean,
               drops(settings.loss.masks.whole_share, kWholeDraw, settings, step, place));
  if (by_frame && sample.input.extra.contains("image_latent") && !sample.frame_weights.empty())
    sample.frame_weights.erase(sample.frame_weights.begin());  // that of the given frame, which is not predicted
  if (settings.loss.guidance.on())
    guide(sample, settings, clean, RandomKey(settings.seed, Purpose::timestep, step, place).uniform(kGuidanceDraw));
  if (!settings.angles.guidance.empty()) {
    sample.guidance = drawn_guidance(settings, step, place);
    add_unguided(sample, settings);
  }
  return sample;
}

TrainingSample held_out(const NoiseSettings& settings, const net::Conditions& conditions, const CleanSample& clean,
                        double sigma, int64_t number) {
  constexpr uint64_t kNoStep = ~uint64_t{0};  // that training never has
  const at::Tensor noise = at::empty(clean.latent.sizes(), at::kFloat);
  RandomKey(settings.seed, Purpose::noise, kNoStep, static_cast<uint64_t>(number))
      .normal(noise.mutable_data_ptr<float>(), 0, noise.numel());
  TrainingSample sample;
  sample.input.x = add_noise(clean.latent, noise, sigma, settings.timesteps.least_noise);
  sample.input.t = 1000 * sigma;
  sample.input.context = clean.context;
  sample.input.extra = clean.extra;
  const bool always = conditions.always_clean || settings.image_share >= 1;
  if (conditions.clean_first && always && clean.latent.size(1) > 1 && !clean.extra.count("image_latent"))
    sample.input.extra["image_latent"] = clean.latent.slice(1, 0, 1).contiguous();
  leave_unseen(sample, conditions, clean);
  if (reads_beside(conditions) && !settings.mask_types.empty())
    sample.input.extra["mask_index"] =
        frame_index(std::vector<char>(static_cast<size_t>(clean.latent.size(1)), char{0}));
  sample.velocity = velocity(clean.latent, noise, settings.timesteps.least_noise);
  sample.form = settings.loss.at(sample.input.t);
  weigh_places(sample, settings.loss.masks, clean, /*whole=*/false);
  return sample;
}

}  // namespace tessera::diffusion
