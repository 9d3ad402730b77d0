// What a person at a terminal gets from a real run: top, report, TensorBoard's file, samples in every form, completion.
#include <gtest/gtest.h>

#include <fstream>

#include "program.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

/// Two ranks, four steps, a sample after the last one.
const TinyRun& trained() {
  static const TinyRun run("comfort");
  static const Result result = run.train(2, "run", {"--run.steps", "4", "--sample.every", "4", "--sample.steps", "2"});
  EXPECT_EQ(result.code, 0) << result.output;
  return run;
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

TEST(Metrics, TellWhatEachRankMakesOfItsDeviceAndOfItsLanes) {
  const std::vector<nlohmann::json> steps = trained().metrics("run");
  ASSERT_EQ(steps.size(), 4u);
  double of_model = 0;
  for (const auto& step : steps) {
    const double peak = step.at("peak_flops"), seconds = step.at("seconds");
    double sum = 0, flops = 0;
    for (const auto& rank : step.at("ranks")) {
      const double own = rank.at("model_flops");
      EXPECT_GT(own, 0) << rank;
      EXPECT_NEAR(rank.at("mfu").get<double>(), own / (seconds * peak), 1e-12) << rank;
      sum += rank.at("mfu").get<double>(), flops += own;
      if (step.at("step") == 1) continue;  // lanes are told of in the step that follows
      EXPECT_GT(rank.at("utilisation").at("compute").get<double>(), 0) << rank;
      for (const auto& [lane, share] : rank.at("utilisation").items()) EXPECT_LE(share.get<double>(), 1) << lane;
    }
    EXPECT_NEAR(step.at("mfu").get<double>(), sum / 2, 1e-12);
    if (of_model == 0) of_model = flops;
    EXPECT_EQ(flops, of_model) << "every step has the same samples";
  }
}

TEST(Top, ShowsAFinishedRunOnce) {
  const Result top = trained().tessera({"top", trained().out(), "--once"});
  EXPECT_EQ(top.code, 0);
  for (const char* wanted : {"finished", "4/4", "tokens/s", "rank 0", "rank 1", "planned", "compute", "MFU ", "sample"})
    EXPECT_NE(top.output.find(wanted), std::string::npos) << wanted << "\n" << top.output;
  EXPECT_EQ(top.output.find('\x1b'), std::string::npos) << "no escape codes in a pipe";
}

/// docs/run-folder.md names every file of a run and every key of a step.
TEST(RunFolder, IsWhatThePageSays) {
  const std::string page = text_of(TESSERA_SOURCE_DIR "/docs/run-folder.md");
  const auto named = [&](const std::string& word) { return page.find("`" + word) != std::string::npos; };
  for (const auto& entry : fs::directory_iterator(trained().out())) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(named(name.starts_with("events.out.tfevents.") ? "events.out.tfevents.*" : name)) << name;
  }
  const nlohmann::json step = trained().metrics("run").back();
  for (const auto& [key, value] : step.items()) EXPECT_TRUE(named(key + "`")) << key;
  for (const auto& [key, value] : step.at("ranks").at(0).items()) EXPECT_TRUE(named(key + "`")) << key;
  for (const auto& [part, value] : step.at("ranks").at(0).at("bytes").items()) EXPECT_TRUE(named(part + "`")) << part;
}

TEST(OnEvent, ACommandGetsTheLinesOfTheRunAndItsCheckpoints) {
  const TinyRun run("hook");
  const std::string got = (run.folder() / "got").string();
  const Result r = run.train(2, "run",
                             {"--run.steps", "3", "--checkpoint.every", "2", "--run.on_event",
                              "cat > '" + got + "'; touch '" + got + ".whole'"});
  ASSERT_EQ(r.code, 0) << r.output;
  for (int i = 0; i < 100 && !fs::exists(got + ".whole"); ++i) usleep(50'000);  // it reads on when the run has ended
  EXPECT_EQ(text_of(got), text_of(run.out() + "/metrics.jsonl"));
  std::vector<std::string> checkpoints;
  for (const std::string& line : lines_of(got))
    if (const auto json = nlohmann::json::parse(line); json.at("type") == "checkpoint")
      checkpoints.push_back(json.at("folder"));
  ASSERT_EQ(checkpoints.size(), 2u);
  EXPECT_TRUE(fs::exists(fs::path(checkpoints[0]) / "manifest.json")) << checkpoints[0];
}

/// With modules in the place of wandb and mlflow that write down what they are called with.
TEST(OnEvent, TheExamplesTakeTheEventsOfARun) {
  const TinyRun& run = trained();
  const fs::path stubs = run.folder() / "stubs";
  fs::create_directories(stubs);
  std::ofstream(stubs / "wandb.py") << R"(import sys
class Run:
    def log(self, values, step): print("log", step, sorted(values))
    def alert(self, title, text): print("alert", title)
    def finish(self): print("finish")
def init(project, name): print("init", project, name); return Run()
class Video:
    def __init__(self, file, caption): open(file, "rb").close()
)";
  std::ofstream(stubs / "mlflow.py") << R"(import contextlib
def set_experiment(name): print("experiment", name)
@contextlib.contextmanager
def start_run(run_name): print("run", run_name); yield; print("end")
def log_metrics(values, step): print("metrics", step, sorted(values))
def log_artifact(file, folder): open(file, "rb").close(); print("artifact", folder)
)";
  const auto fed = [&](const std::string& command) {
    const Result r = run_program({"/bin/sh", "-c",
                                  "cd '" + run.folder().string() + "' && TESSERA_RUN='" + run.out() + "' PYTHONPATH='" +
                                      stubs.string() + "' " + command + " < '" + run.out() + "/metrics.jsonl'"});
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output;
  };
  const std::string examples = TESSERA_SOURCE_DIR "/examples/on_event/";
  const std::string wandb = fed("python3 " + examples + "to_wandb.py"),
                    mlflow = fed("python3 " + examples + "to_mlflow.py");
  EXPECT_EQ(count(wandb, "'loss'"), 4u) << wandb;
  EXPECT_EQ(count(wandb, "log 4 ['sample']"), 3u) << wandb;
  EXPECT_NE(wandb.find("init tessera run"), std::string::npos) << wandb;
  EXPECT_NE(wandb.find("finish"), std::string::npos) << wandb;
  EXPECT_EQ(count(mlflow, "'loss'"), 4u) << mlflow;
  EXPECT_EQ(count(mlflow, "artifact samples"), 3u) << mlflow;
  const std::string store = (run.folder() / "store").string();
  fs::create_directories(store);
  fed("UPLOAD='cp -r' " + examples + "upload.sh '" + store + "'");
  EXPECT_TRUE(fs::exists(store + "/step-000004/manifest.json"));
  EXPECT_TRUE(fs::exists(store + "/step-000004-0.mp4"));
}

TEST(OnEvent, ACommandThatEndsIsToldOfAndTheRunGoesOn) {
  const TinyRun run("hook-ends");
  const Result r = run.train(1, "run", {"--run.steps", "12", "--run.on_event", "head -n 1 > /dev/null; exit 3"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(run.metrics("run").size(), 12u);
  EXPECT_NE(r.output.find("run.on_event: events are lost, the command ended with code 3"), std::string::npos)
      << r.output;
  const std::vector<nlohmann::json> faults = run.metrics("run", "fault");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].at("kind"), "on_event");
  EXPECT_NE(text_of(run.out() + "/report.html").find("events were lost"), std::string::npos);
}

TEST(Top, NamesWhatIsNoRun) {
  EXPECT_EQ(trained().tessera({"top", (trained().folder() / "data").string(), "--once"}).code, 3);
  const Result missing = trained().tessera({"top", "no/such/run"});
  EXPECT_EQ(missing.code, 3);
  EXPECT_NE(missing.output.find("no/such/run"), std::string::npos) << missing.output;
  EXPECT_EQ(trained().tessera({"top"}).code, 2);
}

TEST(Report, IsThereAfterTrainingAndHasTheLanesOfBothRanks) {
  const std::string html = text_of(trained().out() + "/report.html");
  for (const char* wanted : {">rank 0</text>", ">rank 1</text>", "source", "reconstruction", "sample of step 4"})
    EXPECT_NE(html.find(wanted), std::string::npos) << wanted;
}

TEST(Report, HasTheTokensOfASampleAndTheMeanMfuAndTablesWhoseWordsStayWhole) {
  const std::string html = text_of(trained().out() + "/report.html");
  const std::vector<nlohmann::json> steps = trained().metrics("run");
  double mfu = 0;
  for (size_t i = 1; i < steps.size(); ++i)  // the first warms caches up and does not count
    mfu += steps[i].at("mfu").get<double>() / static_cast<double>(steps.size() - 1);
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f %%", 100 * mfu);
  const auto fact = [&](const std::string& label, const std::string& value) {
    EXPECT_NE(html.find(label + "</span><b>" + value), std::string::npos) << label << ": " << value;
  };
  const int64_t tokens = steps.back().at("tokens"), samples = steps.back().at("samples");
  fact("tokens a sample", std::to_string(tokens / samples) + "</b>");
  fact("MFU, mean of the steps", percent);
  EXPECT_NE(html.find("table{border-collapse:collapse;font-variant-numeric:tabular-nums;overflow-wrap:break-word}"),
            std::string::npos);
}

TEST(Report, ComparesSeveralRuns) {
  const std::string page = (trained().folder() / "both.html").string();
  const Result both = trained().tessera({"report", trained().out(), trained().out(), "--out", page});
  EXPECT_EQ(both.code, 0) << both.output;
  EXPECT_EQ(count(text_of(page), "<polyline"), 8u);
  EXPECT_EQ(trained().tessera({"report", trained().out(), trained().out()}).code, 2) << "where to?";
}

TEST(ReportSchedule, OfTheReportHasEveryRankInOrder) {
  std::ifstream in(trained().out() + "/schedule.jsonl");
  std::vector<int> ranks;
  for (std::string line; std::getline(in, line);) ranks.push_back(nlohmann::json::parse(line).at("rank"));
  EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
  EXPECT_EQ(ranks.front(), 0);
  EXPECT_EQ(ranks.back(), 1);
  EXPECT_FALSE(fs::exists(trained().out() + "/schedule.jsonl.rank-0"));
}

TEST(TensorBoard, FilesHoldStepsAndSamplesAndGrowByOneWithEachStart) {
  const TinyRun run("board");
  const auto files = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(run.out()))
      if (entry.path().filename().string().starts_with("events.out.tfevents.")) found.push_back(text_of(entry.path()));
    return found;
  };
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "2", "--sample.every", "2", "--sample.steps", "1"}).code, 0);
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(count(files()[0], "train/loss"), 2u);
  EXPECT_EQ(count(files()[0], "GIF89a"), 3u) << "a clip for each caption";
  ASSERT_EQ(run.train(1, "run", {"--run.steps", "3"}).code, 0);
  EXPECT_EQ(files().size(), 2u);
}

TEST(Sample, ComesAsMp4GifAndFrames) {
  const TinyRun& run = trained();
  const std::string recipe = run.out() + "/recipe.toml", gif = (run.folder() / "a.gif").string(),
                    frames = (run.folder() / "frames").string();
  Result r = run.tessera({"sample", recipe, "--prompt", "a square", "--out", gif});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(data::decode_clip(gif, {}).count, 8);
  r = run.tessera({"sample", recipe, "--prompt", "a square", "--out", frames, "--format", "frames"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(fs::exists(frames + "/frame-0007.png"));
  r = run.tessera({"sample", recipe, "--prompt", "a square", "--out", gif, "--format", "mp4"});
  EXPECT_EQ(r.code, 2) << r.output;
}

TEST(Sample, SeedsAndNegativePromptsChangeTheClip) {
  const TinyRun& run = trained();
  const std::string recipe = run.out() + "/recipe.toml";
  const auto clip = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> words = {"sample",   recipe,   "--prompt", "a square",
                                      "--format", "frames", "--out",    (run.folder() / name).string()};
    words.insert(words.end(), more.begin(), more.end());
    const Result r = run.tessera(words);
    EXPECT_EQ(r.code, 0) << r.output;
    return text_of(run.folder() / name / "frame-0003.png");
  };
  const std::string first = clip("s1", {"--seed", "1"});
  EXPECT_EQ(first, clip("s1b", {"--seed", "1"}));
  EXPECT_NE(first, clip("s2", {"--seed", "2"}));
  const std::vector<std::string> guided = {"--seed", "1", "--sample.guidance", "5"};
  std::vector<std::string> away = guided;
  away.insert(away.end(), {"--negative", "a circle"});
  EXPECT_NE(clip("g", guided), clip("n", away));
  // Several seeds give a clip each.
  const std::string folder = (run.folder() / "seeds").string();
  const Result r =
      run.tessera({"sample", recipe, "--prompt", "a square", "--seed", "1", "--seed", "2", "--out", folder});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(fs::exists(folder + "/sample-0-seed-1.mp4"));
  EXPECT_TRUE(fs::exists(folder + "/sample-0-seed-2.mp4"));
}

TEST(Sample, ANegativePromptWithoutGuidanceIsSaidToDoNothing) {
  const TinyRun& run = trained();
  const Result r = run.tessera({"sample", run.out() + "/recipe.toml", "--prompt", "a", "--negative", "b", "--out",
                                (run.folder() / "w.mp4").string()});
  EXPECT_EQ(r.code, 0);
  EXPECT_NE(r.output.find("no effect at guidance 1"), std::string::npos) << r.output;
}

/// The commands that the program prints, typed as they stand.
std::vector<std::string> printed_commands(const std::string& output) {
  std::vector<std::string> commands;
  for (size_t at = output.find("tessera "); at != std::string::npos; at = output.find("tessera ", at + 1))
    if (output.compare(at - 4, 4, "it: ") == 0) commands.push_back(output.substr(at, output.find('\n', at) - at));
  return commands;
}

TEST(Commands, ThatARunEndsWithWorkAsTheyArePrinted) {
  const TinyRun run("printed");
  for (const char* frames : {"1", "8"}) {  // the wavelet makes four frames of the latent of a picture
    const std::string name = std::string("frames ") + frames;
    const Result r = run.train(1, name,
                               {"--run.steps", "1", "--data.frames", frames, "--sample.every", "1", "--sample.steps",
                                "1", "--sample.prompts", "a square"});
    ASSERT_EQ(r.code, 0) << r.output;
    const fs::path own = fs::path(run.out(name)) / "samples/step-000001-0.mp4";
    EXPECT_EQ(data::decode_clip(own, {}).count, std::atoi(frames));
    const std::vector<std::string> commands = printed_commands(r.output);
    ASSERT_EQ(commands.size(), 1u) << r.output;
    const std::string typed =
        "cd '" + run.folder().string() + "' && " + fs::path(TESSERA_BINARY).parent_path().string() + "/" + commands[0];
    const Result sampled = run_program({"/bin/bash", "-c", typed});
    ASSERT_EQ(sampled.code, 0) << typed << "\n" << sampled.output;
    const fs::path file = run.folder() / (frames == std::string("1") ? "sample.png" : "sample.mp4");
    EXPECT_EQ(data::decode_clip(file, {}).count, std::atoi(frames)) << typed;
  }
}

TEST(Presets, OfDemosTrainAndSampleWithoutAnyFile) {
  for (const char* preset : {"sana-demo", "opensora-demo", "hunyuan-demo"}) {
    const TinyRun run(preset, TESSERA_BINARY, std::string("preset = \"") + preset + "\"");
    const Result r = run.train(1, "run",
                               {"--run.steps", "2", "--data.frames", "1", "--data.size", "64,64", "--sample.every", "2",
                                "--sample.steps", "1"});
    ASSERT_EQ(r.code, 0) << preset << "\n" << r.output;
    EXPECT_EQ(run.metrics("run", "sample").size(), 3u) << preset;
  }
}

TEST(Sample, IsEnlargedForPeople) {
  const TinyRun& run = trained();
  const auto frame = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> words = {
        "sample", run.out() + "/recipe.toml",    "--prompt", "a square", "--format", "frames",
        "--out",  (run.folder() / name).string()};
    words.insert(words.end(), more.begin(), more.end());
    const Result r = run.tessera(words);
    EXPECT_EQ(r.code, 0) << r.output;
    return data::decode_clip(run.folder() / name / "frame-0002.png", {});
  };
  const data::Frames small = frame("plain", {}), large = frame("large", {"--enlarge", "3"});
  ASSERT_EQ(large.height, 3 * small.height);
  ASSERT_EQ(large.width, 3 * small.width);
  for (int y = 0; y < large.height; ++y)
    for (int x = 0; x < 3 * large.width; ++x)
      ASSERT_EQ(large.rgb[static_cast<size_t>(y) * large.width * 3 + x],
                small.rgb[static_cast<size_t>(y / 3) * small.width * 3 + x / 9 * 3 + x % 3])
          << y << " " << x;
  EXPECT_EQ(run.tessera({"sample", run.out() + "/recipe.toml", "--enlarge", "0"}).code, 2);
  EXPECT_EQ(run.tessera({"sample", run.out() + "/recipe.toml", "--enlarge", "1.5"}).code, 2);
}

/// What bash offers for a command line that ends at the cursor.
std::string completed(const std::vector<std::string>& words) {
  std::string script = std::string("source <(") + TESSERA_BINARY + " completion bash); COMP_WORDS=(";
  for (const auto& word : words) script += "'" + word + "' ";
  script += "); COMP_CWORD=" + std::to_string(words.size() - 1) + "; _tessera; echo \"${COMPREPLY[@]}\"";
  return run_program({"/bin/bash", "-c", script}).output;
}

TEST(Frontier, IsATableJsonAndAPicture) {
  const TinyRun run("comfort");
  const auto plan = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "plan");
    const Result r = run.tessera(flags);
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output;
  };
  const std::string table = plan({"--frontier", run.recipe()});  // the recipe is no picture
  EXPECT_NE(table.find("frontier of "), std::string::npos) << table;
  const fs::path svg = run.folder() / "f.svg", html = run.folder() / "f.html";
  plan({run.recipe(), "--frontier", svg.string()});
  EXPECT_TRUE(text_of(svg).starts_with("<svg ")) << text_of(svg);
  EXPECT_NE(plan({run.recipe(), "--frontier", html.string(), "--json"}).find("\"points\": ["), std::string::npos);
  EXPECT_TRUE(text_of(html).starts_with("<!doctype html>"));
}

TEST(List, PrintsTheSchemaOfRecipes) {
  const Result r = trained().tessera({"list", "schema"});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto schema = nlohmann::json::parse(r.output);
  EXPECT_EQ(schema.at("properties").at("run").at("properties").at("steps").at("type"), "integer");
}

TEST(Completion, OffersCommandsFlagsKeysAndChoicesInBash) {
  EXPECT_EQ(completed({"tessera", "sam"}), "sample\n");
  EXPECT_EQ(completed({"tessera", "top", "r", "--o"}), "--once\n");
  EXPECT_EQ(completed({"tessera", "train", "r.toml", "--train.clip"}), "--train.clip_norm\n");
  EXPECT_EQ(completed({"tessera", "launch", "-n", "2", "train", "r.toml", "--trace"}), "--trace-schedule\n");
  EXPECT_EQ(completed({"tessera", "sample", "r.toml", "--format", "g"}), "gif\n");
  EXPECT_EQ(completed({"tessera", "train", "r.toml", "--run.on_nan", ""}), "stop skip\n");
}

TEST(Completion, HasScriptsForThreeShellsAndNamesThemOtherwise) {
  const TinyRun& run = trained();
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Result r = run.tessera({"completion", shell});
    EXPECT_EQ(r.code, 0);
    EXPECT_NE(r.output.find("train.clip_norm"), std::string::npos) << shell;
    if (run_program({"/bin/sh", "-c", std::string("command -v ") + shell}).code != 0) {
      std::cout << "syntax not checked: no " << shell << " here\n";
      continue;
    }
    const std::string script = (run.folder() / (std::string("completion.") + shell)).string();
    std::ofstream(script) << r.output;
    const Result syntax = run_program({"/bin/sh", "-c", std::string(shell) + " -n " + script});
    EXPECT_EQ(syntax.code, 0) << shell << ": " << syntax.output;
  }
  const Result r = run.tessera({"completion", "bsh"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.output.find("did you mean bash"), std::string::npos) << r.output;
}

TEST(Man, HasEveryCommandKeyAndExitCode) {
  const std::string page = trained().tessera({"man"}).output;
  EXPECT_TRUE(page.starts_with(".TH TESSERA 1")) << page.substr(0, 80);
  for (const char* wanted : {".SS tessera launch", ".SS tessera top", "train.clip_norm", "\\fB75\\fR", "metrics.jsonl"})
    EXPECT_NE(page.find(wanted), std::string::npos) << wanted;
}

}  // namespace
}  // namespace tessera::testing
