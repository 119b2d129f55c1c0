// libFuzzer on JPEG: build/<preset>/tests/fuzz/fuzz_jpeg -max_total_time=3600 -max_len=4096 CORPUS
#include <cstddef>
#include <cstdint>
#include <vector>

#include <muster/data/jpeg.hpp>

#include "binary.hpp"

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint32_t side = 24;
  const muster::jpeg_options options{.height = side, .width = side, .resize = 30};
  std::vector<std::byte> pixels(std::size_t{3} * side * side);
  const auto jpeg = std::as_bytes(std::span(data, size));
  muster::random_stream random(size);
  for (const bool whole : {true, false}) {
    try {
      whole ? muster::decode_jpeg(options)(jpeg, pixels) : muster::random_jpeg_crop(options)(jpeg, pixels, random);
    } catch (const muster::data_error& rejected) {
      fuzz::require(rejected.where().offset.value_or(size + 1) <= size, "the rejection names a byte outside the file");
    }
  }
  return 0;
}
