#pragma once
// Ends exchanges that take too long. Gloo's own deadline would count the time in which the whole job was stopped (Ctrl-Z,
// SIGSTOP, `scontrol suspend`), and end the run when it is woken. Internal to the room.
//
//   Watchdog watchdog(70);
//   const Watchdog::Watched watched(watchdog, [&] { abort_all(works); });   // called once, by the watchdog's thread
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace tessera::comm {

class Watchdog {
 public:
  /// `seconds`: what an exchange may take of the time in which this process is awake.
  explicit Watchdog(double seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct Exchange {
    std::function<void()> abort;
    double began = 0;  // on the clock below
    bool aborted = false;
  };
  using Exchanges = std::list<Exchange>;

 public:
  /// An exchange, as long as this lives.
  class Watched {
   public:
    Watched(Watchdog& by, std::function<void()> abort);
    ~Watched();
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    Watchdog& by_;
    Exchanges::iterator exchange_;
  };

 private:
  void watch();

  const double seconds_;
  std::mutex lock_;
  std::condition_variable stopped_;
  bool stop_ = false;
  double awake_ = 0;  // seconds in which this process was awake
  Exchanges exchanges_;
  std::thread thread_;
};

}  // namespace tessera::comm
