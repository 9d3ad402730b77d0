#pragma once
// Who takes and frees tensor memory while a schedule runs, held against the order that the schedule promises
// ([Note: memory at a place] of plan/schedule.h): the compute thread alone, in instructions that touch activations or
// where one stands that takes memory; and whoever is given bytes comes after the instruction that freed them.
//
//   MemoryRecord& record = MemoryRecord::install();          // in front of the meter, before the first tensor
//   engine.lanes().on_instruction([&](..., int index, const plan::Instruction& in, bool ends) { record.at(index, in, ends); });
//   record.start(schedule);
//   { const MemoryRecord::Scope scope(record); engine.run(...); }
//   record.take_faults();                                     // a sentence each
#include <c10/core/CPUAllocator.h>

#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/plan/compile/races.h"

namespace tessera::testing {

class MemoryRecord final : public c10::Allocator {
 public:
  /// Lives until the process ends.
  static MemoryRecord& install() {
    static const bool once = (c10::SetCPUAllocator(&instance(), /*priority=*/200), true);
    (void)once;
    return instance();
  }

  /// From here on this schedule runs; this thread is the compute lane.
  void start(const plan::Schedule& schedule) {
    const std::lock_guard lock(mutex_);
    list_ = &schedule.list;
    clocks_ = plan::Clocks(*list_);
    blocks_.clear();
    last_ = last_touch_ = -1;
    compute_ = std::this_thread::get_id();
  }
  /// Records while it lives.
  class Scope {
   public:
    explicit Scope(MemoryRecord& record) : record_(record) { record.turn(true); }
    ~Scope() { record_.turn(false); }
    Scope(const Scope&) = delete;

   private:
    MemoryRecord& record_;
  };

  /// Called by the thread of the instruction's lane, before and after it.
  void at(int index, const plan::Instruction& in, bool ends) {
    running = ends ? -1 : index;
    const std::lock_guard lock(mutex_);
    if (in.lane == plan::Lane::compute) last_ = index;
    if (plan::touches_activations(in)) last_touch_ = index;
  }
  std::vector<std::string> take_faults() { return std::exchange(faults_, {}); }
  int reused() const { return reused_; }  ///< takes at a place of bytes that were freed before

  c10::DataPtr allocate(size_t bytes) override {
    void* const data = inner_.allocate(bytes).release_context();
    if (data) took(static_cast<char*>(data), bytes);
    return {data, data, &give, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

 private:
  struct Block {
    char* end;
    int freed;  // the instruction of the compute lane, during or after which it was freed; -1: it is in use
  };
  explicit MemoryRecord(c10::Allocator& inner) : inner_(inner) {}

  static MemoryRecord& instance() {
    static auto* record = new MemoryRecord(*c10::GetCPUAllocator());
    return *record;
  }
  static void give(void* data) {
    if (!data) return;
    MemoryRecord& record = instance();
    record.freed(static_cast<char*>(data));
    record.inner_.raw_deleter()(data);
  }

  void turn(bool on) {
    const std::lock_guard lock(mutex_);
    on_ = on;
  }

  void took(char* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!on_) return;
    int freed = -1;
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const bool overlaps = block->first < data + bytes && data < block->second.end;
      if (overlaps) freed = std::max(freed, block->second.freed);
      block = overlaps ? blocks_.erase(block) : std::next(block);
    }
    blocks_[data] = {data + bytes, -1};
    const std::string what = "takes " + std::to_string(bytes) + " bytes";
    if (std::this_thread::get_id() != compute_) return fault(running, what + " on a thread of another lane");
    if (running >= 0) {
      if (!plan::touches_activations((*list_)[running])) fault(running, what);
      return;
    }
    bool any = false;  // of the instructions that are issued here
    const int count = static_cast<int>(list_->size());
    int i = last_ + 1;
    for (; i < count && (*list_)[i].lane != plan::Lane::compute; ++i) {
      if (!plan::takes_memory((*list_)[i])) continue;
      any = true;
      reused_ += freed >= 0;
      if (freed >= 0 && !clocks_.before(freed, i))
        fault(i, "may be given bytes that " + describe(freed) + " has freed, and does not wait for it");
    }
    if (!any && i < count) fault(last_, what + " behind its end, where nothing is issued that takes memory");
  }

  void freed(char* data) {
    const std::lock_guard lock(mutex_);
    if (!on_) return;
    const auto block = blocks_.find(data);
    if (block == blocks_.end()) return;  // taken before
    if (std::this_thread::get_id() != compute_) fault(running, "frees memory on a thread of another lane");
    // What the compute thread frees between its instructions is work of the place: whoever takes memory there or later
    // comes after it, as after the last instruction before it that touches activations.
    block->second.freed = running >= 0 ? running : last_touch_;
  }

  std::string describe(int i) const {
    if (i < 0) return "the start";
    const plan::Instruction& in = (*list_)[i];
    return std::string(name(in.op)) + " " + in.name + " (i " + std::to_string(i) + ", " + std::string(name(in.lane)) +
           ")";
  }
  void fault(int i, const std::string& text) {
    if (faults_.size() < 10) faults_.push_back(describe(i) + " " + text);
  }

  static inline thread_local int running = -1;  // instruction of this thread
  c10::Allocator& inner_;
  std::mutex mutex_;
  bool on_ = false;
  std::thread::id compute_;
  const std::vector<plan::Instruction>* list_ = nullptr;
  plan::Clocks clocks_;
  std::map<char*, Block> blocks_;
  int last_ = -1, last_touch_ = -1;  // of the compute lane; and of those, the last that touches activations
  int reused_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace tessera::testing
