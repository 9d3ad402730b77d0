// cuBLASLt as src/tessera/cuda/products.cpp calls it: its descriptions are kept, eight algorithms are offered, and what a
// product was asked for is noted for products_test.cpp. It computes nothing.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "fake_cublaslt.h"

struct Layout {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t stride;
};

namespace {
FakeCublasLt state;

Layout& of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }
using Attributes = std::map<int, std::array<uint64_t, 1>>;
Attributes& of(void* attributes) { return *static_cast<Attributes*>(attributes); }
void note(void* attributes, int what, const void* value, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, value, std::min(bytes, sizeof word));
  of(attributes)[what] = {word};
}
uint64_t found(void* attributes, int what) {
  const auto at = of(attributes).find(what);
  return at == of(attributes).end() ? 0 : at->second[0];
}
}  // namespace

extern "C" {
FakeCublasLt* fake_cublaslt() { return &state; }
size_t cublasLtGetVersion() { return state.version; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "the fake refuses"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType_t scale) {
  ++state.alive;
  state.compute = compute, state.scale = scale;
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Attributes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) {
  --state.alive;
  delete &of(static_cast<void*>(made));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t made, cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  note(made, what, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t stride) {
  ++state.alive;
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) {
  --state.alive;
  delete &of(made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  ++state.alive;
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Attributes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) {
  --state.alive;
  delete &of(static_cast<void*>(made));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t made,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void* value,
                                                    size_t bytes) {
  note(made, what, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  state.asked = most;
  state.workspace = found(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  state.reductions = found(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  state.alignment = found(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  *count = std::min(most, 10);
  for (int i = 0; i < *count; ++i) {
    results[i] = {};
    results[i].algo.data[0] = 100 + static_cast<uint64_t>(i), results[i].algo.data[7] = ~uint64_t{0};
    results[i].state = i == state.useless ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  ++state.checks;
  result->workspaceSize = state.needs;
  return algorithm->data[0] == state.refused ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t op, const void*, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void*, size_t,
                              cudaStream_t) {
  const auto put = [](FakeMatrix& to, const void* data, const Layout& layout, uint64_t turned) {
    to = {data, static_cast<int>(layout.type), layout.rows, layout.cols, layout.stride, turned == CUBLAS_OP_T};
  };
  put(state.a, a, of(a_layout), found(op, CUBLASLT_MATMUL_DESC_TRANSA));
  put(state.b, b, of(b_layout), found(op, CUBLASLT_MATMUL_DESC_TRANSB));
  put(state.d, d, of(d_layout), CUBLAS_OP_N);
  state.bias = reinterpret_cast<const void*>(found(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
  state.epilogue = found(op, CUBLASLT_MATMUL_DESC_EPILOGUE);
  state.beta = *static_cast<const float*>(beta), state.in_place = c == d;
  state.algorithm = algorithm->data[0];
  ++state.products;
  return CUBLAS_STATUS_SUCCESS;
}
}
