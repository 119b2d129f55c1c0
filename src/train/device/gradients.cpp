#include <array>
#include <vector>

#include "device_gradients.hpp"

namespace muster::inline v0 {
namespace {

/// Summed by NCCL, on the device.
class summed_by_nccl final : public detail::device_gradients {
 public:
  summed_by_nccl(device_arena& of, nccl::communicator& devices, dtype send_as)
      : device_gradients(of, send_as), devices_(&devices) {}

  void begin(group*, std::uint64_t) override { under_way_.clear(); }

  std::size_t start(std::size_t bucket) override {
    device_event(arena().stream()).hold_back(stream());
    const block& part = part_of_bucket(bucket);
    as_sent([&](auto one) {
      using T = decltype(one);
      auto values = sent<T>(part);
      if constexpr (std::same_as<T, float>) {  // the head leaves with the first gradients
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

  bool test(std::size_t) override { return false; }  // nothing is to be done before all of them are there
  // One stream has all: the first wait is for all, so that an optimizer's step, which changes parameters for good, is
  // put on the stream only when nothing can fail any more.
  std::size_t wait(std::size_t) override {
    for (auto& one : under_way_) one.wait();
    under_way_.clear();
    return 0;
  }
  void abandon() noexcept override { under_way_.clear(); }

  void put_head(const std::array<float, 2>& numbers) override {
    muster::clear(head_of_all(), stream());
    for (std::size_t k = 0; k < numbers.size(); ++k) fill(head_of_all().subspan(k, 1), numbers[k], stream());
  }
  std::array<float, 2> head() override {
    std::array<float, 2> numbers{};
    copy(head_of_all().first(numbers.size()), std::span<float>(numbers), stream());
    wait_for(stream(), deadline_after(detail::for_the_rest));
    return numbers;
  }

 private:
  [[nodiscard]] device_span<float> head_of_all() { return arena().gradients_with_head().first(device_arena::head); }

  nccl::communicator* devices_;
  std::vector<nccl::work> under_way_;
};

}  // namespace

std::unique_ptr<gradient_backend> gradients_on(device_arena& of, nccl::communicator& devices, dtype send_as) {
  return std::make_unique<summed_by_nccl>(of, devices, send_as);
}

}  // namespace muster::inline v0
