// libFuzzer on the protocol and the table of a store's server:
// build/<preset>/tests/fuzz/fuzz_store -max_total_time=3600 -max_len=4096 CORPUS
#include "store.hpp"

#include <cstddef>
#include <cstdint>

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_store({reinterpret_cast<const char*>(data), size});
  return 0;
}
