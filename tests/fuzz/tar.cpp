// libFuzzer on tar archives: build/<preset>/tests/fuzz/fuzz_tar -max_total_time=3600 -max_len=8192 CORPUS
#include <cstddef>
#include <cstdint>

#include "binary.hpp"

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_tar({reinterpret_cast<const char*>(data), size});
  return 0;
}
