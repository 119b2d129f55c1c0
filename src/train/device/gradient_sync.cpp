#include <muster/train/device/gradient_sync.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <muster/core/device/codec.hpp>
#include <muster/core/device/update.hpp>
#include <muster/core/error.hpp>

#include "../layout.hpp"

namespace muster::inline v0 {
namespace {

// The number of samples travels as two floats, whose sums over ranks stay exact.
constexpr std::uint64_t count_base = 4096;
constexpr std::size_t count_floats = 2;
// What is left to do on the stream when all collectives are done takes no peer.
constexpr seconds for_the_rest{60};

bool is_half(dtype type) { return type == dtype::float16 || type == dtype::bfloat16; }

}  // namespace

// ---- what a model sees ----

device_backward_pass::device_backward_pass(device_gradient_sync& of, nccl::communicator& all) : sync_(&of) {
  of.reset(all);
}
device_backward_pass::~device_backward_pass() { sync_->leave(); }
void device_backward_pass::ready(std::size_t tensor) { sync_->written(tensor); }
void device_backward_pass::wait() { sync_->wait(); }
std::uint64_t device_backward_pass::samples() const noexcept { return sync_->samples_; }
double device_backward_pass::norm() const noexcept { return sync_->norm_; }

void device_backward_pass::add_samples(std::uint64_t count) {
  if (sync_->next_start_ > 0) {
    throw configuration_error(
        "samples are counted too late (the first gradients have left, and their number with them); call add_samples "
        "before ready");
  }
  sync_->samples_here_ += count;
}

// ---- buckets ----

device_gradient_sync::device_gradient_sync(device_arena& of, const device_sync_options& options)
    : arena_(&of), options_(options), bucket_of_(of.shapes().size()), written_(of.shapes().size()) {
  if (!(options.clip >= 0 && std::isfinite(options.clip))) {
    throw configuration_error("gradients cannot be clipped to a norm of " + std::to_string(options.clip) +
                              " (it is not a number from 0 on); give a positive one, or 0 for no clipping");
  }
  if (options.send_as != dtype::float32 && !is_half(options.send_as)) {
    throw configuration_error("gradients cannot be sent as " + std::string(to_string(options.send_as)) +
                              " (a device adds float32, float16 or bfloat16); choose one of these");
  }
  for (auto& planned : detail::plan_buckets(of.extents(), options.bucket, options.first_bucket)) {
    for (const std::size_t tensor : planned.tensors) bucket_of_[tensor] = buckets_.size();
    buckets_.push_back({planned.part, std::move(planned.tensors)});
  }
  if (is_half(options.send_as)) halves_ = device_buffer<std::uint16_t>(of.gradients().size());
  if (options.clip > 0) sums_ = device_buffer<double>(sum_scratch(of.gradients().size()));
}

device_backward_pass device_gradient_sync::begin(nccl::communicator& all) {
  if (all_ != nullptr) {
    throw configuration_error(
        "a backward pass cannot begin (the last one is under way); let it end, by wait() or by leaving its scope");
  }
  return {*this, all};
}

void device_gradient_sync::reset(nccl::communicator& all) {
  all_ = &all;
  std::fill(written_.begin(), written_.end(), false);
  for (auto& one : buckets_) one.missing = one.tensors.size();
  next_start_ = 0;
  samples_here_ = samples_ = 0;
  norm_ = 0;
  bytes_sent_ = 0;
}

void device_gradient_sync::leave() noexcept {
  under_way_.clear();
  all_ = nullptr;
}

void device_gradient_sync::written(std::size_t tensor) {
  if (tensor >= written_.size() || written_[tensor]) {
    throw configuration_error(tensor >= written_.size()
                                  ? "no tensor has index " + std::to_string(tensor) + " (the arena has " +
                                        std::to_string(written_.size()) + "); count from 0"
                                  : "the gradient of '" + arena_->shapes()[tensor].name +
                                        "' was written twice (it may be on its way); call ready once a pass");
  }
  written_[tensor] = true;
  --buckets_[bucket_of_[tensor]].missing;
  start_complete_buckets();
}

// In one order at every rank.
void device_gradient_sync::start_complete_buckets() {
  while (next_start_ < buckets_.size() && buckets_[next_start_].missing == 0) start(next_start_++);
}

void device_gradient_sync::start(std::size_t index) {
  device_event(arena_->stream()).hold_back(stream_);
  auto values = arena_->gradients().subspan(buckets_[index].part.first, buckets_[index].part.count);
  if (index == 0) {
    const auto head = arena_->gradients_with_head().first(device_arena::head);
    clear(head, stream_);
    fill(head.first(1), static_cast<float>(samples_here_ / count_base), stream_);
    fill(head.subspan(1, 1), static_cast<float>(samples_here_ % count_base), stream_);
    if (is_half(options_.send_as))
      under_way_.push_back(all_->allreduce(head, sum, stream_));
    else
      values = {head.data(), head.size() + values.size()};  // the number leaves with the first gradients
  }
  if (options_.send_as == dtype::float16) {
    start_halves<float16>(values, {reinterpret_cast<float16*>(halves_.span().data()), values.size()});
  } else if (options_.send_as == dtype::bfloat16) {
    start_halves<bfloat16>(values, {reinterpret_cast<bfloat16*>(halves_.span().data()), values.size()});
  } else {
    under_way_.push_back(all_->allreduce(values, sum, stream_));
    bytes_sent_ += values.size_bytes();
  }
}

// One piece of memory serves all buckets, since they follow each other on the stream.
template <class Half>
void device_gradient_sync::start_halves(device_span<float> values, device_span<Half> halves) {
  convert(values, halves, stream_);
  under_way_.push_back(all_->allreduce(halves, sum, stream_));
  convert(device_span<const Half>(halves), values, stream_);
  bytes_sent_ += halves.size_bytes();
}

void device_gradient_sync::wait() {
  for (std::size_t tensor = 0; tensor < written_.size(); ++tensor) {
    if (!written_[tensor]) clear(arena_->gradient(tensor), arena_->stream());
  }
  for (auto& one : buckets_) one.missing = 0;
  start_complete_buckets();
  for (auto& one : under_way_) one.wait();
  under_way_.clear();

  std::array<float, count_floats> count{};
  copy(arena_->gradients_with_head().first(count_floats), std::span<float>(count), stream_);
  wait_for(stream_, deadline_after(for_the_rest));
  samples_ = static_cast<std::uint64_t>(count[0]) * count_base + static_cast<std::uint64_t>(count[1]);
  if (samples_ == 0 && std::ranges::find(written_, true) != written_.end()) {
    throw configuration_error(
        "the gradients cannot be divided by the number of samples (nobody counted any); call add_samples in the "
        "backward pass");
  }
  if (samples_ > 0) scale(arena_->gradients(), static_cast<float>(1.0 / static_cast<double>(samples_)), stream_);
  if (options_.clip > 0) clip();
  device_event(stream_).hold_back(arena_->stream());
  all_ = nullptr;
}

void device_gradient_sync::clip() {
  sum_of_squares(arena_->gradients(), sums_.span(), stream_);
  double squares = 0;
  copy(sums_.span().first(1), std::span<double>(&squares, 1), stream_);
  wait_for(stream_, deadline_after(for_the_rest));
  norm_ = std::sqrt(squares);
  if (norm_ > static_cast<double>(options_.clip))
    scale(arena_->gradients(), static_cast<float>(static_cast<double>(options_.clip) / norm_), stream_);
}

}  // namespace muster::inline v0
