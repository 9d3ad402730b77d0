#pragma once
// Messages between the devices of several ranks, enqueued on streams: NCCL (cuda/nccl.cpp), in tests a stand-in. comm gives
// them deadlines and names (comm/device_links.h).
//
//   const Communicators& nccl = *used()->communicators;
//   Communicator pair = nccl.connect(id, 2, index, 0, "gather:dp_shard");  // begins; every member calls it
//   while (!nccl.settled(pair)) ...;                                       // connected
//   nccl.exchange(pair, {{}, {x, bytes}}, {{}, {y, bytes}});               // on the current stream
//   while (!nccl.settled(pair)) ...;                                       // the stream has it
//
// A communicator is used by one thread at a time; `fault` and `abort_all` by any. The messages of all communicators of a process
// are given to their streams in one order, the same on all ranks: [Note: one order of issue] in plan/compile/issue.h.
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::device {

using Communicator = void*;

/// Memory of the device; 0 bytes: nothing is sent.
struct Message {
  void* data = nullptr;
  int64_t bytes = 0;
};

inline constexpr int64_t kWindowAlign =
    4096;  ///< of the first byte of a window in its block (NCCL_WIN_REQUIRED_ALIGNMENT)

struct Communicators {
  /// Why there are none on this machine; empty: they can be used.
  std::string (*absence)();
  std::string (*version)();  ///< "NCCL 2.28.9"; ranks with different ones do not connect
  /// By which the members find each other: one of them makes it, all get it.
  std::string (*new_id)();
  /// Begins to connect `size` members for the calling thread's device. `channels`: most that it uses at once; 0: its own
  /// choice.
  Communicator (*connect)(const std::string& id, int size, int index, int channels, const std::string& name);
  /// What the library has logged since the last call: how it reaches the others. Empty where somebody else reads its log.
  std::string (*told)();
  /// Memory that can be lent; null: there is none, and `why` says what the library says. give() takes it back.
  void* (*take)(int64_t bytes, std::string& why);
  void (*give)(void* data);
  /// From here on messages of the communicator whose bytes lie in the range need no copy of the library's own, where it can.
  /// Every member calls it. False where it cannot: they are sent all the same.
  bool (*lend)(Communicator communicator, void* data, int64_t bytes);
  /// A symmetric window: the library's collectives on tensors in these bytes, which are lent, read and write the other
  /// members' memory directly. Every member calls it for the same bytes of its block (kWindowAlign), and uses a window in
  /// collectives at one offset on all members. Called again until it has an answer: empty where the window is open; else why
  /// it is refused. Whoever is refused connects anew: the communicator can do no more.
  std::optional<std::string> (*open_window)(Communicator communicator, void* data, int64_t bytes);
  /// Closes the window, if one is open: before its memory has another use, and before free(). All that the communicator was
  /// given is done.
  void (*close_window)(Communicator communicator);
  /// Whether what was begun last has been done by the host. Throws what fault() says.
  bool (*settled)(Communicator communicator);
  /// What is known to have failed, on the device too; empty: nothing.
  std::string (*fault)(Communicator communicator);
  /// Sends out[i] to member i and receives in[i] from it, after what the current stream was given before.
  void (*exchange)(Communicator communicator, const std::vector<Message>& out, const std::vector<Message>& in);
  /// out: the `bytes` of every member, one after the other. `in` may be its own place in `out`.
  void (*all_gather)(Communicator communicator, void* out, const void* in, int64_t bytes);
  /// out [n] = the sum over members of this member's part of their in [members * n], in fp32 and an order of the library's.
  void (*reduce_scatter)(Communicator communicator, float* out, const float* in, int64_t n);
  /// In place, likewise; every member has the same bits.
  void (*all_reduce)(Communicator communicator, float* values, int64_t n);
  /// Ends what is under way, and its streams go on; nothing more is sent. All that may wait for each other at once: the end of
  /// one waits until its messages have left their streams, where they may stand behind those of another.
  void (*abort_all)(const std::vector<Communicator>& communicators);
  /// All that it was given is done, or it was aborted.
  void (*free)(Communicator communicator);
};

}  // namespace tessera::device
