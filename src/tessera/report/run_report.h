#pragma once
// The data that the report's page draws: curves, memory, lanes, tables and pictures of runs.
#include <cstdint>
#include <filesystem>
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

// Draws one run, or several over one another, as a self-contained page: curves, memory, lanes over time, frames.
// Inline SVG and base64 pictures only, readable on a phone and in the dark.
//
//   std::string page = render_report({.title = "runs/a", .runs = {{"runs/a", steps}}, .lanes = ...});

std::string render_report(const ReportInput& input);

// The charts of the report, each a card of HTML: curves as SVG, memory as bars of boxes, lanes as SVG that scrolls.
//
//   out << curve_card("Loss", runs, [](const ReportInput::Step& s) { return s.loss; }, /*logarithmic=*/true);

/// One line a run; a run's steps are thinned to a few hundred points, each the mean of a stretch. Empty without steps.
std::string curve_card(const std::string& title, const std::vector<ReportInput::Run>& runs,
                       double (*value)(const ReportInput::Step&), bool logarithmic);
/// Which colour is which run; empty for a single one.
std::string run_legend(const std::vector<ReportInput::Run>& runs);
std::string memory_card(const std::vector<ReportInput::Rank>& ranks);
/// Every rank has a block of lanes; ranks beyond the first 16 are counted, not drawn.
std::string lanes_card(const std::vector<ReportInput::Bar>& bars, const std::string& title);
std::string table_card(const ReportInput::Table& table);

// report.html of a run, from what its folder holds: the same page at the end of training, of a stopped run, and of
// several runs side by side.
//
//   write_run_report({"runs/a"}, "runs/a/report.html");
//   write_run_report({"runs/a", "runs/b"}, "compare.html");

/// One run: curves, memory, lanes of every rank, frames of source, reconstruction and newest sample of each prompt,
/// recipe and plan. Several: their curves over one another and their numbers in a table, labelled by folder.
/// Throws UserError (input) when one is no run, (disk) when `file` cannot be written.
void write_run_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& file);

}  // namespace tessera::report
