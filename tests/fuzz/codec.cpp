// libFuzzer on the decoders of compressed gradients: build/<preset>/tests/fuzz/fuzz_codec -max_total_time=3600 CORPUS
#include "codec.hpp"

#include <cstddef>
#include <cstdint>

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_codec({data, size});
  return 0;
}
