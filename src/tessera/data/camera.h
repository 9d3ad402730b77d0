#pragma once
// How a camera moves in a clip: files of camera parameters, and movements by name.
//
//   std::vector<CameraRow> rows = read_camera("clip.txt");              // or named_camera("LeftUp", 1 / 54.0, 81)
//   std::vector<float> numbers = camera_numbers(resampled(rows, 81), {480, 832});      // 16 of each frame
//
// A file has a line of words, then a line for each frame with 19 numbers: an index or time, fx, fy, cx and cy as shares of
// width and height, two zeros, and the 3 x 4 matrix from the world to the camera (RealEstate10K's).
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::data {

using CameraRow = std::array<double, 19>;
inline constexpr int64_t kCameraNumbers = 16;

/// Throws UserError (input) naming file and line.
std::vector<CameraRow> read_camera(const std::filesystem::path& file);

/// Frames of a movement by DiffSynth's names: Left, Right, Up, Down, two of them joined (LeftUp), In, Out. A frame goes on
/// from the one before by `speed`. As there, sideways movements change the third column of the matrix, which then is no
/// rotation, and not its place; models were trained so. Throws UserError (usage) for another name.
std::vector<CameraRow> named_camera(const std::string& direction, double speed, int64_t frames);
std::vector<std::string> camera_directions();
inline constexpr double kCameraSpeed = 1.0 / 54;

/// So many frames of a file's, evenly from the first to the last.
std::vector<CameraRow> resampled(const std::vector<CameraRow>& rows, int64_t frames);

/// What a frame is shown in: its size, and the part of it that is kept.
struct CameraView {
  int64_t height, width;
  int64_t top = 0, left = 0;
};
/// Of each frame fx, fy, cx and cy in pixels, then its pose relative to the first frame's, 3 x 4 by rows. Focal lengths
/// are meant for pictures of 1280 x 720, of which another shape shows a part.
std::vector<float> camera_numbers(const std::vector<CameraRow>& rows, const CameraView& view);

}  // namespace tessera::data
