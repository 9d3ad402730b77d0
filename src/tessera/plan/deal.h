#pragma once
// Samples that chose an expert each, dealt to the dp ranks: how many of each expert a rank runs, who sends how many to
// whom, and what of the ranks' time a step leaves unused. Its means over many steps: plan/simulate/predict.h.
//
//   const Deal dealt = deal(chosen);                               // chosen[e][r]: samples of dp rank r that chose e
//   step_use(dealt.shares, {micro_batch}).idle();                  // 0.05; of `chosen` itself: without the deal
//
// Everything here is a function of the counts alone, which all ranks know: they come to the same deal without a word.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::plan {

/// Samples by expert and dp rank.
using ExpertShares = std::vector<std::vector<int64_t>>;

struct Deal {
  struct Move {
    size_t expert = 0;
    int from = 0, to = 0;  ///< dp ranks
    int64_t samples = 0;
    bool operator==(const Move&) const = default;
  };
  ExpertShares shares;      ///< behind the moves
  std::vector<Move> moves;  ///< by expert, then sender, then receiver
  int64_t sent(int dp_rank) const;
  int64_t received(int dp_rank) const;
};

/// Experts whose passes run side by side, the lesser first: [Note: side by side] of plan/compile/issue.h.
using ExpertPairs = std::vector<std::pair<size_t, size_t>>;
/// As many pairs as there can be of experts whose samples a deal leaves a last micro-batch that only some ranks have, one sample
/// each, and together no more ranks than there are. `micro_batches`: of each expert; one number: of all.
ExpertPairs expert_pairs(const ExpertShares& chosen, const std::vector<int64_t>& micro_batches);

/// The samples of each expert spread over the ranks so that none has two more of it than another, by the fewest moves.
/// What does not divide stays where samples are, and what must move goes to ranks with fewer samples so far. What does not
/// divide of a pair goes to different ranks.
Deal deal(const ExpertShares& chosen, const ExpertPairs& pairs = {});

/// The most samples that a rank with `own` of them sends in any deal among `ranks`.
int64_t most_sent(int64_t own, int ranks);

/// How a step fills the time of its ranks. A pass of an expert takes as long as the rank with the most of its samples; the
/// others wait there, in micro-batches with fewer samples or without any (dummies).
struct StepUse {
  int64_t samples = 0, room = 0;    ///< that ran; that could have run on all ranks in this time
  int64_t micros = 0, dummies = 0;  ///< micro-batches of all ranks; those without a sample
  double idle() const { return room > 0 ? 1 - static_cast<double>(samples) / static_cast<double>(room) : 0; }
  double dummy_share() const { return micros > 0 ? static_cast<double>(dummies) / static_cast<double>(micros) : 0; }
};
/// `micro_batches`: of each expert; one number: of all. The last micro-batches of `pairs` take the time of the longer one.
StepUse step_use(const ExpertShares& shares, const std::vector<int64_t>& micro_batches, const ExpertPairs& pairs = {});

}  // namespace tessera::plan
