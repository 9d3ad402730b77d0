#pragma once
// The data that the report's page draws: curves, memory, lanes, tables and pictures of runs.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::report {

struct ReportInput {
  std::string title, subtitle;
  std::vector<std::pair<std::string, std::string>> facts;  ///< "parameters" -> "7.1 M"

  struct Step {
    int64_t step;
    double loss, grad_norm, lr, seconds;
  };
  /// Curves of several runs lie over one another, each in its colour with its label.
  struct Run {
    std::string label;
    std::vector<Step> steps;
  };
  std::vector<Run> runs;
  std::vector<Run> experts;  ///< behind a gate: `loss` is the share of the step's samples that chose it

  struct Table {
    std::string title;
    std::vector<std::string> head;
    std::vector<std::vector<std::string>> rows;  ///< the first cell of a row names it
  };
  std::vector<Table> tables;

  struct Rank {
    int rank;
    int64_t predicted, peak, reserved;
    std::vector<std::pair<std::string, int64_t>> parts;  ///< at the peak, in order
  };
  std::vector<Rank> ranks;

  struct Bar {
    int rank;
    std::string lane, label, kind;  ///< kind chooses the colour: "forward", "gather"...
    double begin, end;              ///< seconds within the step
  };
  std::vector<Bar> lanes;
  std::string lanes_title;

  /// Frames of one clip, row by row under each other: "source", "reconstruction", "sample".
  struct Strip {
    std::string caption;
    struct Row {
      std::string label;
      std::vector<std::vector<uint8_t>> jpegs;
    };
    std::vector<Row> rows;
  };
  std::vector<Strip> strips;
  std::vector<std::pair<std::string, std::string>> texts;  ///< heading -> preformatted text (recipe, plan)
};

}  // namespace tessera::report
