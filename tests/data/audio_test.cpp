#include "tessera/data/audio.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "bounded.h"
#include "scene.h"

namespace tessera::data {

namespace {

constexpr double kPi = 3.14159265358979323846;

double tone(double hertz, double seconds) { return 0.5 * std::sin(2 * kPi * hertz * seconds); }

void append(std::string& bytes, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

/// A .wav of 16 bits: one tone on each channel.
std::string wav(int rate, double seconds, const std::vector<double>& hertz) {
  const auto frames = static_cast<uint32_t>(rate * seconds), channels = static_cast<uint32_t>(hertz.size());
  std::string bytes = "RIFF";
  append(bytes, 36 + frames * channels * 2, 4);
  bytes += "WAVEfmt ";
  append(bytes, 16, 4), append(bytes, 1, 2), append(bytes, channels, 2), append(bytes, static_cast<uint32_t>(rate), 4);
  append(bytes, static_cast<uint32_t>(rate) * channels * 2, 4), append(bytes, channels * 2, 2), append(bytes, 16, 2);
  bytes += "data";
  append(bytes, frames * channels * 2, 4);
  for (uint32_t i = 0; i < frames; ++i)
    for (const double f : hertz)
      append(bytes, static_cast<uint16_t>(static_cast<int16_t>(std::lround(32767 * tone(f, i / double(rate))))), 2);
  return bytes;
}

/// Strength of a frequency in the middle half of a sound: the amplitude where it is a pure tone.
double strength(const Sound& sound, double hertz) {
  const size_t begin = sound.samples.size() / 4, end = sound.samples.size() * 3 / 4;
  double sine = 0, cosine = 0;
  for (size_t i = begin; i < end; ++i) {
    const double angle = 2 * kPi * hertz * static_cast<double>(i) / sound.rate;
    sine += sound.samples[i] * std::sin(angle), cosine += sound.samples[i] * std::cos(angle);
  }
  return 2 * std::hypot(sine, cosine) / static_cast<double>(end - begin);
}

Sound hum(double hertz, double seconds) {
  Sound sound{16000, {}};
  for (int i = 0; i < static_cast<int>(16000 * seconds); ++i)
    sound.samples.push_back(static_cast<float>(tone(hertz, i / 16000.0)));
  return sound;
}

}  // namespace

class Audio : public FolderTest {
 protected:
  void SetUp() override {
    if (!has_video()) GTEST_SKIP() << "built without FFmpeg";
    FolderTest::SetUp();
  }
};

TEST_F(Audio, AToneOfAnotherRateComesAsItIs) {
  const Sound sound = decode_sound(write("a.wav", wav(44100, 1, {440})));
  EXPECT_EQ(sound.rate, 16000);
  EXPECT_NEAR(sound.seconds(), 1, 0.005);
  EXPECT_NEAR(strength(sound, 440), 0.5, 0.01);
  EXPECT_LT(strength(sound, 880), 0.01);
}

// What a resampler holds back until more comes belongs to the sound too.
TEST_F(Audio, ASoundOfAnotherRateIsAsLongAsItWas) {
  for (const int rate : {44100, 8000, 48000, 22050}) {
    const Path file = write("a.wav", wav(rate, 0.5, {440}));
    EXPECT_NEAR(static_cast<double>(decode_sound(file).samples.size()), 8000, 1) << rate;
    EXPECT_EQ(decode_sound(file, {.start = 0.25, .seconds = 0.25}).samples.size(), 4000u) << rate;
  }
}

TEST_F(Audio, ARateThatNoSoundHasIsRefused) {
  for (const int rate : {167'000'000, 2}) {
    std::string bytes = wav(16000, 1, {440});
    std::memcpy(bytes.data() + 24, &rate, sizeof rate);
    expect_refused_cheaply([&] { decode_sound(write("a.wav", bytes)); }, {"a.wav"});
  }
}

TEST_F(Audio, ChannelsAreMixedToOne) {
  const Sound sound = decode_sound(write("a.wav", wav(16000, 1, {300, 700})));
  EXPECT_NEAR(strength(sound, 300), 0.25, 0.02);
  EXPECT_NEAR(strength(sound, 700), 0.25, 0.02);
}

TEST_F(Audio, APartBeginsAndEndsWhereItWasAskedFor) {
  const Path file = write("a.wav", wav(16000, 2, {440}));
  const Sound whole = decode_sound(file), part = decode_sound(file, {.start = 0.5, .seconds = 0.25});
  ASSERT_EQ(part.samples.size(), 4000u);
  for (size_t i = 0; i < part.samples.size(); ++i) ASSERT_EQ(part.samples[i], whole.samples[8000 + i]) << i;
  EXPECT_NEAR(decode_sound(file, {.start = 1.5, .seconds = 9}).seconds(), 0.5, 0.005);
}

TEST_F(Audio, AVideoIsWrittenWithItsSoundAndReadAgain) {
  const Frames frames = scene(16, 32, 48, 8);
  write_mp4(folder_ / "a.mp4", frames, hum(440, 1));  // half of the video; silence after it
  EXPECT_TRUE(has_sound(folder_ / "a.mp4"));
  EXPECT_EQ(decode_clip(folder_ / "a.mp4", {}).count, 16);
  const Sound sound = decode_sound(folder_ / "a.mp4");
  EXPECT_NEAR(sound.seconds(), 2, 0.1);
  const Sound first = decode_sound(folder_ / "a.mp4", {.start = 0, .seconds = 1});
  EXPECT_NEAR(strength(first, 440), 0.5, 0.05);
  EXPECT_LT(strength(decode_sound(folder_ / "a.mp4", {.start = 1.2, .seconds = 0.6}), 440), 0.01);
}

// Pictures are compared, not bytes: x264 promises the same bytes for the same frames neither from machine to machine
// nor, on some, from call to call (one wrote files that differ by 16 bytes).
TEST_F(Audio, WithoutSamplesAVideoHasTheSamePicturesAndNoTrack) {
  const Frames frames = scene(4, 16, 16, 8);
  write_mp4(folder_ / "a.mp4", frames);
  write_mp4(folder_ / "b.mp4", frames, Sound{});
  EXPECT_FALSE(has_sound(folder_ / "a.mp4"));
  EXPECT_FALSE(has_sound(folder_ / "b.mp4"));
  for (const char* name : {"a.mp4", "b.mp4"}) {
    const Frames read = decode_clip(folder_ / name, {});
    ASSERT_EQ(read.count, frames.count);
    ASSERT_EQ(read.rgb.size(), frames.rgb.size());
    double off = 0;
    for (size_t i = 0; i < frames.rgb.size(); ++i) off += std::abs(double(read.rgb[i]) - frames.rgb[i]);
    EXPECT_LT(off / static_cast<double>(frames.rgb.size()), 3) << name << ": levels of 255 away from what was written";
  }
}

TEST_F(Audio, WhatHasNoSoundIsNamed) {
  write_mp4(folder_ / "silent.mp4", scene(4, 16, 16, 8));
  expect_error(Exit::input, {"silent.mp4", "no audio track", "column audio"},
               [&] { decode_sound(folder_ / "silent.mp4"); });
  expect_error(Exit::input, {"gone.wav", "no such file"}, [&] { decode_sound(folder_ / "gone.wav"); });
  expect_error(Exit::input, {"text.wav"}, [&] { decode_sound(write("text.wav", "no sound at all")); });
  const Path file = write("a.wav", wav(16000, 1, {440}));
  expect_error(Exit::input, {"a.wav", "ends after 1", "begins at 3"},
               [&] { decode_sound(file, {.start = 3, .seconds = 1}); });
}

}  // namespace tessera::data
