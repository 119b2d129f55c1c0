#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>

#include "device_gradients.hpp"

namespace muster { inline namespace v0 {
namespace {

/// Summed by the group, in pinned memory of the host. A bucket is copied there on a stream of its own; when the copy is
/// done its allreduce starts; the sums are copied back on the stream of the arithmetic.
class summed_by_group final : public detail::device_gradients {
 public:
  summed_by_group(device_arena& of, dtype send_as)
      : device_gradients(of, send_as), host_(head_bytes + of.gradients().size() * bytes_each()) {}
  ~summed_by_group() override { settle(); }

  void begin(group* ranks, std::uint64_t) override {
    if (ranks == nullptr) {
      throw configuration_error(
          "a backward pass by way of the host cannot begin (the group that sums its gradients is not known); call "
          "begin(step.group())");
    }
    // An order of calls of its own: when a copy is done, and so when a collective starts, differs between ranks.
    if (made_from_ != ranks->state()) {
      ranks_.emplace(ranks->duplicate());
      made_from_ = ranks->state();
    }
    copied_.clear();
    sums_.clear();
  }

  std::size_t start(std::size_t bucket) override {
    if (is_alone()) {
      device_event(arena().stream()).hold_back(stream());
      copied_.emplace_back();
      return 0;
    }
    device_event(arena().stream()).hold_back(out_);
    const block& part = part_of_bucket(bucket);
    as_sent([&](auto one) {
      using T = decltype(one);
      round<T>(part, out_);
      copy(sent<T>(part), on_host<T>(part), out_);
    });
    copied_.emplace_back(out_);
    sum_what_is_copied();
    return part.count * bytes_each();
  }

  bool test(std::size_t bucket) override {
    sum_what_is_copied();
    if (bucket >= sums_.size() || !sums_[bucket].test()) return false;
    take_back(bucket);
    return true;
  }
  std::size_t wait(std::size_t bucket) override {
    const auto until = deadline_after(ranks_->settings().timeout);
    for (; sums_.size() <= bucket; sum_next()) copied_[sums_.size()].wait(until);
    sum_what_is_copied();
    sums_[bucket].wait();
    take_back(bucket);
    return 0;
  }
  void abandon() noexcept override {
    sums_.clear();
    head_sum_ = {};
    settle();
    if (ranks_->failed()) {  // of which nothing is to be kept
      ranks_.reset();
      made_from_.reset();
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
  [[nodiscard]] std::span<T> on_host(const block& part) {
    return {reinterpret_cast<T*>(host_.span().data() + head_bytes) + part.first, part.count};
  }

  void sum_what_is_copied() {
    while (sums_.size() < copied_.size() && copied_[sums_.size()].test()) sum_next();
  }
  void sum_next() {
    const std::size_t bucket = sums_.size();
    auto& under_way = sums_.emplace_back();
    if (is_alone()) return;
    as_sent([&](auto one) {
      using T = decltype(one);
      auto values = on_host<T>(part_of_bucket(bucket));
      if constexpr (std::same_as<T, float>) {  // the head leaves with the first gradients
        if (bucket == 0) values = {head_on_host().data(), device_arena::head + values.size()};
      } else if (bucket == 0) {
        head_sum_ = allreduce_async(*ranks_, head_on_host(), sum);
      }
      under_way = allreduce_async(*ranks_, values, sum);
    });
  }
  void take_back(std::size_t bucket) {
    if (is_alone()) return;
    if (bucket == 0) head_sum_.wait();  // which was before
    const block& part = part_of_bucket(bucket);
    as_sent([&](auto one) {
      using T = decltype(one);
      copy(on_host<T>(part), sent<T>(part), stream());
      widen<T>(part, stream());
    });
  }
  // Copies end by themselves, unless a kernel that they wait for does not: those would only fill memory of this object.
  void settle() noexcept {
    if (!ranks_) return;
    try {
      const auto until = deadline_after(ranks_->settings().timeout);
      wait_for(stream(), until);
      wait_for(out_, until);
    } catch (...) {  // the device's next call has it too
    }
  }

  device_stream out_;
  pinned_buffer<std::byte> host_;
  std::shared_ptr<detail::group_state> made_from_;
  std::optional<group> ranks_;
  std::vector<device_event> copied_;  // by bucket, as far as they have left
  std::vector<work> sums_;            // as far as they are copied
  work head_sum_;                     // where the head does not leave with gradients
};

}  // namespace

std::unique_ptr<gradient_backend> gradients_on(device_arena& of, dtype send_as) {
  return std::make_unique<summed_by_group>(of, send_as);
}

}}  // namespace muster::v0
