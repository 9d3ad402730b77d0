#include "tessera/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <string>

namespace tessera::log {

namespace {
int rank_ = 0;
int world_ = 1;

spdlog::logger& logger() {
  static auto instance = [] {
    auto created = std::make_shared<spdlog::logger>("tessera", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern("%v");
    created->flush_on(spdlog::level::trace);
    return created;
  }();
  return *instance;
}

std::string line(std::string_view label, std::string_view text) {
  std::string out = world_ > 1 ? "rank " + std::to_string(rank_) + ": " : "";
  return out.append(label).append(text);
}
}  // namespace

void set_rank(int rank, int world) { rank_ = rank, world_ = world; }
void info(std::string_view text) {
  if (rank_ == 0) logger().info("{}", text);
}
void warn(std::string_view text) { logger().warn("{}", line("warning: ", text)); }
void error(std::string_view text) { logger().error("{}", line("error: ", text)); }

}  // namespace tessera::log
