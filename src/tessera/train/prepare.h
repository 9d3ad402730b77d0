#pragma once
// Encodes the data set into the cache (what is missing or stale, no more), and gives it back as samples.
//
//   PreparedData data = prepare(recipe, job, comm, rank, world, {});
//   data.sample(data.order().at(position)).latent;                  // [C, f, h, w]
#include "tessera/comm/comm.h"
#include "tessera/data/cache.h"
#include "tessera/data/dataset.h"
#include "tessera/data/order.h"
#include "tessera/train/job.h"

namespace tessera::train {

struct PreparedSample {
  at::Tensor latent;   ///< [C, f, h, w] fp32
  at::Tensor context;  ///< [n, D] fp32
};

class PreparedData {
 public:
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  PreparedSample sample(int64_t index) const;
  std::string source(int64_t index) const { return items_.at(index).path.string(); }
  const data::SampleOrder& order() const { return *order_; }

  int prompts() const { return static_cast<int>(prompts_.size()); }
  const std::string& prompt_text(int prompt) const { return prompts_.at(prompt); }
  const at::Tensor& prompt_context(int prompt) const { return prompt_contexts_.at(prompt); }
  const at::Tensor& negative_context() const { return negative_context_; }
  const std::filesystem::path& tokenizer() const { return tokenizer_; }
  /// The data set's clip whose caption the prompt is, or -1.
  int64_t clip_of_prompt(int prompt) const;

 private:
  friend PreparedData prepare(const Recipe&, const Job&, const Mesh&, comm::Comm&, int);
  std::vector<data::Item> items_;
  std::optional<data::CacheReader> cache_;
  std::optional<data::SampleOrder> order_;
  std::vector<std::string> prompts_;
  std::vector<at::Tensor> prompt_contexts_;
  at::Tensor negative_context_;
  std::filesystem::path tokenizer_;
};

/// The prompts a run samples: sample.prompts, or the data set's first captions (at most four) when there are none.
std::vector<std::string> sample_prompts(const Recipe& recipe, const std::vector<data::Item>& items);
std::vector<data::Item> read_items(const Recipe& recipe);

/// Embeddings [n, D] of texts, with the recipe's tokenizer (or the one its data set made). All ranks take part.
std::vector<at::Tensor> encode_texts(const Recipe& recipe, const Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                                     const std::vector<std::string>& texts);

/// All ranks take part: clips are shared out, texts are encoded together under the text encoder's own schedule.
PreparedData prepare(const Recipe& recipe, const Job& job, const Mesh& mesh, comm::Comm& comm, int rank);

}  // namespace tessera::train
