// libFuzzer on the frames of the tcp transport: build/<preset>/tests/fuzz/fuzz_frame -max_total_time=3600 -max_len=2048
//
// A random header is almost always rejected for its checksum. Therefore the harness corrects the checksum in half of
// the inputs.
#include "frame.hpp"

#include <cstddef>
#include <cstring>

#include <muster/core/crc32c.hpp>

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace tcp = muster::detail;
  std::vector<std::uint8_t> copy(data, data + size);
  fuzz::check_frame(copy);
  if (size < tcp::frame_bytes) return 0;
  std::memset(copy.data() + 8, 0, 4);
  const std::uint32_t sum = muster::crc32c(std::as_bytes(std::span(copy)).first(tcp::frame_bytes));
  std::memcpy(copy.data() + 8, &sum, sizeof sum);
  fuzz::check_frame(copy);
  return 0;
}
