#include <algorithm>
#include <iterator>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/tensor_file.h"
#include "tessera/data/video.h"
#include "tessera/job/codec.h"
#include "tessera/models/vae/video_vae.h"
#include "tessera/prepare/condition_draws.h"
#include "tessera/prepare/encoded.h"
#include "tessera/prepare/prepare.h"
#include "tessera/prepare/stored_texts.h"
#include "tessera/prepare/text_pass.h"

namespace tessera::prepare {

data::CachedTensor stored_latent(const data::Path& path) {
  data::NpyArray array = data::read_tensor_file(path);
  return {data::latent_shape(array.shape), std::move(array.values)};
}

void tell_size(const std::set<std::string>& takes, const ShownSize& size, std::map<std::string, at::Tensor>& extra) {
  for (const auto& [name, number] : {std::pair("height", size.height), {"width", size.width}, {"fps", size.rate}})
    if (number > 0 && takes.contains(name)) extra[name] = at::full({1}, number, at::kFloat);
}

std::set<std::string> inputs_of(const net::Denoiser& model, const std::array<int64_t, 4>& latent) {
  std::set<std::string> names;
  for (const auto& [name, value] : model.blank(latent).extra) names.insert(name);
  return names;
}

/// The entry of one of its draws.
data::CacheEntry PreparedData::clip_entry(int64_t index, int64_t epoch) const {
  data::CacheEntry entry = cache_.clips.at(cache_.of_clips.at(samples_.at(index), draw_number(index, epoch)));
  entry.name = item(index).path.string();
  return entry;
}

int64_t PreparedData::draw_number(int64_t index, int64_t epoch) const {
  return draw_of_sample(of_recipe_.draws, seed_, epoch, index);
}

/// Which of its captions the sample has in an epoch.
size_t PreparedData::caption(int64_t index, int64_t epoch) const {
  const data::Item item = this->item(index);
  const auto count = static_cast<int64_t>(item.captions.size());
  const std::vector<double>& weights = item.weights;
  return static_cast<size_t>(count == 1        ? 0
                             : weights.empty() ? data::draw_caption(seed_, epoch, index, count)
                                               : data::draw_caption(seed_, epoch, index, weights));
}

data::CachedTensor PreparedData::context(int64_t index, int64_t epoch) const {
  const size_t caption = this->caption(index, epoch);
  return text(index, caption).context;
}

data::CachedText PreparedData::text(int64_t index, size_t caption, bool of_class) const {
  if (stored_texts_ && online_) return stored_text(item(index).context, item(index).pooled, *job_);
  if (stored_texts_) {
    data::CachedClip clip = data::read_clip(clip_entry(index));
    return take_text(clip);
  }
  const size_t entry = of_class ? item(index).captions.size() + caption : caption;
  if (!online_) {
    const auto draws = static_cast<size_t>(std::max<int64_t>(of_recipe_.draws.count, 1));
    data::CacheEntry found = cache_.texts.at(cache_.of_clips.at(samples_.at(index), draws + entry));
    const data::Item item = this->item(index);
    found.name = "caption '" + (of_class ? item.class_captions : item.captions).at(caption) + "'";
    return data::read_caption(found);
  }
  const Words words = this->words(index, caption, of_class);
  return beside_ ? beside_->caption(words) : texts_.at(words);
}

Words PreparedData::words(int64_t index, size_t caption, bool of_class) const {
  const data::Item item = this->item(index);
  return {(of_class ? item.class_captions : item.captions).at(caption),
          of_recipe_.pictures_apart && plan_.spec(clip(index)).frames == 1};
}

std::set<data::Path> PreparedData::cache_files() const {
  std::set<data::Path> files;
  for (const data::CacheEntries* entries : {&cache_.clips, &cache_.texts})
    for (size_t e = 0; e < entries->size(); ++e)
      if (const auto entry = (*entries)[e]) files.insert(entry->file);
  return files;
}

void PreparedData::encode_captions(const std::vector<std::vector<Place>>& of_ranks, size_t mine) const {
  if (!beside_ || !beside_->sharded()) return;
  std::vector<std::vector<Words>> captions;
  for (const auto& places : of_ranks) {
    std::vector<Words>& own = captions.emplace_back();
    for (const auto& [index, epoch] : places) {
      const size_t caption = this->caption(index, epoch);
      for (const bool of_class : {false, true}) {
        if (caption >= (of_class ? item(index).class_captions : item(index).captions).size()) continue;
        const Words words = this->words(index, caption, of_class);
        if (std::ranges::find(own, words) == own.end()) own.push_back(words);
      }
    }
  }
  beside_->together(captions, mine);
}

int64_t PreparedData::host_encoder_bytes() const {
  if (of_recipe_.encoders != recipe::Encoders::host) return 0;
  const auto* vae = dynamic_cast<const models::VideoVae*>(job_->codec.get());
  return beside_->host_bytes() + (vae ? vae->weight_bytes() : 0);
}

at::Tensor PreparedData::latent(int64_t index) const {
  if (!online_) return tensor_of(data::read_clip(clip_entry(index)).latent);
  const data::Path path = item(index).path;
  if (data::is_latent(path)) return tensor_of(stored_latent(path));
  return encoded(of_recipe_.encoders, [&] { return job::encode_frames(*job_->codec, frames(index)); });
}

PreparedSample PreparedData::sample(int64_t index, int64_t epoch, const ChooseGiven& given, bool of_class) const {
  data::CachedClip clip;
  if (!online_) clip = data::read_clip(clip_entry(index, epoch));
  const data::CachedText text =
      stored_texts_ && !online_ ? take_text(clip) : this->text(index, caption(index, epoch), of_class);
  PreparedSample sample{{}, tensor_of(text.context)};
  if (online_) {
    encode_online(index, sample, given);
    sample.extra = online_extras(index, epoch);
    if (has_mask(masks_of(index), item(index)))
      sample.mask = loss_mask(masks_of(index), item(index), plan_.spec(this->clip(index)), sample.latent.sizes());
  } else {
    sample.latent = tensor_of(clip.latent);
    if (given) sample.given = given(plan_.spec(this->clip(index)).frames, sample.latent.size(1));
    for (const families::GivenFrames& frames : sample.given)
      if (frames.count > 0) sample.pieces.push_back(tensor_of(clip.extras.at(frames.name())));
    for (const auto& [name, value] : clip.extras)
      if (name == kLossMask)
        sample.mask = tensor_of(value);
      else if (!families::is_given_name(name))
        sample.extra[name] = tensor_of(value);
  }
  sample.latent = job_->model->with_references(sample.latent, sample.extra);
  if (!text.pooled.shape.empty()) sample.extra["pooled"] = tensor_of(text.pooled);
  if (!text.glyphs.shape.empty()) sample.extra["glyphs"] = tensor_of(text.glyphs);
  const data::ClipSpec spec = plan_.spec(this->clip(index));
  tell_size(takes_,
            {.height = static_cast<double>(spec.height),
             .width = static_cast<double>(spec.width),
             .rate = this->clip(index).rate},
            sample.extra);
  return sample;
}

/// Its latent, and those of the frames that are given: the clip is decoded once.
void PreparedData::encode_online(int64_t index, PreparedSample& sample, const ChooseGiven& given) const {
  const data::Path path = item(index).path;
  const bool stored = data::is_latent(path);
  const data::Frames frames = stored ? data::Frames{} : this->frames(index);
  sample.latent = stored ? tensor_of(stored_latent(path))
                         : encoded(of_recipe_.encoders, [&] { return job::encode_frames(*job_->codec, frames); });
  if (!given || stored) return;
  sample.given = given(frames.count, sample.latent.size(1));
  for (const families::GivenFrames& one : sample.given)
    if (one.count > 0)
      sample.pieces.push_back(encoded(of_recipe_.encoders, [&] { return encode_given(*job_->codec, frames, one); }));
}

std::map<std::string, at::Tensor> PreparedData::online_extras(int64_t index, int64_t epoch) const {
  const net::Conditions wanted = job_->model->conditions();
  const data::ClipSpec spec = plan_.spec(clip(index));
  const int64_t number = draw_number(index, epoch);
  const MaybeDraw draw = clip_draw(of_recipe_.draws, item(index), spec, number);
  const auto seen = seen_.find({samples_.at(index), number});
  if (listener_) return listener_->extras(item(index), spec);
  if (!wanted.guides.empty()) {
    const net::Guides guides = shown_guides(item(index), spec, wanted, of_recipe_.references, draw);
    std::map<std::string, at::Tensor> made;
    {
      const EncoderPlace here(of_recipe_.encoders);
      made = job_->model->guide(*job_->codec, guides);
    }
    for (auto& [name, value] : made) value = value.clone();
    if (seen != seen_.end()) made[wanted.image_extra] = tensor_of(seen->second);
    return made;
  }
  std::map<std::string, at::Tensor> extras;
  if (seen != seen_.end())
    extras[wanted.image_extra] = tensor_of(seen->second);
  else if (wanted.control_dim > 0 && wanted.clip_dim > 0)
    extras[wanted.image_extra] = at::zeros({wanted.clip_rows, wanted.clip_dim}, at::kFloat);
  if (!wanted.takes_images()) return extras;
  const Pictures pictures = shown_pictures(item(index), spec, *job_->model, draw);
  if (pictures.first.defined() || pictures.made.defined())
    extras["y"] =
        encoded(of_recipe_.encoders, [&] { return image_input(*job_->codec, pictures, spec.frames, wanted); });
  if (pictures.first.defined() && wanted.clean_first)
    extras["image_latent"] =
        encoded(of_recipe_.encoders, [&] { return job_->codec->encode(pictures.first.unsqueeze(1)); });
  {
    const EncoderPlace here(of_recipe_.encoders);
    extras.merge(control_extras(*job_->codec, shown_controls(item(index), spec, wanted, draw), spec, wanted));
  }
  return extras;
}

data::Frames PreparedData::frames(int64_t index) const {
  return data::decode_clip(item(index).path, plan_.spec(clip(index)));
}

int64_t PreparedData::clip_of_prompt(int prompt) const {
  for (int64_t i = 0; i < size(); ++i)
    if (clip(i).bucket == 0 && !data::is_latent(item(i).path) && item(i).caption() == prompts_.at(prompt)) return i;
  return -1;
}

namespace {

/// Of the clips of a data set those that are held out, or those that are trained on: each clip is one or the other by its
/// name and eval.seed alone, whatever else is in the data set, so that a longer one holds out the same.
data::Items of_share(data::Items items, const recipe::Recipe::Eval& eval) {
  if (!eval.on() || !eval.paths.empty()) return items;
  const auto is_held_out = [&](const data::Item& item) {
    const RandomKey key(static_cast<uint64_t>(eval.seed), Purpose::order, hash_text(item.path.filename().string()));
    return key.uniform(0) < eval.share;
  };
  size_t held_out = 0;
  for (const data::Item& item : items) held_out += is_held_out(item);
  check_input(held_out > 0 && held_out < items.size(), "eval.share",
              std::to_string(held_out) + " of " + std::to_string(items.size()) + " clips are held out",
              "hold out a larger or smaller share, change eval.seed, or name the clips by eval.path");
  items.keep_if([&](const data::Item& item) { return is_held_out(item) == eval.held_out; });
  return items;
}

data::Items read_set(const recipe::Recipe::Data& set, int repeats, data::Problems& problems) {
  data::DatasetSpec spec{.path = {},
                         .metadata = set.metadata,
                         .repeats = repeats,
                         .caption = set.caption,
                         .captions = set.captions,
                         .latents = set.latents,
                         .latent_column = set.latent_column,
                         .masks = set.masks,
                         .controls = set.control_path,
                         .text_columns = set.texts};
  if (set.paths.size() < 2) {
    if (!set.paths.empty()) spec.path = set.paths[0];
    return data::read_dataset(spec, problems);
  }
  data::Items items;
  std::string counts;
  for (const std::string& path : set.paths) {
    spec.path = path;
    const data::Items more = data::read_dataset(spec, problems);
    counts += (counts.empty() ? "" : ", ") + path + " " + std::to_string(more.size());
    items.append(more);
  }
  problems.note("rows of each of data.path: " + counts);
  return items;
}

}  // namespace

data::Items read_items(const recipe::Recipe& recipe, data::Problems* problems) {
  data::Problems told_by_prepare(/*strict=*/false);
  data::Items items;
  const std::vector<recipe::Recipe::DataSet> sets = recipe.data_sets();
  const int repeats = recipe.sets.empty() ? static_cast<int>(recipe.data.repeats) : 1;  // those of sets are an order's
  for (size_t s = 0; s < sets.size(); ++s) {
    data::Items more = read_set(sets[s].data, repeats, problems ? *problems : told_by_prepare);
    const bool of_class = recipe.train.preserve == recipe::Recipe::Train::Preserve::of_class && !recipe.eval.held_out;
    if (s > 0 || of_class)
      more.edit([&](data::Item& item) {
        item.set = static_cast<int>(s);
        for (size_t c = 0; of_class && c < item.captions.size(); ++c)
          item.class_captions.push_back(
              data::with_class(item.captions[c], sets[s].data.captions.trigger, recipe.train.preserve_class));
        return true;
      });
    items.append(more);
  }
  return of_share(std::move(items), recipe.eval);
}

std::vector<std::string> moving_prompts(const recipe::Recipe::Data& data, const recipe::Recipe::Sample& sample,
                                        std::vector<std::string> prompts) {
  if (!data.captions.columns.empty()) {
    data::NamedNumbers numbers;
    for (const std::string& column : data.captions.columns)
      if (const double number = column == "fps" ? data.fps : sample.motion_score; number > 0)
        numbers.emplace_back(column, number);
    for (std::string& prompt : prompts) prompt += data::column_ending(numbers);
    return prompts;
  }
  if (sample.motion_score > 0)
    for (std::string& prompt : prompts) prompt += data::motion_ending(sample.motion_score);
  return prompts;
}

std::vector<std::string> sample_prompts(const recipe::Recipe::Data& data, const recipe::Recipe::Sample& sample,
                                        const data::Items& items) {
  std::vector<std::string> prompts = sample.prompts;
  if (!prompts.empty()) return moving_prompts(data, sample, std::move(prompts));
  for (const auto& item : items)
    if (prompts.size() < 4 && std::find(prompts.begin(), prompts.end(), item.caption()) == prompts.end())
      prompts.push_back(item.caption());
  return prompts;
}

std::vector<EncodedText> encode_prompts(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh,
                                        comm::Comm& comm, int rank, const std::vector<std::string>& prompts,
                                        const std::string& negative) {
  std::filesystem::path tokenizer = recipe.data.tokenizer;
  if (tokenizer.empty()) {
    const std::vector<std::string> captions = distinct_captions(read_items(recipe));
    tokenizer = tokenizer_file(recipe, captions);
    if (rank == 0) make_tokenizer(recipe.data, job, captions, tokenizer);
    comm.barrier();
  }
  if (rank == 0) tell_random_prompts(recipe.data);
  TextPass pass(recipe, job, mesh, comm, rank, tokenizer);
  std::vector<EncodedText> texts;
  for (const auto& prompt : prompts) texts.push_back(pass.encode({prompt}));
  texts.push_back(pass.encode_negative(negative));
  return texts;
}

}  // namespace tessera::prepare
