#pragma once
// Encodes the data set into the cache (what is missing, no more), and gives it back as samples.
//
//   PreparedData data = prepare(recipe, job, mesh, comm, rank);
//   data.sample(index, epoch).latent;                               // [C, f, h, w]; stage_data.h has the order
//
// Work that a kill interrupts goes on where it stopped: an entry of the cache is there whole or not at all. With
// data.cache = "online" nothing is stored: sample() decodes and encodes, embeddings of the captions stay in memory. With
// data.encoders = "host", "device" or "sharded" captions too are encoded when they come (text_beside.h).
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "tessera/comm/comm.h"
#include "tessera/data/cache.h"
#include "tessera/data/clips.h"
#include "tessera/data/dataset.h"
#include "tessera/data/order.h"
#include "tessera/job/job.h"
#include "tessera/prepare/encoded.h"
#include "tessera/prepare/pictures.h"
#include "tessera/prepare/sounds.h"
#include "tessera/prepare/text_pass.h"

namespace tessera::prepare {

struct PreparedSample {
  at::Tensor latent;                              ///< [C, f, h, w] fp32
  at::Tensor context;                             ///< [n, D] fp32
  std::map<std::string, at::Tensor> extra = {};   ///< what the model takes besides: y, clip_fea, pooled
  std::vector<families::GivenFrames> given = {};  ///< frames that are given, where they were asked for
  std::vector<at::Tensor> pieces = {};            ///< [C, f, h, w] of those that are encoded on their own, in order
  at::Tensor mask = {};                           ///< [f, h, w] in 0..1 of the clip's latent; undefined: it has none
};
/// Which frames of a clip of `frames` frames and so many latent ones are given to the model.
using ChooseGiven = std::function<std::vector<families::GivenFrames>(int64_t frames, int64_t latent_frames)>;

struct PrepareOptions {
  bool rebuild = false;      ///< entries that are stale are made anew instead of refused
  bool verify = false;       ///< all bytes of the cache are read, and entries that are damaged are made anew
  bool prompts = true;       ///< those that are sampled are encoded as well
  bool null_caption = true;  ///< the empty caption is encoded as well, where the recipe's draws need it
  std::shared_ptr<TextBeside> text_beside = {};  ///< of another part of the run; empty: prepare makes its own
  bool trust = false;                            ///< neither the content of files nor the bytes of entries is checked
  /// Called on rank 0 before anything that the cache lacks is encoded: it throws where that takes more than there is.
  std::function<void()> before_encoding = {};
  bool tolerant = false;  ///< any number of faulty rows is left out; else more than data.allow_bad end it
};

class PreparedData {
 public:
  /// Clips of the data set, each as often as data.repeats says.
  int64_t size() const { return static_cast<int64_t>(samples_.size()); }
  /// With the caption that the clip has in this epoch. Throws UserError (input) when its file or entry has gone.
  /// `given` is asked which frames are given, so far as they are encoded or sliced by themselves; null: none are.
  /// `of_class`: with the caption's class caption in its place.
  PreparedSample sample(int64_t index, int64_t epoch = 0, const ChooseGiven& given = {}, bool of_class = false) const;
  /// A sample of an epoch.
  using Place = std::pair<int64_t, int64_t>;
  /// With data.encoders = "sharded" before sample() of what each dp rank needs of a step, by all ranks together; else
  /// nothing happens. `mine`: this rank's place in the list.
  void encode_captions(const std::vector<std::vector<Place>>& of_ranks, size_t mine) const;
  /// Bytes of encoders' weights in host memory, data.encoders = "host".
  int64_t host_encoder_bytes() const;
  /// The text encoders that stay in memory; none where captions are encoded before step 1.
  const std::shared_ptr<TextBeside>& text_beside() const { return beside_; }
  /// Of the first epoch, [C, f, h, w] fp32.
  at::Tensor latent(int64_t index) const;
  /// Its text embedding [n, D] alone.
  data::CachedTensor context(int64_t index, int64_t epoch = 0) const;
  /// The clip's file, for messages.
  std::string source(int64_t index) const { return item(index).path.string(); }
  /// Its frames as they were encoded.
  data::Frames frames(int64_t index) const;
  const std::vector<int>& buckets() const { return buckets_; }  ///< of each sample
  const data::SetShares& sets() const { return sets_; }         ///< likewise, where there are several
  int set_of(int64_t index) const { return item(index).set; }
  int64_t problems() const { return problems_; }  ///< rows that were left out
  /// Of rows, captions and clips: other text, other data. A clip that is not encoded to a cache counts by its name alone,
  /// its masks and what else its row names by their size and time too.
  const std::string& digest() const { return digest_; }
  /// Files of the cache that it reads.
  std::set<data::Path> cache_files() const;

  int prompts() const { return static_cast<int>(prompts_.size()); }
  const std::string& prompt_text(int prompt) const { return prompts_.at(prompt); }
  const EncodedText& prompt_encoded(int prompt) const { return prompt_encoded_.at(prompt); }
  const std::map<std::string, at::Tensor>& prompt_extra(int prompt) const { return prompt_inputs_.at(prompt).extra; }
  /// What it follows, of a model that goes on.
  const Pictures& prompt_pictures(int prompt) const { return prompt_inputs_.at(prompt).followed; }
  /// The audio of its video; empty for a model without audio input.
  data::Sound prompt_sound(int prompt) const {
    return prompt_sounds_.empty() ? data::Sound{} : prompt_sounds_.at(prompt);
  }
  const EncodedText& negative() const { return negative_; }
  /// What a dropped caption of the set becomes, for diffusion.caption_dropout, pooled_dropout and mask_types; undefined
  /// without them.
  const EncodedText& null_caption(int set = 0) const {
    return null_captions_.at(std::min<size_t>(static_cast<size_t>(set), null_captions_.size() - 1));
  }
  /// The caption of no words, for train.preserve = "blank" and train.guidance_target; undefined without them.
  const EncodedText& blank_caption() const { return of_recipe_.blank; }
  const std::filesystem::path& tokenizer() const { return tokenizer_; }
  /// A clip of the shape that is sampled (the first bucket) whose first caption the prompt is, or -1.
  int64_t clip_of_prompt(int prompt) const;

 private:
  friend class Preparation;
  std::map<std::string, at::Tensor> online_extras(int64_t index, int64_t epoch) const;
  data::CacheEntry clip_entry(int64_t index, int64_t epoch = 0) const;
  int64_t draw_number(int64_t index, int64_t epoch) const;
  void encode_online(int64_t index, PreparedSample& sample, const ChooseGiven& given) const;
  size_t caption(int64_t index, int64_t epoch) const;
  data::CachedText text(int64_t index, size_t caption, bool of_class = false) const;
  Words words(int64_t index, size_t caption, bool of_class = false) const;
  /// Of each clip its entries: in cache_.clips one for each draw of its conditions, then in cache_.texts one for each caption
  /// and one for each class caption.
  class Entries {
   public:
    void begin() {
      if (begins_.empty() && clips_ < 2) each_ = numbers_.size();  // of the first, until one has another count
      if (begins_.empty() && clips_ > 1 && numbers_.size() != clips_ * each_)
        for (size_t clip = 0; clip < clips_; ++clip) begins_.push_back(static_cast<uint32_t>(clip * each_));
      if (!begins_.empty()) begins_.push_back(static_cast<uint32_t>(numbers_.size()));
      ++clips_;
    }
    void add(size_t number) { numbers_.push_back(static_cast<uint32_t>(number)); }
    size_t at(size_t clip, size_t entry) const {
      return numbers_.at((begins_.empty() ? clip * each_ : begins_.at(clip)) + entry);
    }

   private:
    size_t clips_ = 0, each_ = 0;
    std::deque<uint32_t> begins_, numbers_;  // no begins where all clips have as many
  };
  data::Clip clip(int64_t index) const { return plan_.clips.at(samples_.at(index)); }
  data::Item item(int64_t index) const { return items_.at(static_cast<size_t>(clip(index).item)); }

  uint64_t seed_ = 0;
  std::string digest_;
  data::Items items_;
  data::ClipPlan plan_;
  std::vector<uint32_t> samples_;  // in plan_.clips
  bool online_ = false, stored_texts_ = false;
  struct {
    data::CacheEntries clips, texts;
    Entries of_clips;
  } cache_;                             // nothing when online
  std::map<Words, CachedText> texts_;   // of captions, when online; no tensors: they are no part of the planned memory
  std::shared_ptr<TextBeside> beside_;  // makes them when they are needed, in place of `texts_`
  struct {
    recipe::Encoders encoders = recipe::Encoders::cached;
    int64_t references = 0;              // most pictures that a sample begins with
    std::vector<data::MaskFiles> masks;  // of each set, or of all data
    families::ConditionDraws draws;
    bool pictures_apart = false;  // whether their captions have an instruction of their own
    EncodedText blank;            // the caption of no words
  } of_recipe_;
  const data::MaskFiles& masks_of(int64_t index) const {
    return of_recipe_.masks.at(static_cast<size_t>(item(index).set));
  }
  std::map<std::pair<int64_t, int64_t>, data::CachedTensor> seen_;  // CLIP features by clip and draw, when online
  const job::Job* job_ = nullptr;
  std::set<std::string> takes_;  // extras of the model
  std::vector<int> buckets_;
  std::vector<std::string> prompts_;
  std::vector<EncodedText> prompt_encoded_;
  struct PromptInputs {
    Pictures followed;
    std::map<std::string, at::Tensor> extra;
  };
  std::vector<PromptInputs> prompt_inputs_;
  std::vector<data::Sound> prompt_sounds_;
  std::shared_ptr<const Listener> listener_;  // when online, for models with an audio input
  EncodedText negative_;
  std::vector<EncodedText> null_captions_ = std::vector<EncodedText>(1);  // by set, or one for all
  data::SetShares sets_;
  std::filesystem::path tokenizer_;
  int64_t problems_ = 0;
};

/// A video as it is shown: pixels, frames a second.
struct ShownSize {
  double height = 0, width = 0;
  double rate = 0;  ///< 0: a picture, or unknown
};
/// Extras "height", "width" and "fps", [1] each, of which a model that does not take them is told nothing: a latent does not
/// say them where its cells are of 8 x 8 pixels and a side is no multiple of 8.
void tell_size(const std::set<std::string>& takes, const ShownSize& size, std::map<std::string, at::Tensor>& extra);
/// Names of the extras that a model takes.
std::set<std::string> inputs_of(const net::Denoiser& model, const std::array<int64_t, 4>& latent);

/// A latent [C, f, h, w] that another program encoded (.npy, .pt). Throws UserError (input) naming the file.
data::CachedTensor stored_latent(const data::Path& path);

/// Prompts of a user with the ending that sample.motion_score names.
std::vector<std::string> moving_prompts(const recipe::Recipe::Data& data, const recipe::Recipe::Sample& sample,
                                        std::vector<std::string> prompts);
/// The prompts a run samples: sample.prompts with that ending, or the data set's first captions (at most four), which have
/// their own, when there are none.
std::vector<std::string> sample_prompts(const recipe::Recipe::Data& data, const recipe::Recipe::Sample& sample,
                                        const data::Items& items);
/// The readable rows of the data set: those of all of data.path, one after the other. `problems`: where what cannot be read
/// goes; nobody asks where `prepare` has told it.
data::Items read_items(const recipe::Recipe& recipe, data::Problems* problems = nullptr);

/// Embeddings of prompts and, last, of the negative one, with the recipe's tokenizers (or the one its data set made). All
/// ranks take part.
std::vector<EncodedText> encode_prompts(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh,
                                        comm::Comm& comm, int rank, const std::vector<std::string>& prompts,
                                        const std::string& negative);

/// All ranks take part: clips are shared out, texts are encoded together under the text encoder's own schedule.
/// `job` must outlive the result. Throws UserError: (input) for faulty rows beyond data.allow_bad (the first one with
/// data.strict), for stale entries without `rebuild`; (disk) when what is to be written does not fit.
PreparedData prepare(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                     const PrepareOptions& options = {});

}  // namespace tessera::prepare
