#include <muster/data/image_steps.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/sources/image_folder.hpp>
#include <muster/data/standardise.hpp>

#include "catch.hpp"
#include "files.hpp"

namespace {

muster::data::record_schema uint8_schema(std::vector<std::uint64_t> shape) {
  return {muster::data::record_form::fixed, {{"image", muster::dtype::uint8, std::move(shape)}}, 0, {"label"}};
}

std::vector<std::byte> random_bytes(muster::random_stream& random, std::size_t count) {
  std::vector<std::byte> result(count);
  for (auto& byte : result) byte = static_cast<std::byte>(random() & 0xff);
  return result;
}

}  // namespace

TEST_CASE("images are resized bilinearly, in any layout") {
  const std::uint64_t seed = 5;
  CAPTURE(seed);
  muster::random_stream random(seed);
  for (int round = 0; round < 200; ++round) {
    const std::size_t channels = random.below(2) == 0 ? 1 : 3, h = 4 + random.below(30), w = 4 + random.below(30);
    const auto to_h = static_cast<std::uint32_t>(1 + random.below(30)),
               to_w = static_cast<std::uint32_t>(1 + random.below(30));
    const bool planes = channels == 1 || random.below(2) == 0;
    const auto input = random_bytes(random, channels * h * w);
    std::vector<std::byte> output(channels * to_h * to_w);
    muster::resize_image step(to_h, to_w);
    const auto result = step.output(planes ? uint8_schema({channels, h, w}) : uint8_schema({h, w, channels}));
    CHECK(result.record_bytes() == output.size());
    step(input, output);
    double worst = 0;
    for (std::size_t c = 0; c < channels; ++c) {
      const auto at = [&](std::size_t y, std::size_t x, std::size_t height, std::size_t width) {
        return planes ? (c * height + y) * width + x : (y * width + x) * channels + c;
      };
      const auto place = [](std::size_t k, std::size_t outputs, std::size_t size) {
        const auto side = static_cast<double>(size);
        return std::clamp((static_cast<double>(k) + 0.5) * side / static_cast<double>(outputs) - 0.5, 0.0, side - 1);
      };
      for (std::size_t y = 0; y < to_h; ++y) {
        for (std::size_t x = 0; x < to_w; ++x) {
          const double fy = place(y, to_h, h), fx = place(x, to_w, w);
          const auto y0 = static_cast<std::size_t>(fy), x0 = static_cast<std::size_t>(fx);
          const double dy = fy - static_cast<double>(y0), dx = fx - static_cast<double>(x0);
          const auto value = [&](std::size_t row, std::size_t column) {
            return static_cast<double>(input[at(std::min(row, h - 1), std::min(column, w - 1), h, w)]);
          };
          const double right = (value(y0, x0) * (1 - dx) + value(y0, x0 + 1) * dx) * (1 - dy) +
                               (value(y0 + 1, x0) * (1 - dx) + value(y0 + 1, x0 + 1) * dx) * dy;
          worst = std::max(worst, std::abs(right - static_cast<double>(output[at(y, x, to_h, to_w)])));
        }
      }
    }
    CAPTURE(round, channels, h, w, to_h, to_w, planes);
    CHECK(worst < 0.8);  // rounding by at most a half, and an error of the position by 1 / 2048 of a pixel
  }
}

TEST_CASE("images become grey by their luma") {
  muster::greyscale step;
  CHECK(step.output(uint8_schema({2, 1, 3})).fields[0].shape == std::vector<std::uint64_t>{2, 1});
  std::vector<std::byte> output(2);
  step(std::vector<std::byte>{std::byte{255}, std::byte{255}, std::byte{255}, std::byte{0}, std::byte{255},
                              std::byte{0}},
       output);
  CHECK(output == std::vector<std::byte>{std::byte{255}, std::byte{149}});
  CHECK_THROWS_AS(step.output(uint8_schema({28, 28})), muster::configuration_error);
}

TEST_CASE("text that is no preparation is refused") {
  const temporary_folder folder;
  const auto data = folder.write("images", std::string(2 * 12, 'x'));
  for (const char* text :
       {"blur", "resize", "resize:3", "resize:0x4", "resize:3x4,soft=1", "normalise,mean=a", "normalise,mean=1/2",
        "normalise,layout=wide", "greyscale:2", "|", "standardise:", "jpeg:2x2", "standardise:hwc,{}", "normalise|"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(muster::open_source("raw:" + data + "?shape=3x2x2") | muster::batch(1) | muster::prepare(text),
                    muster::error);
  }
}

TEST_CASE("what was saved as text prepares the same bits as the steps that trained") {
  const temporary_folder folder;
  muster::random_stream random(3);
  const auto bytes = random_bytes(random, 40 * 3 * 9 * 7);
  const auto data = folder.write("images", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const auto source = muster::open_source("raw:" + data + "?shape=3x9x7");
  const muster::image_options normal{.mean = {0.1f, 1.0f / 3, 0.7f}, .deviation = {0.21f, 0.3f, 1e-5f}};
  const auto statistics = muster::statistics(source);
  const auto compare = [&](muster::loader trained, const muster::prepare& saved) {
    auto served = source | muster::batch(40) | muster::prepare(saved.text);
    const auto a = trained.next({0, 1}), b = served.next({0, 1});
    CAPTURE(saved.text);
    REQUIRE(a.values<float>().size() == b.values<float>().size());
    CHECK(std::memcmp(a.values<float>().data(), b.values<float>().data(), a.values<float>().size_bytes()) == 0);
    muster::preparation by_hand(saved, source.schema());
    std::vector<float> all(a.values<float>().size());
    for (std::size_t k = 0; k < 40; ++k) {
      const auto result = std::as_writable_bytes(std::span(all)).subspan(k * all.size() / 10, all.size() / 10);
      by_hand(std::as_bytes(std::span(bytes)).subspan(k * 189, 189), result);
    }
    CHECK(std::memcmp(a.values<float>().data(), all.data(), a.values<float>().size_bytes()) == 0);
  };
  const auto plain = [&] { return source | muster::batch(40); };
  compare(plain() | muster::map(muster::normalise(normal)), muster::prepare(normal));
  compare(plain() | muster::map(muster::resize_image(5, 6)) | muster::map(muster::normalise(normal)),
          muster::prepare("resize:5x6") | muster::prepare(normal));
  compare(plain() | muster::map(muster::greyscale()) | muster::map(muster::normalise({.mean = {0.1307f}})),
          muster::prepare("greyscale|normalise,mean=0.1307"));
  for (const auto layout : {muster::image_layout::hwc, muster::image_layout::chw}) {
    compare(plain() | muster::map(muster::standardise(statistics, layout)), muster::prepare(statistics, layout));
    auto planes = normal;
    planes.output = layout;
    compare(plain() | muster::map(muster::normalise(planes)), muster::prepare(planes));
  }
}

TEST_CASE("folders of images are read in the order of their names, with a number for each class") {
  const temporary_folder folder;
  for (const char* name : {"n02", "n01", "n01/deeper"}) std::filesystem::create_directory(folder / name);
  folder.write("n02/a.JPEG", "four");
  folder.write("n01/b.jpg", "sixsix");
  folder.write("n01/a.jpeg", "");
  folder.write("n01/notes.txt", "no image");
  folder.write("n01/deeper/c.jpg", "too deep");
  const muster::data::image_folder source(folder / "");
  CHECK(source.classes() == std::vector<std::string>{"n01", "n02"});
  REQUIRE(source.size() == 3);
  std::vector<muster::sample_id> ids = {2, 0, 1};
  std::vector<std::uint64_t> sizes(3);
  source.sizes(ids, sizes);
  CHECK(sizes == std::vector<std::uint64_t>{4, 0, 6});
  std::vector<std::byte> bytes(10);
  std::vector<float> labels(3);
  source.read(ids, {bytes, labels});
  CHECK(std::memcmp(bytes.data(), "foursixsix", 10) == 0);
  CHECK(labels == std::vector<float>{1, 0, 0});
  const auto digest = source.digest();
  folder.write("n02/a.JPEG", "longer");
  CHECK(muster::data::image_folder(folder / "").digest() != digest);
  std::vector<muster::bad_record> bad;
  source.read(ids, {bytes, labels}, &bad);
  REQUIRE(bad.size() == 1);
  CHECK(bad[0].location.file == (folder / "") + "/n02/a.JPEG");
  CHECK_THROWS_AS(source.read(ids, {bytes, labels}), muster::data_error);
  CHECK_THROWS_AS(muster::data::image_folder(folder / "n02"),
                  muster::data_error);  // the folder has files, but no classes
  CHECK_THROWS_AS(muster::data::image_folder(folder / "nowhere"), muster::data_error);
}
