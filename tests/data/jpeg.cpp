#include <muster/data/jpeg.hpp>

#ifdef MUSTER_HAS_JPEG

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <jpeglib.h>
#ifdef MUSTER_HAS_PNG
#include <png.h>
#endif

#include <muster/data/image_steps.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>

#include "catch.hpp"
#include "files.hpp"

namespace {

/// Returns a smooth image, which JPEG preserves well.
std::vector<std::byte> smooth_image(std::size_t height, std::size_t width) {
  std::vector<std::byte> result;
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t x = 0; x < width; ++x) {
      for (const std::size_t value : {255 * x / width, 255 * y / height, 128 + 60 * (x + y) / (width + height)})
        result.push_back(static_cast<std::byte>(value));
    }
  }
  return result;
}

std::string encode(std::vector<std::byte> pixels, std::size_t height, std::size_t width, bool progressive) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = reinterpret_cast<JSAMPROW>(pixels.data()) + info.next_scanline * width * 3;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string result(reinterpret_cast<const char*>(memory), size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return result;
}

double largest_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  REQUIRE(a.size() == b.size());
  int worst = 0;
  for (std::size_t k = 0; k < a.size(); ++k)
    worst = std::max(worst, std::abs(static_cast<int>(a[k]) - static_cast<int>(b[k])));
  return worst;
}

const muster::data::record_schema bytes_schema{muster::data::record_form::bytes, {}, 0, {"label"}};

}  // namespace

TEST_CASE("a JPEG is decoded at its own size, or smaller ones, near to what it was made of") {
  for (const bool progressive : {false, true}) {
    const std::size_t height = 203, width = 311;
    const auto jpeg = encode(smooth_image(height, width), height, width, progressive);
    for (const std::uint32_t parts : {1u, 2u, 3u, 5u, 9u}) {
      const auto h = static_cast<std::uint32_t>(height) / parts, w = static_cast<std::uint32_t>(width) / parts;
      muster::decode_jpeg step({.height = h, .width = w, .resize = 0});
      (void)step.output(bytes_schema);
      std::vector<std::byte> result(3 * h * w);
      step(std::as_bytes(std::span(jpeg)), result);
      CAPTURE(progressive, parts);
      CHECK(largest_difference(result, smooth_image(h, w)) <= 10);
    }
  }
}

TEST_CASE("random windows of a JPEG lie within it and depend on the stream alone") {
  const std::size_t height = 60, width = 90;
  const auto jpeg = encode(smooth_image(height, width), height, width, false);
  const muster::random_jpeg_crop step({.height = 32, .width = 32});
  bool mirrored = false, plain = false;
  for (std::uint64_t k = 0; k < 60; ++k) {
    muster::random_stream random_a(k), random_b(k);
    std::vector<std::byte> a(3 * 32 * 32), b(a.size());
    step(std::as_bytes(std::span(jpeg)), a, random_a);
    step(std::as_bytes(std::span(jpeg)), b, random_b);
    CHECK(a == b);
    // Red increases from left to right, unless the image is mirrored. Green increases downwards.
    CHECK(a[31 * 32 * 3 + 1] >= a[1]);
    (a[31 * 3] > a[0] ? plain : mirrored) = true;
  }
  CHECK((mirrored && plain));
}

TEST_CASE("a JPEG that is cut anywhere is a bad record with its file and byte") {
  const temporary_folder folder;
  std::filesystem::create_directory(folder / "class");
  const auto jpeg = encode(smooth_image(48, 64), 48, 64, false), scans = encode(smooth_image(48, 64), 48, 64, true);
  folder.write("class/a.jpg", jpeg);
  folder.write("class/b.jpg", scans);
  const auto pipeline = [&] {
    return muster::open_source("images:" + (folder / "")) | muster::batch(3) |
           muster::map(muster::decode_jpeg({.height = 8, .width = 8}));
  };
  for (const auto* file : {&jpeg, &scans}) {
    for (std::size_t cut = 0; cut < file->size(); cut += 1 + cut / 20) {
      const auto path = folder.write("class/cut.jpg", std::string_view(*file).substr(0, cut));
      auto strict = pipeline();
      try {
        (void)strict.next({0, 1});
        FAIL("a cut JPEG was taken");
      } catch (const muster::data_error& error) {
        CAPTURE(cut, error.what());
        CHECK(std::string(error.what()).find("//class/cut.jpg: byte ") != std::string::npos);
        CHECK(std::string(error.what()).find('\n') == std::string::npos);
        CHECK(error.where().offset.value_or(cut + 1) <= cut);
      }
    }
  }
  auto tolerant = pipeline() | muster::on_bad_records({.policy = muster::bad_record_policy::skip});
  CHECK(tolerant.next({0, 1}).samples.size() == 2);
}

TEST_CASE("an image of another format is called by its format, whatever its name") {
  const muster::decode_jpeg step({.height = 8, .width = 8});
  std::vector<std::byte> result(3 * 8 * 8);
  const auto refusal = [&](const std::string& bytes) -> std::string {
    try {
      step(std::as_bytes(std::span(bytes)), result);
    } catch (const muster::data_error& error) {
      return error.problem();
    }
    return "none";
  };
  const std::pair<std::string, std::string> formats[] = {{"GIF89a....", "a GIF"},
                                                         {"RIFF....WEBPVP8 ", "a WebP"},
                                                         {"....ftypheic", "HEIF"},
                                                         {"II*.....", "a TIFF"},
                                                         {"<html></html>", "a text"}};
  for (const auto& [begin, format] : formats) {
    CAPTURE(begin);
    CHECK_THAT(refusal(begin), contains("is not a JPEG (it is ") && contains(format) && !contains("copy it again"));
  }
  CHECK_THAT(refusal("abcdefgh"), contains("is not a JPEG (it begins like another format"));
#ifdef MUSTER_HAS_PNG
  CHECK_THAT(refusal("\x89PNG\r\n\x1a\n...."), contains("is not a complete PNG (it ends before its last chunk)"));
#endif
}

TEST_CASE("a JPEG is prepared for serving as its training evaluated it") {
  const temporary_folder folder;
  std::filesystem::create_directory(folder / "class");
  folder.write("class/a.jpg", encode(smooth_image(70, 50), 70, 50, false));
  const muster::jpeg_options jpeg{.height = 20, .width = 20, .resize = 24};
  const muster::image_options normal{.mean = {0.485f, 0.456f, 0.406f}, .deviation = {0.229f, 0.224f, 0.225f}};
  const auto source = muster::open_source("images:" + (folder / ""));
  auto trained =
      source | muster::batch(1) | muster::map(muster::decode_jpeg(jpeg)) | muster::map(muster::normalise(normal));
  auto served = source | muster::batch(1) | (muster::prepare(jpeg) | muster::prepare(normal));
  const auto a = trained.next({0, 1}), b = served.next({0, 1});
  CHECK(std::ranges::equal(a.values<float>(), b.values<float>()));
}

namespace {

// The pixels of an image, with elementary turns.
struct picture {
  std::size_t height, width;
  std::vector<std::byte> pixels;

  [[nodiscard]] picture turned(std::size_t to_height, std::size_t to_width, const auto& place) const {
    picture result{to_height, to_width, {}};
    for (std::size_t y = 0; y < to_height; ++y) {
      for (std::size_t x = 0; x < to_width; ++x) {
        const std::size_t from = place(y, x);
        for (std::size_t c = 0; c < 3; ++c) result.pixels.push_back(pixels[3 * from + c]);
      }
    }
    return result;
  }
  [[nodiscard]] picture mirrored() const {
    return turned(height, width, [&](std::size_t y, std::size_t x) { return y * width + width - 1 - x; });
  }
  [[nodiscard]] picture clockwise() const {
    return turned(width, height, [&](std::size_t y, std::size_t x) { return (height - 1 - x) * width + y; });
  }
  // Returns the image as EXIF's number shows it.
  [[nodiscard]] picture shown(unsigned number) const {
    picture result = *this;
    constexpr int quarters[] = {0, 0, 2, 2, 1, 1, 3, 3};
    for (int k = 0; k < quarters[number - 1]; ++k) result = result.clockwise();
    return number == 2 || number == 4 || number == 5 || number == 7 ? result.mirrored() : result;
  }
};

std::string number_of(std::uint32_t value, int bytes, bool is_little) {
  std::string text;
  for (int k = 0; k < bytes; ++k) text += static_cast<char>(value >> (8 * (is_little ? k : bytes - 1 - k)) & 0xff);
  return text;
}

// Returns a JPEG with EXIF data: another tag, and the orientation.
std::string with_exif(const std::string& jpeg, unsigned orientation, bool is_little) {
  const auto number = [&](std::uint32_t value, int bytes) { return number_of(value, bytes, is_little); };
  const std::string tiff = std::string(is_little ? "II" : "MM") + number(42, 2) + number(10, 4) + "??" + number(2, 2) +
                           number(0x0100, 2) + number(4, 2) + number(1, 4) + number(5, 4) + number(0x0112, 2) +
                           number(3, 2) + number(1, 4) + number(orientation, 2) + number(0, 2) + number(0, 4);
  const std::string marker = std::string("Exif\0\0", 6) + tiff;
  return jpeg.substr(0, 2) + "\xff\xe1" + number_of(static_cast<std::uint32_t>(marker.size() + 2), 2, false) + marker +
         jpeg.substr(2);
}

}  // namespace

TEST_CASE("a JPEG is turned as its EXIF data say, whole, in the middle and in random windows") {
  const std::size_t height = 96, width = 160;
  const picture stored{height, width, smooth_image(height, width)};
  const auto jpeg = encode(stored.pixels, height, width, false);
  const auto decoded = [](const auto& step, std::string_view file, std::uint32_t h, std::uint32_t w, auto&... random) {
    std::vector<std::byte> result(std::size_t{3} * h * w);
    step(std::as_bytes(std::span(file)), result, random...);
    return result;
  };
  for (unsigned number = 1; number <= 8; ++number) {
    for (const bool is_little : {false, true}) {
      CAPTURE(number, is_little);
      const picture shown = stored.shown(number);
      const auto file = with_exif(jpeg, number, is_little);
      const auto plain = encode(shown.pixels, shown.height, shown.width, false);
      const auto h = static_cast<std::uint32_t>(shown.height), w = static_cast<std::uint32_t>(shown.width);
      const muster::decode_jpeg whole({.height = h, .width = w, .resize = 0});
      CHECK(largest_difference(decoded(whole, file, h, w), shown.pixels) <= 10);
      const muster::decode_jpeg middle({.height = 30, .width = 20, .resize = 50});
      CHECK(largest_difference(decoded(middle, file, 30, 20), decoded(middle, plain, 30, 20)) <= 10);
      const muster::random_jpeg_crop window({.height = 32, .width = 24});
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        CAPTURE(seed);
        muster::random_stream a(seed), b(seed);
        CHECK(largest_difference(decoded(window, file, 32, 24, a), decoded(window, plain, 32, 24, b)) <= 10);
      }
    }
  }
  const muster::decode_jpeg whole({.height = height, .width = width, .resize = 0});
  const auto unturned = decoded(whole, jpeg, height, width);
  for (const unsigned number : {0U, 9U, 65535U})
    CHECK(decoded(whole, with_exif(jpeg, number, true), height, width) == unturned);
  // Damaged EXIF data turn the image or not, and nothing else.
  const auto file = with_exif(jpeg, 3, true), turned = with_exif(jpeg, 3, false);
  for (std::size_t at = 6; at < 6 + 6 + 38; ++at) {
    std::string changed = file;
    changed[at] = static_cast<char>(0xff);
    const auto found = decoded(whole, changed, height, width);
    CAPTURE(at);
    CHECK((found == unturned || found == decoded(whole, turned, height, width)));
  }
}

#ifdef MUSTER_HAS_PNG

namespace {

// Returns a PNG of random samples, and sets `rgb` to its pixels.
std::string random_png(muster::random_stream& random, std::uint32_t height, std::uint32_t width, int type, int depth,
                       bool interlaced, std::vector<std::byte>& rgb) {
  std::string file;
  png_structp writer = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(writer);
  png_set_write_fn(
      writer, &file,
      [](png_structp to, png_bytep bytes, std::size_t size) {
        static_cast<std::string*>(png_get_io_ptr(to))->append(reinterpret_cast<const char*>(bytes), size);
      },
      nullptr);
  png_set_IHDR(writer, info, width, height, depth, type, interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  const std::uint32_t colours = 1U << std::min(depth, 8);
  std::vector<png_color> palette(colours);
  for (png_color& each : palette)
    each = {static_cast<png_byte>(random()), static_cast<png_byte>(random()), static_cast<png_byte>(random())};
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(writer, info, palette.data(), static_cast<int>(colours));
  png_set_filter(writer, 0, PNG_ALL_FILTERS);
  png_write_info(writer, info);
  const std::size_t channels = png_get_channels(writer, info), row_bytes = png_get_rowbytes(writer, info);
  std::vector<std::vector<png_byte>> rows(height, std::vector<png_byte>(row_bytes));
  rgb.clear();
  for (auto& row : rows) {
    for (png_byte& each : row) each = static_cast<png_byte>(random());
    for (std::size_t x = 0; x < width; ++x) {
      const auto sample = [&](std::size_t k) -> unsigned {
        const std::size_t bit = k * static_cast<std::size_t>(depth);
        if (depth >= 8) return row[bit / 8];
        return row[bit / 8] >> (8 - static_cast<std::size_t>(depth) - bit % 8) & (colours - 1);
      };
      for (std::size_t c = 0; c < 3; ++c) {
        unsigned value = sample(x * channels + (channels >= 3 ? c : 0));
        if (type == PNG_COLOR_TYPE_PALETTE) {
          value = c == 0 ? palette[value].red : c == 1 ? palette[value].green : palette[value].blue;
        } else if (depth < 8) {
          value = value * 255 / (colours - 1);
        }
        rgb.push_back(static_cast<std::byte>(value));
      }
    }
  }
  std::vector<png_bytep> places;
  for (auto& row : rows) places.push_back(row.data());
  png_write_image(writer, places.data());
  png_write_end(writer, info);
  png_destroy_write_struct(&writer, &info);
  return file;
}

}  // namespace

TEST_CASE("a PNG of any type is decoded to its own pixels, and a damaged PNG is refused") {
  const std::uint64_t seed = 17;
  CAPTURE(seed);
  muster::random_stream random(seed);
  constexpr std::pair<int, int> types[] = {{0, 1}, {0, 2}, {0, 4}, {0, 8}, {0, 16}, {2, 8}, {2, 16}, {3, 1},
                                           {3, 2}, {3, 4}, {3, 8}, {4, 8}, {4, 16}, {6, 8}, {6, 16}};
  for (const auto& [type, depth] : types) {
    for (const bool interlaced : {false, true}) {
      CAPTURE(type, depth, interlaced);
      const auto height = static_cast<std::uint32_t>(1 + random.below(40)),
                 width = static_cast<std::uint32_t>(1 + random.below(40));
      std::vector<std::byte> pixels, result(std::size_t{3} * height * width);
      const std::string file = random_png(random, height, width, type, depth, interlaced, pixels);
      const muster::decode_jpeg step({.height = height, .width = width, .resize = 0});
      step(std::as_bytes(std::span(file)), result);
      CHECK(result == pixels);
      const auto refused = [&](std::string_view damaged) {
        try {
          step(std::as_bytes(std::span(damaged)), result);
          return false;
        } catch (const muster::data_error& error) {
          return error.where().offset.value_or(damaged.size() + 1) <= damaged.size();
        }
      };
      for (std::size_t cut = 8; cut < file.size(); cut += 1 + random.below(9)) {
        CAPTURE(cut);
        CHECK(refused(std::string_view(file).substr(0, cut)));
      }
      for (std::size_t at = 8; at < file.size(); at += 1 + random.below(9)) {
        std::string damaged = file;
        damaged[at] = static_cast<char>(damaged[at] ^ 1 << random.below(8));
        CAPTURE(at);
        CHECK(refused(damaged));
      }
    }
  }
}

#endif

#endif
