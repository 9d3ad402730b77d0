#include "tessera/report/run_log.h"

#include <unistd.h>
#include <bit>
#include <chrono>

#include "tessera/base/hash.h"
#include "tessera/data/clip_format.h"

namespace tessera::report {

namespace {

static_assert(std::endian::native == std::endian::little, "records and fixed fields are little endian");

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// A protobuf message under construction: each field is (number << 3 | wire type), then its value.
class Message {
 public:
  Message& integer(int field, uint64_t value) { return key(field, 0).varint(value); }
  Message& number(int field, double value) { return key(field, 1).append(raw(value)); }
  Message& single(int field, float value) { return key(field, 5).append(raw(value)); }
  Message& bytes(int field, std::string_view value) { return key(field, 2).varint(value.size()).append(value); }
  const std::string& str() const { return text_; }

 private:
  Message& key(int field, int wire) { return varint(static_cast<uint64_t>(field) << 3 | static_cast<unsigned>(wire)); }
  Message& append(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }
  Message& varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
    return *this;
  }
  std::string text_;
};

// Field numbers of event.proto and summary.proto.
namespace event_field {
constexpr int wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace value_field {
constexpr int tag = 1, simple_value = 2, image = 4;
}
constexpr int kSummaryValue = 1;  // Summary.value
constexpr int kSessionStart = 1;  // SessionLog.START: readers drop older events from this step on
constexpr const char* kVersion = "brain.Event:2";

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// events.out.tfevents.SECONDS.HOST.PID: sorted by name they are in the order they were written.
std::string file_name() {
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%010lld", static_cast<long long>(wall_time()));
  return std::string("events.out.tfevents.") + seconds + "." + host + "." + std::to_string(getpid());
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes.data(), bytes.size());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, int64_t done)
    : out_(folder / file_name(), checkpoint::GrowingFile::Begin::behind) {
  event(Message().bytes(event_field::file_version, kVersion).str());
  if (done > 0)
    event(Message()
              .integer(event_field::step, static_cast<uint64_t>(done + 1))
              .bytes(event_field::session_log, Message().integer(1, kSessionStart).str())
              .str());
}

void TensorBoardWriter::event(std::string_view body) {
  std::string record = Message().number(event_field::wall_time, wall_time()).str();
  record += body;
  const std::string length = raw(static_cast<uint64_t>(record.size()));
  out_.write(length + raw(masked_crc32c(length)) + record + raw(masked_crc32c(record)));
  out_.flush();
}

void TensorBoardWriter::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  Message summary;
  for (const auto& [tag, value] : values)
    summary.bytes(
        kSummaryValue,
        Message().bytes(value_field::tag, tag).single(value_field::simple_value, static_cast<float>(value)).str());
  event(Message()
            .integer(event_field::step, static_cast<uint64_t>(step))
            .bytes(event_field::summary, summary.str())
            .str());
}

void TensorBoardWriter::image(int64_t step, const std::string& tag, int height, int width,
                              const std::vector<uint8_t>& encoded) {
  constexpr int kRgb = 3;
  Message picture;
  picture.integer(1, static_cast<uint64_t>(height)).integer(2, static_cast<uint64_t>(width)).integer(3, kRgb);
  picture.bytes(4, {reinterpret_cast<const char*>(encoded.data()), encoded.size()});
  const Message value = Message().bytes(value_field::tag, tag).bytes(value_field::image, picture.str());
  event(Message()
            .integer(event_field::step, static_cast<uint64_t>(step))
            .bytes(event_field::summary, Message().bytes(kSummaryValue, value.str()).str())
            .str());
}

namespace {
// A picture in an event file is kept in the browser's memory: enough to judge a sample by, no more.
constexpr int kPictureSide = 320, kPictureFrames = 33;
}  // namespace

Picture picture_of(const data::Frames& frames) {
  const data::Frames small = data::thumbnail(frames, kPictureSide, kPictureFrames);
  return {small.height, small.width, data::encode_gif(small)};
}

std::vector<std::pair<std::string, double>> step_scalars(const StepMetrics& m) {
  std::vector<std::pair<std::string, double>> values = {{"train/loss", m.loss},
                                                        {"train/grad_norm", m.grad_norm},
                                                        {"train/lr", m.lr},
                                                        {"train/seconds", m.seconds},
                                                        {"train/tokens_per_second", m.tokens / m.seconds}};
  if (!m.expert.empty()) values.emplace_back("experts/" + m.expert + " loss", m.loss);
  if (m.gate) {
    values.insert(values.end(), {{"gate/balance_loss", m.gate->balance_loss},
                                 {"gate/entropy", m.gate->entropy},
                                 {"gate/temperature", m.gate->temperature},
                                 {"gate/idle share", m.gate->idle},
                                 {"gate/dummy share", m.gate->dummies}});
    for (size_t e = 0; e < m.gate->experts.size(); ++e)
      values.emplace_back("gate/expert_" + std::to_string(e) + " share",
                          static_cast<double>(m.gate->experts[e].samples) / static_cast<double>(m.samples));
  }
  if (m.loss_scale) values.emplace_back("train/loss_scale", *m.loss_scale);
  if (m.d) values.emplace_back("train/d", *m.d);
  if (m.mfu) values.emplace_back("train/mfu", *m.mfu);
  if (m.ranks.size() > kMostRanks) {
    for (const Spread& s : spreads(m.ranks))
      values.insert(values.end(), {{"ranks/" + s.field + " min", s.least},
                                   {"ranks/" + s.field + " median", s.median},
                                   {"ranks/" + s.field + " max", s.most}});
    return values;
  }
  for (const RankMetrics& rank : m.ranks) {
    const std::string name = "rank " + std::to_string(rank.rank) + "/";
    for (const auto& [part, bytes] : named_parts(rank.bytes))
      values.emplace_back("memory/" + name + part, static_cast<double>(bytes));
    values.emplace_back("memory/" + name + "peak", static_cast<double>(rank.peak_bytes));
    values.emplace_back("memory/" + name + "reserved", static_cast<double>(rank.reserved_bytes));
    for (const auto& [lane, seconds] : rank.busy) values.emplace_back("busy/" + name + lane, seconds);
    for (const auto& [lane, share] : rank.utilisation) values.emplace_back("utilisation/" + name + lane, share);
    if (rank.mfu) values.emplace_back("utilisation/" + name + "mfu", *rank.mfu);
    if (rank.driver) {
      values.emplace_back("driver/" + name + "utilisation", rank.driver->utilisation);
      values.emplace_back("driver/" + name + "watts", rank.driver->watts);
      values.emplace_back("driver/" + name + "memory", static_cast<double>(rank.driver->memory_bytes));
    }
    for (const auto& [what, field] : kExposed) values.emplace_back("exposed/" + name + what, rank.exposed.*field);
  }
  return values;
}

RunLog::RunLog(const std::filesystem::path& out, int64_t done, const std::string& on_event)
    : MetricsWriter(out / "metrics.jsonl", done, on_event), board_(out, done) {}

void RunLog::step(const StepMetrics& metrics) {
  MetricsWriter::step(metrics);
  board_.scalars(metrics.step, step_scalars(metrics));
}

void RunLog::eval(const EvalMetrics& metrics) {
  MetricsWriter::eval(metrics);
  board_.scalars(metrics.step, {{"eval/loss", metrics.loss}});
}

void RunLog::skip(int64_t step, const std::string& why, std::optional<double> loss_scale) {
  MetricsWriter::skip(step, why, loss_scale);
  board_.scalars(step, {{"train/skipped", 1}});
}

void RunLog::sample(const Sample& sample) {
  if (found().samples.contains(std::filesystem::path(sample.file).filename())) return;  // made up: its line is there
  const std::string prompt = "samples/" + std::to_string(sample.prompt);
  board_.image(sample.step, prompt, sample.picture.height, sample.picture.width, sample.picture.gif);
  if (sample.psnr) board_.scalars(sample.step, {{prompt + "/psnr", *sample.psnr}});
  if (sample.audio_effect) board_.scalars(sample.step, {{prompt + "/audio_effect", *sample.audio_effect}});
  MetricsWriter::sample(sample.step, sample.file, sample.text, sample.psnr, sample.audio_effect);
}

}  // namespace tessera::report
