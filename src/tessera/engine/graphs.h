#pragma once
// Training steps as graphs of the device: what the lanes were given up to the norm is captured once, and from then on one call
// gives it to the device again, where launches would take the host longer than the device takes for the work.
//
//   StepGraphs graphs(interpreter, lanes);
//   if (!graphs.run(shared)) lanes.run(shared, 0, norm);      // the instructions before the norm
//
// [Note: what a graph repeats] A graph has the addresses and the numbers that kernels were given when it was captured.
// Parameters, states, gradients and slots stay where they are while a program runs, and temporaries get the same places
// again, which a graph holds while it works (Meter::Claim). Samples are brought to the same page-locked memory. Numbers
// that the host knows are the same where the micro-batches have the same form: sizes, samples, segments, and the weights of
// losses. So there is a graph for each form (buckets, lengths of captions), captured when a form comes for the second time:
// the first time libraries set themselves up. [Note: graphs of several ranks] Messages between devices are nodes like
// others, on every axis of the mesh, and NCCL wants all ranks of one to launch graphs of one capture. So all ranks tell each
// other their forms before each step, those of other stages too, and the form of a step is that of all of them: they capture
// it together, or repeat it together, or run it without. Updates are not part of it: their rates, clip factors and random
// numbers are new in each step.
#include <deque>

#include "tessera/engine/lanes.h"

namespace tessera::engine {

class StepGraphs {
 public:
  StepGraphs(Interpreter& interpreter, Lanes& lanes, comm::Comm& comm)
      : interpreter_(interpreter), lanes_(lanes), comm_(comm) {}
  ~StepGraphs() { clear(); }
  StepGraphs(const StepGraphs&) = delete;

  /// Whether steps of the plan can be graphs (plan::graphs_absence): the same on all ranks.
  bool takes(const plan::Plan& plan);
  /// Whether this rank's can, on this machine.
  bool takes_here(const plan::Program& program);
  /// Gives the device the step's instructions before its norm, as a graph; false: they are to be run. All ranks call it
  /// together. `wanted`: this rank has nothing against it.
  bool run(const std::shared_ptr<ScheduleRun>& shared, bool wanted);
  /// Before addresses change.
  void clear();
  /// What a log should say: "captured the steps of 4096 tokens ... as a graph of 512 nodes".
  struct News {
    std::string text;
    bool warns = false;
  };
  /// Since the last call.
  std::vector<News> take_news() { return std::exchange(news_, {}); }
  /// Steps that were captured, and that were repeated.
  int64_t captured() const { return captured_; }
  int64_t repeated() const { return repeated_; }

 private:
  struct Step {
    plan::ProgramPtr program;
    std::string form;
    device::Graph graph = nullptr;  // null: its form was seen once
    Meter::Pool pool = {};
    std::vector<Brought> brought = {};
    StepNumbers::Given given = {};
    const void* uploads = nullptr;
    std::shared_ptr<const comm::GraphMessages> messages = {};
    int64_t nodes = 0;  // of the rank with most
  };
  enum class Way { plain, capture, repeat };
  Way least(Way here);
  std::optional<std::string> of_all(const std::optional<std::string>& form);
  Step& find(const plan::ProgramPtr& program, std::string form, bool& fresh);
  void capture(const std::shared_ptr<ScheduleRun>& shared, Step& step);
  void launch(ScheduleRun& run, const Step& step);
  void forget(Step& step);
  void keep_few();
  void tell(std::string news, bool warns = false) { news_.push_back({std::move(news), warns}); }
  bool none_against(const std::string& absence);

  Interpreter& interpreter_;
  Lanes& lanes_;
  comm::Comm& comm_;
  std::deque<Step> steps_;  // the one that came last is the first
  std::vector<News> news_;
  int64_t captured_ = 0, repeated_ = 0;
  int forms_ = 0;  // since the last that came again
  bool told_forms_ = false, told_taken_ = false, told_absence_ = false;
  comm::Group& world() const { return comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}); }
};

}  // namespace tessera::engine
