#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>

#include "device_gradients.hpp"

namespace muster { inline namespace v0 {
namespace {

/// Gradients that the group sums, in pinned memory of the host. A bucket is copied to the host on a separate stream.
/// When the copy is complete its allreduce starts. The sums are copied back on the stream of the arithmetic.
class group_gradients final : public detail::device_gradients {
 public:
  group_gradients(device_arena& tensors, dtype send_as)
      : device_gradients(tensors, send_as), host_(head_bytes + tensors.gradients().size() * bytes_each()) {}
  ~group_gradients() override { wait_for_streams(); }

  void begin(group* ranks, std::uint64_t) override {
    if (ranks == nullptr) {
      throw configuration_error(
          "a backward pass through the host cannot begin (the group that sums its gradients is unknown); call "
          "begin(step.group())");
    }
    // A duplicate of the group has its own order of collectives. The completion of a copy, and so the start of its
    // collective, differs between ranks.
    if (original_group_ != ranks->state()) {
      ranks_.emplace(ranks->duplicate());
      original_group_ = ranks->state();
    }
    copied_.clear();
    sums_.clear();
  }

  // Starts to copy the bucket to the host. The allreduce of the bucket starts when the copy is complete. Returns the
  // bytes of that allreduce, or 0 if this rank is alone.
  std::size_t start(std::size_t bucket) override {
    if (is_alone()) {
      device_event(arena().stream()).delay(stream());
      copied_.emplace_back();
      return 0;
    }
    device_event(arena().stream()).delay(out_);
    const block& part = part_of_bucket(bucket);
    as_sent([&](auto element) {
      using T = decltype(element);
      round<T>(part, out_);
      copy(sent<T>(part), on_host<T>(part), out_);
    });
    copied_.emplace_back(out_);
    sum_copied_buckets();
    return part.count * bytes_each();
  }

  bool test(std::size_t bucket) override {
    sum_copied_buckets();
    if (bucket >= sums_.size() || !sums_[bucket].test()) return false;
    copy_back(bucket);
    return true;
  }
  std::size_t wait(std::size_t bucket) override {
    const auto deadline = deadline_after(ranks_->settings().timeout);
    for (; sums_.size() <= bucket; sum_next()) copied_[sums_.size()].wait(deadline);
    sum_copied_buckets();
    sums_[bucket].wait();
    copy_back(bucket);
    return 0;
  }
  void abandon() noexcept override {
    sums_.clear();
    head_sum_ = {};
    wait_for_streams();
    if (ranks_->failed()) {  // a failed group is not reused
      ranks_.reset();
      original_group_.reset();
    }
  }

  void put_head(const std::array<float, 2>& numbers) override {
    std::ranges::fill(head_on_host(), 0.0f);
    std::ranges::copy(numbers, head_on_host().begin());
  }
  std::array<float, 2> head() override { return {head_on_host()[0], head_on_host()[1]}; }

 private:
  static constexpr std::size_t head_bytes = device_arena::head * sizeof(float);

  [[nodiscard]] bool is_alone() const noexcept { return ranks_->size() == 1; }
  [[nodiscard]] std::span<float> head_on_host() {
    return {reinterpret_cast<float*>(host_.span().data()), device_arena::head};
  }
  template <class T>
  [[nodiscard]] std::span<T> on_host(const block& elements) {
    return {reinterpret_cast<T*>(host_.span().data() + head_bytes) + elements.first, elements.count};
  }

  void sum_copied_buckets() {
    while (sums_.size() < copied_.size() && copied_[sums_.size()].test()) sum_next();
  }
  void sum_next() {
    const std::size_t bucket = sums_.size();
    auto& under_way = sums_.emplace_back();
    if (is_alone()) return;
    as_sent([&](auto element) {
      using T = decltype(element);
      auto values = on_host<T>(part_of_bucket(bucket));
      if constexpr (std::same_as<T, float>) {  // the head is sent with the first gradients
        if (bucket == 0) values = {head_on_host().data(), device_arena::head + values.size()};
      } else if (bucket == 0) {
        head_sum_ = allreduce_async(*ranks_, head_on_host(), sum);
      }
      under_way = allreduce_async(*ranks_, values, sum);
    });
  }
  void copy_back(std::size_t bucket) {
    if (is_alone()) return;
    if (bucket == 0) head_sum_.wait();  // started before the gradients' sum
    const block& part = part_of_bucket(bucket);
    as_sent([&](auto element) {
      using T = decltype(element);
      copy(on_host<T>(part), sent<T>(part), stream());
      widen<T>(part, stream());
    });
  }
  // Copies complete by themselves, unless they wait for a kernel that does not complete. Such copies would only write
  // memory of this object.
  void wait_for_streams() noexcept {
    if (!ranks_) return;
    try {
      const auto deadline = deadline_after(ranks_->settings().timeout);
      wait_for(stream(), deadline);
      wait_for(out_, deadline);
    } catch (...) {  // the device's next call returns the same error
    }
  }

  device_stream out_;
  pinned_buffer<std::byte> host_;
  std::shared_ptr<detail::group_state> original_group_;
  std::optional<group> ranks_;
  std::vector<device_event> copied_;  // events of started copies, by bucket
  std::vector<work> sums_;            // collectives of completed copies
  work head_sum_;                     // set where the head is summed separately from the gradients
};

}  // namespace

std::unique_ptr<gradient_backend> gradients_on(device_arena& tensors, dtype send_as) {
  return std::make_unique<group_gradients>(tensors, send_as);
}

}}  // namespace muster::v0
