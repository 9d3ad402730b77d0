#pragma once
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
#include <map>
#include <mutex>

#include "tessera/prepare/encoded.h"
#include "tessera/prepare/text_pass.h"

namespace tessera::prepare {

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

}  // namespace tessera::prepare
