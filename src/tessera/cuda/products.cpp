// Products by cuBLASLt, whose functions are found by name in the library that LibTorch has opened: nothing links to it, and
// where it is not there, LibTorch's operators multiply.
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <type_traits>

#include "tessera/cuda/kernels.h"

namespace tessera::cuda {

namespace {

/// cublasLt.h declares the functions; here are their addresses.
struct Library {
  bool found = false;
#define TESSERA_LT_FUNCTIONS(each)                                                                                  \
  each(GetVersion) each(MatmulDescCreate) each(MatmulDescDestroy) each(MatmulDescSetAttribute)                      \
      each(MatrixLayoutCreate) each(MatrixLayoutDestroy) each(MatmulPreferenceCreate) each(MatmulPreferenceDestroy) \
          each(MatmulPreferenceSetAttribute) each(MatmulAlgoGetHeuristic) each(MatmulAlgoCheck) each(Matmul)        \
              each(GetStatusString)
#define TESSERA_LT_POINTER(name) decltype(&cublasLt##name) name = nullptr;
  TESSERA_LT_FUNCTIONS(TESSERA_LT_POINTER)
#undef TESSERA_LT_POINTER
};

/// cuBLAS and CUDA share their number of major versions.
std::string file_name() { return "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000); }

const Library& library() {
  static const Library opened = [] {
    Library all;
    void* const file = dlopen(file_name().c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!file) return all;
    all.found = true;
#define TESSERA_LT_FIND(name) \
  all.found = (all.name = reinterpret_cast<decltype(all.name)>(dlsym(file, "cublasLt" #name))) && all.found;
    TESSERA_LT_FUNCTIONS(TESSERA_LT_FIND)
#undef TESSERA_LT_FIND
    return all;
  }();
  return opened;
}

cudaDataType_t type_of(ops::Form form) {
  return form == ops::Form::fp32 ? CUDA_R_32F : form == ops::Form::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

/// A product as cuBLASLt describes it. Its matrices have their columns in memory, so it is asked for out^T = b^T a^T.
class Description {
 public:
  explicit Description(const LibraryProduct& p)
      : op_(nullptr, library().MatmulDescDestroy),
        a_(layout(p.of, p.b_turned ? p.k : p.n, p.b_turned ? p.n : p.k, p.b_stride)),
        b_(layout(p.of, p.a_turned ? p.m : p.k, p.a_turned ? p.k : p.m, p.a_stride)),
        out_(layout(p.to, p.n, p.m, p.out_stride)) {
    cublasLtMatmulDesc_t made = nullptr;
    take(library().MatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    op_.reset(made);
    if (!good()) return;
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_turned ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_turned ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set_bias(p.bias);
  }
  /// Null where there is none.
  void set_bias(const void* bias) {
    if (bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  bool good() const { return status_ == CUBLAS_STATUS_SUCCESS; }
  cublasStatus_t status() const { return status_; }

  int candidates(cublasLtHandle_t handle, cublasLtMatmulHeuristicResult_t* found, int most, size_t workspace) const {
    cublasLtMatmulPreference_t made = nullptr;
    if (library().MatmulPreferenceCreate(&made) != CUBLAS_STATUS_SUCCESS) return 0;
    const Owned<cublasLtMatmulPreference_t> preference(made, library().MatmulPreferenceDestroy);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      return library().MatmulPreferenceSetAttribute(preference.get(), what, &value, sizeof value) ==
             CUBLAS_STATUS_SUCCESS;
    };
    constexpr uint32_t kBytes = 16;  // ops::multiplied() asks for no less
    // parts of a sum in fp32, added in order by a kernel behind: neither rounded to 16 bits nor added by turns
    bool taken = prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) &&
                 prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace));
    for (const auto what : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      taken = prefer(what, kBytes) && taken;
    int count = 0;
    if (!taken || library().MatmulAlgoGetHeuristic(handle, op_.get(), a_.get(), b_.get(), out_.get(), out_.get(),
                                                   preference.get(), most, found, &count) != CUBLAS_STATUS_SUCCESS)
      return 0;
    return count;
  }

  /// Whether the library takes the algorithm, within so many bytes of workspace.
  cublasStatus_t check(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, size_t bytes) const {
    cublasLtMatmulHeuristicResult_t fits{};
    const cublasStatus_t status =
        library().MatmulAlgoCheck(handle, op_.get(), a_.get(), b_.get(), out_.get(), out_.get(), &algorithm, &fits);
    return status == CUBLAS_STATUS_SUCCESS && fits.workspaceSize > bytes ? CUBLAS_STATUS_NOT_SUPPORTED : status;
  }

  cublasStatus_t multiply(const LibraryProduct& p, const cublasLtMatmulAlgo_t& algorithm, LibraryMemory memory,
                          cudaStream_t stream) const {
    const float one = 1, keep = p.add ? 1 : 0;
    return library().Matmul(static_cast<cublasLtHandle_t>(memory.handle), op_.get(), &one, p.b, a_.get(), p.a, b_.get(),
                            &keep, p.out, out_.get(), p.out, out_.get(), &algorithm, memory.data, memory.bytes, stream);
  }

 private:
  void take(cublasStatus_t status) {
    if (good()) status_ = status;
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, T value) {
    take(library().MatmulDescSetAttribute(op_.get(), what, &value, sizeof value));
  }
  Owned<cublasLtMatrixLayout_t> layout(ops::Form form, int64_t rows, int64_t cols, int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    take(library().MatrixLayoutCreate(&made, type_of(form), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols),
                                      stride));
    return {made, library().MatrixLayoutDestroy};
  }

  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
  Owned<cublasLtMatmulDesc_t> op_;
  Owned<cublasLtMatrixLayout_t> a_, b_, out_;
};

std::string text_of(cublasStatus_t status) {
  const char* text = library().GetStatusString(status);
  return text ? text : "status " + std::to_string(static_cast<int>(status));
}

/// The products that a thread has asked for, each described and checked once: a step asks for the same ones again and again.
class KnownProducts {
 public:
  /// Null, and why in `status`, where the library refuses the algorithm.
  Description* find(const LibraryProduct& p, const cublasLtMatmulAlgo_t& algorithm, LibraryMemory memory,
                    cublasStatus_t& status) {
    Key key = {static_cast<uint64_t>(p.of),
               static_cast<uint64_t>(p.to),
               static_cast<uint64_t>(p.m),
               static_cast<uint64_t>(p.n),
               static_cast<uint64_t>(p.k),
               static_cast<uint64_t>(p.a_turned),
               static_cast<uint64_t>(p.b_turned),
               static_cast<uint64_t>(p.a_stride),
               static_cast<uint64_t>(p.b_stride),
               static_cast<uint64_t>(p.out_stride),
               static_cast<uint64_t>(p.bias != nullptr),
               reinterpret_cast<uint64_t>(memory.handle),
               static_cast<uint64_t>(memory.bytes)};
    std::copy(std::begin(algorithm.data), std::end(algorithm.data), key.end() - std::ssize(algorithm.data));
    if (const auto known = all_.find(key); known != all_.end()) {
      known->second.set_bias(p.bias);
      status = known->second.status();
      return status == CUBLAS_STATUS_SUCCESS ? &known->second : nullptr;
    }
    Description description(p);
    status = description.good()
                 ? description.check(static_cast<cublasLtHandle_t>(memory.handle), algorithm, memory.bytes)
                 : description.status();
    if (status != CUBLAS_STATUS_SUCCESS) return nullptr;
    if (all_.size() == kMostKnownProducts) all_.clear();
    return &all_.emplace(key, std::move(description)).first->second;
  }

 private:
  using Key = std::array<uint64_t, 13 + std::tuple_size_v<ProductWords>>;
  std::map<Key, Description> all_;
};

}  // namespace

std::string product_library() {
  if (!library().found) return "";
  const size_t version = library().GetVersion();  // 130100 of 13.1.0
  return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

int product_candidates(const LibraryProduct& product, int most, LibraryMemory memory, ProductWords* words) {
  constexpr int kMost = 64;
  std::array<cublasLtMatmulHeuristicResult_t, kMost> found{};
  if (!library().found) return 0;
  const Description description(product);
  if (!description.good()) return 0;
  const int count = description.candidates(static_cast<cublasLtHandle_t>(memory.handle), found.data(),
                                           most < kMost ? most : kMost, memory.bytes);
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& one = found[static_cast<size_t>(i)];
    if (one.state != CUBLAS_STATUS_SUCCESS || one.workspaceSize > memory.bytes) continue;
    std::copy_n(one.algo.data, words[kept].size(), words[kept].begin());
    ++kept;
  }
  return kept;
}

std::string multiply(const LibraryProduct& product, const ProductWords& words, LibraryMemory memory,
                     cudaStream_t stream) {
  if (!library().found) return file_name() + " is not there";
  thread_local KnownProducts known;
  cublasLtMatmulAlgo_t algorithm{};
  std::copy(words.begin(), words.end(), algorithm.data);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (const Description* description = known.find(product, algorithm, memory, status))
    status = description->multiply(product, algorithm, memory, stream);
  return status == CUBLAS_STATUS_SUCCESS ? "" : text_of(status);
}

}  // namespace tessera::cuda
