#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <muster/core/hash.hpp>

#include <muster/train/sync/compressed_gradients.hpp>
#include "../../core/device/device_powersgd.hpp"
#include "device_gradients.hpp"

namespace muster { inline namespace v0 {
namespace {

/// Gradients on the device that NCCL sums.
class nccl_gradients : public detail::device_gradients {
 public:
  nccl_gradients(device_arena& tensors, nccl::communicator& devices, dtype send_as)
      : device_gradients(tensors, send_as), devices_(&devices) {}

  void begin(group*, std::uint64_t) final { under_way_.clear(); }

  std::size_t start(std::size_t bucket) override {
    device_event(arena().stream()).delay(stream());
    const block& part = part_of_bucket(bucket);
    as_sent([&](auto element) {
      using T = decltype(element);
      auto values = sent<T>(part);
      if constexpr (std::same_as<T, float>) {  // the head is sent with the first gradients
        if (bucket == 0) values = {head_of_all().data(), device_arena::head + part.count};
      } else if (bucket == 0) {
        under_way_.push_back(devices_->allreduce(head_of_all(), sum, stream()));
      }
      round<T>(part, stream());
      under_way_.push_back(devices_->allreduce(values, sum, stream()));
      widen<T>(part, stream());
    });
    return part.count * bytes_each();
  }

  bool test(std::size_t) final { return false; }  // no later work can start before all sums are complete
  // All buckets use one stream. The first wait waits for all of them, so that an optimizer's step, which irreversibly
  // changes parameters, is enqueued only when no collective can fail any more.
  std::size_t wait(std::size_t) final {
    for (auto& collective : under_way_) collective.wait();
    under_way_.clear();
    return 0;
  }
  void abandon() noexcept final {
    under_way_.clear();
    try {
      finish();      // the operations after the sums also write gradients
    } catch (...) {  // the device's next call returns the same error
    }
  }

  void put_head(const std::array<float, 2>& numbers) final {
    muster::clear(head_of_all(), stream());
    for (std::size_t k = 0; k < numbers.size(); ++k) fill(head_of_all().subspan(k, 1), numbers[k], stream());
  }
  std::array<float, 2> head() final {
    std::array<float, 2> numbers{};
    copy(head_of_all().first(numbers.size()), std::span<float>(numbers), stream());
    wait_for(stream(), deadline_after(detail::local_work_timeout));
    return numbers;
  }

 protected:
  [[nodiscard]] device_span<float> head_of_all() { return arena().gradients_with_head().first(device_arena::head); }
  [[nodiscard]] nccl::communicator& devices() noexcept { return *devices_; }
  // Adds a collective for which `wait` will wait.
  void add_collective(nccl::work collective) { under_way_.push_back(std::move(collective)); }

 private:
  nccl::communicator* devices_;
  std::vector<nccl::work> under_way_;
};

// Limit of rows + columns of a matrix, since kernels count in 32 bits.
constexpr std::size_t most_sides = std::size_t{1} << 31;

/// Gradients that are summed by PowerSGD, as on the host. All operations of a bucket are enqueued when the bucket
/// starts.
class low_rank_nccl_gradients final : public nccl_gradients {
 public:
  low_rank_nccl_gradients(device_arena& tensors, nccl::communicator& devices, std::size_t rank)
      : nccl_gradients(tensors, devices, dtype::float32), rank_(rank) {
    if (rank == 0) throw configuration_error("PowerSGD cannot have rank 0 (it would send nothing); use 1 or more");
  }

  void attach(std::span<const gradient_bucket> buckets) override {
    std::vector<float> rights;
    std::size_t lefts = 0, parts = 0;  // the maximum that is needed at the same time
    for (const auto& bucket : buckets) {
      auto& plan = buckets_.emplace_back();
      plan.right = {rights.size(), 0};
      for (const std::size_t tensor : bucket.tensors) {
        const auto& place = arena().places()[tensor];
        const auto shape = detail::as_matrix(arena().shapes()[tensor].extents, rank_);
        if (!shape.pays() || shape.rows + shape.columns > most_sides) {
          if (plan.plain.empty() || plan.plain.back().first + plan.plain.back().count != place.first)
            plan.plain.push_back({place.first, 0});
          plan.plain.back().count += place.count;
          continue;
        }
        plan.matrices.push_back({shape, place.first, plan.lefts, rights.size()});
        plan.lefts += shape.left_size();
        plan.right.count += shape.right_size();
        rights.resize(rights.size() + shape.right_size());
        low_rank_refill(shape, digest().add(detail::seed).add(tensor).value(),
                        std::span(rights).last(shape.right_size()));
        parts = std::max(parts, detail::low_rank_parts(shape));
      }
      lefts = std::max(lefts, plan.lefts);
    }
    for (auto& array : residuals_) array = device_buffer<float>(arena().gradients().size());
    for (auto* array : {&rights_[0], &rights_[1], &own_rights_, &first_rights_})
      *array = device_buffer<float>(rights.size());
    lefts_ = device_buffer<float>(lefts);
    parts_ = device_buffer<float>(parts);
    for (auto* array : {&rights_[0], &first_rights_}) copy(std::span<const float>(rights), array->span(), stream());
  }

  std::size_t start(std::size_t index) override {
    device_event(arena().stream()).delay(stream());
    const auto& bucket = buckets_[index];
    const auto lefts = lefts_.span().first(bucket.lefts);
    muster::clear(lefts, stream());
    for (const auto& entry : bucket.matrices) low_rank_left(arrays(entry), stream());
    std::vector<device_span<float>> sums;
    if (index == 0) sums.push_back(head_of_all());
    if (!lefts.empty()) sums.push_back(lefts);
    for (const auto& part : bucket.plain) sums.push_back(part_of(part));
    if (!sums.empty()) add_collective(devices().allreduce(std::span<const device_span<float>>(sums), sum, stream()));
    for (const auto& entry : bucket.matrices) low_rank_right(arrays(entry), stream());
    const device_span<const float> own = own_rights_.span().subspan(bucket.right.first, bucket.right.count);
    const auto all = rights_[1].span().subspan(bucket.right.first, bucket.right.count);
    if (!own.empty()) add_collective(devices().allreduce(own, all, sum, stream()));
    for (const auto& entry : bucket.matrices) low_rank_end(arrays(entry), stream());
    std::size_t bytes = own.size_bytes() + lefts.size_bytes();
    for (const auto& part : bucket.plain) bytes += part_of(part).size_bytes();
    return bytes;
  }

  void commit() noexcept override {
    std::swap(residuals_[0], residuals_[1]);
    std::swap(rights_[0], rights_[1]);
  }
  void describe(state_parts& parts) override {
    const auto add = [&](const char* name, state_kind kind, memory& pair) {
      detail::add_array(
          parts, name, kind, [&pair] { return pair[0].span(); }, stream());
    };
    add("residuals of error feedback", state_kind::rank_local, residuals_);
    add("factors of PowerSGD", state_kind::replicated, rights_);
  }

 private:
  struct matrix {
    low_rank_shape shape;
    std::size_t values, left, right;  // offsets: in gradients and residuals, in P, in Q
  };
  struct bucket_plan {
    std::vector<matrix> matrices;
    std::vector<block> plain;  // gradients that are sent uncompressed
    std::size_t lefts = 0;
    block right{};
  };
  using memory = device_buffer<float>[2];  // of the last committed step, and of the current step

  [[nodiscard]] detail::low_rank_arrays arrays(const matrix& entry) {
    return {entry.shape,
            arena().gradients().data() + entry.values,
            residuals_[0].span().data() + entry.values,
            residuals_[1].span().data() + entry.values,
            rights_[0].span().data() + entry.right,
            lefts_.span().data() + entry.left,
            own_rights_.span().data() + entry.right,
            rights_[1].span().data() + entry.right,
            first_rights_.span().data() + entry.right,
            parts_.span().data()};
  }

  std::size_t rank_;
  std::vector<bucket_plan> buckets_;
  memory residuals_, rights_;
  device_buffer<float> lefts_, own_rights_, first_rights_,
      parts_;  // shared by all buckets, which are processed one at a time
};

}  // namespace

std::unique_ptr<gradient_backend> gradients_on(device_arena& tensors, nccl::communicator& devices, dtype send_as) {
  return std::make_unique<nccl_gradients>(tensors, devices, send_as);
}

std::unique_ptr<gradient_backend> powersgd_on(device_arena& tensors, nccl::communicator& devices, std::size_t rank) {
  return std::make_unique<low_rank_nccl_gradients>(tensors, devices, rank);
}

}}  // namespace muster::v0
