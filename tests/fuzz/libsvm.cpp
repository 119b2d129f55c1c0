// libFuzzer on the LIBSVM reader: build/<preset>/tests/fuzz/fuzz_libsvm -max_total_time=3600 -max_len=4096 CORPUS
#include "libsvm.hpp"

#include <cstddef>
#include <cstdint>

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_libsvm({reinterpret_cast<const char*>(data), size});
  return 0;
}
