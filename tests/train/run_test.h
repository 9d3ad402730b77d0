#pragma once
// A run of one rank in a folder that goes with the test: what the parts of a run are made of, without a model.
#include "folder_test.h"
#include "tessera/train/divergence.h"

namespace tessera::train {

class RunTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    settings_.out = (folder_ / "run").string();
    settings_.steps = 100, settings_.spike = 50, settings_.on_nan = "skip", settings_.resume = "auto";
    experts_.list = {{.name = ""}};
  }

  /// As a start of the run has it, with its history open.
  RunFolder& start(const std::vector<Change>& changes = {}) {
    run_.reset();
    run_.emplace(settings_, ranks_);
    run_->choose(settings_.resume, /*back=*/false);
    run_->make();
    run_->open_log("", changes);
    return *run_;
  }

  std::filesystem::path out() const { return settings_.out; }
  std::string lines() const { return read(out() / "metrics.jsonl"); }
  bool told(const std::string& text) const { return lines().find(text) != std::string::npos; }

  /// A pass of one expert that is the whole step, and what it came to.
  static ExpertPass pass(int64_t step, size_t expert = 0) {
    ExpertPass pass;
    pass.pass.step = step, pass.pass.expert = expert;
    return pass;
  }
  static Decision decision(double loss, const std::string& skipped = "") {
    Decision d;
    d.loss = loss, d.norm = 1, d.rate = 1e-3, d.skipped = skipped;
    return d;
  }

  recipe::Recipe::Run settings_;
  std::vector<recipe::Stage> stages_;
  job::Experts experts_;
  Ranks ranks_{{}, {}, 60};
  std::optional<RunFolder> run_;
};

}  // namespace tessera::train
