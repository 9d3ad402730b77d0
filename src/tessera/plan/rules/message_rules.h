#pragma once
// Messages between the stages of a pipeline: what is sent was made before, what is received is used, and the memory of
// both comes back. Follows one pass line by line. Internal to the rules.
//
//   MessageRules messages(book, pass, order);
//   messages.send(k); messages.recv(k); messages.forget(k);        // as the lines come
//   messages.take(k, /*forward=*/true);                            // a forward uses what its unit was sent
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tessera/plan/rules/book.h"
#include "tessera/plan/rules/order.h"

namespace tessera::plan {

class MessageRules {
 public:
  MessageRules(Book& book, const Pass& pass, const Order& order) : book_(book), pass_(pass), order_(order) {}

  static bool is(const Book& book, int k) { return book.in(k).part == Part::message; }

  /// What is sent was made before: by the last forward (or backward) of its micro-batch in the list.
  void send(int k) {
    const bool forward = goes_forward(book_.in(k).lane);
    int maker = -1;
    for (int j = pass_.begin; j < k; ++j)
      if (book_.in(j).op == (forward ? Op::forward : Op::backward) && book_.in(j).micro == book_.in(k).micro) maker = j;
    if (maker < 0)
      book_.complain(k, "order",
                     std::string("sends what no ") + (forward ? "forward" : "backward") +
                         " of this micro-batch has made; put it after that");
    else
      after(k, maker, "what it sends may not be there");
    in_flight_[k] = -1;
  }

  /// The memory of what was sent is free.
  void forget(int k) {
    bool any = false;
    for (int wait : book_.waits(k))
      if (const auto found = in_flight_.find(wait); found != in_flight_.end())
        any = true, only_once(book_, k, found->second);
    if (!any) book_.complain(k, "order", "frees what was sent and waits for no send; add that line to \"wait\"");
  }

  void recv(int k) {
    const bool forward = goes_forward(book_.in(k).lane);
    only_once(book_, k, received_.try_emplace({book_.unit(k), book_.in(k).micro, forward}, -1).first->second);
    if (!forward) gradients_.insert(book_.in(k).micro);
  }

  /// Line `k` uses what its unit was sent, if anything was.
  bool take(int k, bool forward) {
    const auto found = received_.find({book_.unit(k), book_.in(k).micro, forward});
    if (found == received_.end()) return false;
    after(k, found->second, "what it was sent may not be there");
    used_.insert(found->second);
    return true;
  }

  /// Whether a gradient of the micro-batch was received.
  bool has_gradient(int micro) const { return gradients_.contains(micro); }

  void finish() {
    for (const auto& [key, recv] : received_)
      if (!used_.contains(recv)) book_.complain(recv, "order", "receives what nothing uses; remove it on both ranks");
    for (const auto& [send, drop] : in_flight_)
      if (drop < 0) book_.complain(send, "order", "keeps its memory for ever; put a drop that waits for it after it");
  }

 private:
  static bool goes_forward(Lane lane) { return lane == Lane::send_next || lane == Lane::recv_prev; }

  void after(int k, int earlier, const char* otherwise) { must_follow(book_, order_, k, earlier, "order", otherwise); }

  Book& book_;
  const Pass& pass_;
  const Order& order_;
  std::map<std::tuple<int, int, bool>, int> received_;  // (unit, micro-batch, forward): its recv
  std::set<int> used_;                                  // recvs that something used
  std::set<int> gradients_;                             // micro-batches whose gradient was received
  std::map<int, int> in_flight_;                        // by send: the drop of its memory
};

}  // namespace tessera::plan
