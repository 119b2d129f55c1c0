// The order in which a device works, and marks in it.
#pragma once

#include <memory>

#include <muster/core/clock.hpp>

// CUDA's own types behind cudaStream_t and cudaEvent_t: named here so that no vendor header is needed.
struct CUstream_st;
struct CUevent_st;

namespace muster { inline namespace v0 {

/// A stream as CUDA has it (`cudaStream_t` converts to it): what is put on one is done in that order. Owns nothing;
/// null is the default stream, with its implicit waiting for others.
struct device_stream_ref {
  CUstream_st* handle = nullptr;
};

/// How many devices this process can use; 0 where there is none, or no driver.
[[nodiscard]] int device_count() noexcept;
/// The device of this thread, and changing it; throws configuration_error for one that is not there.
[[nodiscard]] int current_device();
void use_device(int device);

/// Owns a stream of the device that is current when it is made; it waits for no other by itself. Destroying it leaves
/// what is on it to end. Calls into it throw muster::error with CUDA's own text.
class device_stream {
 public:
  device_stream();

  /// Valid as long as the stream.
  operator device_stream_ref() const noexcept { return {handle_.get()}; }  // NOLINT: is used as the stream it is

 private:
  struct release {
    void operator()(CUstream_st* handle) const noexcept;
  };
  std::unique_ptr<CUstream_st, release> handle_;
};

/// A mark in a stream: done when all is done that was on the stream before it.
class device_event {
 public:
  /// None, which is done.
  device_event() noexcept = default;
  /// Marks where the stream is now.
  explicit device_event(device_stream_ref at);

  /// Whether it is done, without waiting. Throws muster::error when the device has failed.
  [[nodiscard]] bool test() const;
  /// Waits for it as `wait_for` does.
  void wait(clock::time_point until) const;
  /// What is put on `stream` from here on begins after this mark; the processor does not wait.
  void hold_back(device_stream_ref stream) const;

 private:
  struct release {
    void operator()(CUevent_st* handle) const noexcept;
  };
  std::unique_ptr<CUevent_st, release> handle_;
};

/// Waits until all that is on the stream is done, no longer than the deadline: then timeout_error.
void wait_for(device_stream_ref stream, clock::time_point until);

}}  // namespace muster::v0
