// Images in memory, as a source of records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <muster/data/record_source.hpp>

namespace images {

/// A source of records in memory, each with a uint8 image and a label. A copy shares the records.
class image_table {
 public:
  struct contents {
    std::string name;
    muster::record_schema schema;
    std::vector<std::byte> bytes;  ///< The images of all records, one after the other.
    std::vector<float> labels;
    std::uint64_t digest = 0;
  };
  /// Takes the contents; the constructor sets the digest.
  explicit image_table(contents filled);
  /// Copies the records of `from` for whose ids `keep` is true, in order.
  image_table(const muster::any_record_source& from, const std::string& name,
              const std::function<bool(muster::sample_id)>& keep);

  [[nodiscard]] const std::string& name() const noexcept { return contents_->name; }
  [[nodiscard]] std::uint64_t size() const noexcept { return contents_->labels.size(); }
  [[nodiscard]] std::uint64_t digest() const noexcept { return contents_->digest; }
  [[nodiscard]] const muster::record_schema& schema() const noexcept { return contents_->schema; }
  void sizes(std::span<const muster::sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const muster::sample_id> ids, const muster::record_rows& rows,
            std::vector<muster::bad_record>* bad = nullptr) const noexcept;

 private:
  std::shared_ptr<const contents> contents_;
};
static_assert(muster::record_source<image_table>);

/// Returns generated images in the form of CIFAR-10: 32 x 32 pixels of three colours, ten classes. A class is a pattern
/// of coloured waves. An image is its class's pattern, moved, dimmed and mixed with the pattern of another class
/// and with noise, so that a network learns the classes but needs several epochs. Image i is a function of (seed, i).
[[nodiscard]] image_table make_cifar_like(std::size_t images, std::uint64_t seed, std::size_t first = 0);

}  // namespace images
