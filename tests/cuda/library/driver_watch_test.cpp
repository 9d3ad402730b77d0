// The driver's numbers, from stand-ins of NVML that answer and count.
#include "tessera/device/driver_watch.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <thread>

#include "stand_ins.h"

namespace tessera::device {
namespace {

using std::chrono::hours, std::chrono::milliseconds;

constexpr char kGpu[] = "00112233445566778899aabbccddeeff";

struct Calls {
  int starts, ends, readings;
  const char* asked_for;
};
Calls calls(const std::string& name) {
  void* library = dlopen(stand_in(name).c_str(), RTLD_LAZY | RTLD_LOCAL);
  return reinterpret_cast<Calls (*)()>(dlsym(library, "fake_nvml_calls"))();
}

/// The first numbers that come.
DriverNumbers first(DriverWatch& watch) {
  for (;; std::this_thread::sleep_for(milliseconds(1)))
    if (const auto numbers = watch.take()) return *numbers;
}

TEST(DriverWatch, GivesWhatNvmlSaysOfTheGpuWithTheUuidOfThisProcess) {
  {
    DriverWatch watch(kGpu, stand_in("nvml"), hours(1));
    EXPECT_EQ(watch.absence(), "");
    const DriverNumbers numbers = first(watch);
    EXPECT_EQ(numbers, (DriverNumbers{0.4, 100, double(1ULL << 30)}));
    EXPECT_EQ(watch.take(), numbers) << "a step that is shorter than the period has the last ones";
    EXPECT_STREQ(calls("nvml").asked_for, "GPU-00112233-4455-6677-8899-aabbccddeeff");
    EXPECT_EQ(calls("nvml").readings, 1) << "it is asked once in a period, however often numbers are taken";
  }
  EXPECT_EQ(calls("nvml").starts, calls("nvml").ends);
}

/// Half a GiB of what an old driver calls used it keeps for itself, and a plan knows nothing of it.
TEST(DriverWatch, CountsNoMemoryThatTheDriverKeepsForItself) {
  DriverWatch whole(kGpu, stand_in("nvml_of_two_versions"), hours(1));
  EXPECT_EQ(first(whole).memory_bytes, double(1ULL << 30));
  note_taken_memory(stand_in("nvml_of_two_versions"));
  EXPECT_EQ(calls("nvml_of_two_versions").starts, 1) << "a driver that tells it apart need not be asked before";
  note_taken_memory(stand_in("nvml_version_1"));
  EXPECT_EQ(calls("nvml_version_1").ends, 1);
  DriverWatch old(kGpu, stand_in("nvml_version_1"), hours(1));
  EXPECT_EQ(first(old).memory_bytes, double(2ULL << 30)) << "what was taken since";
  note_taken_memory(stand_in("no_such_nvml"));
}

TEST(DriverWatch, GivesTheMeansOfAllReadingsSinceTheLastCall) {
  DriverWatch watch(kGpu, stand_in("nvml_often"), milliseconds(1));
  while (calls("nvml_often").readings < 3) std::this_thread::sleep_for(milliseconds(1));
  const int before = calls("nvml_often").readings;
  const auto numbers = watch.take();
  ASSERT_TRUE(numbers);
  // of n readings from the first on: 40 % + (n - 1) / 2 * 10 points; a reading may be under way
  const double n = (numbers->watts - 100) / 25 + 1;
  EXPECT_GE(n, before - 1);
  EXPECT_NEAR(numbers->utilisation, 0.4 + (n - 1) / 2 * 0.1, 1e-9);
  EXPECT_NEAR(numbers->memory_bytes, (1 + (n - 1) / 2) * (1ULL << 30), 1);
}

TEST(DriverWatch, SaysNothingWhereThereIsNoDriverOrItDoesNotKnowTheGpu) {
  DriverWatch none(kGpu, stand_in("no_such_nvml"));
  EXPECT_NE(none.absence().find("no_such_nvml"), std::string::npos) << none.absence();
  EXPECT_FALSE(none.take());
  DriverWatch other("ffffffffffffffffffffffffffffffff", stand_in("nvml_other"));
  EXPECT_NE(other.absence().find("NVML knows no GPU-ffffffff-ffff-ffff-ffff-ffffffffffff (error 6)"), std::string::npos)
      << other.absence();
  EXPECT_FALSE(other.take());
  DriverWatch ill(kGpu, stand_in("nvml_ill"));
  EXPECT_NE(ill.absence().find("NVML does not start (error 9)"), std::string::npos) << ill.absence();
  DriverWatch lacking(kGpu, stand_in("driver"));
  EXPECT_NE(lacking.absence().find("lacks functions of NVML"), std::string::npos) << lacking.absence();
}

TEST(DriverWatch, ADriverThatStopsToAnswerIsNotAskedAgain) {
  DriverWatch watch(kGpu, stand_in("nvml_stops"), milliseconds(1));
  while (calls("nvml_stops").readings < 2) std::this_thread::sleep_for(milliseconds(1));
  while (watch.take()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(calls("nvml_stops").readings, 2);
}

/// What the kernel's log has of a GPU that failed.
TEST(DriverWatch, TellsTheXidOfAGpuThatFailedAndWhatItMeans) {
  DriverWatch watch(kGpu, stand_in("nvml_xid"), hours(1));
  EXPECT_EQ(watch.take_fault(milliseconds(1)),
            "Xid 79 (the GPU has fallen off the bus: look at its power, its heat and its slot, and reboot)");
  EXPECT_EQ(watch.take_fault(milliseconds(1)), "") << "it was told";
  DriverWatch unknown(kGpu, stand_in("nvml_xid_unknown"), hours(1));
  EXPECT_EQ(unknown.take_fault(milliseconds(1)), "Xid 9999");
  DriverWatch silent(kGpu, stand_in("nvml"), hours(1));
  EXPECT_EQ(silent.take_fault(milliseconds(1)), "") << "a driver without events";
  DriverWatch none(kGpu, stand_in("no_such_nvml"));
  EXPECT_EQ(none.take_fault(milliseconds(1)), "");
}

}  // namespace
}  // namespace tessera::device
