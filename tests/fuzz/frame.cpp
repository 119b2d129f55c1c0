// libFuzzer on the frames of the tcp transport: build/<preset>/tests/fuzz/fuzz_frame -max_total_time=3600 -max_len=2048
//
// A header is refused for its checksum almost always: so half of the inputs are given the one that fits.
#include "frame.hpp"

#include <cstddef>
#include <cstring>

#include <muster/core/crc32c.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT: the name it looks for
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
