// libFuzzer on headers of safetensors: build/<preset>/tests/fuzz/fuzz_safetensors -max_total_time=3600 -max_len=4096
// CORPUS
#include <cstddef>
#include <cstdint>

#include "binary.hpp"

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_safetensors({reinterpret_cast<const char*>(data), size});
  return 0;
}
