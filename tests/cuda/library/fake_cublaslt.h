#pragma once
// What the fake cuBLASLt was asked for, and what a test has it do.
#include <array>
#include <cstddef>
#include <cstdint>

struct FakeMatrix {
  const void* data;
  int type;
  uint64_t rows, cols;
  int64_t stride;
  bool turned;
};

struct FakeCublasLt {
  size_t version = 130100;
  int useless = -1;      ///< of the heuristic's results
  uint64_t refused = 0;  ///< algorithm
  size_t needs = 0;      ///< bytes of workspace
  // noted
  int alive = 0;   ///< descriptions
  int checks = 0;  ///< of algorithms
  int asked = 0, products = 0, compute = 0, scale = 0;
  uint64_t workspace = 0, reductions = 0, alignment = 0, algorithm = 0, epilogue = 0;
  FakeMatrix a{}, b{}, d{};
  const void* bias = nullptr;
  float beta = -1;
  bool in_place = false;
};
extern "C" FakeCublasLt* fake_cublaslt();
