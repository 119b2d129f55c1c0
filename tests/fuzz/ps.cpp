// libFuzzer on the messages of the parameter server: build/<preset>/tests/fuzz/fuzz_ps -max_total_time=3600
// -max_len=4096
#include "ps.hpp"

#include <cstddef>

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_ps({data, size});
  return 0;
}
