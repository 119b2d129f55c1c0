// libFuzzer on the directory of ZIP: build/<preset>/tests/fuzz/fuzz_npz -max_total_time=3600 -max_len=4096 CORPUS
#include <cstddef>
#include <cstdint>

#include "binary.hpp"

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_zip({reinterpret_cast<const char*>(data), size});
  return 0;
}
