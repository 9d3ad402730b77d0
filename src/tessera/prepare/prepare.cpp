#include "tessera/prepare/prepare.h"

#include <deque>
#include <map>
#include <mutex>

#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/data/cache_search.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/text/text.h"
#include "tessera/data/video.h"
#include "tessera/job/codec.h"
#include "tessera/job/encoders.h"
#include "tessera/job/given_checks.h"
#include "tessera/prepare/conditioner.h"
#include "tessera/prepare/controls.h"
#include "tessera/prepare/encoded.h"
#include "tessera/prepare/footage_report.h"
#include "tessera/prepare/pace.h"
#include "tessera/prepare/stored_texts.h"
#include "tessera/prepare/text_pass.h"
#include "tessera/report/progress.h"

namespace tessera::prepare {

namespace fs = std::filesystem;

namespace {

constexpr size_t kChunk = 8;  // clips of a rank whose features of pictures are in memory at once

}  // namespace

/// The steps of prepare(), in order. Every rank comes to the same lists from the same files.
class Preparation {
 public:
  Preparation(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
              const PrepareOptions& options)
      : recipe_(recipe),
        job_(job),
        mesh_(mesh),
        comm_(comm),
        rank_(rank),
        options_(options),
        online_(recipe.data.online()),
        folder_(recipe.data.cache),
        problems_(recipe.data.strict) {}

  PreparedData run() {
    Pace pace(comm_, mesh_, [this](int64_t done) {
      const std::lock_guard<std::mutex> guard(shown_);
      if (progress_) progress_->at(done);
    });
    pace.run([&] {
      read(pace);
      plan();
      pace.barrier();
      comm_.check_agreement("clips of the data set", data_.digest_ += online_ ? clips() : of_clips_.text("clips"));
      if (recipe_.data.beside()) return encode_beside(pace);
      {
        std::optional<TextPass> text;
        if (encodes_texts()) text.emplace(recipe_, job_, mesh_, comm_, rank_, data_.tokenizer_);
        if (!online_) {
          find_entries(text, pace);
          check_room(text);
          pace.barrier();  // every rank has looked before any rank writes, so all have the same list
        }
        if (text) encode_texts(*text, pace);
        if (stored_null() && (drops() || asks_blank()))
          data_.null_captions_ = {data_.of_recipe_.blank = stored_null_text(recipe_.data, job_)};
      }  // the text encoder goes before the others come
      if (online_ || !work_.empty() || options_.prompts) load_conditioner();
      pace.barrier();  // every rank has its encoders
      if (online_) {
        look_at_all();
        keep(std::vector<char>(data_.plan_.clips.size(), 0));
      } else {
        encode_clips(pace);
      }
      condition_prompts(pace);
      conditioner_.reset();
      pace.barrier();
    });
    comm_.take_sent_bytes();  // the first step's bytes are its own
    finish();
    return std::move(data_);
  }

 private:
  /// Where an entry is used first: a clip, and which of its draws or, behind its captions, class captions it is.
  struct FirstUse {
    uint32_t clip = 0, number = 0;
  };
  /// Of each entry; where entry e is that of clip e alone nothing is kept.
  class Uses {
   public:
    void push_back(const FirstUse& use) {
      if (uses_.empty() && use.clip == size_ && use.number == 0) return void(++size_);
      for (; uses_.size() < size_;) uses_.push_back({static_cast<uint32_t>(uses_.size()), 0});
      uses_.push_back(use), ++size_;
    }
    FirstUse operator[](size_t entry) const {
      return uses_.empty() ? FirstUse{static_cast<uint32_t>(entry), 0} : uses_.at(entry);
    }

   private:
    size_t size_ = 0;
    std::deque<FirstUse> uses_;
  };
  /// Entries of the cache that the data set needs, each once, and where they are if they are there and right.
  struct Wanted {
    data::CacheEntries entries = {};
    Uses uses = {};
    size_t size() const { return entries.size(); }
    std::vector<uint32_t> missing() const {
      std::vector<uint32_t> missing;
      for (size_t e = 0; e < size(); ++e)
        if (!entries.has(e)) missing.push_back(static_cast<uint32_t>(e));
      return missing;
    }
  };

  bool drops() const { return options_.null_caption && job::drops_captions(recipe_.diffusion); }
  bool asks_blank() const { return options_.null_caption && recipe_.asks_blank(); }
  bool stored_null() const { return recipe_.data.texts && !recipe_.data.null_text.empty(); }
  bool encodes_texts() const {
    return !recipe_.data.texts || options_.prompts || ((drops() || asks_blank()) && !stored_null());
  }
  const data::MaskFiles& masks_of(const data::Item& item) const {
    return data_.of_recipe_.masks.at(static_cast<size_t>(item.set));
  }

  /// TextPass or TextBeside.
  template <class Text>
  void encode_prompts(Text& text) {
    for (const auto& prompt : data_.prompts_) data_.prompt_encoded_.push_back(text.encode({prompt}));
    if (options_.prompts) data_.negative_ = text.encode_negative(recipe_.sample.negative_prompt);
    if (asks_blank() && !stored_null()) data_.of_recipe_.blank = text.encode_negative("");
    if (!drops() || stored_null()) return;
    data_.null_captions_.clear();
    for (const recipe::Recipe::DataSet& set : recipe_.data_sets()) {
      const std::string kept = data::kept_of_dropped(set.data.captions);
      data_.null_captions_.push_back(kept.empty() ? text.encode_negative("") : text.encode({kept}));
    }
  }

  /// Nothing of the data set but features of pictures: its text encoders stay.
  void encode_beside(Pace& pace) {
    data_.beside_ = options_.text_beside;
    if (!data_.beside_)
      data_.beside_ = std::make_shared<TextBeside>(recipe_, job_, mesh_, comm_, rank_, data_.tokenizer_);
    data_.beside_->load();
    load_conditioner();
    pace.barrier();
    look_at_all();
    keep(std::vector<char>(data_.plan_.clips.size(), 0));
    encode_prompts(*data_.beside_);
    condition_prompts(pace);
    conditioner_.reset();
    pace.barrier();
  }

  /// Where an entry that is written now will be.
  data::CacheEntry entry_of(const data::CacheKey& key) const {
    return {key.file(folder_), key.fields, key.is_text(), key.name()};
  }

  void load_conditioner() {
    if (!conditioner_) conditioner_.emplace(recipe_, job_, mesh_, comm_, rank_);
  }

  /// Draws of a clip's conditions, of which nothing is drawn where there is one.
  int64_t draws() const { return std::max<int64_t>(recipe_.diffusion.draws.count, 1); }
  MaybeDraw draw_of(const data::Clip& clip, int64_t number) const {
    return clip_draw(recipe_.diffusion.draws, data_.items_[static_cast<size_t>(clip.item)], data_.plan_.spec(clip),
                     number);
  }

  Pictures pictures_of(int64_t clip_index, int64_t number) const {
    const data::Clip& clip = data_.plan_.clips[static_cast<size_t>(clip_index)];
    if (wanted_.image_with_first && data_.plan_.spec(clip).frames == 1) return {};  // which is given none
    return shown_pictures(data_.items_[static_cast<size_t>(clip.item)], data_.plan_.spec(clip), *job_.model,
                          draw_of(clip, number));
  }
  Pictures pictures_of_entry(size_t entry) const {
    return pictures_of(clips_.uses[entry].clip, clips_.uses[entry].number);
  }

  /// Features of every clip's pictures, in memory as captions are. Ranks look at the same picture, so that all have all.
  void look_at_all() {
    if (!conditioner_->looks()) return;
    for (int64_t c = 0; c < static_cast<int64_t>(data_.plan_.clips.size()); ++c)
      for (int64_t number = 0; number < draws(); ++number)
        if (const at::Tensor seen = conditioner_->look(pictures_of(c, number)); seen.defined())
          data_.seen_[{c, number}] = cached(seen);
  }

  /// What the sampled prompts begin and end with. Ranks take different times to read pictures, and look together.
  void condition_prompts(Pace& pace) {
    if (data_.prompts_.empty()) return;
    const auto pictures = prompt_pictures(
        recipe_, data_.prompts_, [&] { return data_.items_; }, wanted_);
    data_.prompt_sounds_ = prompt_sounds(
        recipe_.data, recipe_.sample, data_.prompts_, [&] { return data_.items_; }, wanted_);
    const auto poses = prompt_poses(
        recipe_.sample, data_.prompts_, [&] { return data_.items_; }, wanted_);
    const auto controls = prompt_controls(
        recipe_.sample, data_.prompts_, [&] { return data_.items_; }, wanted_);
    pace.barrier();
    for (size_t p = 0; p < pictures.size(); ++p)
      data_.prompt_inputs_.push_back({wanted_.goes_on ? pictures[p] : Pictures(),
                                      conditioner_->for_sampling(pictures[p], data_.prompt_sound(static_cast<int>(p)),
                                                                 recipe_.data.frames, poses[p], 0, controls[p])});
  }

  void read(Pace& pace) {
    data_.items_ = read_items(recipe_, &problems_);
    for (const std::string& note : problems_.notes()) log::info("data: " + note);
    if (options_.prompts) data_.prompts_ = sample_prompts(recipe_.data, recipe_.sample, data_.items_);
    if (options_.prompts && rank_ == 0) tell_random_prompts(recipe_.data);
    const std::vector<std::string> captions = distinct_captions(data_.items_);
    pace.barrier();
    comm_.check_agreement("data set", data_.digest_ = digest_of_rows(data_.items_));
    const bool encodes = encodes_texts();  // else no tokenizer is made that a later sample would be given
    data_.tokenizer_ = encodes ? tokenizer_file(recipe_, captions) : fs::path(recipe_.data.tokenizer);
    if (rank_ == 0) {
      if (!online_)
        for (const fs::path& folder : {folder_, folder_ / "texts"}) checkpoint::remove_dead_partials(folder);
      if (encodes) make_tokenizer(recipe_.data, job_, captions, data_.tokenizer_);
      if (!recipe_.data.texts && data::has_tokenizer())
        tell_cut_captions(recipe_.data, job_, captions, data_.tokenizer_);
      if (!online_ && data::has_video())
        look_into_files(recipe_.data, data_.items_, [&](const data::Item& item) { return shown_files(item, wanted_); });
    }
    pace.barrier();
  }

  /// The clips of one set, items_ from `first` to `last`.
  data::ClipPlan plan_set(const recipe::Recipe::Data& set, const data::Probes& probes, size_t first, size_t last) {
    data::ClipRules rules = set.clips;
    if (set.latents)
      rules.latent_of = [codec = job_.codec.get()](const data::Bucket& b) {
        const auto shape = codec->latent_shape(b.frames, b.height, b.width);
        return data::NpyShape(shape.begin(), shape.end());
      };
    rules.beside = [&](const data::Item& item) { return shown_files(item, wanted_); };
    const bool all = last - first == data_.items_.size();
    data::Items part;
    if (!all) part.append(data_.items_, first, last);
    data::ClipPlan plan = data::plan_clips(all ? data_.items_ : part, probes, rules, problems_);
    plan.rules.beside = nullptr;  // which knows this object
    return plan;
  }

  void plan() {
    const data::Probes probes = online_ ? data::Probes() : data::Probes(folder_ / "probes.jsonl");
    const size_t told = problems_.notes().size();
    const std::vector<recipe::Recipe::DataSet> sets = recipe_.data_sets();
    for (const recipe::Recipe::DataSet& set : sets) data_.of_recipe_.masks.push_back(set.data.masks);
    std::vector<data::ClipPlan> plans;
    size_t first = 0;
    for (size_t s = 0; s < sets.size(); ++s) {
      size_t last = first;
      while (last < data_.items_.size() && data_.items_[last].set == static_cast<int>(s)) ++last;
      plans.push_back(plan_set(sets[s].data, probes, first, last));
      if (sets.size() > 1) {
        if (s == 0) data_.plan_.rules = recipe_.data.clips;
        data_.plan_.add(plans.back(), static_cast<int64_t>(first));
      }
      first = last;
    }
    if (sets.size() == 1) {  // of the clips there are not two lists
      data::Clips clips = std::exchange(plans.front().clips, {});
      data_.plan_ = plans.front();
      data_.plan_.clips = std::move(clips);
    }
    for (size_t s = 0; s < sets.size(); ++s) tell_masks(s, sets.size() > 1 ? sets[s].name : "");
    for (size_t n = told; n < problems_.notes().size(); ++n) log::info("data: " + problems_.notes()[n]);
    if (!problems_.left_out().empty()) log::info("data: " + problems_.left_out_text());
    log::info("data: " + std::to_string(data_.items_.size()) + " rows, " + std::to_string(data_.plan_.clips.size()) +
              " clips of frames x height x width\n" + data_.plan_.summary());
    judge(data_.plan_.clips.empty());
    for (const data::ClipPlan& plan : plans)
      if (!plan.rules.every_length)
        data::check_no_bucket_is_empty(plan);  // the summary tells of lengths that no video has
    if (online_) return;
    encoders_ = encoder_hashes(recipe_, job_, data_.tokenizer_);
    look_for_entries();
  }

  /// What the entry of a clip's draw is made from. `before`: as a version read its files that showed them otherwise.
  data::CacheKey clip_key(const FirstUse& use, bool with_stamps = true, bool before = false) const {
    const data::Clip clip = data_.plan_.clips[use.clip];
    const data::Item item = data_.items_[static_cast<size_t>(clip.item)];
    std::vector<data::RowFile> files = picture_files(item, wanted_);
    for (data::RowFile& file : sound_files(item, wanted_)) files.push_back(std::move(file));
    for (data::RowFile& file : control_files(item, wanted_)) files.push_back(std::move(file));
    for (data::RowFile& file : text_files(item)) files.push_back(std::move(file));
    const std::string shown = before ? data_.plan_.preprocessing_before(clip) : data_.plan_.preprocessing(clip);
    return data::clip_key({.source = item.path,
                           .encoder = encoders_.clip,
                           .shape = data_.plan_.rules.buckets[static_cast<size_t>(clip.bucket)].text(),
                           .preprocessing = shown + control_text(item, wanted_) + mask_text(masks_of(item), item) +
                                            draw_text(recipe_.diffusion.draws, use.number),
                           .files = std::move(files),
                           .encoder_before = encoders_.same_clips ? encoders_.both : ""},
                          with_stamps);
  }
  data::CacheKey clip_key(size_t entry, bool with_stamps = true) const {
    return clip_key(clips_.uses[entry], with_stamps);
  }

  Words words_of(const FirstUse& use) const {
    const data::Clip clip = data_.plan_.clips[use.clip];
    const data::Item item = data_.items_[static_cast<size_t>(clip.item)];
    const size_t captions = item.captions.size();
    return {use.number < captions ? item.captions[use.number] : item.class_captions.at(use.number - captions),
            is_apart(clip)};
  }
  data::CacheKey text_key(const FirstUse& use) const {
    const Words words = words_of(use);
    return words.of_picture ? data::text_key(words.text, encoders_.picture_text)
                            : data::text_key(words.text, encoders_.text, encoders_.both);
  }
  std::string caption_of(size_t text) const { return words_of(texts_.uses[text]).text; }

  /// Each entry that the clips need, and whether it is there. Most are, at all starts but the first: their keys are made
  /// once, and not kept.
  void look_for_entries() {
    clips_.entries = data::CacheEntries(folder_, false), texts_.entries = data::CacheEntries(folder_, true);
    const auto need = [&](Wanted& wanted, const data::CacheKey& key, const FirstUse& use) {
      const auto [number, fresh] = wanted.entries.add(key);  // repeats share their entries
      if (fresh) {
        wanted.uses.push_back(use);
        wanted.entries.set(number, data::entry_as_it_is(folder_, key));
      }
      data_.cache_.of_clips.add(number);
    };
    for (uint32_t c = 0; c < data_.plan_.clips.size(); ++c) {
      const data::Clip clip = data_.plan_.clips[c];
      const data::Item item = data_.items_[static_cast<size_t>(clip.item)];
      data_.cache_.of_clips.begin();
      for (uint32_t number = 0; number < draws(); ++number) {
        const data::CacheKey key = clip_key(FirstUse{c, number});
        if (number == 0) {
          std::string said = item.path.string() + '\n' + data_.plan_.preprocessing(clip) + '\n';
          for (const auto& source : key.sources) said += source.stamp + '\n';
          of_clips_.add(item.path.string(), said);
        }
        need(clips_, key, {c, number});
      }
      if (recipe_.data.texts) continue;
      for (uint32_t number = 0; number < item.captions.size() + item.class_captions.size(); ++number)
        need(texts_, text_key({c, number}), {c, number});
    }
    for (Wanted* wanted : {&clips_, &texts_}) wanted->entries.all_added();
  }

  /// Whether its captions have the instruction of pictures.
  bool is_apart(const data::Clip& clip) const {
    return !recipe_.data.instruction_image.empty() && data_.plan_.spec(clip).frames == 1;
  }

  /// Clips without a mask train whole. Where none of a set has one its keys do nothing, which nobody means.
  void tell_masks(size_t set, const std::string& name) const {
    const data::MaskFiles& masks = data_.of_recipe_.masks[set];
    if (!masks.on() || recipe_.eval.held_out) return;
    const auto transparent = [](const data::Clip& clip) { return clip.reading.find(" on=#") != clip.reading.npos; };
    int64_t all = 0, masked = 0;
    for (const data::Clip& clip : data_.plan_.clips) {
      const data::Item& item = data_.items_[static_cast<size_t>(clip.item)];
      if (item.set != static_cast<int>(set)) continue;
      ++all, masked += masks.alpha ? transparent(clip) : has_mask(masks, item);
    }
    const char* key = masks.alpha ? "data.alpha_mask" : masks.suffix.empty() ? "data.mask_path" : "data.mask_suffix";
    const std::string of = " of the data set" + (name.empty() ? "" : " " + name);
    check_input(masked > 0 || (masks.alpha && !data::has_video()), key,
                "no clip" + of + (masks.alpha ? " is transparent" : " has a mask"),
                masks.alpha ? "leave it out" : "name a mask as its clip is named, or leave it out");
    if (masked < all)
      log::info("data: " + std::to_string(all - masked) + " of " + std::to_string(all) + " clips" +
                (name.empty() ? "" : " of " + name) + " have no mask and train whole");
  }

  /// What the samples are made from, where no entries are.
  std::string clips() const {
    Digest digest;
    for (const data::Clip& clip : data_.plan_.clips) {
      // No entry's header tells that a mask or another of the row's files has changed.
      const data::Item item = data_.items_[static_cast<size_t>(clip.item)];
      std::string said = item.path.string() + '\n' + data_.plan_.preprocessing(clip) + '\n' +
                         control_text(item, wanted_) + mask_text(masks_of(item), item) + '\n';
      for (const auto& files : {picture_files(item, wanted_), sound_files(item, wanted_), control_files(item, wanted_)})
        for (const auto& [role, path] : files) said += role + ' ' + data::file_stamp(path) + '\n';
      digest.add(item.path.string(), said);
    }
    return digest.text("clips");
  }

  /// What is in the cache and right; the rest is to be encoded.
  void find_entries(const std::optional<TextPass>& text, Pace& pace) {
    const fs::path file = folder_ / "contents.jsonl";
    const auto rows = [&](const std::string& caption) {
      return encoders_.same_texts ? text->token_count(caption) : -1;
    };
    const std::vector<uint32_t> clips = clips_.missing(), texts = texts_.missing();
    const data::CacheKeys keys[] = {{clips.size(), [&](size_t i) { return clip_key(clips[i]); }},
                                    {texts.size(), [&](size_t i) { return text_key(texts_.uses[texts[i]]); }}};
    const bool asked = !clips.empty() || !texts.empty() || options_.verify;  // else nothing is asked of contents.jsonl
    if (rank_ == 0 && !options_.trust && !clips.empty()) {
      data::CacheSearch search(folder_, data::Contents(file), rows);
      search.leave(clips_.entries);
      const auto changed = search.changed(keys[0]);
      report::CountProgress progress(true, "prepare: changed times, comparing content of", "files",
                                     static_cast<int64_t>(changed.size()));
      data::update_contents(file, changed, [&](int64_t done) { progress.at(done); });
    }
    pace.barrier();
    data::CacheSearch search(folder_, asked ? data::Contents(file) : data::Contents(), rows);
    if (!clips.empty()) search.leave(clips_.entries);
    if (options_.trust) trust(search, keys[0], keys[1], pace);
    int64_t stale = 0, moved = 0;
    std::string first;
    size_t of_first = clips_.size() + texts_.size();  // texts stand behind clips
    for (Wanted* wanted : {&clips_, &texts_}) {
      const bool of_clips = wanted == &clips_;
      const size_t before = of_clips ? 0 : clips_.size();
      search.find(keys[of_clips ? 0 : 1], [&](size_t i, data::CacheSearch::Found found) {
        const size_t e = (of_clips ? clips : texts)[i];
        moved += found.moved;
        if (found.unreadable && options_.verify) {
          log::warn("prepare: " + found.stale + "; it is made again");
        } else if (!found.stale.empty()) {
          ++stale;
          if (before + e < of_first) first = name_of(*wanted, e) + ": " + found.stale, of_first = before + e;
        }
        wanted->entries.set(e, found.entry);
      });
    }
    if (moved > 0)
      log::info("prepare: " + std::to_string(moved) +
                " clips were encoded under another path and have the same content");
    contents_ = search.contents();
    find_damaged(pace);
    give_back_replaced();
    RereadClips reread;
    for (const size_t c : clips_.missing()) {
      work_.push_back(c);
      const std::string reading = clip_of(c).reading;
      if (!reading.empty()) reread.add(reading, fs::exists(clip_key(clips_.uses[c], false, true).file(folder_)));
    }
    if (const std::string text = reread.text(); !text.empty()) log::info("prepare: " + text);
    for (const size_t t : texts_.missing()) missing_texts_.push_back(t);
    if (stale == 0) return;
    check_input(options_.rebuild, "data.cache",
                std::to_string(stale) + " of " + std::to_string(clips_.size()) +
                    " entries are stale or damaged; first: " + first,
                "run `tessera prepare RECIPE --rebuild` to encode them again, or with --trust to use them as they are");
    log::info("prepare: rebuilding " + std::to_string(stale) + " entries; first: " + first);
  }

  /// [Note: moved clips] An entry that is made anew has its own clip's content from then on: who used it under another path
  /// is encoded too.
  void give_back_replaced() {
    for (bool again = true; again;) {
      again = false;
      std::set<fs::path> replaced;
      for (size_t c = 0; c < clips_.size(); ++c)
        if (!clips_.entries.has(c)) replaced.insert(folder_ / (clips_.entries.hash(c) + ".safetensors"));
      if (replaced.empty()) return;
      for (size_t c = 0; c < clips_.size(); ++c)
        if (const auto entry = clips_.entries[c]; entry && replaced.contains(entry->file))
          clips_.entries.set(c, {}), again = true;
    }
  }

  /// Every rank takes the files for what they were, and rank 0 writes it down for the runs to come.
  void trust(data::CacheSearch& search, const data::CacheKeys& clips, const data::CacheKeys& texts, Pace& pace) const {
    const int64_t files = search.trust(clips) + search.trust(texts);
    pace.barrier();  // every rank has read what was known
    if (files == 0 || rank_ != 0) return;
    search.contents().write(folder_ / "contents.jsonl");
    log::warn("prepare: --trust: used the entries of " + std::to_string(files) +
              " files whose size, time or path has changed since they were encoded, without comparing their content");
  }

  /// For messages.
  std::string name_of(const Wanted& wanted, size_t e) const {
    return &wanted == &clips_ ? data_.items_[static_cast<size_t>(clip_of(e).item)].path.string()
                              : "caption '" + caption_of(e) + "'";
  }

  /// Ranks share the reading, and what they found.
  void find_damaged(Pace& pace) {
    if (!options_.verify || options_.trust) return;
    const size_t count = clips_.size() + texts_.size();
    const auto list_of = [&](size_t& e) -> Wanted& {  // e: in it
      if (e < clips_.size()) return clips_;
      e -= clips_.size();
      return texts_;
    };
    std::vector<double> mine(count);
    report::CountProgress progress(rank_ == 0, "prepare: checking", "entries", static_cast<int64_t>(count));
    for (size_t e = static_cast<size_t>(rank_); e < count; e += static_cast<size_t>(mesh_.world())) {
      progress.at(static_cast<int64_t>(e));
      size_t place = e;
      const Wanted& wanted = list_of(place);
      const auto entry = wanted.entries[place];
      if (!entry) continue;
      const auto damage = data::damage(*entry);
      if (!damage) continue;
      mine[e] = 1;
      log::warn("prepare: " + name_of(wanted, place) + ": " + *damage + "; it is made again");
    }
    pace.barrier();  // every rank has read its share
    for (const auto& row : comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles(mine))
      for (size_t e = 0; e < row.size(); ++e) {
        size_t place = e;
        if (row[e] != 0) list_of(place).entries.set(place, {});
      }
  }

  /// Logs the disk space that is needed before anything is written, and throws if there is too little, of it or of what the
  /// caller looks at.
  void check_room(const std::optional<TextPass>& text) {
    if ((work_.empty() && missing_texts_.empty()) || rank_ != 0) return;
    int64_t need = 0;
    for (const size_t w : work_) {
      const data::Clip& clip = clip_of(w);
      const data::Bucket& bucket = data_.plan_.rules.buckets[static_cast<size_t>(clip.bucket)];
      const auto latent = job_.codec->latent_shape(bucket.frames, bucket.height, bucket.width);
      int64_t numbers = latent[0] * latent[1] * latent[2] * latent[3];
      if (wanted_.takes_images() || wanted_.audio_dim > 0 || !wanted_.guides.empty())
        for (const auto& [name, value] : job::blank_sample(recipe_, *job_.model, latent).extra)
          numbers += value.numel();
      if (job_.image && wanted_.image_with_first && bucket.frames > 1) numbers += wanted_.clip_rows * wanted_.clip_dim;
      for (const families::GivenFrames& given : job::encoded_given(recipe_.diffusion, bucket.frames, latent[1]))
        numbers += latent[0] * given.latents * latent[2] * latent[3];
      if (const data::Item& item = data_.items_[static_cast<size_t>(clip.item)]; has_mask(masks_of(item), item))
        numbers += latent[1] * latent[2] * latent[3];
      if (recipe_.data.texts) numbers += job_.context_length * job_.model->context_dim() + wanted_.pooled_dim;
      need += 4 * numbers + 1024;
    }
    for (const size_t t : missing_texts_) {
      const std::string caption = caption_of(t);
      const auto quoted = static_cast<int64_t>(data::glyph_text(caption).size());
      need += 4 * (text->token_count(caption) * job_.model->context_dim() + wanted_.pooled_dim +
                   std::min(quoted + 1, wanted_.glyph_rows) * wanted_.glyph_dim) +
              1024 + static_cast<int64_t>(caption.size());
    }
    std::error_code failed;
    fs::create_directories(folder_, failed);
    const fs::space_info space = fs::space(folder_, failed);
    const int64_t free = failed ? -1 : static_cast<int64_t>(space.available);
    log::info("prepare: encoding " + std::to_string(work_.size()) + " of " + std::to_string(clips_.size()) +
              " clips and " + std::to_string(missing_texts_.size()) + " of " + std::to_string(texts_.size()) +
              " captions into " + folder_.string() + ", " + format_bytes(need) +
              (free < 0 ? "" : " of " + format_bytes(free) + " free"));
    if (free >= 0 && need > free)
      throw UserError(
          Exit::disk, "data.cache",
          folder_.string() + ": the samples need " + format_bytes(need) + ", " + format_bytes(free) + " are free",
          "free space, set data.cache to another disk, or to \"online\" to store nothing");
    if (options_.before_encoding) options_.before_encoding();
  }

  /// Shows how many of `total` things are done, until the progress goes.
  void begin_progress(const std::string& things, size_t total) {
    const std::lock_guard<std::mutex> guard(shown_);
    progress_.emplace(rank_ == 0, "prepare", things, static_cast<int64_t>(total));
  }
  void end_progress() {
    const std::lock_guard<std::mutex> guard(shown_);
    progress_.reset();
  }

  /// Captions that the cache lacks, and the texts of this run that are never stored.
  void encode_texts(TextPass& text, Pace& pace) {
    if (!online_ && missing_texts_.empty() && !options_.prompts && !drops() && !asks_blank()) return;
    text.load();
    pace.barrier();  // every rank has its encoder
    if (online_ && !recipe_.data.texts)
      for (const data::Clip& clip : data_.plan_.clips) {
        const data::Item& item = data_.items_[static_cast<size_t>(clip.item)];
        for (const auto* texts : {&item.captions, &item.class_captions})
          for (const std::string& caption : *texts) {
            const Words words{caption, is_apart(clip)};
            if (!data_.texts_.contains(words)) data_.texts_[words] = cached(text.encode(words));
          }
      }
    else if (!online_)
      cache_texts(text, pace);
    encode_prompts(text);
  }

  /// In each round every rank encodes a caption of its own and writes it. A rank without one does the last again,
  /// because it has shards of the encoder.
  void cache_texts(TextPass& text, Pace& pace) {
    if (missing_texts_.empty()) return;
    begin_progress("captions", missing_texts_.size());
    const auto world = static_cast<size_t>(mesh_.world()), me = static_cast<size_t>(rank_);
    int64_t done = 0;
    for (size_t begin = 0; begin < missing_texts_.size(); begin += world) {
      const bool mine = begin + me < missing_texts_.size();
      const size_t t = mine ? missing_texts_[begin + me] : missing_texts_.back();
      const CachedText made = cached(text.encode(words_of(texts_.uses[t])));
      if (!mine) continue;
      data::write_caption(folder_, text_key(texts_.uses[t]), made);
      pace.report(++done);
    }
    pace.barrier();
    end_progress();
    pace.report(0);  // clips are counted from none
    for (const size_t t : missing_texts_) texts_.entries.set(t, entry_of(text_key(texts_.uses[t])), true);
  }

  /// The first clip that has the entry.
  data::Clip clip_of(size_t entry) const { return data_.plan_.clips[clips_.uses[entry].clip]; }

  /// Each rank its share of the clips.
  void encode_clips(Pace& pace) {
    begin_progress("clips", work_.size());
    const auto world = static_cast<size_t>(mesh_.world()), me = static_cast<size_t>(rank_);
    Failures failures(work_.size());
    int64_t done = 0;
    for (size_t begin = 0; begin < work_.size(); begin += kChunk * world) {
      const size_t end = std::min(work_.size(), begin + kChunk * world);
      const std::map<size_t, at::Tensor> seen = look_at_mine(begin, end, pace);
      for (size_t w = begin + me; w < end; w += world) {
        encode_clip(w, seen, failures);
        pace.report(++done);
      }
    }
    pace.barrier();
    end_progress();
    failures.share(comm_, mesh_, rank_);
    leave_out(failures);
    if (rank_ == 0) tell_footage();
    take_entries();
  }

  void tell_footage() {
    const auto entries = [&] {
      std::vector<std::string> entries;
      for (size_t c = 0; c < clips_.size(); ++c) entries.push_back(clips_.entries.has(c) ? clips_.entries.hash(c) : "");
      return entries;
    };
    const auto captions = [&] {
      std::vector<std::string> captions;
      for (const data::Item& item : data_.items_) captions.push_back(item.caption());
      return captions;
    };
    report_.finish(entries, captions, /*quiet=*/!options_.verify);
  }

  /// Features of the pictures of this rank's clips of a chunk: in each round every rank encodes one image.
  std::map<size_t, at::Tensor> look_at_mine(size_t begin, size_t end, Pace& pace) {
    std::map<size_t, at::Tensor> seen;
    if (!conditioner_->looks()) return seen;
    const auto world = static_cast<size_t>(mesh_.world());
    std::vector<std::pair<size_t, Pictures>> mine;
    for (size_t w = begin + static_cast<size_t>(rank_); w < begin + div_up(end - begin, world) * world; w += world) {
      mine.emplace_back(w, Pictures());
      try {
        if (w < end) mine.back().second = pictures_of_entry(work_[w]);
      } catch (const UserError&) {  // encode_clip meets the same fault, and books it
      }
    }
    pace.barrier();  // every rank has decoded
    for (const auto& [w, pictures] : mine)
      if (at::Tensor features = conditioner_->look(pictures); features.defined()) seen[w] = features;
    return seen;
  }

  /// The clip's latent, and those of the frames that may be given.
  void encode_frames(size_t entry, const data::Item& item, const data::ClipSpec& spec, data::CachedClip& made) {
    if (data::is_latent(item.path)) {
      made.latent = stored_latent(item.path);
      return;
    }
    const data::Frames frames = data::decode_clip(item.path, spec);
    report_.add({.entry = clips_.entries.hash(entry),
                 .source = item.path.string(),
                 .start = clip_of(entry).start,
                 .shape = data_.plan_.rules.buckets[static_cast<size_t>(clip_of(entry).bucket)].text(),
                 .footage = data::look_at(frames)});
    made.latent = cached(job::encode_frames(*job_.codec, frames));
    for (const families::GivenFrames& given :
         job::encoded_given(recipe_.diffusion, frames.count, made.latent.shape.at(1)))
      made.extras[given.name()] = cached(encode_given(*job_.codec, frames, given));
  }

  void encode_clip(size_t w, const std::map<size_t, at::Tensor>& seen, Failures& failures) {
    const data::Clip& clip = clip_of(work_[w]);
    const data::Item& item = data_.items_[static_cast<size_t>(clip.item)];
    data::CachedClip made;
    data::CacheKey key;  // with the stamps of before it is read
    try {
      key = clip_key(work_[w]);
      encode_frames(work_[w], item, data_.plan_.spec(clip), made);
      if (recipe_.data.texts) put_text(stored_text(item.context, item.pooled, job_), made);
      if (wanted_.takes_images() || conditioner_->looks())
        for (const auto& [name, value] : conditioner_->extras(
                 pictures_of_entry(work_[w]), seen.count(w) ? seen.at(w) : at::Tensor(), data_.plan_.spec(clip).frames))
          made.extras[name] = cached(value);
      for (const auto& [name, value] :
           conditioner_->extras(item, data_.plan_.spec(clip), draw_of(clip, clips_.uses[work_[w]].number)))
        made.extras[name] = cached(value);
      if (has_mask(masks_of(item), item))
        made.extras[kLossMask] = cached(loss_mask(masks_of(item), item, data_.plan_.spec(clip), made.latent.shape));
    } catch (const UserError& error) {
      if (error.code() != Exit::input) throw;
      data::Problems found(problems_.strict());
      found.add(item.where, error);
      failures.add(w, found.list().front().what);
      return;
    }
    data::write_clip(folder_, key, made, contents_);
  }

  /// Clips whose pixels could not be made go, with all that share them.
  void leave_out(const Failures& failures) {
    for (size_t w = 0; w < work_.size(); ++w) {
      if (failures.failed(w))
        problems_.add(data_.items_[static_cast<size_t>(clip_of(work_[w]).item)].where, failures.text(w));
      else
        clips_.entries.set(work_[w], entry_of(clip_key(work_[w], /*with_stamps=*/false)), true);
    }
    std::vector<char> failed(data_.plan_.clips.size(), 0);
    for (size_t c = 0; c < failed.size(); ++c)
      for (size_t number = 0; number < static_cast<size_t>(draws()); ++number)
        if (!clips_.entries.has(data_.cache_.of_clips.at(c, number))) failed[c] = 1;
    keep(failed);
    judge(data_.samples_.empty());
  }

  /// What samples read.
  void take_entries() {
    data_.cache_.clips = std::move(clips_.entries);
    data_.cache_.texts = std::move(texts_.entries);
    clips_ = {}, texts_ = {};
  }

  void keep(const std::vector<char>& failed) {
    for (size_t c = 0; c < data_.plan_.clips.size(); ++c)
      if (!failed[c]) data_.samples_.push_back(static_cast<uint32_t>(c));
  }

  /// Throws if no row is left, or more were left out than the user allows; rank 0 lists them.
  void judge(bool nothing_left) {
    data_.problems_ = static_cast<int64_t>(problems_.size());
    const bool too_many = !options_.tolerant && data_.problems_ > recipe_.data.allow_bad;
    if (!nothing_left && !too_many) return;
    const std::string list =
        rank_ == 0 ? problems_.whole_text() : std::to_string(problems_.size()) + " faulty rows: see rank 0's message";
    throw UserError(Exit::input, "data", list,
                    nothing_left ? "\nno clip of the data set is left: fix these rows"
                                 : "\nfix these rows, or set data.allow_bad = " + std::to_string(problems_.size()) +
                                       " to train without them");
  }

  /// Sets of regularisation have as many samples as the others together, shared by their own amounts.
  void match_regularisation(std::vector<double>& amounts) const {
    double trained = 0, beside = 0;
    const auto is_beside = [&](size_t s) { return recipe_.sets[s].role == recipe::Recipe::Role::regularisation; };
    for (size_t s = 0; s < amounts.size(); ++s) (is_beside(s) ? beside : trained) += amounts[s];
    if (beside == 0) return;
    check_input(trained > 0, "data", "all data sets are of regularisation, and there is nothing beside which they are",
                "set role = \"train\" for what is learnt");
    for (size_t s = 0; s < amounts.size(); ++s)
      if (is_beside(s)) amounts[s] *= trained / beside;
  }

  /// How often the samples of each [[data.set]] come.
  void share_out() {
    const std::vector<recipe::Recipe::DataSet>& sets = recipe_.sets;
    if (sets.empty()) return;
    std::vector<int64_t> counts(sets.size());
    for (int64_t i = 0; i < data_.size(); ++i) {
      data_.sets_.of_samples.push_back(data_.set_of(i));
      ++counts[static_cast<size_t>(data_.set_of(i))];
    }
    double weights = 0;
    for (const recipe::Recipe::DataSet& set : sets) weights += set.weight;
    for (size_t s = 0; s < sets.size(); ++s) {
      const auto count = static_cast<double>(counts[s]);
      check_input(count > 0, "data", sets[s].name + ": no clip of this data set is left",
                  "fix its rows, or leave the set out");
      data_.sets_.amounts.push_back(weights > 0 ? static_cast<double>(data_.size()) * sets[s].weight / weights
                                                : count * sets[s].repeats);
    }
    if (weights == 0) match_regularisation(data_.sets_.amounts);
    double all = 0;
    for (const double amount : data_.sets_.amounts) all += amount;
    constexpr double kMostSamples = 20e6;
    check_input(all <= kMostSamples, "data", "an epoch of all data sets has more than 20000000 samples",
                "lower the sets' repeats: an epoch has no end that training needs");
    for (size_t s = 0; s < sets.size(); ++s) {
      char share[160];
      std::snprintf(share, sizeof share, ": %lld samples, %.6g of %.6g in an epoch, %.1f %%",
                    static_cast<long long>(counts[s]), data_.sets_.amounts[s], all, 100 * data_.sets_.amounts[s] / all);
      log::info("data set " + sets[s].name + share);
    }
  }

  void finish() {
    share_out();
    if (!problems_.empty() && rank_ == 0) log::warn("left out: " + problems_.text());
    for (const uint32_t clip : data_.samples_) data_.buckets_.push_back(data_.plan_.clips[clip].bucket);
    data_.seed_ = static_cast<uint64_t>(recipe_.run.seed);
    data_.online_ = online_;
    data_.job_ = &job_;
    data_.stored_texts_ = recipe_.data.texts;
    data_.takes_ = inputs_of(*job_.model, job_.latent);
    data_.of_recipe_.encoders = recipe_.data.encoders;
    data_.of_recipe_.references = recipe_.data.references;
    data_.of_recipe_.draws = recipe_.diffusion.draws;
    data_.of_recipe_.pictures_apart = !recipe_.data.instruction_image.empty();
    if (online_ && wanted_.audio_dim > 0) data_.listener_ = std::make_shared<const Listener>(recipe_.data, job_);
    // [Note: frozen encoders] in encoder_bytes.h; with data.encoders = "host" the Loader's thread reads them again, there
    if (!online_ || recipe_.data.encoders == recipe::Encoders::host) job::release(*job_.codec);
  }

  const recipe::Recipe& recipe_;
  const job::Job& job_;
  const Mesh mesh_;
  comm::Comm& comm_;
  const int rank_;
  const PrepareOptions options_;
  const bool online_;
  const net::Conditions wanted_ = job_.model->conditions();
  const fs::path folder_;
  data::Problems problems_;
  PreparedData data_;
  Digest of_clips_;
  EncoderHashes encoders_;
  Wanted clips_, texts_;
  FootageReport report_{folder_, rank_};
  data::Contents contents_;
  std::vector<size_t> work_, missing_texts_;  // in clips_ and texts_, what is to be encoded
  std::optional<Conditioner> conditioner_;
  std::mutex shown_;
  std::optional<report::CountProgress> progress_;  // of encoding; the pace's thread shows it
};

PreparedData prepare(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                     const PrepareOptions& options) {
  return Preparation(recipe, job, mesh, comm, rank, options).run();
}

}  // namespace tessera::prepare
