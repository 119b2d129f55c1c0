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

/// Records of one uint8 image and a label each, that lie in memory. A copy shares them.
class image_table {
 public:
  struct contents {
    std::string name;
    muster::record_schema schema;
    std::vector<std::byte> bytes;  ///< of all records
    std::vector<float> labels;
    std::uint64_t digest = 0;
  };
  /// Takes what it is made of; the digest is set here.
  explicit image_table(contents made);
  /// The records of `from` with ids for which `keep` is true, in order.
  image_table(const muster::any_record_source& from, const std::string& name,
              const std::function<bool(muster::sample_id)>& keep);

  [[nodiscard]] const std::string& name() const noexcept { return made_->name; }
  [[nodiscard]] std::uint64_t size() const noexcept { return made_->labels.size(); }
  [[nodiscard]] std::uint64_t digest() const noexcept { return made_->digest; }
  [[nodiscard]] const muster::record_schema& schema() const noexcept { return made_->schema; }
  void sizes(std::span<const muster::sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const muster::sample_id> ids, const muster::record_rows& rows,
            std::vector<muster::bad_record>* bad = nullptr) const noexcept;

 private:
  std::shared_ptr<const contents> made_;
};
static_assert(muster::record_source<image_table>);

/// Images of CIFAR-10's form that stand in for it: 32 x 32 pixels of three colours, ten classes. A class is a pattern
/// of coloured waves; an image is that of its class, moved, dimmed and mixed with that of another class and with noise,
/// so that a network has something to learn but does not learn it at once. Image i is a function of (seed, i).
[[nodiscard]] image_table make_cifar_like(std::size_t images, std::uint64_t seed, std::size_t first = 0);

}  // namespace images
