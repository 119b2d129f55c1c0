// JPEG decoding with libjpeg-turbo, in a separate library so that the core does not depend on libjpeg-turbo.
#include <muster/data/jpeg.hpp>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <jerror.h>
#include <jpeglib.h>

#include <muster/core/error.hpp>
#include <muster/core/plugin.hpp>
#include <muster/data/resample.hpp>
#ifdef MUSTER_HAVE_PNG
#include "png_rows.hpp"
#endif

namespace muster { inline namespace v0 { namespace data { namespace {

constexpr std::uint64_t most_pixels = std::uint64_t{1} << 26;
constexpr int most_scans = 100;
// Number of scans times number of pixels: less than a second.
constexpr std::uint64_t most_work = std::uint64_t{1} << 28;
// In bytes; several scans require the coefficients of the whole image in memory.
constexpr std::uint64_t most_coefficients = std::uint64_t{192} << 20;

// Returns the name of the format whose signature `bytes` have, or null if it is unknown.
const char* other_format(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr std::pair<std::string_view, const char*> signatures[] = {
      {"\x89PNG", "a PNG"}, {"GIF8", "a GIF"}, {"BM", "a BMP"}, {"II*", "a TIFF"}, {"MM", "a TIFF"}, {"<", "a text"}};
  for (const auto& [begin, name] : signatures) {
    if (text.starts_with(begin)) return name;
  }
  if (text.starts_with("RIFF") && text.size() > 8 && text.substr(8).starts_with("WEBP")) return "a WebP";
  if (text.size() > 4 && text.substr(4).starts_with("ftyp")) return "a HEIF or AVIF image";
  return nullptr;
}

std::string no_whole_jpeg(const std::string& reason) {
  return "is not a complete JPEG (" + reason + "); copy it again, or leave it out with on_bad_record";
}

std::string too_much(const std::string& reason) {
  return "is too expensive to decode (" + reason +
         "); save it with fewer pixels or scans, or leave it out with on_bad_record";
}

// Returns the number of scans. A progressive file of few bytes may have many scans, and each scan costs as much as a
// whole image.
std::uint64_t scans_of(std::span<const std::byte> jpeg) {
  const auto byte = [&](std::size_t at) { return std::to_integer<unsigned>(jpeg[at]); };
  std::uint64_t scans = 0;
  for (std::size_t at = 2; at + 4 <= jpeg.size();) {
    const unsigned marker = byte(at) == 0xFF ? byte(at + 1) : 0;
    if (marker == 0xD9) break;
    if (marker == 0 || marker == 0xFF || marker == 1 || (marker >= 0xD0 && marker <= 0xD8)) {
      ++at;  // within a scan, or a marker without a length
      continue;
    }
    scans += marker == 0xDA ? 1 : 0;
    at += 2 + 256 * byte(at + 2) + byte(at + 3);
  }
  return scans;
}

constexpr int exif_marker = JPEG_APP0 + 1;

/// The way in which a stored image is shown: EXIF's tag Orientation (CIPA DC-008-2012, 4.6.4).
struct orientation {
  bool mirror_x = false, mirror_y = false;  // of the stored image
  bool transpose = false;                   // afterwards: rows become columns

  static orientation of_number(unsigned number) {
    if (number < 2 || number > 8) return {};
    return {number == 2 || number == 3 || number == 7 || number == 8,
            number == 3 || number == 4 || number == 6 || number == 7, number >= 5};
  }
  [[nodiscard]] bool is_plain() const { return !mirror_x && !mirror_y && !transpose; }

  /// Returns the window of the stored image of which the shown image's window consists.
  [[nodiscard]] detail::image_window stored(const detail::image_window& shown, std::uint32_t width,
                                            std::uint32_t height) const {
    detail::image_window part = transpose ? detail::image_window{shown.y, shown.x, shown.height, shown.width} : shown;
    if (mirror_x) part.x = width - part.x - part.width;
    if (mirror_y) part.y = height - part.y - part.height;
    return part;
  }
  /// Copies a stored image of three bytes a pixel to a shown image of `height` x `width` pixels.
  void show(const std::uint8_t* from, std::uint32_t height, std::uint32_t width, bool flip, std::byte* to) const {
    const std::size_t stored_width = transpose ? height : width, stored_height = transpose ? width : height;
    for (std::size_t row = 0; row < height; ++row) {
      for (std::size_t column = 0; column < width; ++column, to += 3) {
        const std::size_t shown = flip ? width - 1 - column : column;
        const std::size_t u = transpose ? row : shown, v = transpose ? shown : row;
        const std::size_t x = mirror_x ? stored_width - 1 - u : u, y = mirror_y ? stored_height - 1 - v : v;
        std::memcpy(to, from + 3 * (y * stored_width + x), 3);
      }
    }
  }
};

constexpr std::string_view exif_begin("Exif\0\0", 6);

bool is_exif(std::span<const unsigned char> marker) {
  return std::string_view(reinterpret_cast<const char*>(marker.data()), marker.size()).starts_with(exif_begin);
}

// Returns the orientation in the EXIF data of a JPEG's marker: a TIFF after six bytes. Returns 1, which turns nothing,
// if it has none.
unsigned orientation_in(std::span<const unsigned char> exif) {
  constexpr std::size_t entry_bytes = 12;
  constexpr unsigned tag = 0x0112, short_type = 3;
  const auto tiff = exif.subspan(exif_begin.size());
  const bool is_little = !tiff.empty() && tiff[0] == 'I';
  const auto number = [&](std::size_t at, std::size_t bytes) -> std::size_t {
    std::size_t value = 0;
    for (std::size_t k = 0; k < bytes; ++k) {
      const std::size_t place = at + (is_little ? bytes - 1 - k : k);
      value = value << 8 | (place < tiff.size() ? tiff[place] : 0U);
    }
    return value;
  };
  const std::size_t directory = number(4, 4), entries = number(directory, 2);
  for (std::size_t k = 0, at = directory + 2; k < entries && at + entry_bytes <= tiff.size(); ++k, at += entry_bytes)
    if (number(at, 2) == tag && number(at + 2, 2) == short_type) return static_cast<unsigned>(number(at + 8, 2));
  return 1;
}

// The state of libjpeg for one JPEG. On an error libjpeg jumps from nested calls back to run(), past stack frames that
// own no resources.
class decompressor {
 public:
  explicit decompressor(std::span<const std::byte> jpeg) : jpeg_(jpeg) {
    constexpr std::byte begin[] = {std::byte{0xFF}, std::byte{0xD8}};
    if (jpeg.size() >= 2 && !std::ranges::equal(jpeg.first(2), begin)) {
      const char* const format = other_format(jpeg);
      throw data_error({"", 0, 0, 0},
                       std::string("is not a JPEG (it ") +
                           (format != nullptr ? std::string("is ") + format : "begins like another format") +
                           ", despite its name); convert it, or leave it out with on_bad_record");
    }
    // A truncated file may still be complete within the decoded window. It is refused nevertheless.
    constexpr std::byte end[] = {std::byte{0xFF}, std::byte{0xD9}};
    if (std::find_end(jpeg.begin(), jpeg.end(), std::begin(end), std::end(end)) == jpeg.end()) {
      throw data_error({"", 0, 0, jpeg.size()}, no_whole_jpeg("it has no end marker"));
    }
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = [](j_common_ptr info) { decompressor_of(info).fail(info); };
    errors_.emit_message = [](j_common_ptr info, int level) {
      const int code = info->err->msg_code;
      const bool harmless = code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR;
      if (level < 0 && !harmless) decompressor_of(info).fail(info);
    };
    progress_.progress_monitor = [](j_common_ptr info) {
      if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > most_scans) {
        decompressor_of(info).fail(info, "it has more scans than its markers");
      }
    };
    run([&] {
      jpeg_create_decompress(&info_);
      info_.progress = &progress_;
      jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(jpeg.data()), jpeg.size());
      jpeg_save_markers(&info_, exif_marker, 0xFFFF);
      jpeg_read_header(&info_, TRUE);
    });
    require_little_work();
  }
  ~decompressor() { jpeg_destroy_decompress(&info_); }
  decompressor(const decompressor&) = delete;

  [[nodiscard]] jpeg_decompress_struct& info() noexcept { return info_; }
  /// Returns the orientation in the file's first EXIF data.
  [[nodiscard]] orientation turned() const noexcept {
    for (const auto* marker = info_.marker_list; marker != nullptr; marker = marker->next)
      if (marker->marker == exif_marker && is_exif({marker->data, marker->data_length}))  // XMP has the same marker
        return orientation::of_number(orientation_in({marker->data, marker->data_length}));
    return {};
  }

  /// Calls body(), which must not own objects with destructors.
  template <class Body>
  void run(const Body& body) {
    if (setjmp(jump_) == 0) return body();
    const std::size_t unread = info_.src != nullptr ? info_.src->bytes_in_buffer : jpeg_.size();
    const std::size_t at = jpeg_.size() - std::min(unread, jpeg_.size());
    jpeg_destroy_decompress(&info_);  // a second call is harmless
    throw data_error({"", 0, 0, at}, no_whole_jpeg(why_));
  }

 private:
  void require_little_work() const {
    const auto pixels = std::uint64_t{info_.image_width} * info_.image_height;
    const auto refuse = [&](const std::string& reason) { throw data_error({"", 0, 0, 0}, too_much(reason)); };
    if (pixels > most_pixels) refuse("it has " + std::to_string(pixels) + " pixels");
    if (!jpeg_has_multiple_scans(const_cast<jpeg_decompress_struct*>(&info_))) return;
    const auto scans = scans_of(jpeg_);
    if (scans > most_scans || scans * pixels > most_work)
      refuse("it has " + std::to_string(scans) + " scans of " + std::to_string(pixels) + " pixels");
    std::uint64_t blocks = 0;
    for (int k = 0; k < info_.num_components; ++k)
      blocks += std::uint64_t{info_.comp_info[k].width_in_blocks} * info_.comp_info[k].height_in_blocks;
    if (blocks * sizeof(JBLOCK) > most_coefficients)
      refuse("it is progressive and has " + std::to_string(pixels) + " pixels");
  }

  static decompressor& decompressor_of(j_common_ptr info) { return *static_cast<decompressor*>(info->client_data); }
  [[noreturn]] void fail(j_common_ptr info, const char* reason = nullptr) {
    if (reason == nullptr) {
      errors_.format_message(info, why_);
    } else {
      std::snprintf(why_, sizeof why_, "%s", reason);
    }
    std::longjmp(jump_, 1);
  }

  std::span<const std::byte> jpeg_;
  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_;
  char why_[JMSG_LENGTH_MAX] = {};
};

#ifdef MUSTER_HAVE_PNG
void decode_png(std::span<const std::byte> png, const detail::image_window& window, std::uint32_t height,
                std::uint32_t width, bool flip, std::byte* pixels) {
  detail::png_rows rows(png);
  const detail::resampled_axis down(window.y, window.height, rows.height(), height);
  const detail::resampled_axis across(window.x, window.width, rows.width(), width);
  detail::resampler<3> resized(down, across, flip, reinterpret_cast<std::uint8_t*>(pixels));
  std::vector<std::uint8_t> row(std::size_t{rows.width()} * 3 + 3);
  for (std::uint32_t number = 0; number < rows.height(); ++number) {
    rows.next(row.data());
    if (number >= resized.first_input_row() && !resized.done()) resized.take(number, row.data(), 0);
  }
  rows.finish();
}
#endif

detail::image_window size_of_jpeg(std::span<const std::byte> jpeg) {
#ifdef MUSTER_HAVE_PNG
  if (detail::is_png(jpeg)) {
    const detail::png_rows rows(jpeg);
    return {0, 0, rows.width(), rows.height()};
  }
#endif
  decompressor reader(jpeg);
  const auto [width, height] = std::pair{reader.info().image_width, reader.info().image_height};
  return reader.turned().transpose ? detail::image_window{0, 0, height, width}
                                   : detail::image_window{0, 0, width, height};
}

// Adobe's CMYK is stored inverted: 255 means no ink.
void cmyk_to_rgb(std::uint8_t* row, std::size_t pixels) {
  for (std::size_t k = 0; k < pixels; ++k) {
    const unsigned black = row[4 * k + 3];
    for (std::size_t c = 0; c < 3; ++c) row[3 * k + c] = static_cast<std::uint8_t>(row[4 * k + c] * black / 255);
  }
}

// Returns the scale in eighths for decoding the window: the smallest scale with enough pixels for the output.
unsigned eighths_of(const detail::image_window& window, std::uint32_t height, std::uint32_t width) {
  for (const unsigned eighths : {1u, 2u, 4u}) {
    if (window.width * std::uint64_t{eighths} >= width * std::uint64_t{8} &&
        window.height * std::uint64_t{eighths} >= height * std::uint64_t{8}) {
      return eighths;
    }
  }
  return 8;
}

// Decodes a window of the stored image.
void decode_stored(decompressor& reader, const detail::image_window& window, std::uint32_t height, std::uint32_t width,
                   bool flip, std::uint8_t* pixels) {
  auto& info = reader.info();
  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  const unsigned eighths = eighths_of(window, height, width);
  reader.run([&] {
    info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    info.scale_num = eighths;
    info.scale_denom = 8;
    jpeg_start_decompress(&info);
  });
  const double scale = eighths / 8.0;
  const detail::resampled_axis down(window.y * scale, window.height * scale, info.output_height, height);
  const detail::resampled_axis across(window.x * scale, window.width * scale, info.output_width, width);
  detail::resampler<3> resized(down, across, flip, pixels);
  JDIMENSION first_column = across.first.front();
  JDIMENSION columns = std::min(across.first.back() + 2, info.output_width) - first_column;
  std::vector<std::uint8_t> row(std::size_t{info.output_width} * 4 + 4);
  JSAMPROW rows[] = {row.data()};
  reader.run([&] {
    jpeg_crop_scanline(&info, &first_column, &columns);
    jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(resized.first_input_row()));
    while (!resized.done()) {
      const std::size_t number = info.output_scanline;
      jpeg_read_scanlines(&info, rows, 1);
      if (cmyk) cmyk_to_rgb(row.data(), columns);
      resized.take(number, row.data(), first_column);
    }
  });
}

void decode(std::span<const std::byte> jpeg, const detail::image_window& window, std::uint32_t height,
            std::uint32_t width, bool flip, std::byte* pixels) {
#ifdef MUSTER_HAVE_PNG
  if (detail::is_png(jpeg)) return decode_png(jpeg, window, height, width, flip, pixels);
#endif
  decompressor reader(jpeg);
  const orientation turned = reader.turned();
  if (turned.is_plain())
    return decode_stored(reader, window, height, width, flip, reinterpret_cast<std::uint8_t*>(pixels));
  std::vector<std::uint8_t> stored(std::size_t{3} * height * width);
  decode_stored(reader, turned.stored(window, reader.info().image_width, reader.info().image_height),
                turned.transpose ? width : height, turned.transpose ? height : width, false, stored.data());
  turned.show(stored.data(), height, width, flip, pixels);
}

constexpr detail::jpeg_functions functions{size_of_jpeg, decode};

}  // namespace

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 { namespace detail {

extern const plugin jpeg_plugin;
[[gnu::init_priority(101)]] const plugin jpeg_plugin("jpeg",
                                                     [] { data::detail::set_jpeg_functions(&data::functions); });

}}}  // namespace muster::v0::detail
