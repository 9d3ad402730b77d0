#pragma once
// Texts to embeddings with a text encoder of any size: a unit list under a forward-only schedule, sharded over the
// run's mesh. All ranks encode at the same time, the same text or each its own.
//
//   TextPass text(recipe, job, mesh, comm, rank, tokenizer_file(recipe, captions));
//   EncodedText caption = text.encode({"a cat"});
//   caption.context;                                                // [n, D]
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/comm.h"
#include "tessera/data/dataset.h"
#include "tessera/data/text/prompt_ids.h"
#include "tessera/job/encoder_plan.h"
#include "tessera/job/job.h"
#include "tessera/prepare/encoded.h"
#include "tessera/prepare/encoder_run.h"

namespace tessera::prepare {

class TextPass {
 public:
  TextPass(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
           const std::filesystem::path& tokenizer);

  /// Reads the encoder's weights, unless they are loaded. Ranks take different times for it: call Pace::barrier()
  /// after.
  void load();
  /// Behind its instruction; all ranks together, each its own; loads.
  EncodedText encode(const Words& words) {
    return {encode(prompts(words.of_picture).encode(words.text)), pool(words.text), glyphs(words.text)};
  }
  /// Of a negative prompt: without the instruction. An empty one is the embedding that the denoiser's weights learned
  /// for it, where they have one (job/null_caption.h): it may have more rows than a caption. What it quotes is not read, as
  /// in the official program.
  EncodedText encode_negative(const std::string& text);
  int64_t token_count(const std::string& text) const { return prompts().encode(text).kept(); }  ///< n; alone

 private:
  at::Tensor encode(const data::PromptIds& prompt);
  at::Tensor pool(const std::string& text);
  at::Tensor glyphs(const std::string& text);

  const job::Job& job_;
  const std::string weights_, second_weights_;
  const job::HeldWeights storage_, second_storage_;
  const Mesh mesh_;
  comm::Comm& comm_;
  const int rank_;
  /// Opened at the start, where this program can: a cache that holds all texts needs none.
  const data::PromptTokenizer& prompts(bool of_pictures = false) const;

  const bool apart_;  // whether pictures have an instruction of their own
  const std::function<data::PromptTokenizer(bool of_pictures)> open_prompts_;
  mutable std::optional<const data::PromptTokenizer> prompts_, picture_prompts_;
  std::optional<const data::Tokenizer> pooled_tokenizer_;  // of models that take a pooled caption
  std::optional<const data::Tokenizer> glyph_tokenizer_;   // of those that take quoted text
  const std::function<at::Tensor()> read_null_caption_;
  std::optional<at::Tensor> null_caption_;  // once it was asked for; undefined: none was learned
  std::optional<EncoderRun> run_;           // nothing while every caption is cached
  std::optional<EncoderRun> second_run_;    // likewise, of the second encoder
};

/// The rows of an encoder's output [n, D] that are the prompt's embedding.
at::Tensor kept_rows(const at::Tensor& hidden, const data::PromptIds& prompt);

/// data.pooled_tokenizer; where neither it nor weights are given, the text encoder's own. Throws UserError (usage) for
/// weights without a tokenizer.
std::filesystem::path pooled_tokenizer_file(const recipe::Recipe::Data& data, const std::filesystem::path& tokenizer);

/// What encodes, as hashes: a change of any of it makes other cache entries ([Note: keys of the cache]).
struct EncoderHashes {
  std::string clip, text;
  std::string picture_text;  ///< of captions of pictures
  std::string both;          ///< of entries of version 1
  bool same_texts = false;   ///< the texts of those have the same values, but for where they were cut
  bool same_clips = false;   ///< so have their features of pictures
};
EncoderHashes encoder_hashes(const recipe::Recipe& recipe, const job::Job& job, const std::filesystem::path& tokenizer);

/// Captions of a data set, each once, in their order.
std::vector<std::string> distinct_captions(const data::Items& items);

/// data.tokenizer; where there is none, the place of the small one that make_tokenizer makes of `captions`: beside the
/// cached samples, or in the run folder when there is no cache.
std::filesystem::path tokenizer_file(const recipe::Recipe& recipe, const std::vector<std::string>& captions);
/// Makes it unless it is there. One rank does it.
void make_tokenizer(const recipe::Recipe::Data& data, const job::Job& job, const std::vector<std::string>& captions,
                    const std::filesystem::path& file);

// Text encoders that stay in memory during training and encode captions concurrently with its steps (data.encoders).
//
//   TextBeside text(recipe, job, mesh, comm, rank, tokenizer);      // host, device: a whole encoder on each rank
//   CachedText caption = text.caption({"a cat"});                   // on the Loader's thread
//
//   text.together({{{"a cat"}}, {{"a dog"}, {"a cow"}}}, dp_rank);  // sharded: all ranks, on the thread of their steps
//   CachedText caption = text.caption({"a cat"});                   // then those of this rank, on any thread
//
// [Note: encoders beside a step] A whole encoder talks to no other rank, so it runs on the Loader's thread while the
// engine computes; in host memory it computes on the CPU, also where the steps are a GPU's. One whose weights are sharded gathers them unit by unit; its collectives must come in the same order
// as the step's on every rank, so it runs between two steps, on the same groups, and that time is not hidden. The
// embeddings are those of a cache, to the bit: a whole encoder and a sharded one run the same operators.

class TextBeside {
 public:
  TextBeside(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
             const std::filesystem::path& tokenizer);
  ~TextBeside();

  /// As TextPass: all ranks together where the encoder is sharded.
  void load();
  EncodedText encode(const Words& words);
  EncodedText encode_negative(const std::string& text);

  /// Of a caption of the data set, on any thread; where the encoder is sharded one of the last two together().
  CachedText caption(const Words& words);
  /// Whether captions are encoded by all ranks together, and not by caption().
  bool sharded() const { return place_ == recipe::Encoders::sharded; }
  /// The captions that each dp rank needs of a step; `mine`: this rank's place among them. All ranks together, with the
  /// same lists: in each round every rank encodes one of its own.
  void together(const std::vector<std::vector<Words>>& of_ranks, size_t mine);
  /// Bytes of the weights in host memory.
  int64_t host_bytes() const { return host_bytes_; }

 private:
  template <class Make>
  EncodedText made_beside(const Make& make);

  const recipe::Encoders place_;
  std::optional<comm::Comm> alone_;  // this rank's own, where the encoder is whole
  std::optional<TextPass> pass_;
  std::mutex mutex_;
  std::map<Words, CachedText> now_, before_;  // of the last two together()
  int64_t host_bytes_ = 0;
};

/// Host memory: the numbers of an embedding.
CachedText cached(const EncodedText& text);
data::CachedTensor cached(const at::Tensor& tensor);

// Warns about captions that are longer than the model reads.
//
//   tell_cut_captions(recipe.data, job, captions, tokenizer);       // one rank

/// Says how many captions have more tokens than the model reads (its text_len), by how many at most, and which is the
/// first: the rest of them is cut off.
void tell_cut_captions(const recipe::Recipe::Data& data, const job::Job& job, const std::vector<std::string>& captions,
                       const std::filesystem::path& tokenizer);

}  // namespace tessera::prepare
