// libFuzzer on the CSV reader: build/<preset>/tests/fuzz/fuzz_csv -max_total_time=3600 -max_len=4096 CORPUS
#include "csv.hpp"

#include <cstddef>
#include <cstdint>

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_csv({reinterpret_cast<const char*>(data), size});
  return 0;
}
