#include <muster/train/device/gradients.hpp>

#include <array>
#include <string>
#include <vector>

#include <muster/core/device/kernels.hpp>
#include <muster/core/error.hpp>

namespace muster::inline v0 {
namespace {

// What is left to do on the stream when all collectives are done takes no peer.
constexpr seconds for_the_rest{60};

class device_gradients final : public gradient_backend {
 public:
  device_gradients(device_arena& of, nccl::communicator& devices, dtype send_as)
      : arena_(&of), devices_(&devices), send_as_(send_as) {
    if (send_as != dtype::float32) halves_ = device_buffer<std::uint16_t>(of.gradients().size());
  }

  arena_base& of() noexcept override { return *arena_; }
  void attach(std::span<const gradient_bucket> buckets) override { buckets_ = buckets; }
  void begin(group*, std::uint64_t) override { under_way_.clear(); }

  std::size_t start(std::size_t bucket) override {
    device_event(arena_->stream()).hold_back(stream_);
    const bool first = bucket == 0;
    const block& part = buckets_[bucket].part;
    const auto values = part_of(part);
    const auto head = arena_->gradients_with_head().first(device_arena::head);
    if (send_as_ == dtype::float32) {  // the head leaves with the first gradients
      under_way_.push_back(devices_->allreduce(
          first ? device_span<float>(head.data(), head.size() + part.count) : values, sum, stream_));
      return values.size_bytes();
    }
    if (first) under_way_.push_back(devices_->allreduce(head, sum, stream_));
    if (send_as_ == dtype::float16)
      start_halves(values, device_span(reinterpret_cast<float16*>(halves_.span().data()), part.count));
    else
      start_halves(values, device_span(reinterpret_cast<bfloat16*>(halves_.span().data()), part.count));
    return part.count * sizeof(std::uint16_t);
  }

  bool test(std::size_t) override { return false; }  // nothing is to be done before all of them are there
  // One stream has all: the first wait is for all, so that an optimizer's step, which changes parameters for good, is
  // put on the stream only when nothing can fail any more.
  std::size_t wait(std::size_t) override {
    for (auto& one : under_way_) one.wait();
    under_way_.clear();
    return 0;
  }
  void finish() override { device_event(stream_).hold_back(arena_->stream()); }
  void abandon() noexcept override { under_way_.clear(); }

  void put_head(const std::array<float, 2>& numbers) override {
    const auto head = arena_->gradients_with_head().first(device_arena::head);
    muster::clear(head, stream_);
    for (std::size_t k = 0; k < numbers.size(); ++k) fill(head.subspan(k, 1), numbers[k], stream_);
  }
  std::array<float, 2> head() override {
    std::array<float, 2> numbers{};
    copy(arena_->gradients_with_head().first(numbers.size()), std::span<float>(numbers), stream_);
    wait_for(stream_, deadline_after(for_the_rest));
    return numbers;
  }
  void clear(const block& part) override { muster::clear(part_of(part), arena_->stream()); }  // before it leaves
  void scale(const block& part, float by) override { muster::scale(part_of(part), by, stream_); }
  double sum_of_squares(const block& part) override {
    if (sums_.size() == 0) sums_ = device_buffer<double>(sum_scratch(arena_->gradients().size()));  // only to clip
    muster::sum_of_squares(part_of(part), sums_.span(), stream_);
    double squares = 0;
    copy(sums_.span().first(1), std::span<double>(&squares, 1), stream_);
    wait_for(stream_, deadline_after(for_the_rest));
    return squares;
  }

 private:
  [[nodiscard]] device_span<float> part_of(const block& part) {
    return arena_->gradients().subspan(part.first, part.count);
  }
  // One piece of memory serves all buckets, since they follow each other on the stream.
  template <class Half>
  void start_halves(device_span<float> values, device_span<Half> halves) {
    convert(values, halves, stream_);
    under_way_.push_back(devices_->allreduce(halves, sum, stream_));
    convert(device_span<const Half>(halves), values, stream_);
  }

  device_arena* arena_;
  nccl::communicator* devices_;
  dtype send_as_;
  std::span<const gradient_bucket> buckets_;
  device_stream stream_;  // of communication
  device_buffer<std::uint16_t> halves_;
  device_buffer<double> sums_;
  std::vector<nccl::work> under_way_;
};

}  // namespace

std::unique_ptr<gradient_backend> gradients_on(device_arena& of, nccl::communicator& devices, dtype send_as) {
  if (send_as != dtype::float32 && send_as != dtype::float16 && send_as != dtype::bfloat16) {
    throw configuration_error("gradients cannot be sent as " + std::string(to_string(send_as)) +
                              " (a device adds float32, float16 or bfloat16); choose one of these");
  }
  return std::make_unique<device_gradients>(of, devices, send_as);
}

}  // namespace muster::inline v0
