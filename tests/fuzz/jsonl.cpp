// libFuzzer on the reader of JSON lines: build/<preset>/tests/fuzz/fuzz_jsonl -max_total_time=3600 -max_len=4096 CORPUS
#include "jsonl.hpp"

#include <cstddef>
#include <cstdint>

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check_jsonl({reinterpret_cast<const char*>(data), size});
  return 0;
}
