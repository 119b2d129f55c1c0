// libFuzzer on what the processes that carry an embedded store say to each other:
// build/<preset>/tests/fuzz/fuzz_replica -max_total_time=3600 -max_len=4096 CORPUS
#include "replica.hpp"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT: the name it looks for
  return fuzz::check_replica({reinterpret_cast<const char*>(data), size});
}
