#include "image_table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include <muster/core/hash.hpp>
#include <muster/core/random.hpp>

namespace images {

image_table::image_table(contents filled) {
  filled.digest =
      muster::digest().add(std::as_bytes(std::span(filled.bytes))).add(std::as_bytes(std::span(filled.labels))).value();
  contents_ = std::make_shared<const contents>(std::move(filled));
}

image_table::image_table(const muster::any_record_source& from, const std::string& name,
                         const std::function<bool(muster::sample_id)>& keep) {
  std::vector<muster::sample_id> ids;
  for (std::uint64_t id = 0; id < from.size(); ++id) {
    if (keep(static_cast<muster::sample_id>(id))) ids.push_back(static_cast<muster::sample_id>(id));
  }
  contents filled{name, from.schema(), {}, {}, 0};
  filled.bytes.resize(ids.size() * from.schema().record_bytes());
  filled.labels.resize(ids.size());
  from.read(ids, {filled.bytes, filled.labels});
  *this = image_table(std::move(filled));
}

void image_table::sizes(std::span<const muster::sample_id>, std::span<std::uint64_t> out) const noexcept {
  std::fill(out.begin(), out.end(), contents_->schema.record_bytes());
}

void image_table::read(std::span<const muster::sample_id> ids, const muster::record_rows& rows,
                       std::vector<muster::bad_record>*) const noexcept {
  const std::size_t size = contents_->schema.record_bytes();
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (!rows.bytes.empty()) std::memcpy(rows.bytes.data() + k * size, contents_->bytes.data() + ids[k] * size, size);
    if (!rows.labels.empty()) rows.labels[k] = contents_->labels[ids[k]];
  }
}

namespace {

constexpr std::size_t side = 32, colours = 3, classes = 10;

/// The pattern of a class: the sum of some waves in each colour.
struct pattern {
  struct wave {
    double across, down, phase, height;
  };
  std::array<std::array<wave, 3>, colours> waves;

  pattern(std::uint64_t seed, std::uint64_t label) {
    muster::random_stream random(seed, 1'000'000'000 + label);
    for (auto& colour : waves) {
      for (auto& each : colour) {
        each = {4 * random.uniform() - 2, 4 * random.uniform() - 2, random.uniform(), 0.4 + 0.6 * random.uniform()};
      }
    }
  }
  [[nodiscard]] double at(std::size_t colour, double x, double y) const {
    double sum = 0;
    for (const auto& w : waves[colour]) {
      sum += w.height * std::sin(2 * std::numbers::pi * (w.across * x + w.down * y + w.phase));
    }
    return sum;
  }
};

}  // namespace

image_table make_cifar_like(std::size_t images, std::uint64_t seed, std::size_t first) {
  image_table::contents filled{
      "cifar-like:" + std::to_string(images),
      {muster::record_form::fixed, {{"image", muster::dtype::uint8, {colours, side, side}}}, 0, {"label"}},
      std::vector<std::byte>(images * colours * side * side),
      std::vector<float>(images),
      0};
  std::vector<pattern> patterns;
  for (std::uint64_t label = 0; label < classes; ++label) patterns.emplace_back(seed, label);
  std::byte* to = filled.bytes.data();
  for (std::size_t i = 0; i < images; ++i) {
    muster::random_stream random(seed, first + i);
    const auto label = static_cast<std::size_t>(random.below(classes));
    const auto other = static_cast<std::size_t>(random.below(classes));
    const double right = 0.5 * random.uniform(), down = 0.5 * random.uniform();
    const double bright = 0.5 + 0.5 * random.uniform(), mixed = 0.5 * random.uniform();
    filled.labels[i] = static_cast<float>(label);
    for (std::size_t colour = 0; colour < colours; ++colour) {
      for (std::size_t y = 0; y < side; ++y) {
        for (std::size_t x = 0; x < side; ++x) {
          const double u = static_cast<double>(x) / side + right, v = static_cast<double>(y) / side + down;
          const double value = bright * patterns[label].at(colour, u, v) + mixed * patterns[other].at(colour, v, u) +
                               1.5 * (random.uniform() - 0.5);
          *to++ = static_cast<std::byte>(std::clamp(128 + 40 * value, 0.0, 255.0));
        }
      }
    }
  }
  return image_table(std::move(filled));
}

}  // namespace images
