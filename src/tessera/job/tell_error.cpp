#include "tessera/job/tell_error.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <string>

#include "tessera/base/log.h"
#include "tessera/base/version.h"
#include "tessera/device/failure.h"
#include "tessera/engine/memory/meter.h"

namespace tessera::job {

namespace {

/// Where a fault of ours is reported: wherever this copy of the program came from.
const std::string kWhere = std::string(" (tessera ") + kVersion +
                           "): as an issue in the repository that you have tessera from, with all that it printed; "
                           "CONTRIBUTING.md there says what else helps";

}  // namespace

Exit tell_error(const std::exception& error) {
  const auto say = [](const Error& told) {
    log::error(told.code() == Exit::internal ? told.what() + kWhere : told.what());
    return told.code();
  };
  if (const auto* named = dynamic_cast<const device::Failure*>(&error)) return say(*named);
  if (const auto failed = device::failure()) return say(*failed);  // the error followed from that
  if (const auto* own = dynamic_cast<const Error*>(&error)) return say(*own);
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    log::error(std::string(file->what()) + "; check that path: whether it is there and may be written");
    const std::error_code& code = file->code();
    const bool name = code == std::errc::filename_too_long || code == std::errc::too_many_symbolic_link_levels ||
                      code == std::errc::invalid_argument;
    return name ? Exit::input : Exit::disk;  // a name that no file can have is no fault of the disk
  }
  if (const auto short_of = engine::out_of_memory(error)) return say(*short_of);
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  log::error(std::string(from_torch ? from_torch->what_without_backtrace() : error.what()) +
             "; this is a fault in tessera; please report it with the command" + kWhere);
  return Exit::internal;
}

}  // namespace tessera::job
