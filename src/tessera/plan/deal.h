#pragma once
// Samples that chose an expert each, dealt to the dp ranks: how many of each expert a rank runs, who sends how many to
// whom, and what of the ranks' time a step leaves unused.
//
//   const Deal dealt = deal(chosen);                               // chosen[e][r]: samples of dp rank r that chose e
//   step_use(dealt.shares, micro_batch).idle();                    // 0.05; of `chosen` itself: without the deal
//   deal_forecast({0.9, 0.1}, {4, 4}, micro_batch).dealt.idle;     // its mean over the choices of many steps
//
// Everything here is a function of the counts alone, which all ranks know: they come to the same deal without a word.
#include <cstddef>
#include <cstdint>
#include <map>
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

/// The samples of each expert spread over the ranks so that none has two more of it than another, by the fewest moves.
/// What does not divide stays where samples are, and what must move goes to ranks with fewer samples so far.
Deal deal(const ExpertShares& chosen);

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
StepUse step_use(const ExpertShares& shares, int64_t micro_batch);

/// Means over steps whose samples choose their experts independently of each other.
struct DealForecast {
  struct Way {
    double idle = 0, dummies = 0;  ///< StepUse::idle() and dummy_share()
    /// Passes of a step, by the samples of the rank that has the most of them.
    std::map<int64_t, double> passes = {};
  } dealt, undealt;
  double moved = 0;        ///< samples that change their rank
  double busiest = 0;      ///< those that the rank sends or receives that does most of it
  int64_t worst_sent = 0;  ///< the most that a rank sends in any step
};

/// `frequencies`: of the experts, with any sum above 0. `own`: samples of each dp rank. Drawn with fixed keys: the same
/// numbers give the same forecast.
DealForecast deal_forecast(const std::vector<double>& frequencies, const std::vector<int64_t>& own,
                           int64_t micro_batch);

}  // namespace tessera::plan
