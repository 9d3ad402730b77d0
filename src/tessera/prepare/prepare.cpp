#include "tessera/prepare/prepare.h"

#include <mutex>
#include <unordered_map>

#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/video.h"
#include "tessera/job/codec.h"
#include "tessera/prepare/conditioner.h"
#include "tessera/prepare/failures.h"
#include "tessera/prepare/pace.h"
#include "tessera/prepare/text_pass.h"
#include "tessera/prepare/told_captions.h"
#include "tessera/report/count_progress.h"

namespace tessera::prepare {

namespace fs = std::filesystem;

namespace {

constexpr size_t kChunk = 8;  // clips a rank encodes between two barriers; their embeddings are in memory

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
      comm_.check_agreement("clips of the data set", clips());
      if (recipe_.data.beside()) return encode_beside(pace);
      TextPass text(recipe_, job_, mesh_, comm_, rank_, data_.tokenizer_);
      if (online_) {
        text.load();
        load_conditioner();
        pace.barrier();  // every rank has its encoders
        for (const std::string& caption : captions_) data_.texts_[caption] = cached(text.encode(caption));
        look_at_all();
        keep(std::vector<char>(data_.plan_.clips.size(), 0));
      } else {
        find_damaged(pace);
        find_missing();
        check_disk(text);
        if (!work_.empty()) text.load(), load_conditioner();
        pace.barrier();  // every rank has looked before any rank writes, so all have the same list
        encode(text, pace);
      }
      if (options_.prompts || drops()) {
        text.load();
        load_conditioner();
        pace.barrier();
      }
      encode_prompts(text);
      condition_prompts(pace);
      conditioner_.reset();
      pace.barrier();
    });
    comm_.take_sent_bytes();  // the first step's bytes are its own
    finish();
    return std::move(data_);
  }

 private:
  using Keys = std::vector<data::CacheKey>;
  /// Pixels to encode once: a clip, and the entries of its captions.
  struct Work {
    int64_t clip = 0;
    std::vector<int> entries;
  };

  bool drops() const {
    return options_.null_caption && (recipe_.diffusion.caption_dropout > 0 || recipe_.diffusion.pooled_dropout > 0);
  }

  /// TextPass or TextBeside.
  template <class Text>
  void encode_prompts(Text& text) {
    for (const auto& prompt : data_.prompts_) data_.prompt_encoded_.push_back(text.encode(prompt));
    if (options_.prompts) data_.negative_ = text.encode_negative(recipe_.sample.negative_prompt);
    if (drops()) data_.null_caption_ = text.encode_negative("");
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

  void load_conditioner() {
    if (!conditioner_) conditioner_.emplace(recipe_, job_, mesh_, comm_, rank_);
  }

  Pictures pictures_of(int64_t clip_index) const {
    const data::Clip& clip = data_.plan_.clips[static_cast<size_t>(clip_index)];
    return clip_pictures(data_.items_[static_cast<size_t>(clip.item)], data_.plan_.spec(clip), wanted_);
  }

  /// CLIP features of every clip, in memory as captions are. Ranks look at the same picture, so that all have all.
  void look_at_all() {
    if (!conditioner_->looks()) return;
    for (size_t c = 0; c < data_.plan_.clips.size(); ++c)
      data_.seen_[static_cast<int64_t>(c)] = cached(conditioner_->look(pictures_of(static_cast<int64_t>(c))));
  }

  /// What the sampled prompts begin and end with. Ranks take different times to read pictures, and look together.
  void condition_prompts(Pace& pace) {
    if (data_.prompts_.empty()) return;
    const auto pictures = prompt_pictures(
        recipe_, data_.prompts_, [&] { return data_.items_; }, wanted_);
    data_.prompt_sounds_ = prompt_sounds(
        recipe_, data_.prompts_, [&] { return data_.items_; }, wanted_);
    const auto poses = prompt_poses(
        recipe_, data_.prompts_, [&] { return data_.items_; }, wanted_);
    pace.barrier();
    for (size_t p = 0; p < pictures.size(); ++p)
      data_.prompt_extras_.push_back(conditioner_->for_sampling(pictures[p], data_.prompt_sound(static_cast<int>(p)),
                                                                recipe_.data.frames, poses[p]));
  }

  void read(Pace& pace) {
    data_.items_ = read_items(recipe_, problems_);
    for (const std::string& note : problems_.notes()) log::info("data: " + note);
    if (options_.prompts) data_.prompts_ = sample_prompts(recipe_, data_.items_);
    captions_ = distinct_captions(data_.items_);
    pace.barrier();
    comm_.check_agreement("data set", rows());
    data_.tokenizer_ = tokenizer_file(recipe_, captions_);
    if (rank_ == 0) {
      if (!online_) checkpoint::remove_dead_partials(folder_);
      make_tokenizer(recipe_, job_, captions_, data_.tokenizer_);
      tell_cut_captions(recipe_, job_, captions_, data_.tokenizer_);
      if (!online_ && data::has_video()) look_into_files();
    }
    pace.barrier();
  }

  /// Headers of the files: rank 0 looks, the others read what it found.
  void look_into_files() {
    std::vector<fs::path> paths;
    for (const data::Item& item : data_.items_) paths.push_back(item.path);
    report::CountProgress progress(true, "prepare: looking into", "files", static_cast<int64_t>(paths.size()));
    data::update_probes(folder_ / "probes.jsonl", paths, [&](int64_t done) { progress.at(done); });
  }

  void plan() {
    const data::Probes probes = online_ ? data::Probes() : data::Probes(folder_ / "probes.jsonl");
    data::ClipRules rules = recipe_.data.clips;
    if (recipe_.data.latents)
      rules.latent_of = [codec = job_.codec.get()](const data::Bucket& b) {
        const auto shape = codec->latent_shape(b.frames, b.height, b.width);
        return data::NpyShape(shape.begin(), shape.end());
      };
    data_.plan_ = data::plan_clips(data_.items_, probes, rules, problems_);
    log::info("data: " + std::to_string(data_.items_.size()) + " rows, " + std::to_string(data_.plan_.clips.size()) +
              " clips of frames x height x width\n" + data_.plan_.summary());
    judge(data_.plan_.clips.empty());
    data::check_no_bucket_is_empty(data_.plan_);
    if (online_) return;
    const std::string encoder = encoder_hash(recipe_, job_, data_.tokenizer_);
    std::unordered_map<std::string, int> known;         // repeats share their entries
    std::unordered_map<std::string, int64_t> pictures;  // rows of one clip share its pixels
    for (size_t c = 0; c < data_.plan_.clips.size(); ++c) {
      const data::Clip& clip = data_.plan_.clips[c];
      const data::Item& item = data_.items_[static_cast<size_t>(clip.item)];
      std::vector<int>& entries = entries_.emplace_back();
      for (const std::string& caption : item.captions) {
        data::CacheKey key = data::cache_key(
            item.path, caption, encoder, data_.plan_.rules.buckets[static_cast<size_t>(clip.bucket)].text(),
            data_.plan_.preprocessing(clip) + picture_stamp(item, wanted_) + sound_stamp(item, wanted_));
        const auto [place, fresh] = known.emplace(key.hash(), static_cast<int>(keys_.size()));
        if (fresh) {
          const std::string picture = key.source + '\n' + key.shape + '\n' + key.preprocessing;
          picture_of_.push_back(pictures.emplace(picture, static_cast<int64_t>(c)).first->second);
          keys_.push_back(std::move(key));
        }
        entries.push_back(place->second);
      }
    }
  }

  /// A line for every 64 of `count` things, so that ranks with other files name where they differ: the first and last
  /// path, and a hash of `of(i)` of each.
  template <class Path, class Of>
  static std::string digest(size_t count, const Path& path, const Of& of) {
    constexpr size_t kTogether = 64;
    std::string text;
    for (size_t begin = 0; begin < count; begin += kTogether) {
      const size_t end = std::min(begin + kTogether, count);
      std::string of_these;
      for (size_t i = begin; i < end; ++i) of_these += of(i);
      text += path(begin) + " to " + path(end - 1) + ": " + std::to_string(hash_text(of_these)) + '\n';
    }
    return text;
  }

  /// The rows of the data set, before anything is made from them.
  std::string rows() const {
    const auto path = [&](size_t i) { return data_.items_[i].path.string(); };
    return std::to_string(data_.items_.size()) + " rows\n" + digest(data_.items_.size(), path, [&](size_t i) {
             std::string text = path(i) + '\n';
             for (const std::string& caption : data_.items_[i].captions) text += caption + '\n';
             return text;
           });
  }

  /// What the samples are made from.
  std::string clips() const {
    const auto path = [&](size_t c) {
      return data_.items_[static_cast<size_t>(data_.plan_.clips[c].item)].path.string();
    };
    return std::to_string(data_.plan_.clips.size()) + " clips\n" +
           digest(data_.plan_.clips.size(), path, [&](size_t c) {
             std::string text = path(c) + '\n' + data_.plan_.preprocessing(data_.plan_.clips[c]) + '\n';
             if (!online_)
               for (const int e : entries_[c]) text += keys_[static_cast<size_t>(e)].stamp + '\n';
             return text;
           });
  }

  /// Ranks share the reading, and what they found.
  void find_damaged(Pace& pace) {
    damaged_.assign(keys_.size(), 0);
    if (!options_.verify) return;
    std::vector<double> mine(keys_.size());
    report::CountProgress progress(rank_ == 0, "prepare: checking", "entries", static_cast<int64_t>(keys_.size()));
    for (size_t e = static_cast<size_t>(rank_); e < keys_.size(); e += static_cast<size_t>(mesh_.world())) {
      progress.at(static_cast<int64_t>(e));
      if (!fs::exists(keys_[e].file(folder_))) continue;
      const auto damage = data::cache_damage(folder_, keys_[e]);
      if (!damage) continue;
      mine[e] = 1;
      log::warn("prepare: " + keys_[e].source + ": " + *damage + "; it is made again");
    }
    pace.barrier();  // every rank has read its share
    for (const auto& row : comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles(mine))
      for (size_t e = 0; e < row.size(); ++e) damaged_[e] |= row[e] != 0;
  }

  void find_missing() {
    int64_t stale = 0;
    std::string first;
    std::map<int64_t, size_t> work;  // by clip
    for (size_t e = 0; e < keys_.size(); ++e) {
      const auto problem = data::cache_problem(folder_, keys_[e]);
      if (!problem && !damaged_[e]) continue;
      if (!damaged_[e] && *problem != "missing" && stale++ == 0)
        first = keys_[e].source + ": " + keys_[e].file(folder_).string() + ": " + *problem;
      const auto [place, fresh] = work.emplace(picture_of_[e], work_.size());
      if (fresh) work_.push_back({picture_of_[e], {}});
      work_[place->second].entries.push_back(static_cast<int>(e));
      ++missing_;
    }
    if (stale == 0) return;
    check_input(options_.rebuild, "data.cache",
                std::to_string(stale) + " of " + std::to_string(keys_.size()) +
                    " entries are stale or damaged; first: " + first,
                "run `tessera prepare RECIPE --rebuild` to encode them again");
    log::info("prepare: rebuilding " + std::to_string(stale) + " entries; first: " + first);
  }

  /// Logs the disk space that is needed before anything is written, and throws if there is too little.
  void check_disk(const TextPass& text) {
    if (work_.empty() || rank_ != 0) return;
    int64_t need = 0;
    for (const Work& work : work_) {
      const data::Bucket& bucket =
          data_.plan_.rules.buckets[static_cast<size_t>(data_.plan_.clips[static_cast<size_t>(work.clip)].bucket)];
      const auto latent = job_.codec->latent_shape(bucket.frames, bucket.height, bucket.width);
      int64_t numbers = latent[0] * latent[1] * latent[2] * latent[3];
      if (wanted_.takes_images() || wanted_.audio_dim > 0)
        for (const auto& [name, value] : job_.model->blank(latent).extra) numbers += value.numel();
      for (const int e : work.entries) {
        const data::CacheKey& key = keys_[static_cast<size_t>(e)];
        need += 4 * (numbers + text.token_count(key.caption) * job_.model->context_dim() + wanted_.pooled_dim) + 1024 +
                static_cast<int64_t>(key.caption.size() + key.source.size());
      }
    }
    std::error_code failed;
    fs::create_directories(folder_, failed);
    const fs::space_info space = fs::space(folder_, failed);
    const int64_t free = failed ? -1 : static_cast<int64_t>(space.available);
    log::info("prepare: encoding " + std::to_string(missing_) + " of " + std::to_string(keys_.size()) +
              " samples into " + folder_.string() + ", " + format_bytes(need) +
              (free < 0 ? "" : " of " + format_bytes(free) + " free"));
    if (free >= 0 && need > free)
      throw UserError(
          Exit::disk, "data.cache",
          folder_.string() + ": the samples need " + format_bytes(need) + ", " + format_bytes(free) + " are free",
          "free space, set data.cache to another disk, or to \"online\" to store nothing");
  }

  /// Chunk by chunk: texts together, then each rank its share of the clips.
  void encode(TextPass& text, Pace& pace) {
    {
      const std::lock_guard<std::mutex> guard(shown_);
      progress_.emplace(rank_ == 0, "prepare", "clips", static_cast<int64_t>(work_.size()));
    }
    const auto world = static_cast<size_t>(mesh_.world()), me = static_cast<size_t>(rank_);
    Failures failures(work_.size());
    int64_t done = 0;
    for (size_t begin = 0; begin < work_.size(); begin += kChunk * world) {
      const size_t end = std::min(work_.size(), begin + kChunk * world);
      pace.barrier();  // so that no rank waits for another in a collective of the text encoder
      std::map<std::string, CachedText> texts;
      for (size_t w = begin; w < end; ++w)
        for (const int e : work_[w].entries)
          if (const std::string& caption = keys_[static_cast<size_t>(e)].caption; !texts.contains(caption))
            texts[caption] = cached(text.encode(caption));
      const std::map<size_t, at::Tensor> seen = look_at_mine(begin, end, pace);
      for (size_t w = begin; w < end; ++w) {
        if (w % world != me) continue;
        encode_clip(w, texts, seen, failures);
        pace.report(++done);
      }
    }
    pace.barrier();
    {
      const std::lock_guard<std::mutex> guard(shown_);
      progress_.reset();
    }
    failures.share(comm_, mesh_, rank_);
    leave_out(failures);
  }

  /// CLIP features of this rank's clips of a chunk: in each round every rank encodes one image.
  std::map<size_t, at::Tensor> look_at_mine(size_t begin, size_t end, Pace& pace) {
    std::map<size_t, at::Tensor> seen;
    if (!conditioner_->looks()) return seen;
    const auto world = static_cast<size_t>(mesh_.world());
    std::vector<std::pair<size_t, Pictures>> mine;
    for (size_t w = begin + static_cast<size_t>(rank_); w < begin + div_up(end - begin, world) * world; w += world) {
      mine.emplace_back(w, Pictures());
      try {
        if (w < end) mine.back().second = pictures_of(work_[w].clip);
      } catch (const UserError&) {  // encode_clip meets the same fault, and books it
      }
    }
    pace.barrier();  // every rank has decoded
    for (const auto& [w, pictures] : mine)
      if (at::Tensor features = conditioner_->look(pictures); features.defined()) seen[w] = features;
    return seen;
  }

  void encode_clip(size_t w, const std::map<std::string, CachedText>& texts, const std::map<size_t, at::Tensor>& seen,
                   Failures& failures) {
    const Work& work = work_[w];
    const data::Clip& clip = data_.plan_.clips[static_cast<size_t>(work.clip)];
    const data::Item& item = data_.items_[static_cast<size_t>(clip.item)];
    data::CachedSample sample;
    try {
      sample.latent =
          data::is_latent(item.path)
              ? stored_latent(item.path)
              : cached(job::encode_frames(*job_.codec, data::decode_clip(item.path, data_.plan_.spec(clip))));
      if (wanted_.takes_images())
        for (const auto& [name, value] : conditioner_->extras(
                 pictures_of(work.clip), seen.count(w) ? seen.at(w) : at::Tensor(), data_.plan_.spec(clip).frames))
          sample.extras[name] = cached(value);
      for (const auto& [name, value] : conditioner_->extras(item, data_.plan_.spec(clip)))
        sample.extras[name] = cached(value);
    } catch (const UserError& error) {
      if (error.code() != Exit::input) throw;
      data::Problems found(problems_.strict());
      found.add(item.where, error);
      failures.add(w, found.list().front().what);
      return;
    }
    for (const int e : work.entries) {
      const data::CacheKey& key = keys_[static_cast<size_t>(e)];
      const CachedText& text = texts.at(key.caption);
      sample.context = text.context;
      if (wanted_.pooled_dim > 0) sample.extras["pooled"] = text.pooled;
      data::write_cached(folder_, key, sample);
    }
  }

  /// Clips whose pixels could not be made go, with all that share them.
  void leave_out(const Failures& failures) {
    std::vector<char> failed_entry(keys_.size(), 0);
    for (size_t w = 0; w < work_.size(); ++w) {
      if (!failures.failed(w)) continue;
      const data::Clip& clip = data_.plan_.clips[static_cast<size_t>(work_[w].clip)];
      problems_.add(data_.items_[static_cast<size_t>(clip.item)].where, failures.text(w));
      for (const int e : work_[w].entries) failed_entry[static_cast<size_t>(e)] = 1;
    }
    std::vector<char> failed(data_.plan_.clips.size(), 0);
    for (size_t c = 0; c < failed.size(); ++c)
      for (const int e : entries_[c]) failed[c] |= failed_entry[static_cast<size_t>(e)];
    keep(failed);
    judge(data_.samples_.empty());
    Keys kept;
    std::vector<int> place(keys_.size(), -1);
    for (size_t e = 0; e < keys_.size(); ++e)
      if (!failed_entry[e]) place[e] = static_cast<int>(kept.size()), kept.push_back(std::move(keys_[e]));
    for (auto& sample : data_.samples_)
      for (int& e : sample.entries) e = place[static_cast<size_t>(e)];
    data_.cache_.emplace(folder_, std::move(kept));
  }

  void keep(const std::vector<char>& failed) {
    for (size_t c = 0; c < data_.plan_.clips.size(); ++c)
      if (!failed[c]) data_.samples_.push_back({static_cast<int64_t>(c), online_ ? std::vector<int>() : entries_[c]});
  }

  /// Throws if no row is left, or more were left out than the user allows; rank 0 lists them.
  void judge(bool nothing_left) {
    data_.problems_ = static_cast<int64_t>(problems_.size());
    const bool too_many = !options_.tolerant && data_.problems_ > recipe_.data.allow_bad;
    if (!nothing_left && !too_many) return;
    const std::string list =
        rank_ == 0 ? problems_.text() : std::to_string(problems_.size()) + " faulty rows: see rank 0's message";
    throw UserError(Exit::input, "data", list,
                    nothing_left ? "\nno clip of the data set is left: fix these rows"
                                 : "\nfix these rows, or set data.allow_bad = " + std::to_string(problems_.size()) +
                                       " to train without them");
  }

  void finish() {
    if (!problems_.empty() && rank_ == 0) log::warn("left out: " + problems_.text());
    for (const auto& sample : data_.samples_)
      data_.buckets_.push_back(data_.plan_.clips[static_cast<size_t>(sample.clip)].bucket);
    data_.seed_ = static_cast<uint64_t>(recipe_.run.seed);
    data_.job_ = &job_;
    data_.codec_ = job_.codec.get();
    data_.encoders_ = recipe_.data.encoders;
    if (online_ && wanted_.audio_dim > 0) data_.listener_ = std::make_shared<const Listener>(recipe_, job_);
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
  std::vector<std::string> captions_;      // of the data set, each once
  Keys keys_;                              // entries of the cache, each once
  std::vector<int64_t> picture_of_;        // of each entry, the clip its pixels are made from
  std::vector<std::vector<int>> entries_;  // of each clip, one a caption
  std::vector<char> damaged_;              // of each entry, whether its bytes are not those that were written
  std::vector<Work> work_;
  int64_t missing_ = 0;
  std::optional<Conditioner> conditioner_;
  std::mutex shown_;
  std::optional<report::CountProgress> progress_;  // of encoding; the pace's thread shows it
};

PreparedData prepare(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                     const PrepareOptions& options) {
  return Preparation(recipe, job, mesh, comm, rank, options).run();
}

}  // namespace tessera::prepare
