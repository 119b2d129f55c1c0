// Decodes the rows of a PNG. Private to muster::jpeg.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <zlib.h>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// Returns true if the bytes begin with PNG's signature.
inline bool is_png(std::span<const std::byte> bytes) {
  constexpr std::string_view signature("\x89PNG\r\n\x1a\n", 8);
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).starts_with(signature);
}

/// The rows of a PNG, from the top, as RGB. Supports every type and depth, without interlacing. Transparency is
/// ignored, and the lower byte of 16 bits too. Holds two rows, of up to half a megabyte. Throws data_error for a PNG
/// that is damaged or incomplete.
class png_rows {
 public:
  explicit png_rows(std::span<const std::byte> png) : png_(png) {
    read_chunks();
    if (::inflateInit(&stream_) != Z_OK)
      throw error(error_kind::other, "zlib cannot start (out of memory); free memory");
  }
  ~png_rows() { ::inflateEnd(&stream_); }
  png_rows(const png_rows&) = delete;

  [[nodiscard]] std::uint32_t width() const noexcept { return width_; }
  [[nodiscard]] std::uint32_t height() const noexcept { return height_; }

  /// Writes the next row: 3 * width() bytes.
  void next(std::uint8_t* rgb) {
    std::swap(row_, above_);
    std::uint8_t filter = 0;
    inflate(&filter, 1);
    inflate(row_.data(), row_.size());
    if (filter > 4) fail("it has an unknown filter");
    unfilter(filter);
    for (std::uint32_t x = 0; x < width_; ++x) pixel(x, rgb + std::size_t{3} * x);
  }
  /// Checks that the image ends after the last row, with its checksum.
  void finish() {
    std::uint8_t more = 0;
    inflate(&more, 1, true);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw data_error({"", 0, 0, at_}, "is not a complete PNG (" + reason + "); copy it again, or save it as JPEG");
  }
  [[nodiscard]] std::uint32_t number(std::size_t at) const {
    std::uint32_t value = 0;
    for (std::size_t k = 0; k < 4; ++k) value = value << 8 | std::to_integer<std::uint32_t>(png_[at + k]);
    return value;
  }

  void read_chunks() {
    constexpr std::size_t signature = 8, around = 12;  // length, name and checksum
    for (at_ = signature;;) {
      if (png_.size() - at_ < around) fail("it ends before its last chunk");
      const std::size_t size = number(at_);
      if (size > png_.size() - at_ - around) fail("a chunk is longer than the file");
      const auto* const named = reinterpret_cast<const std::uint8_t*>(png_.data()) + at_ + 4;
      const std::string_view name(reinterpret_cast<const char*>(named), 4);
      if (::crc32(0, named, static_cast<uInt>(size + 4)) != number(at_ + 8 + size))
        fail("a chunk has a wrong checksum");
      const auto content = png_.subspan(at_ + 8, size);
      if ((at_ == signature) != (name == "IHDR")) fail("it does not begin with one header");
      if (name == "IHDR") read_header(content);
      if (name == "PLTE") palette_ = content;
      if (name == "IDAT") data_.push_back(content);
      at_ += around + size;
      if (name == "IEND") break;
    }
    if (type_ == 3 && palette_.empty()) fail("it has no palette");
  }

  void read_header(std::span<const std::byte> header) {
    constexpr std::uint64_t most_side = 65535;  // as in a JPEG
    constexpr std::uint64_t most_pixels = std::uint64_t{1} << 26;
    constexpr std::uint64_t most_bytes = std::uint64_t{1} << 28;  // about a second
    constexpr std::size_t channels[] = {1, 0, 3, 1, 2, 0, 4};
    if (header.size() != 13) fail("its header has another size");
    width_ = number(at_ + 8);
    height_ = number(at_ + 12);
    const auto byte = [&](std::size_t k) { return std::to_integer<unsigned>(header[k]); };
    depth_ = byte(8);
    type_ = byte(9);
    const bool is_small = depth_ == 1 || depth_ == 2 || depth_ == 4;
    const bool is_depth = depth_ == 8 || (depth_ == 16 && type_ != 3) || (is_small && (type_ == 0 || type_ == 3));
    if (type_ > 6 || channels[type_] == 0 || !is_depth || byte(10) != 0 || byte(11) != 0 || width_ == 0 || height_ == 0)
      fail("its header has an unknown type");
    if (byte(12) != 0)
      throw data_error({"", 0, 0, 0}, "is an interlaced PNG (which is not supported); save it without interlacing");
    channels_ = channels[type_];
    const std::size_t bits = channels_ * depth_, row_bytes = (std::size_t{width_} * bits + 7) / 8;
    if (width_ > most_side || height_ > most_side || std::uint64_t{width_} * height_ > most_pixels ||
        row_bytes * height_ > most_bytes)
      throw data_error({"", 0, 0, 0}, "is too expensive to decode (it has " + std::to_string(width_) + " x " +
                                          std::to_string(height_) + " pixels of " + std::to_string(bits) +
                                          " bits); save it with fewer pixels");
    step_ = bits < 8 ? 1 : bits / 8;
    row_.assign(row_bytes, 0);
    above_ = row_;
  }

  void inflate(std::uint8_t* output, std::size_t size, bool expects_end = false) {
    stream_.next_out = output;
    stream_.avail_out = static_cast<uInt>(size);
    for (int state = Z_OK; stream_.avail_out > 0;) {
      if (stream_.avail_in == 0 && next_ < data_.size()) {
        const auto part = data_[next_++];
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(part.data()));
        stream_.avail_in = static_cast<uInt>(part.size());
      }
      state = ::inflate(&stream_, Z_NO_FLUSH);
      if (expects_end && state == Z_STREAM_END && stream_.avail_out == size) return;
      const bool has_more = state == Z_OK || (state == Z_BUF_ERROR && next_ < data_.size());
      if (!has_more && (stream_.avail_out > 0 || state != Z_STREAM_END)) fail("its data are damaged or end too early");
    }
    if (expects_end) fail("its data go on after the last row");
  }

  // Adds to each byte the byte that the filter predicts: the byte to the left, the byte above, their mean, or the byte
  // of the three neighbours that is nearest to left + above - corner (PNG specification, 9.2). Neighbours outside are
  // 0.
  void unfilter(std::uint8_t filter) {
    if (filter == 0) return;
    for (std::size_t k = 0; k < step_; ++k)
      row_[k] = static_cast<std::uint8_t>(row_[k] + (filter == 1 ? 0 : filter == 3 ? above_[k] / 2 : above_[k]));
    const auto add = [&](const auto& predict) {
      for (std::size_t k = step_; k < row_.size(); ++k)
        row_[k] = static_cast<std::uint8_t>(row_[k] + predict(int{row_[k - step_]}, int{above_[k]}, k));
    };
    if (filter == 1) return add([](int left, int, std::size_t) { return left; });
    if (filter == 2) return add([](int, int up, std::size_t) { return up; });
    if (filter == 3) return add([](int left, int up, std::size_t) { return (left + up) / 2; });
    add([&](int left, int up, std::size_t k) {
      const int corner = above_[k - step_], to_left = std::abs(up - corner), to_up = std::abs(left - corner),
                to_corner = std::abs(left + up - 2 * corner);
      return to_left <= to_up && to_left <= to_corner ? left : to_up <= to_corner ? up : corner;
    });
  }

  // Returns a value of the row: of `depth_` bits, or the upper byte of 16 bits.
  [[nodiscard]] unsigned value(std::size_t index) const {
    if (depth_ >= 8) return row_[index * depth_ / 8];
    const std::size_t bit = index * depth_;
    return row_[bit / 8] >> (8 - depth_ - bit % 8) & ((1U << depth_) - 1);
  }
  void pixel(std::size_t x, std::uint8_t* rgb) const {
    for (std::size_t c = 0; c < 3; ++c) {
      unsigned found = value(x * channels_ + (channels_ >= 3 ? c : 0));
      if (type_ == 3) {
        if (3 * found + c >= palette_.size()) fail("a pixel is outside its palette");
        found = std::to_integer<unsigned>(palette_[3 * found + c]);
      } else if (depth_ < 8) {
        found = found * 255 / ((1U << depth_) - 1);
      }
      rgb[c] = static_cast<std::uint8_t>(found);
    }
  }

  std::span<const std::byte> png_, palette_;
  std::vector<std::span<const std::byte>> data_;
  std::size_t at_ = 0, next_ = 0, channels_ = 0, step_ = 0;
  std::uint32_t width_ = 0, height_ = 0;
  unsigned depth_ = 0, type_ = 0;
  std::vector<std::uint8_t> row_, above_;
  z_stream stream_{};
};

}}}}  // namespace muster::v0::data::detail
