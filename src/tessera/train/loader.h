#pragma once
// Data loader: threads read or decode, encode and noise the samples of coming steps while the engine computes. Making
// and waiting take host memory, but for what books itself elsewhere (an autoencoder runs on the device); packing is the
// objective's.
//
//   Loader loader(1);
//   loader.ahead(wanted(step + 1));                      // begins; what nobody wants any more is dropped
//   TrainingSamples samples = loader.take(wanted(step)); // makes what is missing, waits, rethrows what making threw
//
// A sample's numbers depend on its key alone, never on when or by which thread it was made.
#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "tessera/diffusion/training_sample.h"

namespace tessera::train {

/// A sample that a step needs. `make` runs on any thread and must not talk to other ranks.
struct Wanted {
  std::array<int64_t, 4> key{};  ///< part of the run, expert's data, step of its own, place in the global batch
  std::function<diffusion::TrainingSample()> make;
  int64_t place() const { return key[3]; }
};

class Loader {
 public:
  explicit Loader(int threads);
  ~Loader();  ///< waits for the samples that are being made, drops the rest
  Loader(const Loader&) = delete;

  void ahead(std::vector<Wanted> wanted);
  diffusion::TrainingSamples take(const std::vector<Wanted>& wanted);
  /// Seconds that `take` waited since the last call.
  double take_waited() { return std::exchange(waited_, 0.0); }

  /// While it lives no thread makes a sample: what they use (the autoencoder) is used by others.
  class Pause {
   public:
    explicit Pause(Loader& loader);
    ~Pause();
    Pause(const Pause&) = delete;

   private:
    Loader& loader_;
  };

 private:
  enum class State { open, making, made, failed };
  struct Entry {
    Wanted wanted;
    State state = State::open;
    std::shared_ptr<const diffusion::TrainingSample> sample = {};
    std::exception_ptr error = {};
  };
  using EntryPtr = std::shared_ptr<Entry>;
  void loop();
  void make(Entry& entry);
  EntryPtr next_open() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<EntryPtr> entries_;  // in the order in which they are needed
  bool stop_ = false;
  int pauses_ = 0, making_ = 0;
  double waited_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::train
