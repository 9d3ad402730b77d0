#include "tessera/train/run_report.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/units.h"

namespace tessera::train {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

template <typename Each>
void each_line(const fs::path& file, const Each& each) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (const Json json = Json::parse(line, nullptr, false); !json.is_discarded()) each(json);
}

double number(const Json& json, const char* key) { return json.at(key).is_number() ? json.at(key).get<double>() : NAN; }

void read_metrics(const fs::path& file, ReportInput& in) {
  double psnr = NAN;
  each_line(file, [&](const Json& json) {
    if (json.at("type") == "sample" && json.contains("psnr")) psnr = json["psnr"];
    if (json.at("type") != "step") return;
    in.steps.push_back({json.at("step"), number(json, "loss"), number(json, "grad_norm"), number(json, "lr"),
                        number(json, "seconds")});
    in.ranks.clear();
    for (const auto& rank : json.at("ranks")) {
      ReportInput::Rank r{rank.at("rank"), rank.at("predicted_peak_bytes"), rank.at("peak_bytes"), {}};
      for (const char* part : {"parameters", "gradients", "states", "slots", "activations", "temporaries"})
        r.parts.emplace_back(part, rank.at("bytes").at(part));
      in.ranks.push_back(std::move(r));
    }
  });
  double total = 0;
  for (const auto& step : in.steps) total += step.seconds;
  in.facts.emplace_back("steps", std::to_string(in.steps.size()));
  in.facts.emplace_back("training time", format_seconds(total));
  if (!in.steps.empty()) {
    char loss[32];
    std::snprintf(loss, sizeof loss, "%.4g", in.steps.back().loss);
    in.facts.emplace_back("last loss", loss);
  }
  if (std::isfinite(psnr)) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f dB", psnr);
    in.facts.emplace_back("sample against reconstruction", text);
  }
}

void read_lanes(const fs::path& file, ReportInput& in) {
  int64_t step = -1;
  each_line(file, [&](const Json& json) {
    if (json.at("phase") != "train" || !json.contains("t0")) return;
    step = json.at("step");
    const std::string op = json.at("op"), unit = json.at("unit").is_string() ? json["unit"].get<std::string>() : "";
    if (op == "release") return;
    in.lanes.push_back({json.at("rank"), json.at("lane"), op + " " + unit, op, json.at("t0"), json.at("t1")});
  });
  in.lanes_title = "Lanes over time, step " + std::to_string(step);
}

std::vector<std::vector<uint8_t>> pictures(const data::Frames& frames) {
  std::vector<std::vector<uint8_t>> jpegs;
  const int shown = std::min(frames.count, 8);
  for (int i = 0; i < shown; ++i)
    jpegs.push_back(data::write_jpeg(frames, shown == 1 ? 0 : i * (frames.count - 1) / (shown - 1)));
  return jpegs;
}

}  // namespace

void write_run_report(const Recipe& recipe, const Job& job, const PreparedData& data, const Validation& validation,
                      const fs::path& out, const Planned& planned) {
  ReportInput in;
  in.title = "Tessera: " + recipe.run.out;
  in.subtitle = planned.spec.name + ", mesh " + planned.plan().mesh.to_string() + ", " + planned.plan().summary();
  char millions[32];
  std::snprintf(millions, sizeof millions, "%.1f M", static_cast<double>(planned.spec.numel()) / 1e6);
  in.facts = {{"parameters", millions},
              {"tokens a sample", std::to_string(job.tokens)},
              {"global batch", std::to_string(recipe.train.global_batch)}};
  read_metrics(out / "metrics.jsonl", in);
  read_lanes(out / "schedule.jsonl", in);
  for (const auto& [prompt, frames] : validation.newest()) {
    ReportInput::Strip strip;
    strip.caption = data.prompt_text(prompt);
    if (const int64_t clip = data.clip_of_prompt(prompt); clip >= 0) {
      const auto& d = recipe.data;
      strip.rows.push_back(
          {"source", pictures(data::decode_clip(data.source(clip), {.frames = static_cast<int>(d.frames),
                                                                    .height = static_cast<int>(d.height),
                                                                    .width = static_cast<int>(d.width),
                                                                    .fps = d.fps}))});
      strip.rows.push_back({"reconstruction: what the autoencoder keeps",
                            pictures(to_frames(job.codec->decode(data.sample(clip).latent), d.fps))});
    }
    strip.rows.push_back({"sample", pictures(frames)});
    in.strips.push_back(std::move(strip));
  }
  in.texts = {{"Recipe", recipe.to_toml()},
              {"Plan", planned.plan().to_toml(planned.unit_names())},
              {"Where the bytes go", plan_text(planned)}};
  checkpoint::write_text(out / "report.html", render_report(in));
}

}  // namespace tessera::train
