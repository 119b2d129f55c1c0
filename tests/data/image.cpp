#include <muster/data/image.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <muster/core/hash.hpp>
#include "catch.hpp"

namespace {

struct image {
  muster::data::detail::image_shape shape;
  std::vector<std::byte> bytes;

  // Returns the value at a position by definition. Values outside the image are 0.
  int at(int channel, int y, int x) const {
    const auto [channels, height, width, layout] = shape;
    if (y < 0 || x < 0 || y >= static_cast<int>(height) || x >= static_cast<int>(width)) return 0;
    const auto c = static_cast<std::size_t>(channel), row = static_cast<std::size_t>(y),
               column = static_cast<std::size_t>(x);
    const std::size_t place = layout == muster::image_layout::hwc ? (row * width + column) * channels + c
                                                                  : (c * height + row) * width + column;
    return static_cast<int>(bytes[place]);
  }
};

image random_image(muster::random_stream& random, std::size_t channels, std::size_t height, std::size_t width,
                   muster::image_layout layout) {
  image result{{channels, height, width, layout}, std::vector<std::byte>(channels * height * width)};
  for (auto& byte : result.bytes) byte = static_cast<std::byte>(random() & 0xff);
  return result;
}

muster::data::record_schema schema(std::vector<std::uint64_t> shape, muster::dtype type = muster::dtype::uint8) {
  return {muster::data::record_form::fixed, {{"image", type, std::move(shape)}}, 0, {"label"}};
}

}  // namespace

TEST_CASE("every value of a converted image is what the definition says, by vectors and without") {
  const std::uint64_t seed = 11;
  CAPTURE(seed);
  muster::random_stream random(seed);
  const std::array<float, 3> scale = {0.01f, 0.37f, 1.0f / 255};
  const std::array<float, 3> shift = {-0.5f, 0.1f, -1.7f};
  for (int round = 0; round < 1500; ++round) {
    const std::size_t channels = random.below(2) == 0 ? 1 : 3;
    const std::size_t height = 1 + random.below(40);
    const std::size_t width = round % 3 == 0 ? 32 : 1 + random.below(round % 50 == 0 ? 600 : 70);
    const auto in = random.below(2) == 0 ? muster::image_layout::hwc : muster::image_layout::chw;
    const auto out = random.below(2) == 0 ? muster::image_layout::hwc : muster::image_layout::chw;
    const image input = random_image(random, channels, height, width, in);
    muster::data::detail::image_choice choice;
    choice.down = static_cast<int>(random.below(11)) - 5;
    choice.right = static_cast<int>(random.below(round % 7 == 0 ? 81 : 11)) - (round % 7 == 0 ? 40 : 5);
    choice.flip = random.below(2) != 0;
    if (random.below(3) == 0) {
      choice.cutout_top = static_cast<int>(random.below(height));
      choice.cutout_bottom =
          choice.cutout_top + static_cast<int>(random.below(height - static_cast<std::size_t>(choice.cutout_top) + 1));
      choice.cutout_left = static_cast<int>(random.below(width));
      choice.cutout_right =
          choice.cutout_left + static_cast<int>(random.below(width - static_cast<std::size_t>(choice.cutout_left) + 1));
    }
    CAPTURE(channels, height, width, static_cast<int>(in), static_cast<int>(out), choice.down, choice.right,
            choice.flip);
    std::vector<float> plain(channels * height * width + 1, -99.0f);
    std::vector<float> fast(plain.size(), -99.0f);
    const muster::data::detail::image_conversion conversion{input.shape, out, scale, shift};
    muster::data::detail::convert_image(conversion, choice, input.bytes.data(), plain.data(), /*plainly=*/true);
    muster::data::detail::convert_image(conversion, choice, input.bytes.data(), fast.data());
    REQUIRE(plain.back() == -99.0f);
    REQUIRE(std::memcmp(plain.data(), fast.data(), plain.size() * sizeof(float)) == 0);
    std::size_t wrong = 0;
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t y = 0; y < height; ++y) {
        for (std::size_t x = 0; x < width; ++x) {
          const int row = static_cast<int>(y), column = static_cast<int>(x);
          const int mirrored = choice.flip ? static_cast<int>(width) - 1 - column : column;
          float expected =
              std::fma(static_cast<float>(input.at(static_cast<int>(c), row + choice.down, mirrored + choice.right)),
                       scale[c], shift[c]);
          if (row >= choice.cutout_top && row < choice.cutout_bottom && column >= choice.cutout_left &&
              column < choice.cutout_right)
            expected = 0;
          const float value =
              plain[out == muster::image_layout::hwc ? (y * width + x) * channels + c : (c * height + y) * width + x];
          wrong += value == expected ? 0 : 1;
        }
      }
    }
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("augmentation draws every place, both sides, and squares, from its stream alone") {
  muster::image_augmentation augment({.pad = 4, .flip = true, .cutout = 8});
  (void)augment.output(schema({3, 32, 32}));
  muster::random_stream random(5);
  const image input = random_image(random, 3, 32, 32, muster::image_layout::chw);
  std::vector<float> output(3 * 32 * 32), again(output.size());
  const auto bytes_of = [](std::vector<float>& values) { return std::as_writable_bytes(std::span(values)); };
  std::vector<std::uint64_t> digests;
  for (std::uint64_t id = 0; id < 400; ++id) {
    muster::random_stream draw(1, id), same_draw(1, id);
    augment(input.bytes, bytes_of(output), draw);
    augment(input.bytes, bytes_of(again), same_draw);
    REQUIRE(output == again);
    digests.push_back(muster::digest().add(std::as_bytes(std::span(output))).value());
  }
  std::sort(digests.begin(), digests.end());
  digests.erase(std::unique(digests.begin(), digests.end()), digests.end());
  CHECK(digests.size() > 395);  // of 9 * 9 * 2 * 32 * 32 possible choices

  muster::image_augmentation crop({.pad = 1, .flip = true});
  (void)crop.output(schema({3, 32, 32}));
  digests.clear();
  for (std::uint64_t id = 0; id < 600; ++id) {
    muster::random_stream draw(1, id);
    crop(input.bytes, bytes_of(output), draw);
    digests.push_back(muster::digest().add(std::as_bytes(std::span(output))).value());
  }
  std::sort(digests.begin(), digests.end());
  digests.erase(std::unique(digests.begin(), digests.end()), digests.end());
  CHECK(digests.size() == 18);  // 3 * 3 positions, with and without a flip
}

TEST_CASE("images are recognised by their shape, and what is none is refused") {
  muster::normalise plain({.mean = {0.5f, 0.5f, 0.5f}, .deviation = {0.5f, 0.5f, 0.5f}});
  CHECK(plain.output(schema({28, 20})).fields[0].shape == std::vector<std::uint64_t>{28, 20, 1});
  CHECK(plain.output(schema({3, 28, 20})).fields[0].shape == std::vector<std::uint64_t>{28, 20, 3});
  CHECK(plain.output(schema({28, 20, 3})).fields[0].shape == std::vector<std::uint64_t>{28, 20, 3});
  muster::normalise planes({.output = muster::image_layout::chw});
  CHECK(planes.output(schema({28, 20, 3})).fields[0].shape == std::vector<std::uint64_t>{3, 28, 20});
  CHECK_THROWS_WITH(plain.output(schema({5, 28, 20})), contains("cannot read records of"));
  CHECK_THROWS_AS(plain.output(schema({3, 28, 20}, muster::dtype::float32)), muster::configuration_error);
  CHECK_THROWS_AS(plain.output({muster::data::record_form::bytes, {}, 0, {}}), muster::configuration_error);

  std::vector<std::byte> black(3 * 28 * 20), white(black.size(), std::byte{255});
  std::vector<float> output(black.size());
  (void)plain.output(schema({3, 28, 20}));
  plain(black, std::as_writable_bytes(std::span(output)));
  CHECK(output[0] == -1.0f);
  plain(white, std::as_writable_bytes(std::span(output)));
  CHECK(output[7] == Approx(1.0));
  CHECK(plain.version() != planes.version());
  CHECK(plain.version() != muster::normalise().version());
}
