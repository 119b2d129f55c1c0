// libFuzzer on JPEG and PNG: build/<preset>/tests/fuzz/fuzz_jpeg -max_total_time=3600 -max_len=4096 CORPUS
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/crc_tables.hpp>
#include <muster/data/jpeg.hpp>

#include "binary.hpp"

namespace {

// Sets the checksums of a PNG's chunks, which random changes make wrong.
void correct_png(std::string& png) {
  constexpr std::size_t signature = 8, around = 12;
  const auto byte = [&](std::size_t at) { return static_cast<std::size_t>(static_cast<unsigned char>(png[at])); };
  if (!png.starts_with("\x89PNG")) return;
  for (std::size_t at = signature; png.size() >= at + around;) {
    const std::size_t length = byte(at) << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 | byte(at + 3);
    if (length > png.size() - at - around) return;
    const auto named = fuzz::bytes_of(png).subspan(at + 4, length + 4);
    const auto crc = muster::detail::crc_by_tables<muster::detail::crc32_polynomial>(named);
    for (std::size_t k = 0; k < 4; ++k) png[at + 8 + length + k] = static_cast<char>(crc >> (24 - 8 * k));
    at += around + length;
  }
}

void decode(std::string_view image) {
  constexpr std::uint32_t side = 24;
  const muster::jpeg_options options{.height = side, .width = side, .resize = 30};
  std::vector<std::byte> pixels(std::size_t{3} * side * side);
  const auto jpeg = fuzz::bytes_of(image);
  const std::size_t size = image.size();
  muster::random_stream random(size);
  for (const bool whole : {true, false}) {
    try {
      whole ? muster::decode_jpeg(options)(jpeg, pixels) : muster::random_jpeg_crop(options)(jpeg, pixels, random);
    } catch (const muster::data_error& rejected) {
      fuzz::require(rejected.where().offset.value_or(size + 1) <= size, "the rejection names a byte outside the file");
    }
  }
}

}  // namespace

// NOLINT: the name that libFuzzer requires
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string image(reinterpret_cast<const char*>(data), size);
  decode(image);
  correct_png(image);
  decode(image);
  return 0;
}
