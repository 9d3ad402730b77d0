#pragma once
// Messages between pipeline stages: a message is computed before it is sent, a received message is used, and the memory
// of both is freed. Follows one pass line by line. Internal to the rules.
//
//   MessageRules messages(checker, pass, order);
//   messages.send(k); messages.recv(k); messages.forget(k);        // in the order of the lines
//   messages.take(k, /*forward=*/true);                            // a forward uses its unit's message
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tessera/plan/rules/checker.h"
#include "tessera/plan/rules/order.h"

namespace tessera::plan {

class MessageRules {
 public:
  MessageRules(Checker& checker, const Pass& pass, const Order& order)
      : checker_(checker), pass_(pass), order_(order) {}

  static bool is(const Checker& checker, int k) { return checker.in(k).part == Part::message; }

  /// A message is computed by the last forward (or backward) of its micro-batch before it.
  void send(int k) {
    const bool forward = goes_forward(checker_.in(k).lane);
    int maker = -1;
    for (int j = pass_.begin; j < k; ++j)
      if (checker_.in(j).op == (forward ? Op::forward : Op::backward) && checker_.in(j).micro == checker_.in(k).micro)
        maker = j;
    if (maker < 0)
      checker_.report(k, "order",
                      std::string("sends what no ") + (forward ? "forward" : "backward") +
                          " of this micro-batch has made; put it after that");
    else
      after(k, maker, "what it sends may not be there");
    in_flight_[k] = -1;
  }

  /// Frees the memory of a sent message.
  void forget(int k) {
    bool any = false;
    for (int wait : checker_.waits(k))
      if (const auto found = in_flight_.find(wait); found != in_flight_.end())
        any = true, only_once(checker_, k, found->second);
    if (!any) checker_.report(k, "order", "frees what was sent and waits for no send; add that line to \"wait\"");
  }

  void recv(int k) {
    const bool forward = goes_forward(checker_.in(k).lane);
    only_once(checker_, k, received_.try_emplace({checker_.unit(k), checker_.in(k).micro, forward}, -1).first->second);
    if (!forward) gradients_.insert(checker_.in(k).micro);
  }

  /// Line `k` uses its unit's message, if there is one.
  bool take(int k, bool forward) {
    const auto found = received_.find({checker_.unit(k), checker_.in(k).micro, forward});
    if (found == received_.end()) return false;
    after(k, found->second, "what it was sent may not be there");
    used_.insert(found->second);
    return true;
  }

  /// Whether a gradient of the micro-batch was received.
  bool has_gradient(int micro) const { return gradients_.contains(micro); }

  void finish() {
    for (const auto& [key, recv] : received_)
      if (!used_.contains(recv)) checker_.report(recv, "order", "receives what nothing uses; remove it on both ranks");
    for (const auto& [send, drop] : in_flight_)
      if (drop < 0) checker_.report(send, "order", "keeps its memory for ever; put a drop that waits for it after it");
  }

 private:
  static bool goes_forward(Lane lane) { return lane == Lane::send_next || lane == Lane::recv_prev; }

  void after(int k, int earlier, const char* otherwise) {
    must_follow(checker_, order_, k, earlier, "order", otherwise);
  }

  Checker& checker_;
  const Pass& pass_;
  const Order& order_;
  std::map<std::tuple<int, int, bool>, int> received_;  // (unit, micro-batch, forward): its recv
  std::set<int> used_;                                  // recvs whose message was used
  std::set<int> gradients_;                             // micro-batches whose gradient was received
  std::map<int, int> in_flight_;                        // by send: the drop of its memory
};

}  // namespace tessera::plan
