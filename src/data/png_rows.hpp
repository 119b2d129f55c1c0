// Decodes the rows of a PNG by libpng. Private to muster::jpeg.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <png.h>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// Returns true if the bytes begin with PNG's signature.
inline bool is_png(std::span<const std::byte> bytes) {
  constexpr std::string_view signature("\x89PNG\r\n\x1a\n", 8);
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).starts_with(signature);
}

/// The rows of a PNG, from the top, as RGB. Supports every type and depth. Transparency is ignored, and the lower byte
/// of 16 bits too. Holds one row, or the image if it is interlaced. Throws data_error for a PNG that is damaged or
/// incomplete.
class png_rows {
 public:
  explicit png_rows(std::span<const std::byte> png) : png_(png) {
    reader_ = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &png_rows::on_error, &png_rows::on_warning);
    info_ = reader_ == nullptr ? nullptr : ::png_create_info_struct(reader_);
    if (info_ == nullptr) throw error(error_kind::other, "libpng cannot start (out of memory); free memory");
    run([&] {
      ::png_set_read_fn(reader_, this, &png_rows::on_read);
      ::png_set_crc_action(reader_, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
      ::png_set_benign_errors(reader_, 0);
      ::png_set_keep_unknown_chunks(reader_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);  // texts and profiles
      ::png_read_info(reader_, info_);
    });
    require_little_work();
    run([&] {
      if (::png_get_color_type(reader_, info_) == PNG_COLOR_TYPE_PALETTE) {
        ::png_get_PLTE(reader_, info_, &palette_, &colours_);
        ::png_set_packing(reader_);
      } else {
        ::png_set_expand_gray_1_2_4_to_8(reader_);
        ::png_set_gray_to_rgb(reader_);
        ::png_set_strip_16(reader_);
        ::png_set_strip_alpha(reader_);
      }
      passes_ = ::png_set_interlace_handling(reader_);
      ::png_read_update_info(reader_, info_);
    });
  }
  png_rows(const png_rows&) = delete;

  [[nodiscard]] std::uint32_t width() const noexcept { return ::png_get_image_width(reader_, info_); }
  [[nodiscard]] std::uint32_t height() const noexcept { return ::png_get_image_height(reader_, info_); }

  /// Writes the next row: 3 * width() bytes.
  void next(std::uint8_t* rgb) {
    const std::size_t row_bytes = ::png_get_rowbytes(reader_, info_);
    if (passes_ == 1) {
      run([&] { ::png_read_row(reader_, rgb, nullptr); });
    } else {
      if (image_.empty()) read_image(row_bytes);
      std::memcpy(rgb, image_.data() + row_bytes * next_++, row_bytes);
    }
    if (palette_ == nullptr) return;
    for (std::size_t x = width(); x-- > 0;) {  // from the end, since a colour is longer than its number
      if (rgb[x] >= colours_) fail("a pixel is outside its palette");
      const png_color colour = palette_[rgb[x]];
      rgb[3 * x] = colour.red;
      rgb[3 * x + 1] = colour.green;
      rgb[3 * x + 2] = colour.blue;
    }
  }
  /// Checks that the file is complete.
  void finish() {
    run([&] { ::png_read_end(reader_, nullptr); });
  }

 private:
  void require_little_work() const {
    constexpr std::uint64_t most_side = 65535;  // as in a JPEG
    constexpr std::uint64_t most_pixels = std::uint64_t{1} << 26;
    constexpr std::uint64_t most_bytes = std::uint64_t{1} << 28;  // about a second
    const std::uint64_t pixels = std::uint64_t{width()} * height();
    if (width() <= most_side && height() <= most_side && pixels <= most_pixels &&
        ::png_get_rowbytes(reader_, info_) * height() <= most_bytes)
      return;
    throw data_error({"", 0, 0, 0}, "is too expensive to decode (it has " + std::to_string(width()) + " x " +
                                        std::to_string(height()) + " pixels); save it with fewer pixels");
  }

  void read_image(std::size_t row_bytes) {
    image_.resize(row_bytes * height());
    std::vector<png_bytep> rows(height());
    for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = image_.data() + row_bytes * y;
    png_bytepp const first = rows.data();
    run([&] { ::png_read_image(reader_, first); });
  }

  /// Calls body(), which must not own objects with destructors: on an error libpng jumps back to this function.
  template <class Body>
  void run(const Body& body) {
    if (setjmp(jump_) == 0) return body();
    fail(why_);
  }
  [[noreturn]] void fail(const std::string& reason) const {
    throw data_error({"", 0, 0, at_}, "is not a complete PNG (" + reason + "); copy it again, or save it as JPEG");
  }

  static png_rows& rows_of(png_structp reader) { return *static_cast<png_rows*>(::png_get_error_ptr(reader)); }
  [[noreturn]] static void on_error(png_structp reader, png_const_charp reason) {
    png_rows& rows = rows_of(reader);
    std::snprintf(rows.why_, sizeof rows.why_, "%s", reason);
    std::longjmp(rows.jump_, 1);
  }
  static void on_warning(png_structp /*reader*/, png_const_charp /*reason*/) {}
  static void on_read(png_structp reader, png_bytep output, std::size_t size) {
    png_rows& rows = rows_of(reader);
    if (size > rows.png_.size() - rows.at_) ::png_error(reader, "it ends before its last chunk");
    std::memcpy(output, rows.png_.data() + rows.at_, size);
    rows.at_ += size;
  }

  struct handle {
    png_structp reader = nullptr;
    png_infop info = nullptr;
    ~handle() { ::png_destroy_read_struct(&reader, &info, nullptr); }
  };

  std::span<const std::byte> png_;
  handle handle_;
  png_structp& reader_ = handle_.reader;
  png_infop& info_ = handle_.info;
  png_colorp palette_ = nullptr;
  int colours_ = 0;
  std::size_t at_ = 0, next_ = 0;
  int passes_ = 1;
  std::vector<std::uint8_t> image_;  // of an interlaced PNG
  std::jmp_buf jump_;
  char why_[128] = {};
};

}}}}  // namespace muster::v0::data::detail
