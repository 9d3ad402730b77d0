#include "tessera/data/camera.h"

#include <charconv>
#include <cmath>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/text.h"

namespace tessera::data {

namespace {

constexpr const char* kWhere = "data.camera";
constexpr size_t kMatrix = 7;
constexpr double kShown = 1280.0 / 720;  // width by height of the pictures that focal lengths are shares of

using Matrix = std::array<std::array<double, 4>, 4>;

Matrix matrix_of(const CameraRow& row) {
  Matrix m{};
  for (size_t i = 0; i < 12; ++i) m[i / 4][i % 4] = row[kMatrix + i];
  m[3][3] = 1;
  return m;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix m{};
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 4; ++j)
      for (size_t k = 0; k < 4; ++k) m[i][j] += a[i][k] * b[k][j];
  return m;
}

/// Of any matrix [A t; 0 1], since not all are rotations: Gauss and Jordan, with the largest pivot. Nothing where there is
/// no inverse.
bool invert(Matrix a, Matrix& inverse) {
  inverse = {};
  for (size_t i = 0; i < 4; ++i) inverse[i][i] = 1;
  for (size_t column = 0; column < 4; ++column) {
    size_t pivot = column;
    for (size_t i = column + 1; i < 4; ++i)
      if (std::abs(a[i][column]) > std::abs(a[pivot][column])) pivot = i;
    if (!(std::abs(a[pivot][column]) > 1e-12)) return false;
    std::swap(a[pivot], a[column]), std::swap(inverse[pivot], inverse[column]);
    const double by = a[column][column];
    for (size_t j = 0; j < 4; ++j) a[column][j] /= by, inverse[column][j] /= by;
    for (size_t i = 0; i < 4; ++i) {
      const double times = a[i][column];
      if (i == column || times == 0) continue;
      for (size_t j = 0; j < 4; ++j) a[i][j] -= times * a[column][j], inverse[i][j] -= times * inverse[column][j];
    }
  }
  return true;
}

struct Movement {
  const char* name;
  size_t place;  ///< in a row
  double sign;
};
constexpr Movement kMovements[] = {{"Left", 9, 1},   {"Right", 9, -1}, {"Up", 13, 1},
                                   {"Down", 13, -1}, {"In", 18, -1},   {"Out", 18, 1}};

std::vector<Movement> movements_of(const std::string& direction) {
  for (const Movement& one : kMovements)
    if (direction == one.name) return {one};
  for (const Movement& side : {kMovements[0], kMovements[1]})
    for (const Movement& height : {kMovements[2], kMovements[3]})
      if (direction == std::string(side.name) + height.name) return {side, height};
  return {};
}

}  // namespace

std::vector<std::string> camera_directions() {
  return {"Left", "Right", "Up", "Down", "LeftUp", "LeftDown", "RightUp", "RightDown", "In", "Out"};
}

std::vector<CameraRow> read_camera(const std::filesystem::path& file) {
  constexpr const char* kHint = "expected a line of words, then 19 numbers for each frame: docs/data-sets.md";
  ForeignLines lines(file, kWhere, kHint);
  std::vector<CameraRow> rows;
  for (std::string line; lines.next(line);) {
    std::istringstream words(line);
    std::vector<std::string> parts;
    for (std::string word; words >> word;) parts.push_back(word);
    if (lines.number() == 1 || parts.empty()) continue;  // what the first line says is not read
    const std::string where = file.string() + ": line " + std::to_string(lines.number());
    CameraRow row{};
    check_input(parts.size() == row.size(), kWhere,
                where + ": " + std::to_string(parts.size()) + " numbers, expected 19", kHint);
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string& text = parts[i];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), row[i]);
      check_input(error == std::errc() && end == text.data() + text.size() && std::isfinite(row[i]), kWhere,
                  where + ": '" + printable(text) + "' is no number", kHint);
    }
    check_input(row[1] > 0 && row[2] > 0, kWhere, where + ": focal lengths that are not positive", kHint);
    rows.push_back(row);
  }
  check_input(!rows.empty(), kWhere, file.string() + ": no frame", kHint);
  return rows;
}

std::vector<CameraRow> named_camera(const std::string& direction, double speed, int64_t frames) {
  const std::vector<Movement> movements = movements_of(direction);
  if (movements.empty()) {
    std::string known;
    for (const std::string& name : camera_directions()) known += (known.empty() ? "" : ", ") + name;
    throw UserError(Exit::usage, kWhere, "no movement of a camera is called '" + printable(direction) + "'",
                    "expected one of " + known);
  }
  CameraRow row{0, 0.532139961, 0.946026558, 0.5, 0.5, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};
  std::vector<CameraRow> rows;
  for (int64_t f = 0; f < frames; ++f) {
    rows.push_back(row);
    for (const Movement& one : movements) row[one.place] += one.sign * speed;
  }
  return rows;
}

std::vector<CameraRow> resampled(const std::vector<CameraRow>& rows, int64_t frames) {
  std::vector<CameraRow> chosen;
  const auto last = static_cast<double>(rows.size() - 1);
  for (int64_t f = 0; f < frames; ++f) {
    const double place = frames > 1 ? last * static_cast<double>(f) / static_cast<double>(frames - 1) : 0;
    chosen.push_back(rows[static_cast<size_t>(place)]);
  }
  return chosen;
}

std::vector<float> camera_numbers(const std::vector<CameraRow>& rows, const CameraView& view) {
  const auto height = static_cast<double>(view.height), width = static_cast<double>(view.width);
  const bool narrow = kShown > width / height;
  const double more_x = narrow ? height * kShown / width : 1, more_y = narrow ? 1 : width / kShown / height;
  std::vector<float> numbers;
  const Matrix first = matrix_of(rows.front());
  for (size_t f = 0; f < rows.size(); ++f) {
    const CameraRow& row = rows[f];
    for (const double k :
         {row[1] * more_x * width, row[2] * more_y * height, row[3] * width - static_cast<double>(view.left),
          row[4] * height - static_cast<double>(view.top)})
      numbers.push_back(static_cast<float>(k));
    Matrix pose{};
    check_input(invert(matrix_of(row), pose), kWhere,
                "frame " + std::to_string(f) + " of a camera has a matrix without an inverse", "correct its file");
    if (f > 0) pose = product(first, pose);
    for (size_t i = 0; i < 12; ++i)
      numbers.push_back(f > 0 ? static_cast<float>(pose[i / 4][i % 4]) : static_cast<float>(i % 5 == 0));
  }
  return numbers;
}

}  // namespace tessera::data
